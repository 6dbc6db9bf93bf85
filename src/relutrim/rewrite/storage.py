"""What a file's number type makes of an operator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from relutrim.graph.operators import (
    Array,
    BatchNorm,
    Convolution,
    Elu,
    Linear,
    Operator,
    Scale,
    Shape,
    Softplus,
)
from relutrim.graph.operators.base import only
from relutrim.intervals import Interval
from relutrim.rounding import ETA

if TYPE_CHECKING:
    from torch import Tensor


def rounded(operator: Operator, dtype: str) -> tuple[Operator, Operator] | None:
    """The operator as stored in ``dtype`` and the gap to what it was, or None if it is stored as it is.

    The gap is the difference of both as an operator, so that its interval on a range bounds the deviation:
    what is rounded up and what is rounded down never add up. (The difference of a float64 and the float32
    next to it is a float64.) Parameters known only up to a radius become the number in the file, and the
    radius becomes part of the gap.
    """
    if isinstance(operator, Linear):
        weight, bias = held(operator.weight, dtype), held(operator.bias, dtype)
        if (weight == operator.weight).all() and (bias == operator.bias).all():
            return None
        return Linear(weight, bias), Linear(weight - operator.weight, bias - operator.bias)
    if isinstance(operator, Convolution):
        weight, bias = held(operator.weight, dtype), held(operator.bias, dtype)
        if (weight == operator.weight).all() and (bias == operator.bias).all():
            return None
        gap = replace(operator, weight=weight - operator.weight, bias=bias - operator.bias)
        return replace(operator, weight=weight, bias=bias), gap
    if isinstance(operator, BatchNorm):
        found = _norm(operator, dtype)
        if found is None:
            return None
        off = replace(
            Scale.exactly(found.scale - operator.scale, found.shift - operator.shift),
            scale_radius=_sum_up(found.scale_radius, operator.scale_radius),
            shift_radius=_sum_up(found.shift_radius, operator.shift_radius),
        )
        return found, off
    if isinstance(operator, Scale):
        scale, shift = held(operator.scale, dtype), held(operator.shift, dtype)
        if operator.exact and (scale == operator.scale).all() and (shift == operator.shift).all():
            return None
        off = replace(operator, scale=scale - operator.scale, shift=shift - operator.shift)
        return Scale.exactly(scale, shift), off
    if isinstance(operator, Elu):
        alpha = float(held(np.array(operator.alpha), dtype))
        if alpha == operator.alpha:
            return None
        # alpha times a number from [-1, 0], whatever it reads
        return replace(operator, alpha=alpha), Scale.exactly(0.0, alpha - operator.alpha)
    if isinstance(operator, Softplus) and operator.threshold < math.inf:
        return Softplus(), _Jump(operator.threshold, operator.jump)
    return None


def _norm(operator: BatchNorm, dtype: str) -> BatchNorm | None:
    """A batch norm with its own numbers as a file of this type holds them; None if it holds them already. An
    epsilon is a float32 in an ONNX file, whatever the type of the tensors.
    """
    before = operator.gain, operator.bias, operator.mean, operator.variance
    gain, bias, mean, variance = (held(array, dtype) for array in before)
    epsilon = float(np.float32(operator.epsilon))
    pairs = zip(before, (gain, bias, mean, variance), strict=True)
    if epsilon == operator.epsilon and all((old == new).all() for old, new in pairs):
        return None
    return BatchNorm.of(gain, bias, mean, variance, epsilon)


def _sum_up(one: Array, other: Array) -> Array:
    """No less than the sum, whatever rounds: the difference of two rounded numbers is off by an ulp more."""
    return (one + other) * (1 + 2.0**-40) + ETA


@dataclass(frozen=True, eq=False)
class _Jump(Operator):
    """What a softplus is more than one that is cut off at a threshold: nothing up to there."""

    kind = "Jump"

    threshold: float
    size: float

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        return only(inputs, self.kind)

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        return self.size * (inputs[0] > self.threshold).to(inputs[0])

    def spread(self, inputs: Sequence[Tensor]) -> Tensor:
        return inputs[0].new_full(inputs[0].shape, self.size)

    def interval(self, inputs: Sequence[Interval]) -> Interval:
        largest = self.forward([inputs[0].hi])
        return Interval(0 * largest, largest.where(~inputs[0].hi.isnan(), inputs[0].hi))


def storable(operator: Operator, dtype: str) -> bool:
    """Whether every parameter of the operator is finite in ``dtype``."""
    match operator:
        case Linear() | Convolution():
            arrays = [operator.weight, operator.bias]
        case BatchNorm():
            arrays = [operator.gain, operator.bias, operator.mean, operator.variance]
        case Scale():
            arrays = [operator.scale, operator.shift]
        case Elu():
            arrays = [np.array(operator.alpha)]
        case _:
            return True
    return all(bool(np.isfinite(held(array, dtype)).all()) for array in arrays)


def held_as_it_is(operator: Operator, dtype: str) -> bool:
    """Whether a file of this type holds every number of the operator."""
    return storable(operator, dtype) and rounded(operator, dtype) is None


def held(array: Array, dtype: str) -> Array:
    """Numbers as a file of this type holds them; infinite where it cannot."""
    with np.errstate(over="ignore"):
        return array.astype(dtype).astype(np.float64)
