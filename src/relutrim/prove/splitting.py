"""Branch and bound on the inputs, for networks with few: halve the domain's box, bound the parts at once.

Every missing state is decided part by part: a neuron is stable if it is so on every part, and unstable if any
part shows it. The inputs at which the linear bounds of the parts are smallest are tried as witnesses, so all
neurons profit from each other's parts. A part whose neurons are all decided is not split again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from relutrim.bounds.boxes import Forms, bound_boxes
from relutrim.bounds.values import flat
from relutrim.prove.deadline import Deadline
from relutrim.prove.parts import PartsProof
from relutrim.search.climb import grouped

if TYPE_CHECKING:
    from relutrim.prove.cascade import Cascade

_FREE_INPUTS = 6
"""Above so many inputs, halves are too many."""
_BATCH_BYTES = 256 * 2**20
_PARTS = 200_000
"""So many parts in all, then the rest is left to others."""
_HALVINGS = 40


def applies(cascade: Cascade) -> bool:
    """Whether splitting inputs can lead anywhere: a plain box with few free inputs."""
    region = cascade.region
    return not region.constrained and int((region.hi > region.lo).sum()) <= _FREE_INPUTS


@dataclass(frozen=True, eq=False)
class _Group:
    """Targets of one ReLU and direction: neurons, and their columns among all targets. ``seen`` names the
    state that refutes them.
    """

    relu: str
    pre: str
    sign: float
    seen: str
    index: Tensor
    columns: Tensor


@dataclass(eq=False)
class Splitting:
    """One run, on the state of a cascade."""

    cascade: Cascade
    deadline: Deadline
    _groups: list[_Group] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        network = self.cascade.network
        widest = max(network.size(node.name) for node in network.nodes)
        self.batch = max(4, min(256, _BATCH_BYTES // (8 * 4 * widest * widest)))

    def run(self) -> None:
        """Until every missing state is decided or time is up."""
        cascade = self.cascade
        targets = cascade.missing()
        if not len(targets):
            return
        network = cascade.network
        order = {node.name: place for place, node in enumerate(network.nodes)}
        for name, rows in grouped(targets).items():
            pre = network[name].inputs[0]
            for sign, seen in ((1.0, "inactive"), (-1.0, "active")):
                columns = rows[targets.sign[rows] == -sign]
                if len(columns):
                    self._groups.append(_Group(name, pre, sign, seen, targets.index[columns], columns))
        self._until = max((group.pre for group in self._groups), key=order.__getitem__)
        count, like = len(targets), cascade.region.lo
        lo, hi = like[None], cascade.region.hi[None]
        todo = torch.ones(1, count, dtype=torch.bool, device=like.device)
        halved = torch.zeros(1, dtype=torch.int64, device=like.device)
        given_up = torch.zeros(count, dtype=torch.bool, device=like.device)
        least = torch.full((count,), torch.inf, dtype=torch.float64, device=like.device)
        done: list[tuple[Tensor, Tensor, Tensor]] = []
        parts = 0
        while len(lo) and parts < _PARTS and not self.deadline.passed:
            # The last ones first: the smallest parts, so that few wait.
            at = max(0, len(lo) - self.batch)
            lows, highs, age, wanted = lo[at:], hi[at:], halved[at:], todo[at:] & self._open() & ~given_up
            lo, hi, halved, todo = lo[:at], hi[:at], halved[:at], todo[:at]
            lower, score = self._bound(lows, highs, wanted)
            proved = wanted & (lower >= 0)
            least = torch.minimum(least, torch.where(proved, lower, torch.inf).amin(0))
            some = proved.any(1)
            done.append((lows[some], highs[some], proved[some]))
            parts += len(lows)
            # What is open on a part this small has its extreme value there, and it is 0 or nearly so.
            wanted = wanted & ~proved
            given_up |= wanted[age >= _HALVINGS].any(0)
            wanted = wanted & self._open() & ~given_up
            left = wanted.any(1)
            halves = _halves(lows[left], highs[left], score[left])
            lo, hi = torch.cat([lo, halves[0]]), torch.cat([hi, halves[1]])
            halved = torch.cat([halved, (age[left] + 1).repeat(2)])
            todo = torch.cat([todo, wanted[left].repeat(2, 1)])
            cascade.report("splitting")
        cascade.nodes += parts
        self._keep(least, self._open() & ~given_up & ~todo.any(0), done)

    def _open(self) -> Tensor:
        """Which targets no input has refuted so far."""
        count = sum(len(group.columns) for group in self._groups)
        found = torch.zeros(count, dtype=torch.bool, device=self.cascade.region.lo.device)
        for group in self._groups:
            states = getattr(self.cascade.witnesses.seen[group.relu], group.seen)
            found[group.columns] = states[group.index] < 0
        return found

    def _bound(self, lo: Tensor, hi: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """The lower bound of each target on each part (parts, targets), and how much each input matters."""
        cascade = self.cascade
        values, forms = bound_boxes(cascade.network, cascade.region, cascade.values, lo, hi, self._until)
        lower = torch.full_like(wanted, torch.nan, dtype=lo.dtype)
        for group in self._groups:
            pre = values[group.pre]
            ends = flat(pre.lo if group.sign > 0 else -pre.hi)
            lower[:, group.columns] = ends[:, group.index]
        missing = wanted & ~(lower >= 0)
        score, points = torch.zeros_like(lo), [(lo + hi) / 2]
        for form in forms:
            rows = self._missing_rows(form, missing)
            boxes = form.boxes[rows]
            reach = form.forms[rows].abs() * (hi - lo)[boxes]
            score.index_add_(0, boxes, reach / reach.amax(1, keepdim=True).clamp(min=1e-300))
            points.append(torch.where(form.forms[rows] > 0, lo[boxes], hi[boxes]))
        cascade.witnesses.observe(torch.cat(points))
        return lower, score.nan_to_num(0.0) + 1e-9 * (hi - lo)

    def _missing_rows(self, form: Forms, missing: Tensor) -> Tensor:
        """The rows of a form that are about a target not proved on their part."""
        for group in self._groups:
            if group.pre == form.name and group.sign == form.sign:
                size = self.cascade.network.size(form.name)
                column = torch.full((size,), -1, dtype=torch.int64, device=form.index.device)
                column[group.index] = group.columns
                mine = column[form.index]
                return ((mine >= 0) & missing[form.boxes, mine.clamp(min=0)]).nonzero()[:, 0]
        return form.index.new_zeros(0)

    def _keep(self, least: Tensor, proved: Tensor, done: list[tuple[Tensor, Tensor, Tensor]]) -> None:
        cascade = self.cascade
        ranges = dict(cascade.values)
        for group in self._groups:
            for neuron, column in zip(group.index.tolist(), group.columns.tolist(), strict=True):
                if bool(proved[column]):
                    lo = torch.cat([lo[own[:, column]] for lo, _, own in done])
                    hi = torch.cat([hi[own[:, column]] for _, hi, own in done])
                    bound = float(least[column])
                    proof = PartsProof(group.pre, neuron, group.sign, bound, ranges, lo, hi)
                    cascade.prove(group.pre, neuron, group.sign, bound, proof, 0)


def _halves(lo: Tensor, hi: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
    """Each part cut in two where it matters most; nothing of it is lost, the cut belongs to both."""
    rows = torch.arange(len(lo), device=lo.device)
    axis = torch.where(hi > lo, score, -torch.inf).argmax(1) if lo.shape[1] else rows
    middle = lo[rows, axis] / 2 + hi[rows, axis] / 2
    left, right = hi.clone(), lo.clone()
    left[rows, axis], right[rows, axis] = middle, middle
    return torch.cat([lo, right]), torch.cat([left, hi])
