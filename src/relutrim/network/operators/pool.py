"""Pooling that is affine: AveragePool over windows, and Mean over whole axes.

Both sum first and then divide by a whole number, so no weight ``1 / k`` is ever rounded: a sum of ``k``
numbers and a division are off by at most ``gamma(k + 1)`` of the magnitudes, like a sum of products.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from relutrim.bounds.values import Interval
from relutrim.errors import NetworkError
from relutrim.network.operators.base import Affine, Array, Mask, Shape, only
from relutrim.network.operators.windows import (
    Padding,
    Places,
    covered,
    require_entries,
    taps,
    window_space,
)
from relutrim.rounding import ETA, gamma, widen_down, widen_up

if TYPE_CHECKING:
    from torch import Tensor


class _Averaging(Affine):
    """A sum of entries, divided by how many there are: no weight is negative."""

    def constant(self, forms: Tensor) -> Tensor:
        return forms.new_zeros(forms.shape[0])

    def magnitude(self, inputs: Sequence[Tensor]) -> Tensor:
        return self.forward(inputs)

    def spread(self, inputs: Sequence[Tensor]) -> Tensor:
        return self.forward(inputs)

    def interval(self, inputs: Sequence[Interval]) -> Interval:
        (x,) = inputs
        shape = tuple(x.lo.shape[1:])
        return Interval(
            widen_down(self.forward([x.lo]), self._radius(x.lo, shape)),
            widen_up(self.forward([x.hi]), self._radius(x.hi, shape)),
        )

    def _radius(self, end: Tensor, shape: Shape) -> Tensor:
        terms = self.terms([shape])
        magnitude = self.forward([end.abs()])
        radius = gamma(terms) * magnitude + terms * ETA
        # Sums never underflow, so a sum of 0 and 1 says for certain where an entry is not 0.
        some = self.forward([(end != 0).to(end)]) > 0
        return radius.where(some | (magnitude != 0), 0 * radius)


@dataclass(frozen=True, eq=False)
class AveragePool(_Averaging):
    """The mean of each window of each channel; zeros of the padding count only with ``count_padding``."""

    kind = "AveragePool"

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: Padding
    count_padding: bool = False

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        shape = only(inputs, self.kind)
        if len(shape) != len(self.kernel) + 1 or len(self.kernel) not in (1, 2):
            raise NetworkError(f"windows of {self.kernel} meet a value of shape {shape}")
        ones = (1,) * len(self.kernel)
        space = window_space(shape[1:], self.kernel, self.stride, self.padding, ones)
        if not self.count_padding:
            require_entries(self.taps(shape), "average pooling")
        return (shape[0], *space)

    def taps(self, shape: Shape) -> list[Places]:
        """Per spatial axis, the places that each window lies over in a value of this shape."""
        return taps(shape[1:], self.kernel, self.stride, self.padding, (1,) * len(self.kernel))

    def reads(self, wanted: Mask, inputs: Sequence[Shape]) -> list[Mask]:
        return [covered(wanted, self.taps(inputs[0]), inputs[0])]

    def terms(self, inputs: Sequence[Shape]) -> int:
        return math.prod(self.kernel) + 1

    def counts(self, shape: Shape) -> Array:
        """By how much each window's sum is divided."""
        if self.count_padding:
            return np.full([1] * len(self.kernel), float(math.prod(self.kernel)))
        inside = [(places >= 0).sum(1).astype(np.float64) for places in self.taps(shape)]
        return reduce(np.multiply.outer, inside)

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        from relutrim.network.operators.correlate import pad

        (x,) = inputs
        return self._sum(pad(x, self.padding)) / self._counts(x, tuple(x.shape[1:]))

    def adjoint(self, forms: Tensor, inputs: Sequence[Shape]) -> list[Tensor]:
        import torch

        from relutrim.network.operators.correlate import crop

        (shape,) = inputs
        shares = forms / self._counts(forms, shape)
        padded = [size + sum(ends) for size, ends in zip(shape[1:], self.padding, strict=True)]
        kernel, stride = self._two_axes
        like = forms.new_empty(forms.shape[0], shape[0], *[1] * (2 - len(padded)), *padded)
        if not like.numel():
            return [forms.new_zeros(forms.shape[0], *shape)]
        found: Tensor = torch.ops.aten.avg_pool2d_backward(
            self._wide(shares), like, kernel, stride, [0, 0], False, True, 1
        )
        return [crop(found.reshape(forms.shape[0], shape[0], *padded), self.padding, shape[1:])]

    def _sum(self, padded: Tensor) -> Tensor:
        from torch.nn import functional

        kernel, stride = self._two_axes
        if not padded.numel():
            ones = (1,) * len(self.kernel)
            none = ((0, 0),) * len(self.kernel)
            space = window_space(tuple(padded.shape[2:]), self.kernel, self.stride, none, ones)
            return padded.new_zeros(*padded.shape[:2], *space)
        found = functional.avg_pool2d(self._wide(padded), kernel, stride, divisor_override=1)
        return found.squeeze(2) if len(self.kernel) == 1 else found

    @property
    def _two_axes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Kernel and stride in two dimensions; one dimension is a row."""
        return ((1, *self.kernel), (1, *self.stride)) if len(self.kernel) == 1 else (self.kernel, self.stride)

    def _wide(self, x: Tensor) -> Tensor:
        return x.unsqueeze(2) if len(self.kernel) == 1 else x

    def _counts(self, like: Tensor, shape: Shape) -> Tensor:
        return self._tensor(f"counts {shape}", like, lambda: self.counts(shape))


@dataclass(frozen=True, eq=False)
class Mean(_Averaging):
    """The mean over some axes (counted without the batch), which stay with size 1 if ``keep``."""

    kind = "Mean"

    axes: tuple[int, ...]
    keep: bool

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        shape = only(inputs, self.kind)
        if not self.axes or not all(0 <= axis < len(shape) for axis in self.axes):
            raise NetworkError(f"a mean over axes {self.axes} of a value of shape {shape}")
        if not self._count(shape):
            raise NetworkError(f"a mean over no entries: axes {self.axes} of a value of shape {shape}")
        sizes = self._kept(shape)
        return tuple(size for axis, size in enumerate(sizes) if self.keep or axis not in self.axes)

    def reads(self, wanted: Mask, inputs: Sequence[Shape]) -> list[Mask]:
        return [np.broadcast_to(wanted.reshape(self._kept(inputs[0])), inputs[0])]

    def terms(self, inputs: Sequence[Shape]) -> int:
        return self._count(inputs[0]) + 1

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        (x,) = inputs
        total = x.sum([axis + 1 for axis in sorted(set(self.axes))], keepdim=self.keep)
        return total / self._count(tuple(x.shape[1:]))

    def adjoint(self, forms: Tensor, inputs: Sequence[Shape]) -> list[Tensor]:
        (shape,) = inputs
        shares = (forms / self._count(shape)).reshape(forms.shape[0], *self._kept(shape))
        return [shares.expand(forms.shape[0], *shape)]

    def _count(self, shape: Shape) -> int:
        return math.prod(shape[axis] for axis in set(self.axes))

    def _kept(self, shape: Shape) -> Shape:
        return tuple(1 if axis in self.axes else size for axis, size in enumerate(shape))
