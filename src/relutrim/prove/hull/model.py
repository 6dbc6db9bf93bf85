"""The linear program for one neuron: the relaxation of everything it reads, and the cuts that sharpen it.

Per unstable neuron with pre-activation ``y`` in ``[L, U]``, output ``x`` and state ``z`` in [0, 1]:
``y = w v + b``, ``x >= y``, ``x <= y - L (1 - z)``, ``x <= U z``; active neurons are ``x = w v + b``,
inactive ones are left out. Only the neurons that the target depends on are in the program, and of those only
``depth`` layers: what lies before them is free within its range, which costs little where the ranges are
tight and makes the program many times smaller. The maxima of max pooling are free in the same way. Weights
too small to matter are dropped from a row, and the row is widened by what they could have added: trained with
l1, most weights are such, and they slow the simplex down.

Every row holds for the true values of every input of the domain: coefficients are taken as they are, and ends
are rounded outward.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import TypeAlias

import numpy as np
import torch

from relutrim.bounds.linear import Backward
from relutrim.graph.operators import Array
from relutrim.intervals import Interval
from relutrim.prove.hull.cuts import Cut, Neuron, cut_row, most_violated
from relutrim.prove.hull.program import Index, Program, Row, lagrangian
from relutrim.rounding import ETA, gamma

States: TypeAlias = Mapping[int, bool]
"""Neurons of a program, by number, whose states are fixed: True is on."""
TIE = 1e-11
"""Values that are a smaller part of what they are made of may be 0 as well."""
_OVERFLOW = np.errstate(over="ignore", invalid="ignore")
"""What overflows makes useless rows and NaN bounds, never false ones."""
_LARGEST = 2 * 10**7
"""A layer whose rows would take more numbers than this is not in the program."""
_DROPPED = 1e-3
"""What the weights dropped from one row may add up to, as a share of what the bound is to gain."""


@dataclass(frozen=True, eq=False)
class Goal:
    """``min sign * y`` of one neuron, over so many layers before it, with rows this precise."""

    target: str
    neuron: int
    sign: float
    depth: int
    droppable: float

    @classmethod
    def of(cls, backward: Backward, target: str, neuron: int, sign: float, depth: int) -> Goal:
        """As precise as what is missing to a proof asks for."""
        ends = backward.values[target]
        missing = abs(float((ends.lo if sign > 0 else ends.hi).flatten()[neuron]))
        return cls(target, neuron, sign, depth, min(max(_DROPPED * missing, 1e-10), 1e-5))


_Forms: TypeAlias = dict[str, tuple[Index, Array]]
"""A linear form by the values it reads: flat indices and weights."""


@dataclass(eq=False)
class Model:
    """The program of a goal; the same goal and the same ranges make the same program.

    ``ranges`` are those it was built from: what is known may get tighter while the program is in use. With a
    program that is ``like`` it, of another goal over the same ranges, much of the work is done already.
    """

    backward: Backward
    goal: Goal
    like: InitVar[Model | None] = None
    ranges: dict[str, Interval] = field(init=False)
    program: Program = field(init=False)
    neurons: list[Neuron] = field(default_factory=list, init=False)
    cuts: list[Cut] = field(default_factory=list, init=False)
    base: int = field(init=False)
    slack: float = field(init=False)
    _lo: list[float] = field(default_factory=list, init=False)
    _hi: list[float] = field(default_factory=list, init=False)
    columns: dict[str, Index] = field(default_factory=dict, init=False)
    """For each value the columns of its entries, -1 where an entry has none."""

    @_OVERFLOW
    def __post_init__(self, like: Model | None) -> None:
        self.ranges = dict(self.backward.values)
        ((forms, bias, radius),) = self._pre_activations(self.goal.target, [self.goal.neuron])
        self._reads = {name: frozenset(indices.tolist()) for name, (indices, _) in forms.items()}
        if like is not None and self._is_like(like):
            self.ranges, self.neurons, self.columns = like.ranges, like.neurons, like.columns
            self._lo, self._hi = like._lo, like._hi
            rows = like.program.rows[: like.base]
        else:
            rows = self._build(forms)
        cost = np.zeros(len(self._lo))
        inputs, weights = self._gather(forms)
        cost[inputs] = self.goal.sign * weights
        self.program = Program(np.array(self._lo), np.array(self._hi), cost, self.goal.sign * bias, rows)
        self.ends = np.array(self._lo), np.array(self._hi)
        self.slack = radius
        self.base = len(rows)

    def _is_like(self, other: Model) -> bool:
        """Whether all that is in a program but the goal's own weights is the same."""
        mine, its = self.goal, other.goal
        return (
            self.backward is other.backward
            and self._reads == other._reads
            and (mine.target, mine.depth, mine.droppable) == (its.target, its.depth, its.droppable)
        )

    def _build(self, forms: _Forms) -> list[Row]:
        """Everything that a goal of these forms depends on: its columns, its neurons, its rows."""
        network, values = self.backward.network, self.backward.values
        wanted: dict[str, set[int]] = {}
        distance: dict[str, int] = {}
        _want(wanted, distance, forms, 1)
        widest = max(map(network.size, network.shapes))
        modelled: list[tuple[str, int, _Forms, float, float]] = []
        for relu in reversed(network.relus):
            if relu.name not in wanted:
                continue
            pre = values[relu.inputs[0]]
            upper = pre.hi.flatten()
            entries = sorted(i for i in wanted.pop(relu.name) if not float(upper[i]) <= 0)
            if not entries:
                continue
            if distance[relu.name] > self.goal.depth or len(entries) * widest > _LARGEST:
                for i in entries:
                    self._column(relu.name, i, max(0.0, float(pre.lo.flatten()[i])), float(upper[i]))
                continue
            for entry, (reads, shift, off) in zip(
                entries, self._pre_activations(relu.inputs[0], entries), strict=True
            ):
                modelled.append((relu.name, entry, reads, shift, off))
                _want(wanted, distance, reads, distance[relu.name] + 1)
        # The input, and maxima: nothing before them is in the program.
        source = network.input.name
        for name in sorted(wanted):
            lower, upper = values[name].lo.flatten(), values[name].hi.flatten()
            for entry in sorted(wanted[name]):
                self._column(name, entry, float(lower[entry]), float(upper[entry]))
        rows = self._region_rows(source)
        for item in reversed(modelled):
            rows += self._add_neuron(*item)
        return rows

    @_OVERFLOW
    def separate(self, point: Array) -> int:
        """Add for each unstable neuron the hull inequality that ``point`` violates most; how many were
        added.
        """
        found = [
            Cut(number, chosen)
            for number, neuron in enumerate(self.neurons)
            if neuron.state >= 0 and (chosen := most_violated(neuron, point, *self.ends)) is not None
        ]
        self.add(found)
        return len(found)

    @_OVERFLOW
    def add(self, cuts: Iterable[Cut]) -> None:
        """Add cuts, as they are."""
        cuts = list(cuts)
        self.program.add([cut_row(self.neurons[cut.neuron], cut.chosen, *self.ends) for cut in cuts])
        self.cuts += cuts

    def purge(self, duals: Array) -> None:
        """Drop cuts that carry no dual."""
        kept = self.program.purge(self.base, duals)
        self.cuts = [self.cuts[i] for i in kept]

    def keep(self, cuts: Iterable[Cut]) -> None:
        """Drop all cuts that can go, and have these."""
        self.purge(np.zeros(len(self.program.rows)))
        self.add(cuts)

    def split(self, states: States) -> None:
        """Fix the states of some neurons; all others are free."""
        self.program.narrow(self._narrowed(states))

    @_OVERFLOW
    def row_of(self, cut: Cut) -> Row:
        """The row that a cut is."""
        return cut_row(self.neurons[cut.neuron], cut.chosen, *self.ends)

    @_OVERFLOW
    def bound_at(self, states: States, rows: Sequence[tuple[Row, float]]) -> float:
        """A proven lower bound of the goal where states are fixed, for any multipliers of any rows that hold
        on the whole domain; NaN if they lead nowhere.
        """
        used, duals = [row for row, _ in rows], np.array([dual for _, dual in rows])
        found = lagrangian(self.program.cost, self.program.offset, self._ends_at(states), used, duals)
        return float(np.nextafter(found - self.slack, -np.inf))

    @_OVERFLOW
    def empty_at(self, states: States, rows: Sequence[tuple[Row, float]]) -> bool:
        """Whether the multipliers prove that no input has these states."""
        used, duals = [row for row, _ in rows], np.array([dual for _, dual in rows])
        return lagrangian(0 * self.program.cost, 0.0, self._ends_at(states), used, duals) > 0

    def _ends_at(self, states: States) -> tuple[Array, Array]:
        lo, hi = self.ends[0].copy(), self.ends[1].copy()
        for column, (low, high) in self._narrowed(states).items():
            lo[column], hi[column] = low, high
        return lo, hi

    def _narrowed(self, states: States) -> dict[int, tuple[float, float]]:
        ends: dict[int, tuple[float, float]] = {}
        for number, on in states.items():
            neuron = self.neurons[number]
            if neuron.state < 0:
                raise ValueError(f"neuron {number} has one state only; there is nothing to split")
            ends[neuron.state] = (1.0, 1.0) if on else (0.0, 0.0)
            ends[neuron.column] = (0.0, neuron.hi if on else 0.0)
            ends[neuron.total] = (0.0, neuron.hi) if on else (neuron.lo, 0.0)
        return ends

    def bound(self, duals: Array) -> float:
        """A proven lower bound of the goal, for any duals."""
        return float(np.nextafter(self.program.lower_bound(duals) - self.slack, -np.inf))

    @property
    @_OVERFLOW
    def made_of(self) -> float:
        """The sum of the magnitudes that the goal is made of."""
        reach = np.maximum(*map(np.abs, self.ends))
        return float(np.abs(self.program.cost) @ reach) + abs(self.program.offset)

    @property
    def both(self) -> list[int]:
        """The numbers of the neurons that have both states."""
        return [number for number, neuron in enumerate(self.neurons) if neuron.state >= 0]

    @property
    def enough(self) -> float:
        """The value of the program at which :meth:`bound` is 0 or more."""
        return float(np.nextafter(self.slack, np.inf))

    @_OVERFLOW
    def to_branch(self, point: Array, duals: Array) -> list[int]:
        """The numbers of the neurons whose states are not fixed and whose relaxations are used at ``point``;
        the one that costs most comes first, and by how far those are off that cost nothing there.
        """
        weights = np.abs(self.program.downstream(duals))
        found = []
        for number in self.both:
            neuron = self.neurons[number]
            if self.program.lo[neuron.state] < self.program.hi[neuron.state]:
                gap = float(point[neuron.column]) - max(0.0, float(point[neuron.total]))
                if gap != 0:
                    found.append((-abs(gap) * float(weights[neuron.column]), -abs(gap), number))
        return [number for *_, number in sorted(found)]

    @_OVERFLOW
    def leanings(self, point: Array) -> dict[int, bool]:
        """The states that a solution leans to: on where the pre-activation is positive."""
        return {number: bool(point[self.neurons[number].total] > 0) for number in self.both}

    @_OVERFLOW
    def weight_of_ends(self, point: Array, duals: Array) -> list[tuple[str, int, float, float]]:
        """What the bound would gain if an end of a neuron's range went to 0, to first order: (ReLU, entry,
        +1 for the lower end or -1 for the upper, gain).
        """
        found = []
        first: dict[int, int] = {}
        for at, row in enumerate(self.program.rows):
            first.setdefault(row.owner, at)
        for neuron in self.neurons:
            if neuron.state >= 0:
                at, z = first[neuron.column], float(point[neuron.state])
                below, off = abs(float(duals[at + 2])), abs(float(duals[at + 3]))
                found.append((neuron.relu, neuron.entry, 1.0, below * (1 - z) * -neuron.lo))
                found.append((neuron.relu, neuron.entry, -1.0, off * z * neuron.hi))
        return found

    def input_of(self, point: Array) -> torch.Tensor | None:
        """The network input in a solution, None if the program does not reach back to it; inputs that play
        no part lie at their lower ends.
        """
        entries, columns = self.input_columns
        if not len(entries):
            return None
        x = self.backward.region.lo.clone()
        x[torch.as_tensor(entries, device=x.device)] = torch.as_tensor(point[columns], device=x.device)
        return x[None]

    @property
    def input_columns(self) -> tuple[Index, Index]:
        """The network's inputs that have columns, and these. All others are in no row: they count as 0."""
        own = self.columns.get(self.backward.network.input.name, np.zeros(0, np.int64))
        entries = np.flatnonzero(own >= 0)
        return entries, own[entries]

    def _pre_activations(self, target: str, entries: list[int]) -> list[tuple[_Forms, float, float]]:
        """Per entry: what it reads (name -> indices and weights), its bias, and how far off that can be."""
        device = self.backward.region.lo.device
        pulled = self.backward.affine(target, torch.tensor(entries, dtype=torch.int64, device=device))
        names = list(pulled.forms)
        sizes = [self.backward.network.size(name) for name in names]
        forms = np.concatenate(
            [pulled.forms[name].cpu().numpy() for name in names] or [np.zeros((len(entries), 0))], axis=1
        )
        reach = np.concatenate(
            [self.backward.values[name].magnitude.flatten().cpu().numpy() for name in names] or [np.zeros(0)]
        )
        starts = np.cumsum([0, *sizes])
        found = []
        for row, bias, radius in zip(forms, pulled.constant.tolist(), pulled.radius.tolist(), strict=True):
            share = np.abs(row) * reach
            order = np.argsort(share)
            adds_up = np.cumsum(share[order])
            dropped = int(np.searchsorted(adds_up, self.goal.droppable, side="right"))
            keep = np.sort(order[dropped:])
            lost = float(adds_up[dropped - 1]) * (1 + gamma(len(row))) + len(row) * ETA if dropped else 0.0
            reads = {
                name: (keep[(keep >= a) & (keep < b)] - a, row[keep[(keep >= a) & (keep < b)]])
                for name, a, b in zip(names, starts[:-1], starts[1:], strict=True)
            }
            found.append((reads, float(bias), (radius + lost) * (1 + 2.0**-40)))
        return found

    def _column(self, name: str, entry: int, lo: float, hi: float) -> int:
        self._lo.append(lo)
        self._hi.append(hi)
        if name not in self.columns:
            self.columns[name] = np.full(self.backward.network.size(name), -1, dtype=np.int64)
        self.columns[name][entry] = len(self._lo) - 1
        return len(self._lo) - 1

    def _gather(self, forms: _Forms) -> tuple[Index, Array]:
        """The columns and weights of a form; entries without a column are always 0."""
        known = [(self.columns[name][at], own) for name, (at, own) in forms.items() if name in self.columns]
        columns = np.concatenate([np.zeros(0, np.int64), *(at for at, _ in known)])
        weights = np.concatenate([np.zeros(0), *(own for _, own in known)])
        return columns[columns >= 0], weights[columns >= 0]

    def _add_neuron(self, name: str, entry: int, forms: _Forms, bias: float, radius: float) -> list[Row]:
        pre = self.backward.values[self.backward.network[name].inputs[0]]
        lo, hi = float(pre.lo.flatten()[entry]), float(pre.hi.flatten()[entry])
        inputs, weights = self._gather(forms)
        column = self._column(name, entry, max(lo, 0.0), hi)
        low = float(np.nextafter(bias - radius, -np.inf))
        high = float(np.nextafter(bias + radius, np.inf))
        own = (inputs, weights, bias, radius, lo, hi)
        if lo >= 0:
            self.neurons.append(Neuron(name, entry, column, -1, -1, *own))
            return [Row(np.append(inputs, column), np.append(-weights, 1.0), low, high, column)]
        state, total = len(self._lo), len(self._lo) + 1
        self._lo += [0.0, lo]
        self._hi += [1.0, hi]
        self.neurons.append(Neuron(name, entry, column, state, total, *own))
        return [
            Row(np.append(inputs, total), np.append(-weights, 1.0), low, high, column),
            Row(np.array([column, total]), np.array([1.0, -1.0]), 0.0, np.inf, column),
            Row(np.array([column, total, state]), np.array([1.0, -1.0, -lo]), -np.inf, -lo, column),
            Row(np.array([column, state]), np.array([1.0, -hi]), -np.inf, 0.0, column),
        ]

    def _region_rows(self, source: str) -> list[Row]:
        """The domain's own constraints, where all inputs they weigh have columns."""
        region = self.backward.region
        known = self.columns.get(source, np.full(region.size, -1, dtype=np.int64))
        rows = []
        for weights, lower, upper in zip(
            region.rows.cpu().numpy(), region.lower_ends.tolist(), region.upper_ends.tolist(), strict=True
        ):
            used = np.flatnonzero(weights)
            if len(used) and bool((known[used] >= 0).all()):
                rows.append(Row(known[used], weights[used], lower, upper))
        return rows


def _want(wanted: dict[str, set[int]], distance: dict[str, int], forms: _Forms, away: int) -> None:
    for name, (indices, _) in forms.items():
        wanted.setdefault(name, set()).update(indices.tolist())
        distance[name] = min(distance.get(name, away), away)
