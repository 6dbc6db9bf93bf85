"""Pooling that is affine: AveragePool over windows, and Mean over whole axes.

Both sum first and then divide by a whole number, so no weight ``1 / k`` is ever rounded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from relutrim.errors import NetworkError
from relutrim.graph.operators.affine import Affine, Coefficients
from relutrim.graph.operators.base import Array, Shape, only
from relutrim.graph.operators.windows import Padding, Places, require_entries, taps, window_space

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class AveragePool(Affine):
    """The mean of each window of each channel; zeros of the padding count only with ``count_padding``."""

    kind = "AveragePool"
    divides = True

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

    def product(self, p: Coefficients, inputs: Sequence[Tensor]) -> Tensor:
        from torch.nn import functional

        from relutrim.graph.operators.correlate import pad

        (x,) = inputs
        shape = tuple(x.shape[1:])
        if not x.numel():
            return x.new_zeros(len(x), *self.output_shape([shape]))
        flat = len(self.kernel) == 1  # a row of a plane
        kernel, stride = ((1, *self.kernel), (1, *self.stride)) if flat else (self.kernel, self.stride)
        x = pad(x, self.padding)
        found = functional.avg_pool2d(x.unsqueeze(2) if flat else x, kernel, stride, divisor_override=1)
        counts = self._tensor(f"counts {shape}", x, lambda: self.counts(shape))
        return p.over(found.squeeze(2) if flat else found, counts)

    def counts(self, shape: Shape) -> Array:
        """By how much each window's sum is divided."""
        if self.count_padding:
            return np.full([1] * len(self.kernel), float(math.prod(self.kernel)))
        inside = [(places >= 0).sum(1).astype(np.float64) for places in self.taps(shape)]
        return reduce(np.multiply.outer, inside)

    def taps(self, shape: Shape) -> list[Places]:
        """Per spatial axis, the places that each window lies over in a value of this shape."""
        return taps(shape[1:], self.kernel, self.stride, self.padding, (1,) * len(self.kernel))


@dataclass(frozen=True, eq=False)
class Mean(Affine):
    """The mean over some axes (counted without the batch), which stay with size 1 if ``keep``."""

    kind = "Mean"
    divides = True

    axes: tuple[int, ...]
    keep: bool

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        shape = only(inputs, self.kind)
        if not self.axes or not all(0 <= axis < len(shape) for axis in self.axes):
            raise NetworkError(f"a mean over axes {self.axes} of a value of shape {shape}")
        if not self._count(shape):
            raise NetworkError(f"a mean over no entries: axes {self.axes} of a value of shape {shape}")
        sizes = (1 if axis in self.axes else size for axis, size in enumerate(shape))
        return tuple(size for axis, size in enumerate(sizes) if self.keep or axis not in self.axes)

    def product(self, p: Coefficients, inputs: Sequence[Tensor]) -> Tensor:
        (x,) = inputs
        total = x.sum([axis + 1 for axis in sorted(set(self.axes))], keepdim=self.keep)
        return p.over(total, self._count(tuple(x.shape[1:])))

    def _count(self, shape: Shape) -> int:
        return math.prod(shape[axis] for axis in set(self.axes))
