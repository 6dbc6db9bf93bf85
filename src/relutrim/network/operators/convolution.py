"""Convolutions in one or two dimensions, zero padding: Conv, nn.Conv1d, nn.Conv2d."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from relutrim.bounds.values import Interval, flat
from relutrim.errors import NetworkError
from relutrim.network.operators.base import Affine, Array, Mask, Shape, only, parameter
from relutrim.network.operators.extremes import exact_extremes
from relutrim.network.operators.windows import Padding, Places, read_through, table, taps, window_space
from relutrim.rounding import ETA, gamma, widen_down, widen_up

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

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        shape = only(inputs, self.kind)
        axes = self.weight.ndim - 2
        if len(shape) != axes + 1 or shape[0] != self.weight.shape[1] * self.groups:
            raise NetworkError(f"a kernel of shape {self.weight.shape} meets a value of shape {shape}")
        space = window_space(shape[1:], self.weight.shape[2:], self.stride, self.padding, self.dilation)
        return (self.weight.shape[0], *space)

    @property
    def parameters(self) -> int:
        return int(self.weight.size + self.bias.size)

    def multiply_adds(self, entries: int) -> int:
        return entries * math.prod(self.weight.shape[1:])

    def reads(self, wanted: Mask, inputs: Sequence[Shape]) -> list[Mask]:
        (shape,) = inputs
        return [read_through(wanted, self.weight != 0, self.taps(shape), shape, self.groups)]

    def taps(self, shape: Shape) -> list[Places]:
        """Per spatial axis, the places that each window reads in a value of this shape."""
        return taps(shape[1:], self.weight.shape[2:], self.stride, self.padding, self.dilation)

    def terms(self, inputs: Sequence[Shape]) -> int:
        return self._terms

    @property
    def _terms(self) -> int:
        """An output sums over the inputs of its group and the kernel, a coefficient of the adjoint over the
        outputs of its group and the kernel.
        """
        outputs, per_group, *kernel = self.weight.shape
        return int(max(per_group, outputs // self.groups) * math.prod(kernel)) + 1

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        (x,) = inputs
        return self._correlate(x, "w") + self._b(x)

    def adjoint(self, forms: Tensor, inputs: Sequence[Shape]) -> list[Tensor]:
        return [self._adjoint(forms, "w", inputs[0])]

    def adjoint_spread(self, sizes: Tensor, inputs: Sequence[Shape]) -> list[Tensor]:
        return [self._adjoint(sizes, "|w|", inputs[0])]

    def rows(self, index: Tensor, like: Tensor, inputs: Sequence[Shape]) -> tuple[Tensor, Tensor]:
        """The rows of ``W`` at flat indices of the output, which is what :meth:`adjoint` makes of unit forms,
        without a product; and the entries of ``b``.
        """
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
        kernel = self._w("w", like).flatten(2)
        found[row[:, None, None], own[:, :, None], padded[window][:, None, :]] = kernel[channel]
        return found[:, :, :-1].reshape(len(index), *shape), self._b(like).flatten()[channel]

    def constant(self, forms: Tensor) -> Tensor:
        return flat(forms * self._b(forms)).sum(1)

    def magnitude(self, inputs: Sequence[Tensor]) -> Tensor:
        (m,) = inputs
        return self._correlate(m, "|w|") + self._b(m).abs()

    def spread(self, inputs: Sequence[Tensor]) -> Tensor:
        return self._correlate(inputs[0], "|w|")

    def interval(self, inputs: Sequence[Interval]) -> Interval:
        import torch

        (x,) = inputs
        ends = torch.cat([x.lo, x.hi, x.lo.abs(), x.hi.abs()])
        plus, minus = self._correlate(ends, "w+").chunk(4), self._correlate(ends, "w-").chunk(4)
        bias = self._b(x.lo)
        return Interval(
            widen_down(plus[0] + minus[1] + bias, self._radius(plus[2] - minus[3], x.lo, x.hi)),
            widen_up(plus[1] + minus[0] + bias, self._radius(plus[3] - minus[2], x.hi, x.lo)),
        )

    def _radius(self, magnitude: Tensor, with_plus: Tensor, with_minus: Tensor) -> Tensor:
        """Rounding radius of ``W+ with_plus + W- with_minus + b``, zero where every product is exactly
        zero.
        """
        radius = gamma(self._terms) * (magnitude + self._b(magnitude).abs()) + self._terms * ETA
        if bool((magnitude == 0).any()):  # no product at all, or products that underflow
            some = self._correlate((with_plus != 0).to(magnitude), "w+ != 0")
            some = some + self._correlate((with_minus != 0).to(magnitude), "w- != 0")
            radius = radius.where((magnitude != 0) | (some > 0), 0 * radius)
        return radius

    def exact_extremes(self, row: int, lo: Array, hi: Array) -> tuple[Fraction, Fraction]:
        """Smallest and largest value of the output at the flat index ``row`` over the box ``[lo, hi]``, in
        rational arithmetic.
        """
        axes = self.taps(lo.shape)
        channel, *position = np.unravel_index(row, (len(self.bias), *(len(places) for places in axes)))
        places = [axis[p] for axis, p in zip(axes, position, strict=True)]
        inside = [np.flatnonzero(place >= 0) for place in places]
        inputs = self.weight.shape[1]
        group = int(channel) // (len(self.bias) // self.groups)
        own = np.arange(inputs)
        weights = self.weight[channel][np.ix_(own, *inside)].ravel()
        read = np.ix_(group * inputs + own, *(p[keep] for p, keep in zip(places, inside, strict=True)))
        return exact_extremes(weights, float(self.bias[channel]), lo[read].ravel(), hi[read].ravel())

    def _correlate(self, x: Tensor, name: str) -> Tensor:
        from relutrim.network.operators.correlate import correlate

        return correlate(x, self._w(name, x), self.stride, self.padding, self.dilation, self.groups)

    def _adjoint(self, forms: Tensor, name: str, shape: Shape) -> Tensor:
        from relutrim.network.operators.correlate import correlate_adjoint

        weight = self._w(name, forms)
        return correlate_adjoint(
            forms, weight, shape[1:], self.stride, self.padding, self.dilation, self.groups
        )

    def _w(self, name: str, like: Tensor) -> Tensor:
        """The kernel, or one of the kernels that belong to it."""

        def make() -> npt.NDArray[np.float64] | npt.NDArray[np.bool_]:
            match name:
                case "|w|":
                    return np.abs(self.weight)
                case "w+":
                    return np.maximum(self.weight, 0)
                case "w-":
                    return np.minimum(self.weight, 0)
                case "w+ != 0":
                    return np.asarray(self.weight > 0)
                case "w- != 0":
                    return np.asarray(self.weight < 0)
                case _:
                    return self.weight

        return self._tensor(name, like, make)

    def _b(self, like: Tensor) -> Tensor:
        return self._tensor("b", like, lambda: self.bias.reshape(-1, *[1] * (self.weight.ndim - 2)))
