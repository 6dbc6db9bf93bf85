"""The first cascade: cheap bounds for all neurons, then inputs that refute the rest.

1. A few random inputs, and the data if there is any: most unstable neurons show both states at once.
2. Layer by layer, interval bounds, then linear bounds for what the intervals leave open. The input at which a
   linear bound is smallest is the most promising witness against it, so it is tried at once; other slopes
   only for neurons that are neither proved nor refuted by then.
3. Gradient search for the few that are left, from the most promising inputs met so far.
4. Linear programs over the convex hulls of single neurons, with branching, for what resists both.

Every bound found on the way tightens all layers behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from relutrim.bounds.interval import forward_radius, input_interval, node_interval, settle_ties
from relutrim.bounds.linear import Backward
from relutrim.bounds.relaxation import Slope
from relutrim.bounds.values import Interval
from relutrim.domain.domain import Problem
from relutrim.network.graph import Network, Node
from relutrim.network.operators import Linear, Relu, Reshape, Scale
from relutrim.prove.deadline import Deadline
from relutrim.prove.hull.bound import hull_bound
from relutrim.rounding import require_ieee
from relutrim.search.climb import Targets, climb
from relutrim.search.leap import leap
from relutrim.search.witnesses import Witnesses

_ROWS = 1024
_RANDOM = 256
_STUBBORN = 64
_HULL_SECONDS = 0.8

Progress = Callable[[str, int, int], None]
"""Called with a stage's name, how many neurons are decided, and how many there are."""


