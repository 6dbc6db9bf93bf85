"""Functions that are not piecewise linear, to 60 digits: by mpmath, which shares no code with torch."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import mpmath
from mpmath import mpf

from relutrim.network import (
    Barrier,
    Elu,
    Erf,
    Gelu,
    HardSwish,
    Mish,
    Sigmoid,
    Silu,
    Softmax,
    Softplus,
    Tanh,
)

DIGITS = 60
ERROR = Fraction(1, 10**50)
"""How far the oracle may be off itself, relative to the numbers that it meets."""


_FAR = 1000
"""Where the error function is 1 to thousands of digits, and mpmath overflows."""


def curve(operator: Barrier, x: mpf) -> mpf:
    """The function at ``x``, in mpmath's precision of the moment."""
    match operator:
        case Sigmoid():
            return 1 / (1 + mpmath.exp(-x))
        case Tanh():
            return mpmath.tanh(x)
        case Erf():
            return mpmath.erf(x) if abs(x) < _FAR else mpmath.sign(x)
        case Softplus():
            return mpmath.log1p(mpmath.exp(x)) if x < 0 else x + mpmath.log1p(mpmath.exp(-x))
        case Elu():
            return x if x > 0 else operator.alpha * mpmath.expm1(x)
        case Gelu():
            return x * mpmath.erfc(-x / mpmath.sqrt(2)) / 2 if abs(x) < _FAR else max(x, mpf(0))
        case Silu():
            return x / (1 + mpmath.exp(-x))
        case HardSwish():
            return x * min(max(x + 3, mpf(0)), mpf(6)) / 6
        case Mish():
            return x * mpmath.tanh(mpmath.log1p(mpmath.exp(x)))
    raise NotImplementedError(operator.kind)


def barrier(operator: Barrier, shape: tuple[int, ...], x: list[Fraction]) -> list[Fraction]:
    """The operator on a value, flat in C order."""
    with mpmath.workdps(DIGITS):
        given = [mpf(v.numerator) / v.denominator for v in x]
        if isinstance(operator, Softmax):
            return _softmax(operator.axis, shape, given)
        return [_fraction(curve(operator, v)) for v in given]


def _softmax(axis: int, shape: tuple[int, ...], x: list[mpf]) -> list[Fraction]:
    places = list(product(*(range(n) for n in shape)))
    values = dict(zip(places, x, strict=True))
    found = []
    for place in places:
        line = [values[(*place[:axis], i, *place[axis + 1 :])] for i in range(shape[axis])]
        found.append(_fraction(1 / mpmath.fsum(mpmath.exp(v - values[place]) for v in line)))
    return found


def _fraction(x: mpf) -> Fraction:
    sign, mantissa, exponent, _ = x._mpf_
    if exponent < -(10**5):  # next to nothing, with more digits than anyone can store
        return Fraction(0)
    number = Fraction(mantissa) * (Fraction(2) ** exponent)
    return -number if sign else number
