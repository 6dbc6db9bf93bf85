"""The cascade: cheap bounds for all neurons, inputs that refute what they leave, and more for the last few.

1. A few random inputs, and the data if there is any: most unstable neurons show both states at once.
2. Layer by layer, interval bounds, then linear bounds for what the intervals leave open. The input at which a
   linear bound is smallest is the most promising witness against it, so it is tried at once; other slopes
   only for neurons that are neither proved nor refuted by then.
3. Gradient searches for what is left: quick ones from the most promising inputs met so far; then, with every
   slope tried for every neuron, one through a smoothed network.
4. For what resists both: with few inputs, parts of the domain (:mod:`relutrim.prove.splitting`); then branch
   and bound on the states of neurons (:mod:`relutrim.prove.tree_search`).

Every bound found on the way tightens all layers behind it.

What depends on something without end (an input that may be any number, a value from nowhere) is decided by
intervals and by the first inputs alone: linear bounds, searches and trees are for what is bounded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from relutrim.bounds.interval import forward_radius, input_interval, settle_ties, value_interval
from relutrim.bounds.linear import Backward
from relutrim.bounds.relaxation import Slope
from relutrim.domain.domain import Problem
from relutrim.graph.graph import Network, Node
from relutrim.graph.operators import Affine, Barrier, Convolution, Linear, Relu, Reshape, Scale, Transpose
from relutrim.intervals import Interval
from relutrim.memory import AMPLE, MemoryBudget
from relutrim.prove.deadline import Deadline
from relutrim.prove.hunt import Hunt
from relutrim.prove.parts import AnyProof
from relutrim.prove.useful import Relevance, States
from relutrim.prove.wanted import Wanted
from relutrim.rounding import require_ieee
from relutrim.search.climb import Targets
from relutrim.search.witnesses import Witnesses

if TYPE_CHECKING:
    from relutrim.journal.journal import Journal

_ROWS, _FEWEST_ROWS, _FIRST_WORK = 1024, 16, 2**30
"""How many neurons are bounded at once at most, and at least; at first, if time is limited, as many as take
so many multiplications.
"""
_PART_SECONDS = 0.25
_RANDOM, _MANY, _WORK = 32, 256, 2**33
"""So many inputs to begin with, more where channels are asked about with little else; or fewer, so that they
take no more than so many multiplications.
"""
_PER_NUMBER = 16
"""How many multiplications take as long as looking at one number of a value."""
_NUMBERS = 2**25
"""How many numbers the inputs to begin with may have together."""
_BEGINNING = 0.3
"""The part of the time that they may take."""
_ENDLESS, _ENDLESS_WORK = 512, 2**28
"""Where inputs have no end there are more, because nothing else shows states."""
_PROBES = 64
_EACH = _WHOLE = 2**13
"""Where only channels are of use, so many neurons of a ReLU get a bound each for the sake of others, and in a
network of so many every channel gets all there is.
"""
_LIKELY = 1e-9
"""How far from 0 a computed value is for its sign to be likely."""
_START_BYTES = 512 * 2**20
"""What the inputs that searches start from may take."""
LAST_SECONDS = 300.0
"""The limit of the last stage where the analysis has none."""

Progress = Callable[[str, int, int], None]
"""Called with a stage's name, how many neurons are decided, and how many there are."""


@dataclass(frozen=True, eq=False)
class Known:
    """What other runs of the prover found on the same network and domain.

    ``bounds`` are (ReLU, neuron, sign, lower) with ``sign * y >= lower`` for the neuron's pre-activation.
    They are taken at their word, and the proofs stay where they were found, so that
    :mod:`relutrim.prove.recheck` does not confirm what rests on them. ``inputs`` are tried like any others.
    """

    bounds: tuple[tuple[str, int, float, float], ...]
    inputs: Tensor


