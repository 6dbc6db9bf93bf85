"""Which neuron a node is split at: one whose relaxation costs much there, and whose splits have paid so far.

What a relaxation costs at the point where a node's bound is attained is known at once, but not what a split
gains. Trees have few neurons and many nodes, so what earlier splits of a neuron gained, on either side, for
each unit of what it cost then is a good guess (pseudo-costs: Bénichou et al., 1971; Achterberg, Koch and
Martin, 2005). Nothing is proved with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from relutrim.graph.operators import Array

_PRIOR = 4
"""So many splits of average gain and cost are taken for granted of every neuron and side."""
_LEAST = 0.05
"""No side is worth less than this part of the average (a product would be 0 whatever the other side is), or
more than its inverse.
"""
_FAR = 1e200
"""A bound further below 0 says nothing of a split, and sums of such gains overflow."""


class Origin(NamedTuple):
    """How a node came about: its parent's bound, the neuron that was split, its state, and what its
    relaxation cost. A node that is worked on again has its own bound.
    """

    bound: float
    neuron: int
    on: bool
    cost: float
    repeated: bool = False

    @classmethod
    def again(cls, bound: float) -> Origin:
        """Of a node that had nothing to split."""
        return cls(bound, 0, on=False, cost=0.0, repeated=True)


class Experience:
    """What splits have gained and cost, for each state (off, on) and neuron."""

    def __init__(self, neurons: int) -> None:
        self._gained, self._cost = np.zeros((2, neurons)), np.zeros((2, neurons))
        self._splits = 0

    def note(self, found: Iterable[tuple[Origin | None, float]]) -> None:
        """Bounds of nodes. A gain counts up to 0, where the node is closed."""
        for origin, bound in found:
            if origin is None or origin.repeated:
                continue
            if not -_FAR < origin.bound < 0 or not np.isfinite(bound - origin.bound):
                continue
            at = int(origin.on), origin.neuron
            self._gained[at] += min(max(bound - origin.bound, 0.0), -origin.bound)
            self._cost[at] += origin.cost
            self._splits += 1

    def scores(self, costs: Array) -> Array:
        """The higher the better, for what the neurons' relaxations cost, ``[neurons, nodes]``; negative where
        there is nothing to split.
        """
        cost, gained = self._cost.sum(), self._gained.sum()
        if not (0 < cost < np.inf and gained > 0):
            return costs
        known, usual = _PRIOR * cost / self._splits, gained / cost
        worth = (self._gained / usual + known) / (self._cost + known)
        off, on = np.clip(worth, _LEAST, 1 / _LEAST)
        return np.where(costs < 0, costs, costs * np.sqrt(off * on)[:, None])
