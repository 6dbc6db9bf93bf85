"""Lower and upper bounds of a value over the domain."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Interval:
    """``lo <= value <= hi`` in real arithmetic, batched like every tensor. NaN means: nothing is known."""

    lo: Tensor
    hi: Tensor

    @property
    def magnitude(self) -> Tensor:
        """The largest absolute value."""
        return self.lo.abs().maximum(self.hi.abs())

    def meet(self, other: Interval) -> Interval:
        """The tighter of both bounds, entry by entry; an unknown (NaN) bound gives way to a known one."""
        return Interval(_known_max(self.lo, other.lo), -_known_max(-self.hi, -other.hi))

    def tightened(self, index: Tensor, sign: float, lower: Tensor) -> Interval:
        """With lower bounds of ``sign * value[index]`` where they are better; indices are flat, over the
        batch too.
        """
        import torch

        ends = torch.full_like(self.lo, torch.nan).flatten()
        ends[index] = lower
        ends = ends.reshape(self.lo.shape)
        nothing = torch.full_like(ends, torch.nan)
        return self.meet(Interval(ends, nothing) if sign > 0 else Interval(nothing, -ends))


def _known_max(a: Tensor, b: Tensor) -> Tensor:
    import torch

    return torch.fmax(a, b)


def flat(tensor: Tensor) -> Tensor:
    """A batch of values as a matrix with one row each, whatever their shape; a scalar has one column."""
    return tensor.reshape(tensor.shape[0], math.prod(tensor.shape[1:]))
