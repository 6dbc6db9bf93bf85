"""What a tree leaves behind: enough to prove its bound again without any search or solver.

The ranges that the program was built from, the cuts by their subsets, and per leaf the states and the
multipliers. :meth:`Proof.check` builds the same program from them and evaluates every leaf's bound anew, so a
proof is only a hint: nothing in it is believed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from relutrim.bounds.linear import Backward
from relutrim.bounds.values import Interval
from relutrim.network.operators import Array
from relutrim.prove.hull.cuts import Cut
from relutrim.prove.hull.model import Goal, Model

Bits = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Leaf:
    """States by the neurons' numbers, the bound, and the multipliers that are not 0: of rows of the program
    as it was built, and of cuts. A leaf with bound infinity is empty; its multipliers are a ray.
    """

    states: Mapping[int, bool]
    bound: float
    rows: Mapping[int, float] | None = None
    cuts: Sequence[tuple[Cut, float]] = ()

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
        return cls(model.goal, min(leaf.bound for leaf in leaves), dict(model.backward.values), tuple(leaves))

    @property
    def cuts(self) -> list[Cut]:
        """All cuts that some leaf uses, each once."""
        known: dict[int, Cut] = {}
        for leaf in self.leaves:
            for cut, _ in leaf.cuts:
                known.setdefault(id(cut), cut)
        return list(known.values())

    @property
    def size(self) -> int:
        """About how many bytes it takes, stored without redundancy."""
        bits = sum(len(cut.chosen) // 8 + 5 for cut in self.cuts)
        numbers = sum(len(leaf.rows or ()) + len(leaf.cuts) for leaf in self.leaves)
        return bits + 12 * numbers + sum(2 * len(leaf.states) for leaf in self.leaves)

    def check(self, backward: Backward) -> float:
        """The bound, proved anew on the network and region of ``backward``; NaN if the leaves do not cover
        every case or are not what they say.

        The ranges are taken as given: whoever relies on the outcome has to know that they hold.
        """
        if not covers([leaf.states for leaf in self.leaves]):
            return math.nan
        own = Backward(backward.network, backward.region, dict(self.ranges))
        model = Model(own, self.goal)
        cuts = self.cuts
        model.add(cuts)
        place = {id(cut): model.base + i for i, cut in enumerate(cuts)}
        least = math.inf
        for leaf in self.leaves:
            model.split(leaf.states)
            duals = np.zeros(len(model.program.rows))
            for row, dual in (leaf.rows or {}).items():
                duals[row] = dual
            for cut, dual in leaf.cuts:
                duals[place[id(cut)]] = dual
            if math.isinf(leaf.bound):
                if not model.program.infeasible(duals):
                    return math.nan
            else:
                bound = model.bound(duals)
                if math.isnan(bound):
                    return math.nan
                least = min(least, bound)
        return least


def covers(cases: Sequence[Mapping[int, bool]]) -> bool:
    """Whether every assignment of states agrees with at least one case."""
    if any(not case for case in cases):
        return True
    if not cases:
        return False
    first = next(iter(cases[0]))
    for on in (False, True):
        rest = [{k: v for k, v in case.items() if k != first} for case in cases if case.get(first, on) == on]
        if not covers(rest):
            return False
    return True


def contains(outer: Mapping[str, Interval], inner: Mapping[str, Interval]) -> bool:
    """Whether every range of ``outer`` is at least as wide as that of ``inner``."""
    return all(
        bool(torch.all((have.lo <= inner[name].lo) & (have.hi >= inner[name].hi)))
        for name, have in outer.items()
    )
