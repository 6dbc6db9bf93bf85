"""What a network is for the checker: affine nodes, ReLUs and maxima over flat vectors.

An affine node is ``y = M_1 x_1 + ... + M_n x_n + b``. Each map is one of three: entries picked, a matrix
along the last axis, or one number per entry. Convolutions and averages pick windows and multiply them by a
matrix. Maps are applied to whole batches of vectors, so an expression (one vector per symbol) is pushed
through any of them by applying it to the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from relutrim.certificate.check.rounding import ETA, Array, Index, U

_CHUNK = 2**23
"""How many numbers the windows of a batch may take at once."""


@dataclass(frozen=True, eq=False)
class Pick:
    """Entries by their index, -1 for a zero. Nothing is rounded."""

    index: Index
    terms = 0

    @property
    def size(self) -> int:
        """How many entries it makes."""
        return int(self.index.size)

    def forward(self, batch: Array, absolute: bool = False) -> Array:
        """``W x`` for each row, or ``|W| x``."""
        if not batch.shape[1] and (self.index < 0).all():
            return np.zeros((len(batch), self.index.size))
        found = batch[:, self.index]
        if (self.index < 0).any():
            found[:, self.index < 0] = 0.0
        return found

    def columns(self, inputs: int) -> Array:
        """What becomes of each input alone: ``W``, transposed."""
        return self.forward(np.eye(inputs))

    def doubt(self, size: Array) -> Array:
        """How far ``W x`` can be off for ``|x| <= size`` because ``W`` is not exactly known."""
        return np.zeros((len(size), self.index.size))


@dataclass(frozen=True, eq=False)
class Matrix:
    """A matrix (out, in) for each of ``len(windows)`` windows of entries, -1 for a zero; the results of one
    window lie side by side.
    """

    weight: Array
    windows: Index

    @property
    def size(self) -> int:
        """How many entries it makes."""
        return len(self.windows) * len(self.weight)

    @property
    def terms(self) -> int:
        """How many products are summed."""
        return int(self.weight.shape[1])

    def forward(self, batch: Array, absolute: bool = False) -> Array:
        """``W x`` for each row, or ``|W| x``."""
        weight = np.abs(self.weight) if absolute else self.weight
        count, width = self.windows.shape
        if self._plain(batch.shape[1]):
            return batch @ weight.T
        made = np.empty((len(batch), count * len(weight)))
        step = max(1, _CHUNK // max(1, self.windows.size))
        pick = Pick(self.windows.reshape(-1))
        for at in range(0, len(batch), step):
            rows = pick.forward(batch[at : at + step]).reshape(-1, width)
            made[at : at + step] = (rows @ weight.T).reshape(-1, made.shape[1])
        return made

    def columns(self, inputs: int) -> Array:
        """What becomes of each input alone: ``W``, transposed."""
        return self.weight.T if self._plain(inputs) else self.forward(np.eye(inputs))

    def _plain(self, inputs: int) -> bool:
        """Whether there is one window, and it is the whole vector."""
        return self.windows.shape == (1, inputs) and bool((self.windows[0] == np.arange(inputs)).all())

    def doubt(self, size: Array) -> Array:
        """Nothing: the weights are what the file says."""
        return np.zeros((len(size), len(self.windows) * len(self.weight)))


@dataclass(frozen=True, eq=False)
class Scale:
    """One factor per entry; the true one is within ``radius`` of it."""

    factor: Array
    radius: Array | None = None
    terms = 1

    @property
    def size(self) -> int:
        """How many entries it makes."""
        return int(self.factor.size)

    def forward(self, batch: Array, absolute: bool = False) -> Array:
        """``W x`` for each row, or ``|W| x``."""
        return batch * (np.abs(self.factor) if absolute else self.factor)

    def columns(self, inputs: int) -> Array:
        """What becomes of each input alone: ``W``, transposed."""
        return np.diag(self.factor)

    def doubt(self, size: Array) -> Array:
        """``radius * |x|``."""
        return np.zeros_like(size) if self.radius is None else size * self.radius + ETA


Map: TypeAlias = Pick | Matrix | Scale


@dataclass(frozen=True, eq=False)
class Affine:
    """The sum of maps of the inputs, and a constant."""

    maps: tuple[Map, ...]
    bias: Array | None = None

    @property
    def terms(self) -> int:
        """How many numbers are added up, at most."""
        return sum(m.terms for m in self.maps) + len(self.maps)

    @property
    def moves(self) -> bool:
        """Whether coefficients are only moved: nothing of them is rounded."""
        return len(self.maps) == 1 and isinstance(self.maps[0], Pick)


@dataclass(frozen=True)
class Relu:
    """``max(0, x)``."""


@dataclass(frozen=True, eq=False)
class Maximum:
    """The largest of each window (windows, entries); -1 is no entry."""

    windows: Index


@dataclass(frozen=True, eq=False)
class Node:
    """What makes a value: an operation on earlier values, by their numbers (the input is 0)."""

    operation: Affine | Relu | Maximum
    inputs: tuple[int, ...]
    name: str


@dataclass(frozen=True, eq=False)
class Tail:
    """An output: its name, the number of its value, what is done to it at the very end, and its shape."""

    name: str
    value: int
    steps: tuple[str, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes in order; node ``i`` makes value ``i + 1``. ``layers`` are the nodes that are not affine."""

    shape: tuple[int, ...]
    nodes: tuple[Node, ...]
    sizes: tuple[int, ...]
    outputs: tuple[Tail, ...]
    input_name: str

    @property
    def layers(self) -> list[int]:
        """The numbers of the nodes with a nonlinearity, in order."""
        return [i for i, node in enumerate(self.nodes) if not isinstance(node.operation, Affine)]

    def run(self, batch: Array) -> list[Array]:
        """All values on a batch of flat inputs, in plain float64: for hints, never for a proof."""
        values = [batch]
        for node in self.nodes:
            inputs = [values[i] for i in node.inputs]
            operation = node.operation
            if isinstance(operation, Affine):
                made = sum(m.forward(x) for m, x in zip(operation.maps, inputs, strict=True))
                values.append(np.asarray(made if operation.bias is None else made + operation.bias))
            elif isinstance(operation, Relu):
                values.append(np.maximum(inputs[0], 0))
            else:
                entries = inputs[0][:, operation.windows]
                values.append(np.where(operation.windows < 0, -np.inf, entries).max(-1))
        return values


def quotient(divisor: Array, numerator: Array | float = 1.0, roundings: int = 1) -> tuple[Array, Array]:
    """``numerator / divisor`` and a radius that covers so many relative roundings; NaN where that would not
    be enough.
    """
    with np.errstate(all="ignore"):
        found = np.asarray(numerator / divisor, dtype=np.float64)
    tame = (np.abs(found) > 2.0**-900) & (np.abs(found) < 2.0**900) | (np.asarray(numerator) == 0)
    exact = roundings == 1 and bool((np.frexp(np.abs(divisor))[0] == 0.5).all())
    found = np.where(tame, found, np.nan)
    return found, np.zeros_like(found) if exact else np.abs(found) * (2 * (roundings + 1) * U)
