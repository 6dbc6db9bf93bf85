"""Functions that are not piecewise linear, to 60 digits: by mpmath, which shares no code with torch."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import product

import mpmath
from mpmath import mpf

from relutrim.graph import Barrier, Softmax
from relutrim.graph.operators.barrier import Curve
from relutrim.graph.operators.curves import (
    Atan,
    Elu,
    Erf,
    Gelu,
    HardSwish,
    Mish,
    Sigmoid,
    Silu,
    Softplus,
    Tanh,
)

DIGITS = 60
ERROR = Fraction(1, 10**50)
"""How far the oracle may be off itself, relative to the numbers that it meets."""


_FAR = 1000
"""Where the error function is 1 to thousands of digits, and mpmath overflows."""


def _gelu(operator: Gelu, x: mpf) -> mpf:
    if operator.approximate == "tanh":
        inner = mpmath.sqrt(2 / mpmath.pi) * (x + mpf("0.044715") * x**3)
        return x / (1 + mpmath.exp(-2 * inner)) if inner > -_FAR else mpf(0)
    kind, number = operator.spelt or ("Div", mpmath.sqrt(2))
    scaled = x / mpf(number) if kind == "Div" else x * mpf(number)
    return x * mpmath.erfc(-scaled) / 2 if abs(x) < _FAR else max(x, mpf(0))


def _softplus(x: mpf) -> mpf:
    return mpmath.log1p(mpmath.exp(x)) if x < 0 else x + mpmath.log1p(mpmath.exp(-x))


CURVES: dict[type[Curve], Callable[[Curve, mpf], mpf]] = {
    Sigmoid: lambda _, x: 1 / (1 + mpmath.exp(-x)),
    Tanh: lambda _, x: mpmath.tanh(x),
    Erf: lambda _, x: mpmath.erf(x) if abs(x) < _FAR else mpmath.sign(x),
    Atan: lambda _, x: mpmath.atan(x),
    Softplus: lambda _, x: _softplus(x),
    Elu: lambda one, x: x if x > 0 else one.alpha * mpmath.expm1(x),
    Gelu: _gelu,
    Silu: lambda _, x: x / (1 + mpmath.exp(-x)),
    HardSwish: lambda _, x: x * min(max(x + 3, mpf(0)), mpf(6)) / 6,
    Mish: lambda _, x: x * mpmath.tanh(mpmath.log1p(mpmath.exp(x))),
}
"""Every function of one number, in mpmath's precision of the moment."""


def curve(operator: Barrier, x: mpf) -> mpf:
    """The function at ``x``."""
    return CURVES[type(operator)](operator, x)


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
