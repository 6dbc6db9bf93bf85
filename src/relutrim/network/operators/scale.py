"""``x -> s * x + t`` entry by entry: constant Add/Sub/Mul/Div, batch norm, data normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from relutrim.bounds.values import Interval, flat
from relutrim.errors import NetworkError
from relutrim.network.operators.base import Affine, Array, Mask, Shape, only, parameter
from relutrim.rounding import ETA, UNIT, gamma, widen_down, widen_up

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Scale(Affine):
    """``scale`` and ``shift`` broadcast against the value.

    The radii say how far the true numbers may be from the stored ones: ``1 / std`` and ``gamma / sqrt(var +
    eps)`` are not floats, and that rounding belongs inside every proof. They are 0 for numbers taken from a
    file as they are.
    """

    kind = "Scale"

    scale: Array
    shift: Array
    scale_radius: Array
    shift_radius: Array

    def __post_init__(self) -> None:
        for name in ("scale", "shift", "scale_radius", "shift_radius"):
            object.__setattr__(self, name, parameter(getattr(self, name), f"the {name.replace('_', ' ')}"))

    @classmethod
    def exactly(cls, scale: Array | float = 1.0, shift: Array | float = 0.0) -> Scale:
        """``x -> scale * x + shift`` with both numbers taken as they are."""
        return cls(np.asarray(scale, float), np.asarray(shift, float), np.zeros(()), np.zeros(()))

    @classmethod
    def divide(cls, divisor: Array) -> Scale:
        """``x -> x / divisor``."""
        divisor = parameter(divisor, "the divisor")
        if (divisor == 0).any():
            raise NetworkError("division by a constant that holds a zero")
        scale = 1.0 / divisor
        return cls(scale, np.zeros(()), np.abs(scale) * (4 * UNIT) + ETA, np.zeros(()))

    @classmethod
    def normalise(cls, mean: Array, std: Array) -> Scale:
        """``x -> (x - mean) / std``, the paper's data normalisation."""
        return cls._standardise(np.ones(()), np.zeros(()), mean, std, np.abs(std) * 0.0)

    @classmethod
    def batch_norm(cls, gain: Array, bias: Array, mean: Array, variance: Array, epsilon: float) -> Scale:
        """``x -> gain * (x - mean) / sqrt(variance + epsilon) + bias`` with frozen statistics."""
        if (np.asarray(variance) + epsilon <= 0).any():
            raise NetworkError("batch normalisation with variance + epsilon <= 0")
        deviation = np.sqrt(np.asarray(variance, float) + epsilon)
        return cls._standardise(gain, bias, mean, deviation, deviation * (4 * UNIT))

    @classmethod
    def _standardise(cls, gain: Array, bias: Array, mean: Array, deviation: Array, radius: Array) -> Scale:
        """``gain * (x - mean) / deviation + bias``, ``deviation`` known up to ``radius`` (a few ulps at
        most).
        """
        gain, bias = parameter(gain, "the gain"), parameter(bias, "the bias")
        mean, deviation = parameter(mean, "the mean"), parameter(deviation, "the standard deviation")
        if (deviation == 0).any():
            raise NetworkError("normalisation by a standard deviation of zero")
        scale = gain / deviation
        shift = bias - mean * scale
        relative = 2 * radius / np.abs(deviation) + 4 * UNIT
        scale_radius = np.abs(scale) * relative + ETA
        shift_radius = (np.abs(bias) + np.abs(mean * scale)) * (2 * relative + 8 * UNIT) + (
            np.abs(mean) + 1
        ) * (4 * ETA)
        return cls(scale, shift, scale_radius, shift_radius)

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        shape = only(inputs, self.kind)
        for array in (self.scale, self.shift, self.scale_radius, self.shift_radius):
            try:
                fits = np.broadcast_shapes(array.shape, shape) == shape
            except ValueError:
                fits = False
            if not fits:
                raise NetworkError(
                    f"a constant of shape {array.shape} does not broadcast into a value of shape {shape}"
                )
        return shape

    @property
    def exact(self) -> bool:
        """Whether the parameters are the very numbers of the file."""
        return not (self.scale_radius.any() or self.shift_radius.any())

    @property
    def parameters(self) -> int:
        return int(
            (self.scale.size if (self.scale != 1).any() else 0) + (self.shift.size if self.shift.any() else 0)
        )

    def reads(self, wanted: Mask, inputs: Sequence[Shape]) -> list[Mask]:
        return [wanted & ((self.scale != 0) | (self.scale_radius != 0))]

    def multiply_adds(self, entries: int) -> int:
        return entries if (self.scale != 1).any() else 0

    def terms(self, inputs: Sequence[Shape]) -> int:
        return 2

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        (x,) = inputs
        return x * self._t("scale", x) + self._t("shift", x)

    def adjoint(self, forms: Tensor, inputs: Sequence[Shape]) -> list[Tensor]:
        return [forms * self._t("scale", forms)]

    def adjoint_spread(self, sizes: Tensor, inputs: Sequence[Shape]) -> list[Tensor]:
        return [sizes * self._t("scale", sizes).abs()]

    def adjoint_fuzz(self, sizes: Tensor, inputs: Sequence[Shape]) -> list[Tensor] | None:
        return None if self.exact else [sizes * self._t("scale_radius", sizes)]

    def constant(self, forms: Tensor) -> Tensor:
        return flat(forms * self._t("shift", forms)).sum(1)

    def magnitude(self, inputs: Sequence[Tensor]) -> Tensor:
        (m,) = inputs
        return m * self._t("scale", m).abs() + self._t("shift", m).abs()

    def spread(self, inputs: Sequence[Tensor]) -> Tensor:
        (r,) = inputs
        return r * self._t("scale", r).abs()

    def fuzz(self, inputs: Sequence[Tensor]) -> Tensor | None:
        if self.exact:
            return None
        import torch

        (m,) = inputs
        radius = self._t("scale_radius", m)
        moved = m * radius
        moved = torch.where((m != 0) & (radius != 0), moved + ETA, moved)  # the product may underflow
        return moved + self._t("shift_radius", m)

    def interval(self, inputs: Sequence[Interval]) -> Interval:
        (x,) = inputs
        scale, shift = self._t("scale", x.lo), self._t("shift", x.lo)
        at_lo, at_hi = x.lo.where(scale >= 0, x.hi), x.hi.where(scale >= 0, x.lo)
        return Interval(
            widen_down(at_lo * scale + shift, self._radius(at_lo, x.magnitude, scale, shift)),
            widen_up(at_hi * scale + shift, self._radius(at_hi, x.magnitude, scale, shift)),
        )

    def _radius(self, x: Tensor, magnitude: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        """Rounding and fuzz at the end ``x`` of a range that reaches as far as ``magnitude``."""
        product = (x != 0) & (scale != 0)
        rounding = gamma(2) * ((x * scale).abs() + shift.abs()) + 2 * ETA
        rounding = rounding.where(product & ((scale.abs() != 1) | (shift != 0)), rounding * 0)
        # Where not even the sign of the scale is sure, the extreme may be at the other end.
        sure = scale.abs() >= self._t("scale_radius", x)
        fuzz = self.fuzz([x.abs().where(sure, magnitude)])
        return rounding if fuzz is None else rounding + fuzz * (1 + 2.0**-20)

    def _t(self, name: str, like: Tensor) -> Tensor:
        return self._tensor(name, like, lambda: getattr(self, name))
