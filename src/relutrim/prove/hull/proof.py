"""What a tree leaves behind: enough to prove its bound again without any search.

The ranges that the model was built from, and per leaf the states and the multipliers. :meth:`Proof.check`
builds the same model from them and evaluates every leaf's bound again, so a proof is only a hint: nothing in
it is believed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relutrim.bounds.linear import Backward
from relutrim.intervals import Interval
from relutrim.prove.hull import packed
from relutrim.prove.hull.model import Goal, Model, States
from relutrim.prove.hull.packed import Packed, packed_bounds


@dataclass(frozen=True, eq=False)
class Leaf:
    """States by the neurons' numbers, the bound, and the multipliers that prove it."""

    states: States
    bound: float
    packed: Packed


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
    def size(self) -> int:
        """About how many bytes it takes, stored without redundancy."""
        return sum(leaf.packed.size + 2 * len(leaf.states) for leaf in self.leaves)

    def check(self, backward: Backward) -> float:
        """The bound, proved again on the network and region of ``backward``; NaN if the leaves do not cover
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


def fits(model: Model, leaves: Sequence[Leaf]) -> bool:
    """Whether states and multipliers are those of the model: only a neuron with both states can be split."""
    both = set(model.both)
    return all(leaf.states.keys() <= both for leaf in leaves) and packed.fits(
        model, [leaf.packed for leaf in leaves]
    )


def evaluate(model: Model, leaves: Sequence[Leaf]) -> list[float]:
    """The bound of each leaf, proved again; NaN where nothing is proved. The leaves have to fit."""
    return packed_bounds(model, [dict(leaf.states) for leaf in leaves], [leaf.packed for leaf in leaves])


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
