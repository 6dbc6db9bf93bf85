"""Products of a number with many, without silent rounding."""

from __future__ import annotations

import numpy as np

from relutrim.errors import UnsupportedError
from relutrim.network.operators import Array

_SPLIT = 2.0**27 + 1
_SAFE = 2.0**900
"""Beyond this, or below its inverse, the pieces of a product may overflow or underflow."""


def exact_product(factor: float, numbers: Array) -> tuple[Array, Array]:
    """``(p, e)`` with ``p + e = factor * numbers`` as real numbers, ``p`` the rounded product (Dekker 1971).

    ``e`` is all zero whenever both come from float32, whose 24-bit products fit into float64's 53 bits.
    """
    with np.errstate(over="ignore", under="ignore"):
        product = factor * numbers
    if factor in (0.0, 1.0, -1.0):
        return product, np.zeros_like(product)
    sizes = np.abs(np.concatenate([numbers.reshape(-1), product.reshape(-1), [factor]]))
    sizes = sizes[sizes > 0]
    vanished = ((product == 0) & (numbers != 0)).any()
    if vanished or not (sizes.max() < _SAFE and sizes.min() > 1 / _SAFE):
        raise UnsupportedError(
            f"the product of {factor!r} with weights of extreme size is no float64 number; scale the "
            "weights when exporting"
        )
    high, low = _split(numbers)
    factor_high, factor_low = _split(np.asarray(factor))
    error = ((factor_high * high - product) + factor_high * low + factor_low * high) + factor_low * low
    return product, error


def _split(numbers: Array) -> tuple[Array, Array]:
    """Two halves of at most 26 bits each that sum up to ``numbers`` (Veltkamp)."""
    shifted = _SPLIT * numbers
    high = shifted - (shifted - numbers)
    return high, numbers - high
