"""Convolutions in one or two dimensions, zero padding: Conv, nn.Conv1d, nn.Conv2d."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from relutrim.errors import NetworkError
from relutrim.network.operators.base import Affine, Array, Shape, only, parameter

Padding: TypeAlias = tuple[tuple[int, int], ...]
"""How many zeros are put before and behind each spatial axis."""


@dataclass(frozen=True, eq=False)
class Convolution(Affine):
    """``weight`` is (outputs, inputs / groups, *kernel), ``bias`` (outputs,); values are (channels, *space)."""

    kind = "Convolution"

    weight: Array
    bias: Array
    stride: tuple[int, ...]
    padding: Padding
    dilation: tuple[int, ...]
    groups: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", parameter(self.weight, "the kernel"))
        object.__setattr__(self, "bias", parameter(self.bias, "the bias"))
        axes = self.weight.ndim - 2
        if axes not in (1, 2) or not len(self.stride) == len(self.padding) == len(self.dilation) == axes:
            raise NetworkError(f"a kernel of shape {self.weight.shape} is not one of a 1-d or 2-d convolution")
        if self.bias.shape != self.weight.shape[:1] or self.weight.shape[0] % self.groups:
            raise NetworkError(
                f"a kernel of shape {self.weight.shape} does not go with a bias of shape {self.bias.shape} "
                f"in {self.groups} groups"
            )

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        shape = only(inputs, self.kind)
        axes = self.weight.ndim - 2
        if len(shape) != axes + 1 or shape[0] != self.weight.shape[1] * self.groups:
            raise NetworkError(f"a kernel of shape {self.weight.shape} meets a value of shape {shape}")
        space = window_space(shape[1:], self.weight.shape[2:], self.stride, self.padding, self.dilation)
        return (self.weight.shape[0], *space)


def window_space(
    space: Shape, kernel: Shape, stride: Sequence[int], padding: Padding, dilation: Sequence[int]
) -> Shape:
    """How many windows fit along each axis."""
    found = []
    for size, k, step, (before, behind), d in zip(space, kernel, stride, padding, dilation, strict=True):
        room = size + before + behind - d * (k - 1) - 1
        if room < 0 or step < 1:
            raise NetworkError(f"a window of {k} does not fit into {size} entries with padding {before, behind}")
        found.append(room // step + 1)
    return tuple(found)
