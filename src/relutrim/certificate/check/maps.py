"""What a network is for the checker: affine nodes and ReLUs over flat vectors.

An affine node is ``y = M_1 x_1 + ... + M_n x_n + b``. Maps are applied to whole batches of vectors, so an
expression (one vector per symbol) is pushed through any of them by applying it to the batch. There is no
other nonlinearity than ``max(0, x)``: the reader writes all others with it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from relutrim.certificate.check.rounding import Array, Index
from relutrim.errors import CheckFailed

_CHUNK = 2**23
"""How many numbers the windows of a batch may take at once."""


@dataclass(frozen=True, eq=False)
class Map:
    """Entries by their index, -1 for a zero: each times a factor, if there are factors (the true ones are
    within ``radius``); or windows (groups, windows, entries) of them times a weight (groups, outputs,
    entries), with results in the order (groups, outputs, windows).
    """

    index: Index
    weight: Array | None = None
    factor: Array | None = None
    radius: Array | None = None

    @property
    def terms(self) -> int:
        """How many products are summed."""
        return int(self.weight.shape[2]) if self.weight is not None else int(self.factor is not None)

    def forward(self, batch: Array, absolute: bool = False, deadline: float = float("inf")) -> Array:
        """``M x`` for each row, or ``|M| x``. Few numbers can make windows that take hours."""
        weight, factor = (np.abs(m) if absolute and m is not None else m for m in (self.weight, self.factor))
        if weight is None:
            made = picked(batch, self.index)
            return made if factor is None else np.asarray(made * factor)
        groups, count, width = self.index.shape
        if groups == count == 1 and np.array_equal(self.index[0, 0], np.arange(batch.shape[1])):
            alone = len(batch) == width == np.count_nonzero(batch) and (batch.diagonal() == 1).all()
            return weight[0].T if alone else np.asarray(batch @ weight[0].T)
        made = np.empty((len(batch), groups, weight.shape[1], count))
        step = max(1, _CHUNK // max(1, count * width))
        for at in range(0, len(batch), step):
            for group in range(groups):
                if time.monotonic() > deadline:
                    raise CheckFailed("not checked: the windows of a model take longer than the limit")
                rows = picked(batch[at : at + step], self.index[group].reshape(-1)).reshape(-1, width)
                product = (rows @ weight[group].T).reshape(-1, count, weight.shape[1])
                made[at : at + step, group] = product.swapaxes(1, 2)
        return made.reshape(len(batch), groups * weight.shape[1] * count)  # also of no rows at all


def picked(batch: Array, index: Index) -> Array:
    """Columns by their index, zeros for -1. Nothing is rounded."""
    if np.array_equal(index, np.arange(batch.shape[1])):
        return batch
    found: Array = np.concatenate([batch, np.zeros((len(batch), 1))], 1)[:, index]
    return found


@dataclass(frozen=True, eq=False)
class Affine:
    """The sum of maps of the inputs, and a constant, in so many entries."""

    maps: tuple[Map, ...]
    bias: Array

    @property
    def terms(self) -> int:
        """How many numbers are added up, at most: 0 where coefficients are only moved."""
        return sum(m.terms for m in self.maps) + (len(self.maps) if len(self.maps) > 1 else 0)


@dataclass(frozen=True, eq=False)
class Node:
    """What makes a value of earlier ones, by their numbers (the input is 0): an affine function, or a ReLU
    of one value (None), or what the checker does not know.
    """

    operation: Affine | None
    inputs: tuple[int, ...]
    name: str
    minor: bool = False
    """Whether it only compares entries of a maximum: there are many of those, and intervals have to do."""
    opaque: bytes | None = None
    """Of a node that is not known: all that it consists of, apart from the values that it reads."""


@dataclass(frozen=True)
class Value:
    """A tensor: its number among the values, its shape, and the steps that are taken at the very end. One of
    a shape that is not known has a step that is not known.
    """

    number: int
    shape: tuple[int, ...]
    steps: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes in order; node ``i`` makes value ``i + 1``, which has ``sizes[i + 1]`` entries (-1 if that is not
    known).
    """

    shape: tuple[int, ...]
    nodes: tuple[Node, ...]
    sizes: tuple[int, ...]
    outputs: dict[str, Value]
    input_name: str
    around: bytes = b""
    """What nodes that are not known may depend on: functions, and the versions of operators."""

    @property
    def layers(self) -> list[int]:
        """The numbers of the ReLUs' nodes, in order."""
        return [i for i, node in enumerate(self.nodes) if node.operation is None and node.opaque is None]
