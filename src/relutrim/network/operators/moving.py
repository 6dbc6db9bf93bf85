"""Operators that only move numbers: Take, Transpose, Concat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from relutrim.bounds.values import Interval
from relutrim.errors import NetworkError
from relutrim.network.operators.base import Affine, Mask, Shape, only

if TYPE_CHECKING:
    from torch import Tensor

Index = npt.NDArray[np.int64]


class _Moving(Affine):
    """Every entry of the output is an entry of an input, or 0: nothing rounds on the way forward."""

    def constant(self, forms: Tensor) -> Tensor:
        return forms.new_zeros(forms.shape[0])

    def terms(self, inputs: Sequence[Shape]) -> int:
        return 0

    def magnitude(self, inputs: Sequence[Tensor]) -> Tensor:
        return self.forward(inputs)

    def spread(self, inputs: Sequence[Tensor]) -> Tensor:
        return self.forward(inputs)

    def interval(self, inputs: Sequence[Interval]) -> Interval:
        return Interval(self.forward([x.lo for x in inputs]), self.forward([x.hi for x in inputs]))


@dataclass(frozen=True, eq=False)
class Take(_Moving):
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

    def reads(self, wanted: Mask, inputs: Sequence[Shape]) -> list[Mask]:
        for axis, (size, pick) in enumerate(zip(inputs[0], self.picks, strict=True)):
            if pick is not None:
                read = np.zeros((size, *wanted.shape[:axis], *wanted.shape[axis + 1 :]), dtype=bool)
                np.logical_or.at(read, pick[pick >= 0], np.moveaxis(wanted, axis, 0)[pick >= 0])
                wanted = np.moveaxis(read, 0, axis)
        return [wanted]

    def terms(self, inputs: Sequence[Shape]) -> int:
        """0 while no entry is taken twice; then as often as one entry is taken."""
        times = 1
        for pick in self.picks:
            if pick is not None and (pick >= 0).any():
                times *= int(np.bincount(pick[pick >= 0]).max())
        return times if times > 1 else 0

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        (x,) = inputs
        for axis, pick in enumerate(self.picks, start=1):
            if pick is not None:
                x = _with_zero(x, axis) if (pick < 0).any() else x
                x = x.index_select(axis, self._places(axis, pick, x))
        return x

    def adjoint(self, forms: Tensor, inputs: Sequence[Shape]) -> list[Tensor]:
        (shape,) = inputs
        for axis in reversed(range(1, len(shape) + 1)):
            pick = self.picks[axis - 1]
            if pick is not None:
                size = shape[axis - 1]
                wide = forms.new_zeros(*forms.shape[:axis], size + 1, *forms.shape[axis + 1 :])
                places = self._places(axis, pick, forms, size)
                forms = wide.index_add(axis, places, forms).narrow(axis, 0, size)
        return [forms]

    @staticmethod
    def _places(axis: int, pick: Index, x: Tensor, size: int | None = None) -> Tensor:
        """The indices beside ``x``; a 0 is taken from behind the last entry."""
        import torch

        behind = x.shape[axis] - 1 if size is None else size
        return torch.as_tensor(np.where(pick < 0, behind, pick), device=x.device)


@dataclass(frozen=True, eq=False)
class Transpose(_Moving):
    """Axes in another order (without the batch, which stays first)."""

    kind = "Transpose"

    order: tuple[int, ...]

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        shape = only(inputs, self.kind)
        if sorted(self.order) != list(range(len(shape))):
            raise NetworkError(f"axes {self.order} are not an order of those of a value of shape {shape}")
        return tuple(shape[axis] for axis in self.order)

    def reads(self, wanted: Mask, inputs: Sequence[Shape]) -> list[Mask]:
        return [wanted.transpose(np.argsort(self.order))]

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        (x,) = inputs
        return x.permute(0, *(axis + 1 for axis in self.order))

    def adjoint(self, forms: Tensor, inputs: Sequence[Shape]) -> list[Tensor]:
        return [forms.permute(0, *(int(axis) + 1 for axis in np.argsort(self.order)))]


@dataclass(frozen=True, eq=False)
class Concat(_Moving):
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

    def reads(self, wanted: Mask, inputs: Sequence[Shape]) -> list[Mask]:
        return np.split(wanted, np.cumsum(self.sizes)[:-1], axis=self.axis)

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        import torch

        rows = max(x.shape[0] for x in inputs)
        return torch.cat([x.expand(rows, *x.shape[1:]) for x in inputs], dim=self.axis + 1)

    def adjoint(self, forms: Tensor, inputs: Sequence[Shape]) -> list[Tensor]:
        starts = [sum(self.sizes[:k]) for k in range(len(self.sizes))]
        return [forms.narrow(self.axis + 1, at, size) for at, size in zip(starts, self.sizes, strict=True)]


def _with_zero(x: Tensor, axis: int) -> Tensor:
    """With a 0 behind the last entry of an axis."""
    import torch

    return torch.cat([x, x.new_zeros(*x.shape[:axis], 1, *x.shape[axis + 1 :])], dim=axis)
