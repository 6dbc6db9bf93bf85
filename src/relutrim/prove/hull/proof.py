"""What a tree leaves behind: enough to prove its bound again without any search or solver.

The ranges that the program was built from, the cuts by their subsets, and per leaf the states and the
multipliers. :meth:`Proof.check` builds the same program from them and evaluates every leaf's bound anew, so a
proof is only a hint: nothing in it is believed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from relutrim.bounds.linear import Backward
from relutrim.graph.operators import Array
from relutrim.intervals import Interval
from relutrim.prove.hull import packed
from relutrim.prove.hull.cuts import Cut
from relutrim.prove.hull.model import Goal, Model
from relutrim.prove.hull.packed import Packed, packed_bounds


@dataclass(frozen=True, eq=False)
class Leaf:
    """States by the neurons' numbers, the bound, and the multipliers that are not 0: of rows of the program
    as it was built, and of cuts; or all of them ``packed``. A leaf with bound infinity is empty; its
    multipliers are a ray.
    """

    states: Mapping[int, bool]
    bound: float
    rows: Mapping[int, float] = field(default_factory=dict)
    cuts: Sequence[tuple[Cut, float]] = ()
    packed: Packed | None = None

    @classmethod
    def closed(cls, model: Model, states: Mapping[int, bool], bound: float, duals: Array) -> Leaf:
        """A leaf with the multipliers of the program as it is now."""
        used = np.flatnonzero(duals).tolist()
        rows = {i: float(duals[i]) for i in used if i < model.base}
        cuts = [(model.cuts[i - model.base], float(duals[i])) for i in used if i >= model.base]
        return cls(states, bound, rows, cuts)


@dataclass(frozen=True, eq=False)
class Proof:
    """A lower bound of ``sign * y`` of a neuron, from the ranges of others and the leaves of a tree."""

    goal: Goal
    bound: float
    ranges: Mapping[str, Interval]
    leaves: tuple[Leaf, ...]

    @classmethod
    def of(cls, model: Model, leaves: Sequence[Leaf]) -> Proof:
        """The record of a tree."""
        return cls(model.goal, min(leaf.bound for leaf in leaves), model.ranges, tuple(leaves))

    @property
    def target(self) -> str:
        """The value that the neuron is an entry of."""
        return self.goal.target

    @property
    def neuron(self) -> int:
        """Its flat index."""
        return self.goal.neuron

    @property
    def sign(self) -> float:
        """+1 for a lower end, -1 for an upper."""
        return self.goal.sign

    @property
    def cuts(self) -> list[Cut]:
        """All cuts that some leaf uses, each once."""
        return distinct_cuts(self.leaves)

    @property
    def size(self) -> int:
        """About how many bytes it takes, stored without redundancy."""
        bits = sum(len(cut.chosen) // 8 + 5 for cut in self.cuts)
        numbers = sum(len(leaf.rows) + len(leaf.cuts) for leaf in self.leaves)
        packed_sizes = sum(leaf.packed.size for leaf in self.leaves if leaf.packed is not None)
        return bits + 12 * numbers + packed_sizes + sum(2 * len(leaf.states) for leaf in self.leaves)

    def check(self, backward: Backward) -> float:
        """The bound, proved anew on the network and region of ``backward``; NaN if the leaves do not cover
        every case or are not what they say.

        The ranges are taken as given: whoever relies on the outcome has to know that they hold.
        """
        size, like = backward.network.size(self.goal.target), backward.region.lo
        if abs(self.goal.sign) != 1 or self.goal.neuron not in range(size):
            return math.nan
        if not covers([leaf.states for leaf in self.leaves]):
            return math.nan
        ranges = {name: Interval(ends.lo.to(like), ends.hi.to(like)) for name, ends in self.ranges.items()}
        model = Model(Backward(backward.network, backward.region, ranges), self.goal)
        if not fits(model, self.leaves):
            return math.nan
        bounds = evaluate(model, self.leaves)
        return math.nan if any(map(math.isnan, bounds)) else min(bounds)


def fits(model: Model, leaves: Sequence[Leaf], more: Sequence[Cut] = ()) -> bool:
    """Whether rows, cuts (``more`` of them too) and states are those of the program: only a neuron with both
    states can be split or cut, and a cut says of each of its inputs whether it is in.
    """
    both = {i: len(neuron.inputs) for i, neuron in enumerate(model.neurons) if neuron.state >= 0}
    return (
        all(leaf.states.keys() <= both.keys() for leaf in leaves)
        and all(row in range(model.base) for leaf in leaves for row in leaf.rows)
        and all(
            cut.chosen.dtype == bool and cut.chosen.shape == (both.get(cut.neuron),)
            for cut in (*distinct_cuts(leaves), *more)
        )
        and packed.fits(model, [leaf.packed for leaf in leaves if leaf.packed is not None])
    )


def evaluate(model: Model, leaves: Sequence[Leaf]) -> list[float]:
    """The bound of each leaf anew: infinite where its ray proves that it is empty, NaN where nothing is
    proved. The leaves have to fit.
    """
    known = {id(cut): model.row_of(cut) for cut in distinct_cuts(leaves)}  # many leaves share a cut
    compact = [leaf for leaf in leaves if leaf.packed is not None]
    proved = iter(
        packed_bounds(
            model, [dict(leaf.states) for leaf in compact], [leaf.packed for leaf in compact if leaf.packed]
        )
    )
    bounds = []
    for leaf in leaves:
        if leaf.packed is not None:
            bounds.append(next(proved))
            continue
        rows = [(model.program.rows[row], dual) for row, dual in leaf.rows.items()]
        rows += [(known[id(cut)], dual) for cut, dual in leaf.cuts]
        if math.isinf(leaf.bound):
            bounds.append(math.inf if model.empty_at(leaf.states, rows) else math.nan)
        else:
            bounds.append(model.bound_at(leaf.states, rows))
    return bounds


def distinct_cuts(leaves: Sequence[Leaf]) -> list[Cut]:
    """All cuts that some leaf uses, each once."""
    known: dict[int, Cut] = {}
    for leaf in leaves:
        for cut, _ in leaf.cuts:
            known.setdefault(id(cut), cut)
    return list(known.values())


def covers(cases: Sequence[Mapping[int, bool]]) -> bool:
    """Whether every assignment of states agrees with at least one case.

    Neuron by neuron: those cases that agree with either state have to cover what is left. Trees can be
    deeper than calls may be nested, so this is a loop.
    """
    waiting = [([(case, len(case)) for case in cases], frozenset[int]())]
    while waiting:
        own, decided = waiting.pop()
        if any(not left for _, left in own):
            continue
        if not own:
            return False
        first = next(number for number in own[0][0] if number not in decided)
        for on in (False, True):
            rest = [(case, left - (first in case)) for case, left in own if case.get(first, on) == on]
            waiting.append((rest, decided | {first}))
    return True
