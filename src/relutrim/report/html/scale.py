"""Numbers that are powers of ten apart, side by side on one axis."""

from __future__ import annotations

import math


def log_places(values: list[float]) -> tuple[list[float | None], list[tuple[float, int]]]:
    """Where numbers lie on a logarithmic axis, as percentages (None: 0 has no place there), and its ticks as
    powers of ten.
    """
    positive = [value for value in values if value > 0 and math.isfinite(value)]
    if not positive:
        return [None] * len(values), []
    low = math.floor(math.log10(min(positive)))
    high = max(math.ceil(math.log10(max(positive))), low + 1)
    step = max(1, -(-(high - low) // 6))

    def place(exponent: float) -> float:
        return round(4 + 92 * (exponent - low) / (high - low), 2)

    ticks = [(place(power), power) for power in range(low, high + 1, step)]
    return [
        place(math.log10(value)) if value > 0 and math.isfinite(value) else None for value in values
    ], ticks
