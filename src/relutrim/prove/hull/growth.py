"""A tree as it stands, as plain data: enough to plant it again and let it grow on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from relutrim.graph.operators import Array
from relutrim.intervals import Interval
from relutrim.prove.hull.cuts import Cut
from relutrim.prove.hull.model import Goal, States
from relutrim.prove.hull.proof import Leaf

INPUTS = 32
"""So many of the last inputs go with a tree that is to be planted again."""


@dataclass(frozen=True, eq=False)
class Growth:
    """``leaves`` are closed, ``open`` are the states of nodes that wait; together they cover every case.

    ``neurons`` says which neuron has which number, ``first`` is the root with its bound, ``root`` its point
    and the multipliers of its rows, ``cuts`` are those in the program, ``inputs`` the last inputs met, one a
    row. ``ranked`` is what the last solution would branch on, which the next node needs where it has no
    solution of its own, and ``failures`` how many nodes had none.
    """

    goal: Goal
    ranges: Mapping[str, Interval]
    neurons: tuple[tuple[str, int], ...]
    leaves: tuple[Leaf, ...]
    open: tuple[States, ...]
    first: Leaf | None
    root: tuple[Array, Array] | None
    cuts: tuple[Cut, ...]
    inputs: Tensor
    nodes: int
    dead: bool
    dived: bool
    ranked: tuple[int, ...] = ()
    failures: int = 0

    def points_fit(self, columns: int, rows: int, inputs: int) -> bool:
        """Whether the root's point, its multipliers and the inputs have the right sizes, and are finite."""
        if self.inputs.shape[1:] != (inputs,) or not bool(self.inputs.isfinite().all()):
            return False
        if self.root is None:
            return True
        point, duals = self.root
        return (
            point.shape == (columns,)
            and duals.shape == (rows,)
            and bool(np.isfinite(point).all() and np.isfinite(duals).all())
        )
