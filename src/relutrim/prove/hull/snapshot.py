"""A branch and bound tree as plain data: enough to restore it and go on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from relutrim.intervals import Interval
from relutrim.prove.hull.model import Goal, States
from relutrim.prove.hull.proof import Leaf

INPUTS = 32
"""A snapshot holds this many of the last inputs."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """``leaves`` are closed, ``open`` are the states of the nodes on the frontier; together they cover every
    case.

    ``neurons`` says which neuron has which number, ``first`` is the root with its bound, ``inputs`` are the
    last inputs met, one a row.
    """

    goal: Goal
    ranges: Mapping[str, Interval]
    neurons: tuple[tuple[str, int], ...]
    leaves: tuple[Leaf, ...]
    open: tuple[States, ...]
    first: Leaf | None
    inputs: Tensor
    nodes: int
    dead: bool

    def inputs_fit(self, size: int) -> bool:
        """Whether the inputs have the right size, and are finite."""
        return self.inputs.shape[1:] == (size,) and bool(self.inputs.isfinite().all())