@dataclass(eq=False)
class Cascade:
    """One run over one problem. ``values`` and ``witnesses`` are valid after every step, whatever stops the
    run.
    """

    problem: Problem
    deadline: Deadline
    device: str = "cpu"
    seed: int = 0
    jobs: int = 1
    progress: Progress | None = None
    journal: Journal | None = None
    """What earlier runs found, and where this one writes what it finds."""
    among: frozenset[tuple[str, int]] | None = None
    """The neurons that the last stage is for; None: all."""
    known: Known | None = None
    memory: MemoryBudget = AMPLE
    relevance: Relevance | None = None
    """Who has a use for the verdicts; None: every verdict is of use."""
    proofs: list[AnyProof] = field(default_factory=list, init=False)
    nodes: int = field(default=0, init=False)
    values: dict[str, Interval] = field(default_factory=dict, init=False)
    endless: set[str] = field(default_factory=set, init=False)
    """Values that have no end somewhere, or depend on some that have none."""
    spared: int = field(default=0, init=False)
    """How many states of channels have been left at what was known of them."""
    _left: set[str] = field(default_factory=set, init=False)
    _each: bool = field(default=False, init=False)
    _read: dict[str, tuple[Interval, ...]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        require_ieee()
        self.network: Network = self.problem.network
        self.region = self.problem.region(self.device)
        self._intervals()
        self.witnesses = Witnesses(
            self.network, self.region, forward_radius(self.network, self.values), self.memory
        )
        self.backward = Backward(self.network, self.region, self.values, memory=self.memory)
        self._most_rows = max(1, min(_ROWS, self.backward.rows // 2))
        first = max(_FEWEST_ROWS, _FIRST_WORK // max(1, self.network.multiply_adds))
        self.rows = min(first, self._most_rows) if self.deadline.limited else self._most_rows
        self.generator = torch.Generator().manual_seed(self.seed)
        self.hunt = Hunt(self)

    def run(self, data: Iterable[Tensor] = ()) -> int:
        """All of the cascade, as far as time allows. Returns how many rows of data lay in the domain."""
        first = self.deadline.within(_BEGINNING * self.deadline.left)
        self._begin(first)
        counted = self.observe(data)
        if self.known is not None:
            self.witnesses.observe(self.known.inputs.to(self.region.lo), self.deadline)
            for relu, neuron, sign, lower in self.known.bounds:
                self.prove(self.network[relu].inputs[0], neuron, sign, lower, None, 0)
        self.bound(search=True)
        if self._brief:
            self._spare()
        self.hunt.quickly()
        self._each = True
        if self.missing():
            self.rebound(self.network.input.name)
            self.hunt.thoroughly()
        if self.missing():
            from relutrim.prove.splitting import Splitting, applies
            from relutrim.prove.tree_search import TreeSearch

            self.deadline = self.deadline.or_within(LAST_SECONDS)
            if applies(self):
                Splitting(self, self.deadline).run()
            TreeSearch(self, self.deadline, self.jobs, self.among).run()
        self.recall_rest()
        return counted

    def _begin(self, deadline: Deadline) -> None:
        """Observe inputs at random, as many at a time as memory has room for."""
        most = max(1, self.memory.share(_NUMBERS) // max(1, self.region.size))
        left = self._samples
        while left > 0:
            self.witnesses.observe(self.region.sample(min(left, most), self.generator), deadline)
            left = 0 if deadline.passed else left - most

    @property
    def _brief(self) -> bool:
        """Whether channels get no more than the first inputs and linear bounds: those of a large network,
        unless time is no matter. Inputs at random show of nearly all of them that they are alive.
        """
        large = self.network.neurons > _WHOLE
        return large and self.relevance is not None and self.deadline.seconds is not None

    def _sparing(self, relu: Node) -> bool:
        """Whether that is so of a ReLU: of those of dense layers every neuron gets all there is."""
        return self._brief and len(self.network.shapes[relu.name]) > 1

    def _spare(self) -> None:
        """From now on leave channels at what is known of them."""
        every = len(self.missing())
        self._left = {relu.name for relu in self.network.relus if self._sparing(relu)}
        self.spared = every - len(self.missing())

    @property
    def _samples(self) -> int:
        most, work = (_MANY if self._brief else _RANDOM), _WORK
        if not self.region.bounded:
            most, work = _ENDLESS, _ENDLESS_WORK
        # Without ends a state rules next to nothing out.
        least = int(self.region.bounded or self.relevance is None)
        numbers = _PER_NUMBER * sum(map(self.network.size, self.network.shapes))
        many = min(work // max(1, self.network.multiply_adds, numbers), _NUMBERS // max(1, self.region.size))
        return max(least, min(most, many))

    def look(self, phase: str, find: Callable[[], Tensor], *, cheap: bool = False) -> None:
        """Observe the inputs that ``find`` proposes. Where a journal has this step, it is those of them that
        showed something; both if finding is ``cheap``, because a run that goes on need not come by in quite
        the same way, and then the journal's are another step's.
        """
        if self.journal is None:
            self.witnesses.observe(find(), self.deadline)
            return
        key = self.journal.key(phase)
        points = self.journal.recall(key, self.region.lo)
        if points is None:
            self.recall_rest()
        else:
            self.witnesses.observe(points)
        if points is None or cheap:
            before = len(self.witnesses.pool)
            self.witnesses.observe(find(), self.deadline)
            # A search that time has cut short is done again.
            again = points is not None or self.deadline.passed
            self.journal.remember(None if again else key, self.witnesses.since(before))

    def recall_rest(self) -> None:
        """Observe whatever inputs the journal has that no step asked for."""
        if self.journal is not None:
            self.witnesses.observe(self.journal.rest(self.region.lo))

    def observe(self, data: Iterable[Tensor]) -> int:
        """The paper's preprocessing: the states that batches of data show. Returns how many rows lay in the
        domain.
        """
        counted = 0
        for batch in data:
            if self.deadline.passed:
                break
            rows = batch.to(self.region.lo).reshape(len(batch), self.region.size)
            counted += self.witnesses.observe(rows, self.deadline)
            self.report("data")
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
                self.report("bounds")
            self._narrow(name)

    def prove(
        self, target: str, neuron: int, sign: float, lower: float, proof: AnyProof | None, nodes: int
    ) -> None:
        """Keep a bound of one neuron if it is better than what was known, with its proof."""
        known = self.values[target]
        before = float((known.lo if sign > 0 else -known.hi).flatten()[neuron])
        self.nodes += nodes
        if lower > before or (lower == lower and before != before):
            index = torch.tensor([neuron], device=self.region.lo.device)
            bound = torch.tensor([lower], dtype=torch.float64, device=index.device)
            if proof is not None:
                self.proofs.append(proof)
            self._improve(target, index, sign, bound)

    def rebound(self, name: str, *, search: bool = True) -> None:
        """What tighter ranges of a value say about everything behind it that is undecided, or that undecided
        neurons depend on: linear bounds with every slope.
        """
        order = {node.name: i for i, node in enumerate(self.network.nodes)}
        for node in self.network.nodes[order.get(name, -1) + 1 :]:
            if self.deadline.passed:
                return
            self._refresh(node.name)
            self._narrow(node.name)
            for relu in self.network.readers(node.name):
                if isinstance(relu.operator, Relu) and self._has_relu_before(node.name):
                    later = self.network.relus[self.network.relus.index(relu) + 1 :]
                    needed = self._affordable(relu) and any(bool(self.wanted(x).either.any()) for x in later)
                    for slope in (Slope.ADAPTIVE, Slope.ZERO, Slope.CHORD):
                        if needed and self._promising(node.name, relu, slope, search=search):
                            self._corners(node.name, relu, self._bounded(node.name), slope, search=search)
                        else:
                            self._ask(node.name, relu, slope, search=search)

    def _promising(self, name: str, relu: Node, slope: Slope, *, search: bool) -> bool:
        """Whether a slope makes the range of any of a few neurons smaller; in a layer of thousands (behind
        max pooling, say, where intervals are hard to beat) it may well do nothing for all of them.
        """
        loose, few = (
            self._bounded(name).nonzero()[:, 0],
            torch.zeros(self.network.size(name), dtype=torch.bool),
        )
        few = few.to(loose.device)
        few[loose[:: -(-len(loose) // _PROBES) or 1]] = True
        before = self.values[name]
        self._corners(name, relu, few, slope, search=search)
        after = self.values[name]
        return bool(((after.lo != before.lo) | (after.hi != before.hi)).flatten()[few].any())

    def undecided(self, relu: Node) -> Tensor:
        """Which neurons of a ReLU are neither proved stable nor shown unstable."""
        return self.loose(relu.inputs[0]) & ~self.witnesses.seen[relu.name].both

    def wanted(self, relu: Node) -> Wanted:
        """Those of them whose verdict would be of use."""
        return self._useful(relu, self.undecided(relu))

    def _without_end(self) -> set[str]:
        """The values that have no end somewhere, or depend on one that has none; barriers end that."""
        found = {name: not bool(_ended(known).all()) for name, known in self.values.items()}
        if any(found.values()):
            for node in self.network.nodes:
                through = not isinstance(node.operator, Barrier)
                found[node.name] |= through and any(found[name] for name in node.inputs)
        return {name for name, without in found.items() if without}

    def decidable(self, relu: Node) -> Tensor:
        """Which neurons of a ReLU searches and trees are for: those that depend on what has ends."""
        name = relu.inputs[0]
        return torch.full((self.network.size(name),), name not in self.endless, device=self.region.lo.device)

    def _intervals(self) -> None:
        """Ranges of every value by intervals alone: the frame for everything else, and quick even for large
        networks.
        """
        self.values[self.network.input.name] = input_interval(self.network, self.region.box())
        for node in self.network.nodes:
            self._read[node.name] = tuple(self.values[source] for source in node.inputs)
            found = value_interval(self.network, node, self.values)
            self.values[node.name] = settle_ties(node, self.values, found, self.deadline)
        self.endless = self._without_end()

    def _refresh(self, name: str) -> None:
        """What tighter bounds before a value say about it."""
        if name in self.network:
            node = self.network[name]
            before = tuple(self.values[source] for source in node.inputs)
            if self._read.get(name) != before:  # by identity: ranges are never changed, only replaced
                self._read[name] = before
                self.values[name] = self.values[name].meet(value_interval(self.network, node, self.values))

    def _tighten(self, name: str, relu: Node, search: bool) -> None:
        """Linear bounds for the neurons of ``relu``, which reads the value ``name``."""
        if search or not self._interval_is_exact(name):
            if self.relevance is None or (self.wanted(relu).axis is None and not self._sparing(relu)):
                self._corners(name, relu, self._bounded(name), Slope.ADAPTIVE, search=search)
            else:
                self._ask(name, relu, Slope.ADAPTIVE, search=search)
        if not self._has_relu_before(name):
            return
        for slope in (Slope.ZERO, Slope.ONE, Slope.CHORD):
            if self.deadline.passed:
                return
            self._ask(name, relu, slope, search=search)

    def _ask(self, name: str, relu: Node, slope: Slope, *, search: bool) -> None:
        """Bound the neurons that are wanted, of channels that count whole the most doubtful one first."""
        first = self.wanted(relu).first(self.values[name]) & self._bounded(name)
        self._corners(name, relu, first, slope, search=search)
        rest = self.wanted(relu).rest(first) & self._bounded(name)
        self._corners(name, relu, rest, slope, search=search)

    def _affordable(self, relu: Node) -> bool:
        """Whether there are so few neurons that each of them gets a bound for the sake of others."""
        return self.relevance is None or self.network.size(relu.name) <= _EACH

    def _narrow(self, name: str) -> None:
        """Linear bounds for all entries of a value that a barrier reads: the tighter its range, the smaller
        the box that everything behind the barrier starts from.
        """
        barriers = [reader for reader in self.network.readers(name) if isinstance(reader.operator, Barrier)]
        if not barriers or self._interval_is_exact(name):
            return
        every = torch.ones(self.network.size(name), dtype=torch.bool, device=self.region.lo.device)
        every = _ended(self.values[name]).flatten() if name in self.endless else every
        for index in self._parts(every.nonzero()[:, 0]):
            for sign in (1.0, -1.0):
                if self.deadline.passed:
                    return
                lower = self.backward.neurons(name, index, sign, Slope.ADAPTIVE).lower
                self._improve(name, index, sign, lower)

    def loose(self, name: str) -> Tensor:
        """Which entries of a value have ranges that hold both signs."""
        pre = self.values[name]
        return ~((pre.lo >= 0) | (pre.hi <= 0)).flatten()

    def _bounded(self, name: str) -> Tensor:
        """Those of them that linear bounds are for: ranges with ends."""
        loose = self.loose(name)
        return loose & _ended(self.values[name]).flatten() if name in self.endless else loose

    def _corners(self, name: str, relu: Node, which: Tensor, slope: Slope, *, search: bool) -> None:
        """Bound the neurons ``which`` from both sides, and try the minimisers where a state is still
        missing.
        """
        seen = self.witnesses.seen[relu.name]
        for index in self._parts(which.nonzero()[:, 0]):
            signs = torch.ones(2, len(index), dtype=torch.float64, device=index.device)
            signs[1] = -1.0
            bounded = self.backward.neurons(name, index.repeat(2), signs.flatten(), slope)
            for sign, lower in zip((1.0, -1.0), bounded.lower.reshape(2, -1), strict=True):
                self._improve(name, index, sign, lower)
            missing = torch.cat([seen.inactive[index], seen.active[index]]) < 0
            wanted = missing & (bounded.lower < 0)
            if search and bool(wanted.any()):
                self.witnesses.observe(self.region.minimisers(bounded.forms[wanted]), self.deadline)

    def _parts(self, every: Tensor) -> Iterator[Tensor]:
        """Some at a time, as long as there is time: so few that a limit is not missed by much, more where
        that goes fast.
        """
        start = 0
        while start < len(every) and not self.deadline.passed:
            began, part = time.monotonic(), every[start : start + self.rows]
            yield part
            start += len(part)
            taken = time.monotonic() - began
            if self.deadline.limited and taken > _PART_SECONDS:
                self.rows = min(self._most_rows, max(_FEWEST_ROWS, self.rows // 2))
            elif taken < _PART_SECONDS / 4:
                self.rows = min(self._most_rows, 2 * self.rows)

    def _improve(self, name: str, index: Tensor, sign: float, lower: Tensor) -> None:
        """Keep a bound where it is better than what was known."""
        self.values[name] = self.values[name].tightened(index, sign, lower)
        self.backward.forget()

    def missing(self) -> Targets:
        """The states of undecided neurons that no input has shown yet, each with the most promising input so
        far: all of them, or of each layer as many as fit into memory. Of channels that count as a whole it is
        the most promising neuron, until the last stages.
        """
        most = max(
            1,
            self.memory.share(_START_BYTES)
            // (8 * max(1, self.region.size))
            // max(1, 2 * len(self.network.relus)),
        )
        names: list[str] = []
        indices, signs, starts = [], [], []
        for relu in self.network.relus:
            seen, open_ = self.witnesses.seen[relu.name], self.undecided(relu) & self.decidable(relu)
            wanted = self._useful(relu, open_)
            for missing, sign, at, useful, score in (
                (seen.active, 1.0, seen.highest_at, wanted.inactive, seen.highest),
                (seen.inactive, -1.0, seen.lowest_at, wanted.active, -seen.lowest),
            ):
                useful = useful & (missing < 0)
                index = (useful if self._each else wanted.foremost(useful, score)).nonzero()[:, 0]
                index = index[:: -(-len(index) // most) or 1]
                names += [relu.name] * len(index)
                indices.append(index)
                signs.append(torch.full((len(index),), sign, dtype=torch.float64, device=index.device))
                starts.append(self.witnesses.starts[at[index]])
        like = self.region.lo
        return Targets(
            names,
            torch.cat(indices) if indices else like.new_zeros(0, dtype=torch.int64),
            torch.cat(signs) if signs else like.new_zeros(0),
            torch.cat(starts) if starts else like.new_zeros(0, self.region.size),
        )

    def _useful(self, relu: Node, open_: Tensor) -> Wanted:
        """Of the undecided neurons of a ReLU those for which a proof would be of use."""
        shape = self.network.shapes[relu.name]
        if self.relevance is None or not bool(open_.any()):
            return Wanted(open_, open_, shape, None)
        if relu.name in self._left:
            nothing = torch.zeros_like(open_)
            return Wanted(nothing, nothing, shape, None)
        seen = self.witnesses.seen[relu.name]
        active, inactive = seen.active >= 0, seen.inactive >= 0
        if len(shape) > 1:
            # In deep networks hardly a sign is certain; where time goes, a likely one counts as well.
            active, inactive = active | (seen.highest > _LIKELY), inactive | (seen.lowest < -_LIKELY)
        shown = States(active.cpu().numpy(), inactive.cpu().numpy())
        found = self.relevance.useful(relu.name, shown)
        inactive, active = (torch.tensor(mask).to(open_) for mask in (found.inactive, found.active))
        if self._sparing(relu):
            active = torch.zeros_like(active)  # a linear channel is rarely of use
        return Wanted(open_ & inactive, open_ & active, shape, found.axis)

    def _interval_is_exact(self, name: str) -> bool:
        """On a plain box, the range of one linear layer of the inputs is what interval arithmetic says."""
        if self.region.constrained:
            return False
        linear = 0
        while name in self.network:
            node = self.network[name]
            linear += isinstance(node.operator, Linear | Convolution)
            if (
                not isinstance(node.operator, Linear | Convolution | Reshape | Scale | Transpose)
                or linear > 1
            ):
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
            if not isinstance(node.operator, Affine):
                return True
            waiting += [before for before in node.inputs if before not in known]
            known.update(node.inputs)
        return False

    def report(self, stage: str) -> None:
        """Say how far the run is."""
        if self.journal is not None:
            self.journal.raise_failed()
            stage = "resume" if self.journal.replaying else stage
        if self.progress is not None:
            total = self.network.neurons
            left = sum(int(self.undecided(relu).sum()) for relu in self.network.relus)
            self.progress(stage, total - left, total)


def _ended(known: Interval) -> Tensor:
    """Which entries of a value have a range with two ends."""
    return known.lo.isfinite() & known.hi.isfinite()
