"""Softmax in the middle of a network: positive numbers that add up to 1 along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from relutrim.errors import NetworkError
from relutrim.graph.operators.barrier import Barrier
from relutrim.graph.operators.base import Mask, Shape, only
from relutrim.intervals import Interval
from relutrim.rounding import ETA

if TYPE_CHECKING:
    from torch import Tensor

_LONGEST = 256
"""Along a longer axis every entry is taken for anything between 0 and 1."""
_SAFETY = 1 + 2.0**-30


@dataclass(frozen=True, eq=False)
class Softmax(Barrier):
    """``exp(x_i) / sum_j exp(x_j)`` along ``axis``, which does not count the batch.

    With ``p`` the result, ``dp_i / dx_j`` is ``p_i (1 - p_i)`` for ``j = i`` and ``-p_i p_j`` else. Row ``i``
    adds up to ``2 p_i (1 - p_i) <= 1/2`` in absolute values: no entry moves more than half as far as the
    input that moves farthest. And weighed by ``c``, column ``j`` adds up to at most
    ``p_j (1 - p_j) (|c_j| + max |c|) <= max |c| / 2``.
    """

    kind = "Softmax"

    axis: int

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        shape = only(inputs, self.kind)
        if not 0 <= self.axis < len(shape):
            raise NetworkError(f"it runs along axis {self.axis} of a value of shape {shape}")
        return shape

    def reads(self, wanted: Mask, inputs: Sequence[Shape]) -> list[Mask]:
        found: Mask = np.broadcast_to(wanted.any(axis=self.axis, keepdims=True), wanted.shape)
        return [found]

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        return inputs[0].softmax(self.axis + 1)

    def rounding(self, reach: Tensor, result: Tensor) -> Tensor:
        """``x - max`` is off by an ulp of itself, which is most where ``exp`` of it is next to nothing: the
        product of both is less than an ulp of 1. The sum rounds once per term, and all terms are positive.
        """
        return result.new_full((), _error(result.shape[self.axis + 1])).expand_as(result)

    def spread(self, inputs: Sequence[Tensor]) -> Tensor:
        (moved,) = inputs
        if not moved.numel():
            return moved
        most = moved.amax(self.axis + 1, keepdim=True).expand_as(moved)
        return (most * (0.5 * _SAFETY) + ETA * (most != 0).to(most)).clamp(max=1.0)

    def pulled(self, middle: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
        size = middle.abs() + radius
        if size.numel():
            most = size.amax(self.axis + 1, keepdim=True).expand_as(size)
            size = most * (0.5 * _SAFETY) + ETA * (most != 0).to(most)
        return middle * 0, size

    def interval(self, inputs: Sequence[Interval]) -> Interval:
        """An entry ``1 / (1 + sum_j exp(x_j - x_i))`` is least where its own input is least and all others
        are largest.
        """
        (x,) = inputs
        count = x.lo.shape[self.axis + 1]
        lo, hi = x.lo.new_zeros(x.lo.shape), x.lo.new_ones(x.lo.shape)
        if count <= _LONGEST:
            lo = lo.fmax(self._share(x.lo, x.hi) - _error(count))
            hi = hi.fmin(self._share(x.hi, x.lo) + _error(count))
        return Interval(lo, hi)

    def _share(self, own: Tensor, others: Tensor) -> Tensor:
        """Each entry with its own input from ``own`` and all others from ``others``."""
        import torch

        mine, theirs = own.movedim(self.axis + 1, -1), others.movedim(self.axis + 1, -1)
        above = (theirs[..., None, :] - mine[..., :, None]).exp()
        itself = torch.eye(mine.shape[-1], dtype=torch.bool, device=own.device)
        found = 1 / (1 + above.masked_fill(itself, 0.0).sum(-1))
        return found.movedim(-1, self.axis + 1)


def _error(count: int) -> float:
    return (count + 64) * 2.0**-50