@dataclass(eq=False)
class Cascade:
    """One run over one problem. ``values`` and ``witnesses`` are valid after every step, whatever stops the
    run.
    """

    problem: Problem
    deadline: Deadline
    device: str = "cpu"
    seed: int = 0
    progress: Progress | None = None
    values: dict[str, Interval] = field(default_factory=dict, init=False)
    sources: dict[str, list[str]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        require_ieee()
        self.network: Network = self.problem.network
        self.region = self.problem.region(self.device)
        self._intervals()
        self.witnesses = Witnesses(self.network, self.region, forward_radius(self.network, self.values))
        self.backward = Backward(self.network, self.region, self.values)
        self.generator = torch.Generator().manual_seed(self.seed)

    def run(self, data: Iterable[Tensor] = ()) -> int:
        """All of the cascade, as far as time allows. Returns how many rows of data lay in the domain."""
        self.witnesses.observe(self.region.sample(_RANDOM, self.generator))
        counted = self.observe(data)
        self.bound(search=True)
        self._gradients()
        self._sharpen()
        self._leaps()
        self._hulls()
        return counted

    def observe(self, data: Iterable[Tensor]) -> int:
        """The paper's preprocessing: the states that batches of data show. Returns how many rows lay in the
        domain.
        """
        counted = 0
        for batch in data:
            if self.deadline.passed:
                break
            counted += self.witnesses.observe(batch.to(self.region.lo).reshape(len(batch), self.region.size))
            self._report("data")
        return counted

    def bound(self, *, search: bool) -> None:
        """Linear bounds, layer by layer; with ``search`` their minimisers are tried as witnesses."""
        for name in (self.network.input.name, *(node.name for node in self.network.nodes)):
            if self.deadline.passed:
                return
            self._refresh(name)
            relus = [reader for reader in self.network.readers(name) if isinstance(reader.operator, Relu)]
            if relus:
                self._tighten(name, relus[0], search)
                self._report("bounds")

    def _gradients(self) -> None:
        """Quick gradient rounds for all missing states."""
        for steps in (8, 24):
            self._attack(partial(climb, self.network, self.region, steps=steps, deadline=self.deadline))

    def _sharpen(self) -> None:
        """If anything is undecided: every slope for every neuron that intervals leave open, not only the
        undecided ones.

        Their ranges are what the relaxations behind them are made of.
        """
        open_layers = [relu for relu in self.network.relus if bool(self.undecided(relu).any())]
        if not open_layers:
            return
        for node in self.network.nodes:
            self._refresh(node.name)
            for relu in self.network.readers(node.name):
                if isinstance(relu.operator, Relu) and self._has_relu_before(node.name):
                    for slope in (Slope.ADAPTIVE, Slope.ZERO, Slope.CHORD):
                        self._corners(node.name, relu, self._loose(node.name), slope)
            if self.deadline.passed or open_layers[-1] in self.network.readers(node.name):
                return

    def _leaps(self) -> None:
        """The strongest search, for the stubborn few. Where it shows nothing for many, it is not repeated."""
        before = len(self._missing())
        self._leap(steps=15, starts=2)
        left = len(self._missing())
        if left and (left <= _STUBBORN or left < before):
            self._leap(steps=60, starts=max(1, min(8, 8 * _STUBBORN // left)))

    def _leap(self, *, steps: int, starts: int) -> None:
        method = partial(leap, self.network, self.region, steps=steps, deadline=self.deadline)
        self._attack(method, starts)

    def _hulls(self) -> None:
        """Linear programs over the neurons' convex hulls for what is left, the nearest to a proof first.

        They get all the time that is left, in fair shares; without a limit only a little.
        """
        deadline = self.deadline if self.deadline.seconds is not None else Deadline(_HULL_SECONDS)
        targets = self._missing()
        known = []
        for name, neuron, sign in zip(
            targets.relu, targets.index.tolist(), targets.sign.tolist(), strict=True
        ):
            pre = self.values[self.network[name].inputs[0]]
            known.append(
                (abs(float((pre.hi if sign > 0 else pre.lo).flatten()[neuron])), name, neuron, -sign)
            )
        for done, (_, name, neuron, sign) in enumerate(sorted(known)):
            if deadline.passed:
                return
            relu = self.network[name]
            if bool(self.undecided(relu)[neuron]):
                share = deadline.within(deadline.left / (len(known) - done))
                self._hull(relu, neuron, sign, share)
                self._report("programs")

    def _hull(self, relu: Node, neuron: int, sign: float, deadline: Deadline) -> None:
        """One neuron in one direction: ``sign`` +1 asks for a proof that it is active."""
        seen = self.witnesses.seen[relu.name]

        def refuted(points: Tensor) -> bool:
            self.witnesses.observe(self.region.project(points))
            return bool((seen.inactive if sign > 0 else seen.active)[neuron] >= 0)

        pre = relu.inputs[0]
        try:
            found = hull_bound(self.backward, pre, neuron, sign, deadline, refuted)
        except RuntimeError:  # a solver that breaks decides nothing
            return
        index = torch.tensor([neuron], device=self.region.lo.device)
        self._improve(pre, index, sign, torch.tensor([found.lower], dtype=torch.float64, device=index.device))

    def _attack(self, method: Callable[[Targets], Tensor], starts: int = 1) -> None:
        """Try a search method on all missing states, from ``starts`` inputs each."""
        targets = self._missing()
        if not len(targets):
            return
        rows = torch.arange(len(targets), device=self.region.lo.device).repeat_interleave(starts)
        for part in torch.split(rows, max(1, self.witnesses.chunk // 16)):
            if self.deadline.passed:
                return
            chosen = targets.take(part)
            self.witnesses.observe(method(replace(chosen, starts=self._shaken(chosen.starts, part, starts))))
            self._report("search")

    def _shaken(self, starts: Tensor, rows: Tensor, count: int) -> Tensor:
        """The first start of each target as it is, the others with ever more coordinates set to random
        corners.
        """
        turn = torch.arange(len(rows)) % count
        share = (0.1 * turn)[:, None]
        pick = torch.rand(starts.shape, generator=self.generator) < share
        corner = torch.rand(starts.shape, generator=self.generator) < 0.5
        corners = torch.where(corner.to(starts.device), self.region.lo, self.region.hi)
        return self.region.project(torch.where(pick.to(starts.device), corners, starts))

    def undecided(self, relu: Node) -> Tensor:
        """Which neurons of a ReLU are neither proved stable nor shown unstable."""
        return self._loose(relu.inputs[0]) & ~self.witnesses.seen[relu.name].both

    def _intervals(self) -> None:
        """Ranges of every value by intervals alone: the frame for everything else, and quick even for large
        networks.
        """
        self.values[self.network.input.name] = input_interval(self.network, self.region.box())
        for node in self.network.nodes:
            found = node_interval(node, self.values)
            self.values[node.name] = settle_ties(node, self.values, found, self.deadline)

    def _refresh(self, name: str) -> None:
        """What tighter bounds before a value say about it."""
        if name in self.network:
            self.values[name] = self.values[name].meet(node_interval(self.network[name], self.values))

    def _tighten(self, name: str, relu: Node, search: bool) -> None:
        """Linear bounds for the neurons of ``relu``, which reads the value ``name``."""
        if search or not self._interval_is_exact(name):
            self._corners(name, relu, self._loose(name), Slope.ADAPTIVE, search=search)
        if not self._has_relu_before(name):
            return
        for slope in (Slope.ZERO, Slope.ONE, Slope.CHORD):
            if self.deadline.passed:
                return
            self._corners(name, relu, self.undecided(relu), slope, search=search)

    def _loose(self, name: str) -> Tensor:
        """Which entries of a value have ranges that hold both signs."""
        pre = self.values[name]
        return ~((pre.lo >= 0) | (pre.hi <= 0)).flatten()

    def _corners(self, name: str, relu: Node, which: Tensor, slope: Slope, *, search: bool = True) -> None:
        """Bound the neurons ``which`` from both sides, and try the minimisers where a state is still
        missing.
        """
        seen = self.witnesses.seen[relu.name]
        for sign, missing in ((1.0, seen.inactive), (-1.0, seen.active)):
            for index in torch.split(which.nonzero()[:, 0], _ROWS):
                if self.deadline.passed:
                    return
                bounded = self.backward.neurons(name, index, sign, slope)
                self._improve(name, index, sign, bounded.lower)
                wanted = (missing[index] < 0) & (bounded.lower < 0)
                if search and bool(wanted.any()):
                    self.witnesses.observe(self.region.minimisers(bounded.forms[wanted]))

    def _improve(self, name: str, index: Tensor, sign: float, lower: Tensor) -> None:
        """Keep a bound where it is better than what was known."""
        known = self.values[name]
        ends = torch.full_like(known.lo, torch.nan).flatten()
        ends[index] = lower
        ends = ends.reshape(known.lo.shape)
        nothing = torch.full_like(ends, torch.nan)
        self.values[name] = known.meet(Interval(ends, nothing) if sign > 0 else Interval(nothing, -ends))
        self.backward.forget()

    def _missing(self) -> Targets:
        """Every state of an undecided neuron that no input has shown yet, with the most promising input so
        far.
        """
        names: list[str] = []
        indices, signs, starts = [], [], []
        for relu in self.network.relus:
            seen, open_ = self.witnesses.seen[relu.name], self.undecided(relu)
            for missing, sign, at in (
                (seen.active, 1.0, seen.highest_at),
                (seen.inactive, -1.0, seen.lowest_at),
            ):
                index = (open_ & (missing < 0)).nonzero()[:, 0]
                names += [relu.name] * len(index)
                indices.append(index)
                signs.append(torch.full((len(index),), sign, dtype=torch.float64, device=index.device))
                starts.append(at[index])
        like = self.region.lo
        return Targets(
            names,
            torch.cat(indices) if indices else like.new_zeros(0, dtype=torch.int64),
            torch.cat(signs) if signs else like.new_zeros(0),
            torch.cat(starts) if starts else like.new_zeros(0, self.region.size),
        )

    def _interval_is_exact(self, name: str) -> bool:
        """On a plain box, the range of one linear layer of the inputs is what interval arithmetic says."""
        if self.region.constrained:
            return False
        linear = 0
        while name in self.network:
            node = self.network[name]
            linear += isinstance(node.operator, Linear)
            if not isinstance(node.operator, Linear | Reshape | Scale) or linear > 1:
                return False
            name = node.inputs[0]
        return True

    def _has_relu_before(self, name: str) -> bool:
        """Whether any relaxation is involved, so that another slope could help."""
        waiting, known = [name], {name}
        while waiting:
            current = waiting.pop()
            if current not in self.network:
                continue
            node = self.network[current]
            if isinstance(node.operator, Relu):
                return True
            waiting += [before for before in node.inputs if before not in known]
            known.update(node.inputs)
        return False

    def _report(self, stage: str) -> None:
        if self.progress is not None:
            total = self.network.neurons
            left = sum(int(self.undecided(relu).sum()) for relu in self.network.relus)
            self.progress(stage, total - left, total)
