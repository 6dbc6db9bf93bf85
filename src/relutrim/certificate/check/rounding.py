"""The float64 error model of the checker: round to nearest, gradual underflow, sums in any order.

A sum of ``n`` products is off by at most ``gamma(n) * sum |a_i b_i| + n * ETA`` (Higham, *Accuracy and
Stability of Numerical Algorithms*, chapter 3). ``gamma`` has room for the rounding of the radius itself.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]
Index: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

U = 2.0**-53
ETA = 2.0**-1074
ROOM = 1 + 2.0**-20
"""What a sum of up to 2**30 numbers of one sign can lose, and more."""


def gamma(terms: int) -> float:
    """``n u / (1 - n u)`` with room to spare."""
    return (terms + 8) * U * (1 + 2.0**-10) if terms < 2**30 else float("inf")


def up(values: Any) -> Any:
    """The next float above."""
    return np.nextafter(values, np.inf)


def down(values: Any) -> Any:
    """The next float below."""
    return np.nextafter(values, -np.inf)


def centred(lo: Array, hi: Array) -> tuple[Array, Array]:
    """A middle, taken as a given number, and a radius such that both ends are within it."""
    middle = lo / 2 + hi / 2
    radius = np.maximum(up(hi - middle), up(middle - lo))
    return middle, np.where((lo == middle) & (hi == middle), 0.0, radius)


def quotient(divisor: Array, numerator: Array | float = 1.0, roundings: int = 1) -> tuple[Array, Array]:
    """``numerator / divisor`` and a radius that covers so many relative roundings; NaN where that would not
    be enough.
    """
    found = np.asarray(numerator / divisor, dtype=np.float64)
    tame = (np.abs(found) > 2.0**-900) & (np.abs(found) < 2.0**900) | (np.asarray(numerator) == 0)
    exact = roundings == 1 and bool((np.frexp(np.abs(divisor))[0] == 0.5).all())
    found = np.where(tame, found, np.nan)
    return found, np.zeros_like(found) if exact else np.abs(found) * (2 * (roundings + 1) * U)
