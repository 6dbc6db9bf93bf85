"""Operators that only move numbers: Take, Transpose, Concat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from relutrim.errors import NetworkError
from relutrim.network.operators.base import Affine, Shape, only

Index = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Take(Affine):
    """Entries picked along each axis: Slice, Split, Gather with constant indices, Pad with zeros.

    ``picks`` holds per axis (without the batch) the indices to take, None for all of them as they are; -1 is
    a 0 that is put there. An index may be taken more than once.
    """

    kind = "Take"

    picks: tuple[Index | None, ...]

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        shape = only(inputs, self.kind)
        if len(shape) != len(self.picks):
            raise NetworkError(f"picks along {len(self.picks)} axes meet a value of shape {shape}")
        for size, pick in zip(shape, self.picks, strict=True):
            if pick is not None and ((pick < -1) | (pick >= size)).any():
                raise NetworkError(f"an index of {int(pick.max())} is taken from an axis of {size} entries")
        return tuple(s if p is None else len(p) for s, p in zip(shape, self.picks, strict=True))


@dataclass(frozen=True, eq=False)
class Transpose(Affine):
    """Axes in another order (without the batch, which stays first)."""

    kind = "Transpose"

    order: tuple[int, ...]

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        shape = only(inputs, self.kind)
        if sorted(self.order) != list(range(len(shape))):
            raise NetworkError(f"axes {self.order} are not an order of those of a value of shape {shape}")
        return tuple(shape[axis] for axis in self.order)


@dataclass(frozen=True, eq=False)
class Concat(Affine):
    """Values one behind the other along an axis (counted without the batch)."""

    kind = "Concat"

    axis: int
    sizes: tuple[int, ...]
    """The size of each value along the axis."""

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        rest = {(*shape[: self.axis], *shape[self.axis + 1 :]) for shape in inputs}
        if len(rest) != 1 or any(len(shape) <= self.axis for shape in inputs):
            raise NetworkError(f"values of shapes {list(inputs)} cannot be joined along axis {self.axis}")
        if tuple(shape[self.axis] for shape in inputs) != self.sizes:
            raise NetworkError(f"values of shapes {list(inputs)} do not have sizes {self.sizes}")
        first = inputs[0]
        return (*first[: self.axis], sum(self.sizes), *first[self.axis + 1 :])
