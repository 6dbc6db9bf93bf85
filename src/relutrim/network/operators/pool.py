"""Pooling over windows: AveragePool and MaxPool; and Mean, over whole axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relutrim.errors import NetworkError
from relutrim.network.operators.base import Affine, Operator, Shape, only
from relutrim.network.operators.convolution import Padding, window_space


@dataclass(frozen=True, eq=False)
class AveragePool(Affine):
    """The mean of each window of each channel; zeros of the padding count only with ``count_padding``."""

    kind = "AveragePool"

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: Padding
    count_padding: bool = False

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        shape = only(inputs, self.kind)
        if len(shape) != len(self.kernel) + 1:
            raise NetworkError(f"windows of {self.kernel} meet a value of shape {shape}")
        ones = (1,) * len(self.kernel)
        return (shape[0], *window_space(shape[1:], self.kernel, self.stride, self.padding, ones))


@dataclass(frozen=True, eq=False)
class Mean(Affine):
    """The mean over some axes (counted without the batch), which stay with size 1 if ``keep``."""

    kind = "Mean"

    axes: tuple[int, ...]
    keep: bool

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        shape = only(inputs, self.kind)
        if not self.axes or not all(0 <= axis < len(shape) for axis in self.axes):
            raise NetworkError(f"a mean over axes {self.axes} of a value of shape {shape}")
        sizes = [(1 if axis in self.axes else size) for axis, size in enumerate(shape)]
        return tuple(size for axis, size in enumerate(sizes) if self.keep or axis not in self.axes)


@dataclass(frozen=True, eq=False)
class MaxPool(Operator):
    """The largest entry of each window of each channel; padding never wins."""

    kind = "MaxPool"

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: Padding
    dilation: tuple[int, ...]

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        shape = only(inputs, self.kind)
        if len(shape) != len(self.kernel) + 1:
            raise NetworkError(f"windows of {self.kernel} meet a value of shape {shape}")
        return (shape[0], *window_space(shape[1:], self.kernel, self.stride, self.padding, self.dilation))
