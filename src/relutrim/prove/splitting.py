"""Branch and bound on the inputs, for networks with few: halve the domain's box, bound the parts at once.

Every missing state is decided part by part: a neuron is stable if it is so on every part, and unstable if any
part shows it. The inputs at which the linear bounds of the parts are smallest are tried as witnesses, so all
neurons profit from each other's parts. A part whose neurons are all decided is not split again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from relutrim.bounds.boxes import Forms, bound_boxes
from relutrim.intervals import flat
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
_SMALL = 16
"""Halvings behind which a part is not halved for what rounding alone keeps open."""
_SECONDS = 2.0
"""Parts are written to a journal this often."""


def applies(cascade: Cascade) -> bool:
    """Whether splitting inputs can lead anywhere: a plain box with few free inputs, and ranges with ends."""
    region = cascade.region
    if cascade.endless or not region.bounded:
        return False
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
        self.batch = max(4, min(256, self.cascade.memory.share(_BATCH_BYTES) // (8 * 4 * widest * widest)))
        self._halved: list[tuple[Tensor, Tensor]] = []
        self._seen = len(self.cascade.witnesses.pool)
        self._last = time.monotonic()

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
        lo, hi, place, parts = self._started()
        todo = torch.ones(len(lo), count, dtype=torch.bool, device=like.device)
        given_up = torch.zeros(count, dtype=torch.bool, device=like.device)
        least = torch.full((count,), torch.inf, dtype=torch.float64, device=like.device)
        certain = cascade.witnesses.certain(targets)
        done: list[tuple[Tensor, Tensor, Tensor]] = []
        while len(lo) and parts < _PARTS and not self.deadline.passed:
            # The last ones first: the smallest parts, so that few wait.
            at = max(0, len(lo) - self.batch)
            lows, highs, own, wanted = lo[at:], hi[at:], place[at:], todo[at:] & self._open() & ~given_up
            lo, hi, place, todo = lo[:at], hi[:at], place[:at], todo[:at]
            lower, score = self._bound(lows, highs, wanted)
            proved = wanted & (lower >= 0)
            least = torch.minimum(least, torch.where(proved, lower, torch.inf).amin(0))
            some = proved.any(1)
            done.append((lows[some], highs[some], proved[some]))
            parts += len(lows)
            # What is open on a part this small has its extreme value there, and it is 0 or nearly so.
            wanted = wanted & ~proved
            given_up |= wanted[own >= 2**_HALVINGS].any(0)
            given_up |= (wanted & ~(lower < -certain))[own >= 2**_SMALL].any(0)
            wanted = wanted & self._open() & ~given_up
            left = wanted.any(1)
            axis = _axes(lows[left], highs[left], score[left])
            halves = _halves(lows[left], highs[left], axis)
            lo, hi = torch.cat([lo, halves[0]]), torch.cat([hi, halves[1]])
            place = torch.cat([place, 2 * own[left], 2 * own[left] + 1])
            self._note(own[left], axis)
            todo = torch.cat([todo, wanted[left].repeat(2, 1)])
            cascade.report("splitting")
        self._write()
        cascade.nodes += parts
        self._keep(least, self._open() & ~given_up & ~todo.any(0), done)

    def _started(self) -> tuple[Tensor, Tensor, Tensor, int]:
        """The parts to begin with, their numbers (the halves of ``k`` are ``2 k`` and ``2 k + 1``), and how
        many were looked at before: the whole box, or it cut as a journal says. However it is cut, nothing of
        it is lost, and every part has to be proved here.
        """
        like, journal = self.cascade.region.lo, self.cascade.journal
        lo, hi = like[None], self.cascade.region.hi[None]
        place = torch.ones(1, dtype=torch.int64, device=like.device)
        if journal is None:
            return lo, hi, place, 0
        *halved, points = journal.splits(like)
        self.cascade.witnesses.observe(points)
        numbers, axes = (torch.from_numpy(array).to(like.device) for array in halved)
        numbers, order = numbers.sort(stable=True)
        axes, count = axes[order], 0
        kept: list[tuple[Tensor, Tensor, Tensor]] = []
        for _ in range(_HALVINGS if len(numbers) else 0):
            at = torch.searchsorted(numbers, place).clamp(max=len(numbers) - 1)
            axis = axes[at].clamp(0, len(like) - 1)
            cut = (numbers[at] == place) & (axis == axes[at])
            kept.append((lo[~cut], hi[~cut], place[~cut]))
            lo, hi = _halves(lo[cut], hi[cut], axis[cut])
            place = torch.cat([2 * place[cut], 2 * place[cut] + 1])
            count += int(cut.sum())
        kept.append((lo, hi, place))
        lo, hi, place = (torch.cat(parts) for parts in zip(*kept, strict=True))
        return lo, hi, place, count

    def _note(self, place: Tensor, axis: Tensor) -> None:
        """Have the parts that are halved written down now and then, where there is a journal."""
        if self.cascade.journal is not None:
            self._halved.append((place, axis))
            if time.monotonic() - self._last >= _SECONDS:
                self._write()

    def _write(self) -> None:
        if self.cascade.journal is not None and self._halved:
            places, axes = (torch.cat(column).cpu().numpy() for column in zip(*self._halved, strict=True))
            self.cascade.journal.note_splits(places, axes, self.cascade.witnesses.since(self._seen))
            self._seen = len(self.cascade.witnesses.pool)
            self._halved.clear()
            self._last = time.monotonic()

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


def _axes(lo: Tensor, hi: Tensor, score: Tensor) -> Tensor:
    """Per part the axis along which it matters most."""
    if not lo.shape[1]:
        return torch.zeros(len(lo), dtype=torch.int64, device=lo.device)
    return torch.where(hi > lo, score, -torch.inf).argmax(1)


def _halves(lo: Tensor, hi: Tensor, axis: Tensor) -> tuple[Tensor, Tensor]:
    """Each part cut in two; nothing of it is lost, the cut belongs to both."""
    rows = torch.arange(len(lo), device=lo.device)
    middle = lo[rows, axis] / 2 + hi[rows, axis] / 2
    left, right = hi.clone(), lo.clone()
    left[rows, axis], right[rows, axis] = middle, middle
    return torch.cat([lo, right]), torch.cat([left, hi])
