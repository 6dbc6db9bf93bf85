"""What a file's number type makes of an operator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from relutrim.network.operators import Affine, Array, Convolution, Elu, Linear, Operator, Scale


def rounded(operator: Operator, dtype: str) -> tuple[Operator, Affine] | None:
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
    return None


def storable(operator: Operator, dtype: str) -> bool:
    """Whether every parameter of the operator is finite in ``dtype``."""
    match operator:
        case Linear() | Convolution():
            arrays = [operator.weight, operator.bias]
        case Scale():
            arrays = [operator.scale, operator.shift]
        case Elu():
            arrays = [np.array(operator.alpha)]
        case _:
            return True
    return all(bool(np.isfinite(held(array, dtype)).all()) for array in arrays)


def held(array: Array, dtype: str) -> Array:
    """Numbers as a file of this type holds them; infinite where it cannot."""
    with np.errstate(over="ignore"):
        return array.astype(dtype).astype(np.float64)
