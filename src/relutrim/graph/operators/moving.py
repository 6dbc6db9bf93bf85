"""Operators that only move numbers: Reshape, Take, Transpose, Concat. None has a coefficient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from relutrim.errors import NetworkError
from relutrim.graph.operators.affine import Affine, Coefficients, View
from relutrim.graph.operators.base import Mask, Shape, only

if TYPE_CHECKING:
    from torch import Tensor

Index = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Reshape(Affine):
    """Numbers in C order, as every format here keeps them. An identity is a reshape into the same shape."""

    kind = "Reshape"

    before: Shape
    after: Shape

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        shape = only(inputs, self.kind)
        if shape != self.before or math.prod(self.before) != math.prod(self.after):
            raise NetworkError(
                f"a value of shape {shape} cannot be reshaped from {self.before} to {self.after}"
            )
        return self.after

    def product(self, p: Coefficients, inputs: Sequence[Tensor]) -> Tensor:
        return inputs[0].reshape(len(inputs[0]), *self.after)

    def pulled_back(self, view: View, forms: Tensor, inputs: Sequence[Shape]) -> list[Tensor]:
        """Nothing to compute."""
        return [forms.reshape(len(forms), *self.before)]

    def reads(self, wanted: Mask, inputs: Sequence[Shape]) -> list[Mask]:
        return [wanted.reshape(self.before)]


@dataclass(frozen=True, eq=False)
class Take(Affine):
    """Entries picked along each axis: Slice, Split, Gather with constant indices, Pad with zeros.

    ``picks`` holds per axis (without the batch) the indices to take, None for all of them as they are; -1 is
    a 0 that is put there. An index may be taken more than once; then the adjoint adds up.
    """

    kind = "Take"

    picks: tuple[Index | None, ...]

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        shape = only(inputs, self.kind)
        if len(shape) != len(self.picks):
            raise NetworkError(f"picks along {len(self.picks)} axes meet a value of shape {shape}")
        for size, pick in zip(shape, self.picks, strict=True):
            if pick is not None and ((pick < -1) | (pick >= size)).any():
                wrong = int(pick[(pick < -1) | (pick >= size)][0])
                raise NetworkError(f"an index of {wrong} is taken from an axis of {size} entries")
        return tuple(s if p is None else len(p) for s, p in zip(shape, self.picks, strict=True))

    def product(self, p: Coefficients, inputs: Sequence[Tensor]) -> Tensor:
        import torch

        (x,) = inputs
        for axis, pick in enumerate(self.picks, start=1):
            if pick is not None:
                if (pick < 0).any():  # a 0 is taken from behind the last entry
                    zero = x.new_zeros(*x.shape[:axis], 1, *x.shape[axis + 1 :])
                    x = torch.cat([x, zero], dim=axis)
                places = np.where(pick < 0, x.shape[axis] - 1, pick)
                x = x.index_select(axis, torch.as_tensor(places, device=x.device))
        return x


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

    def product(self, p: Coefficients, inputs: Sequence[Tensor]) -> Tensor:
        return inputs[0].permute(0, *(axis + 1 for axis in self.order))


@dataclass(frozen=True, eq=False)
class Concat(Affine):
    """Values one behind the other along an axis (counted without the batch)."""

    kind = "Concat"

    axis: int
    sizes: tuple[int, ...]
    """The size of each value along the axis."""

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        rest = {(*shape[: self.axis], *shape[self.axis + 1 :]) for shape in inputs}
        if len(rest) != 1 or self.axis < 0 or any(len(shape) <= self.axis for shape in inputs):
            raise NetworkError(f"values of shapes {list(inputs)} cannot be joined along axis {self.axis}")
        if tuple(shape[self.axis] for shape in inputs) != self.sizes:
            raise NetworkError(f"values of shapes {list(inputs)} do not have sizes {self.sizes}")
        first = inputs[0]
        return (*first[: self.axis], sum(self.sizes), *first[self.axis + 1 :])

    def product(self, p: Coefficients, inputs: Sequence[Tensor]) -> Tensor:
        import torch

        rows = max(x.shape[0] for x in inputs)
        return torch.cat([x.expand(rows, *x.shape[1:]) for x in inputs], dim=self.axis + 1)
