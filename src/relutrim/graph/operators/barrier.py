"""What is not piecewise linear: a sigmoid, a softmax. Nothing looks through it, but everything may stand
before and behind it.

Bounds stop at a barrier: its value is a box, the range of the function on the range of what it reads. A
change goes through it by the smallest and largest slope that the function has anywhere. The operator itself
stays as it is.

**Rounding.** Exponentials and their like are not rounded correctly by any library, only nearly so (an ulp or
two). Every value computed here is taken for off by :data:`PRECISION`, which is 256 ulps, relative to the
result, or to the input where the function is a product with it; and by :data:`TINY` where results underflow.
Functions are monotone over the real numbers; that their float versions are not does not matter then.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relutrim.graph.operators.base import Mask, Operator, Shape, only
from relutrim.intervals import Interval
from relutrim.rounding import ETA

if TYPE_CHECKING:
    from torch import Tensor

PRECISION = 2.0**-45
"""How far off a float64 evaluation is at most, relative to its result."""
TINY = 2.0**-1000
"""How far off it is where that is next to nothing."""
_SAFETY = 1 + 2.0**-30


class Barrier(Operator):
    """An operator that linear bounds stop at."""

    @abstractmethod
    def rounding(self, reach: Tensor, result: Tensor) -> Tensor:
        """How far :meth:`forward` in float64 is from the real value at most, for inputs and results of at
        most these magnitudes.
        """

    @abstractmethod
    def pulled(self, middle: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
        """What gains ``C +- R`` with respect to the result are with respect to the input."""


@dataclass(frozen=True)
class Traits:
    """What is known of a function of one number: its range, and between which numbers its slope lies.

    It falls until somewhere in ``bottom`` and rises from there on; left of 0 it is not positive if it falls
    at all. ``of_input`` says that rounding is relative to the input, not to the result.
    """

    least: float
    slopes: tuple[float, float]
    greatest: float = math.inf
    bottom: tuple[float, float] = (-math.inf, -math.inf)
    of_input: bool = False
    precision: float = PRECISION

    @property
    def steepest(self) -> float:
        """The Lipschitz constant."""
        return max(map(abs, self.slopes))


class Curve(Barrier):
    """The same function of each number."""

    @property
    @abstractmethod
    def traits(self) -> Traits:
        """What is known of the function."""

    @abstractmethod
    def curve(self, x: Tensor) -> Tensor:
        """The function."""

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        return only(inputs, self.kind)

    def reads(self, wanted: Mask, inputs: Sequence[Shape]) -> list[Mask]:
        return [wanted]

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        return self.curve(inputs[0])

    def rounding(self, reach: Tensor, result: Tensor) -> Tensor:
        return self.traits.precision * (reach if self.traits.of_input else result) + TINY

    def spread(self, inputs: Sequence[Tensor]) -> Tensor:
        """As steep as the function is anywhere, and never farther than its range is wide."""
        (moved,) = inputs
        found = moved * (self.traits.steepest * _SAFETY) + ETA * (moved != 0).to(moved)
        return found.clamp(max=self.traits.greatest - self.traits.least)  # NaN stays NaN

    def pulled(self, middle: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
        """A slope ``d`` is within half of the slopes' difference of their mean ``m``, so ``d (C +- R)`` is
        within ``|C|`` times that, and ``|d| R``, of ``m C``.
        """
        low, high = self.traits.slopes
        size = middle.abs()
        wide = size * ((high - low) / 2 + 2.0**-40) + radius * self.traits.steepest
        return middle * ((low + high) / 2), wide * _SAFETY + ETA * (size + radius != 0).to(size)

    def interval(self, inputs: Sequence[Interval]) -> Interval:
        (x,) = inputs
        traits, (left, right) = self.traits, self.traits.bottom
        (below_lo, above_lo), (below_hi, above_hi) = self._at(x.lo), self._at(x.hi)
        hi = above_hi
        if right > -math.inf:
            fallen = above_lo.clamp(max=0).nan_to_num(0.0)  # at minus infinity it has no value
            hi = hi.where(x.lo >= right, fallen.maximum(hi))
        least = x.lo.new_full((), traits.least)
        lo = below_lo.where(x.lo >= right, below_hi.where(x.hi <= left, least)).fmax(least)
        if traits.greatest < math.inf:
            hi = hi.fmin(x.lo.new_full((), traits.greatest))
        return Interval(lo, hi)

    def _at(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers that the function at ``x`` lies between."""
        value = self.curve(x)
        radius = self.rounding(x.abs(), value.abs())
        return value - radius, value + radius
