"""Convolutions in one or two dimensions, zero padding: Conv, nn.Conv1d, nn.Conv2d."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from relutrim.errors import NetworkError
from relutrim.graph.operators.affine import Affine, Coefficient, Coefficients, View
from relutrim.graph.operators.base import Array, Shape, only, parameter
from relutrim.graph.operators.windows import Padding, Places, table, taps, window_space

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Convolution", "Padding", "window_space"]


@dataclass(frozen=True, eq=False)
class Convolution(Affine):
    """``weight`` is (outputs, inputs / groups, *kernel), ``bias`` (outputs,); a value (channels, *space)."""

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
            raise NetworkError(
                f"a kernel of shape {self.weight.shape} is not one of a 1-d or 2-d convolution"
            )
        if self.bias.shape != self.weight.shape[:1] or self.groups < 1 or self.weight.shape[0] % self.groups:
            raise NetworkError(
                f"a kernel of shape {self.weight.shape} does not go with a bias of shape {self.bias.shape} "
                f"in {self.groups} groups"
            )

    @property
    def windows(self) -> tuple[Shape, Shape, Padding, Shape]:
        """Where the kernel lies: its shape, stride, padding and dilation."""
        return self.weight.shape[2:], self.stride, self.padding, self.dilation

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        shape = only(inputs, self.kind)
        axes = self.weight.ndim - 2
        if len(shape) != axes + 1 or shape[0] != self.weight.shape[1] * self.groups:
            raise NetworkError(f"a kernel of shape {self.weight.shape} meets a value of shape {shape}")
        space = window_space(shape[1:], self.weight.shape[2:], self.stride, self.padding, self.dilation)
        return (self.weight.shape[0], *space)

    @property
    def coefficients(self) -> Mapping[str, Coefficient]:
        return {"kernel": Coefficient(self.weight)}

    @property
    def offset(self) -> Coefficient:
        return Coefficient(self.bias.reshape(-1, *[1] * (self.weight.ndim - 2)))

    def product(self, p: Coefficients, inputs: Sequence[Tensor]) -> Tensor:
        from relutrim.graph.operators.correlate import correlate

        return correlate(inputs[0], p["kernel"], self.stride, self.padding, self.dilation, self.groups)

    def pulled_back(self, view: View, forms: Tensor, inputs: Sequence[Shape]) -> list[Tensor]:
        """What the gradient calls too, without the product before it."""
        from relutrim.graph.operators.correlate import correlate_adjoint

        kernel = Coefficients(self, view, forms)["kernel"]
        return [
            correlate_adjoint(forms, kernel, inputs[0], self.stride, self.padding, self.dilation, self.groups)
        ]

    def summed(self, inputs: Sequence[Shape]) -> tuple[int, int]:
        """An output sums over the inputs of its group and the kernel, a coefficient of the adjoint over the
        outputs of its group and the kernel.
        """
        outputs, per_group, *kernel = self.weight.shape
        return per_group * math.prod(kernel), outputs // self.groups * math.prod(kernel)

    @property
    def field_counts(self) -> Mapping[str, int]:
        return {"weight": self.weight.size, "bias": self.bias.size}

    def multiply_adds(self, entries: int) -> int:
        return entries * math.prod(self.weight.shape[1:])

    def taps(self, shape: Shape) -> list[Places]:
        """Per spatial axis, the places that each window reads in a value of this shape."""
        return taps(shape[1:], self.weight.shape[2:], self.stride, self.padding, self.dilation)

    def rows(self, index: Tensor, like: Tensor, inputs: Sequence[Shape]) -> tuple[Tensor, Tensor]:
        """Kernels put where their windows are: bounds begin with these, once per neuron."""
        import torch

        (shape,) = inputs
        space = shape[1:]
        places = table(self.taps(shape), space)
        # Padding lies behind the last entry and is cut off.
        padded = torch.as_tensor(np.where(places < 0, math.prod(space), places), device=like.device)
        channel, window = index // len(places), index % len(places)
        per_group, per_output = self.weight.shape[1], max(1, len(self.bias) // self.groups)
        own = (channel // per_output * per_group)[:, None] + torch.arange(per_group, device=like.device)
        found = like.new_zeros(len(index), shape[0], math.prod(space) + 1)
        row = torch.arange(len(index), device=like.device)
        p = Coefficients(self, View.VALUE, like)
        kernel = p["kernel"].flatten(2)
        found[row[:, None, None], own[:, :, None], padded[window][:, None, :]] = kernel[channel]
        return found[:, :, :-1].reshape(len(index), *shape), p.offset.flatten()[channel]
