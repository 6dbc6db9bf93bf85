"""Exactness: arithmetic in floats that rounds nothing, and how to tell."""

from __future__ import annotations

import numpy as np

from relutrim.graph.operators import Array
from relutrim.rewrite.draft import Mask
from relutrim.rewrite.storage import held


def powers_of_two(factor: Array) -> Mask:
    """Which numbers are powers of two, up to their sign: they change no digit of what they multiply."""
    found: Mask = np.abs(np.frexp(factor)[0]) == 0.5
    return found


def power_of_two(factor: float) -> bool:
    """Whether a number is one of these."""
    return bool(powers_of_two(np.array(factor)))


def equal_times(one: Array, factor: float, other: Array) -> bool:
    """Whether ``one`` is ``factor`` times ``other`` over the real numbers; ``factor`` is a power of two."""
    return bool((one == factor * other).all() and (one / factor == other).all())


def exact_sum(one: Array, factor: float, other: Array, dtype: str) -> Array | None:
    """``one + factor * other`` if ``dtype`` holds every entry as it is, else None. ``factor`` is
    a power of two.
    """
    with np.errstate(all="ignore"):
        term = factor * other
        total: Array = one + term
        exact = (term / factor == other) & sum_is_exact(one, term, total) & (held(total, dtype) == total)
    return total if bool(exact.all()) else None


def sum_is_exact(one: Array, other: Array, total: Array) -> Mask:
    """Whether a sum has not been rounded (Knuth's two-sum: what rounding took is itself a float)."""
    part = total - one
    lost = (one - (total - part)) + (other - part)
    found: Mask = np.isfinite(total) & (lost == 0)
    return found
