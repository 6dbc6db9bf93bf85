"""Linear bounds of a ReLU over a range: what takes its place in the backward pass.

On ``l <= y <= u`` with ``l < 0 < u``, for **any** floats ``0 <= slope <= 1``:

* from below, ``max(0, y) >= slope * y``;
* from above, ``max(0, y) <= slope * y + max(-slope * l, (1 - slope) * u)``, because the difference is convex
  in ``y`` and so is largest at an end. The chord has ``slope = u / (u - l)``.

Only the intercept is computed, and it is rounded up; the slopes are what they are, so their choice can never
be unsound.

Where ``u`` is infinite the upper line is ``y - l``, where ``l`` is it is ``u``, and where both are there is
none: its intercept is infinite. The slopes are 0 or 1 then, which rounds nothing, and stay so.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from relutrim.intervals import Interval
from relutrim.rounding import UNIT


class Slope(Enum):
    """How to choose the lower slope of an unstable ReLU."""

    ADAPTIVE = "adaptive"
    """1 where the range is mostly positive, else 0: the smallest area between both lines."""
    CHORD = "chord"
    """Parallel to the upper line."""
    ZERO = "zero"
    ONE = "one"


@dataclass(frozen=True, eq=False)
class Relaxation:
    """Slopes of the lower and upper line, the upper line's intercept, and the rounding they bring per unit of
    coefficient; ``reach`` is the magnitude of what a rounded coefficient stands before, 0 where none rounds.

    Only where ``unstable`` may the lower slope be replaced by any other number in [0, 1]; ranges without ends
    are not among those.
    """

    unstable: Tensor
    lower_slope: Tensor
    upper_slope: Tensor
    intercept: Tensor
    reach: Tensor
    radius: Tensor


def relax(pre: Interval, slope: Slope) -> Relaxation:
    """The relaxation of every neuron of a layer. An unknown (NaN) end makes a NaN intercept, hence no bound
    at all, but where the other end is enough for a line.
    """
    lo, hi = pre.lo, pre.hi
    on, off = lo >= 0, hi <= 0
    unstable = ~(on | off)
    endless = unstable & ~(lo.isfinite() & hi.isfinite())
    chord = (hi / (hi - lo)).clamp(0, 1)
    chord = torch.where(endless, (hi.isinf() & ~lo.isinf()).to(lo), chord)
    upper = torch.where(unstable, chord, (on & ~off).to(lo))
    intercept = torch.maximum(-upper * lo, (1 - upper) * hi)
    # Three roundings at most, all relative: four ulps up is safe, and the ulp of a denormal is added on top.
    intercept = intercept + (intercept.abs() * (8 * UNIT) + 2.0**-1070)
    intercept = torch.where(unstable, intercept, torch.zeros_like(lo))
    if bool(endless.any()):
        lines = torch.where(hi.isinf(), -lo, hi)  # infinite where both are
        lines = lines + (lines.abs() * (8 * UNIT) + 2.0**-1070)
        intercept = torch.where(endless, lines, intercept)
    match slope:
        case Slope.ADAPTIVE:
            lower = (hi > -lo).to(lo)
        case Slope.CHORD:
            lower = chord
        case Slope.ZERO:
            lower = torch.zeros_like(lo)
        case Slope.ONE:
            lower = torch.ones_like(lo)
    lower = torch.where(unstable, lower, upper)
    # coefficient * slope rounds once, then stands before y, which is at most max(-lo, hi) in size.
    unstable = unstable & ~endless
    reach = torch.where(unstable, torch.maximum(-lo, hi), torch.zeros_like(lo))
    return Relaxation(unstable, lower, upper, intercept, reach, 4 * UNIT * reach)
