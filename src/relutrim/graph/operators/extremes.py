"""The extremes of a sum of products over a box, in rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from relutrim.graph.operators.base import Array

_UNITS = 1074


def exact_extremes(weights: Array, bias: float, lo: Array, hi: Array) -> tuple[Fraction, Fraction]:
    """Smallest and largest value of ``w x + b`` over the box ``[lo, hi]``."""
    used = np.flatnonzero(weights)
    # Integers in units of the smallest float squared: no greatest common divisors to search for.
    low = high = _units(float(bias)) << _UNITS
    for w, a, b in zip(*(v[used].tolist() for v in (weights, lo, hi)), strict=True):
        factor = _units(w)
        at_lo, at_hi = factor * _units(a), factor * _units(b)
        low += min(at_lo, at_hi)
        high += max(at_lo, at_hi)
    return Fraction(low, 1 << 2 * _UNITS), Fraction(high, 1 << 2 * _UNITS)


def _units(value: float) -> int:
    """A float as a multiple of the smallest one, ``2**-1074``."""
    numerator, denominator = value.as_integer_ratio()
    return numerator << _UNITS + 1 - denominator.bit_length()
