"""A few statistics; of nothing they are None."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence


def known(values: Iterable[float | None]) -> list[float]:
    """Those that are numbers."""
    return [value for value in values if value is not None and math.isfinite(value)]


def mean(values: Iterable[float | None]) -> float | None:
    """The arithmetic mean."""
    some = known(values)
    return statistics.fmean(some) if some else None


def deviation(values: Iterable[float | None]) -> float | None:
    """The standard deviation of a sample; None for fewer than two."""
    some = known(values)
    return statistics.stdev(some) if len(some) > 1 else None


def median(values: Iterable[float | None]) -> float | None:
    """The middle one."""
    some = known(values)
    return statistics.median(some) if some else None


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Of positive numbers.

    >>> geometric_mean([1, 4])
    2.0
    """
    some = [value for value in known(values) if value > 0]
    return round(statistics.geometric_mean(some), 12) if some else None


def regression(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float] | None:
    """Slope and intercept of the line with the least squares, and R^2; None where there is no such line.

    >>> regression([0, 1, 2], [1, 3, 5])
    (2.0, 1.0, 1.0)
    """
    if len(set(x)) < 2 or len(set(y)) < 2:
        return None
    slope, intercept = statistics.linear_regression(x, y)
    return slope, intercept, statistics.correlation(x, y) ** 2


def per(value: float | None, by: float | None, factor: float = 1.0) -> float | None:
    """A ratio, where there is one."""
    return None if value is None or not by else factor * value / by
