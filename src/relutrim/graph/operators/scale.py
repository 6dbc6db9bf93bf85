"""``x -> s * x + t`` entry by entry: constant Add/Sub/Mul/Div, batch norm, data normalisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from relutrim.errors import NetworkError
from relutrim.graph.operators.affine import Affine, Coefficient, Coefficients, View
from relutrim.graph.operators.base import Array, Mask, Shape, only, parameter
from relutrim.rounding import ETA, UNIT

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Standardised:
    """The numbers of ``gain * (x - mean) / deviation + bias``, as a runtime has them at hand."""

    gain: Array
    bias: Array
    mean: Array
    deviation: Array


@dataclass(frozen=True, eq=False)
class Scale(Affine):
    """``scale`` and ``shift`` broadcast against the value.

    The radii say how far the true numbers may be from the stored ones: ``1 / std`` and ``gamma / sqrt(var +
    eps)`` are not floats, and that rounding belongs inside every proof. They are 0 for numbers taken from a
    file as they are. ``_parts`` is what a normalisation was made of; how a runtime rounds depends on it.
    """

    kind = "Scale"

    scale: Array
    shift: Array
    scale_radius: Array
    shift_radius: Array
    _parts: Standardised | None = field(default=None, repr=False)

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
        return cls.standardised(np.ones(()), np.zeros(()), mean, std, np.abs(std) * 0.0)

    @classmethod
    def standardised(cls, gain: Array, bias: Array, mean: Array, deviation: Array, radius: Array) -> Scale:
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
        scale_radius = np.where(gain == 0, 0.0, np.abs(scale) * relative + ETA)
        shift_radius = (np.abs(bias) + np.abs(mean * scale)) * (2 * relative + 8 * UNIT) + (
            np.abs(mean) + 1
        ) * (4 * ETA)
        # Where the gain or the mean is 0, the shift is the bias as it is.
        shift_radius = np.where((gain == 0) | (mean == 0), 0.0, shift_radius)
        return cls(scale, shift, scale_radius, shift_radius, Standardised(gain, bias, mean, deviation))

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
    def parts(self) -> Standardised | None:
        """What a normalisation was made of; None for any other scale."""
        return self._parts

    def divisor(self, dtype: str) -> Array | None:
        """The numbers of this type that it divides by; None if it does something else."""
        if self.exact or self.shift.any() or not self.scale.all():
            return None
        divisor = (1 / self.scale).astype(dtype).astype(np.float64)
        if not np.isfinite(divisor).all() or not divisor.all():
            return None
        same = Scale.divide(divisor)
        fits = (same.scale == self.scale).all() and (same.scale_radius == self.scale_radius).all()
        return divisor if fits and not self.shift_radius.any() else None

    @property
    def field_counts(self) -> Mapping[str, int]:
        return {
            "scale": self.scale.size if (self.scale != 1).any() else 0,
            "shift": self.shift.size if self.shift.any() else 0,
        }

    @property
    def coefficients(self) -> Mapping[str, Coefficient]:
        return {"scale": Coefficient(self.scale, self.scale_radius)}

    @property
    def offset(self) -> Coefficient:
        return Coefficient(self.shift, self.shift_radius)

    @property
    def rounds(self) -> Mask:
        """A number or its negative, with nothing added, is exact."""
        return np.asarray((np.abs(self.scale) != 1) | (self.shift != 0))

    def product(self, p: Coefficients, inputs: Sequence[Tensor]) -> Tensor:
        return inputs[0] * p["scale"]

    def pulled_back(self, view: View, forms: Tensor, inputs: Sequence[Shape]) -> list[Tensor]:
        """A product."""
        return [forms * Coefficients(self, view, forms)["scale"]]

    def reads(self, wanted: Mask, inputs: Sequence[Shape]) -> list[Mask]:
        return [wanted & ((self.scale != 0) | (self.scale_radius != 0))]

    def multiply_adds(self, entries: int) -> int:
        return entries if (self.scale != 1).any() else 0


@dataclass(frozen=True, eq=False)
class BatchNorm(Scale):
    """``x -> gain * (x - mean) / sqrt(variance + epsilon) + bias`` with frozen statistics: what a file stores
    are these numbers, and the scale and the shift that they make are known up to a radius.
    """

    kind = "BatchNorm"

    gain: Array = field(default_factory=lambda: np.ones(()))
    bias: Array = field(default_factory=lambda: np.zeros(()))
    mean: Array = field(default_factory=lambda: np.zeros(()))
    variance: Array = field(default_factory=lambda: np.ones(()))
    epsilon: float = 0.0

    @classmethod
    def of(cls, gain: Array, bias: Array, mean: Array, variance: Array, epsilon: float) -> BatchNorm:
        """The operator with these numbers, each of a shape that broadcasts against the value."""
        variance = parameter(variance, "the variance")
        if (variance + epsilon <= 0).any():
            raise NetworkError("batch normalisation with variance + epsilon <= 0")
        deviation = np.sqrt(variance + epsilon)
        made = Scale.standardised(gain, bias, mean, deviation, deviation * (4 * UNIT))
        parts = made.parts
        assert parts is not None
        return cls(
            made.scale,
            made.shift,
            made.scale_radius,
            made.shift_radius,
            parts,
            parts.gain,
            parts.bias,
            parts.mean,
            variance,
            float(epsilon),
        )

    @property
    def field_counts(self) -> Mapping[str, int]:
        return {"gain": self.gain.size, "bias": self.gain.size}
