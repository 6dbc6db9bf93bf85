"""What is still wanted of a ReLU: which of its neurons are worth another bound, or another input.

Where verdicts are wanted of channels as a whole, one unit of a channel tells the most: the one with the most
to prove. If that one cannot be proved, the others need not be.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from relutrim.graph.operators import Shape
from relutrim.intervals import Interval


@dataclass(frozen=True, eq=False)
class Wanted:
    """Masks over a ReLU's neurons, flat, by what a proof would say; ``axis`` is that of the channels that
    count as a whole, None where each neuron counts.
    """

    inactive: Tensor
    active: Tensor
    shape: Shape
    axis: int | None

    @property
    def either(self) -> Tensor:
        """Those of which anything is wanted."""
        return self.inactive | self.active

    def first(self, known: Interval) -> Tensor:
        """Those to begin with: of every channel the one with the most to prove, by what is known."""
        least, most = known.lo.flatten(), known.hi.flatten()
        return self.foremost(self.inactive, most) | self.foremost(self.active, -least)

    def rest(self, first: Tensor) -> Tensor:
        """Those that come after them: the others of channels in which the ``first`` one is wanted no more."""
        if self.axis is None:
            return torch.zeros_like(first)
        open_ = self._by_channel(first & self.either).any(1)
        return self._flat((~open_)[:, None] & self._by_channel(self.either)) & ~first

    def foremost(self, mask: Tensor, score: Tensor) -> Tensor:
        """Of every channel the one with the highest score among those of a mask."""
        if self.axis is None or not mask.numel():
            return mask
        scores = self._by_channel(score.where(mask, score.new_tensor(-torch.inf)))
        found = torch.zeros_like(scores, dtype=torch.bool)
        found.scatter_(1, scores.argmax(1, keepdim=True), True)
        return self._flat(found) & mask

    def _by_channel(self, x: Tensor) -> Tensor:
        assert self.axis is not None
        moved = x.reshape(self.shape).movedim(self.axis, 0)
        return moved.reshape(len(moved), -1)

    def _flat(self, x: Tensor) -> Tensor:
        assert self.axis is not None
        others = (*self.shape[: self.axis], *self.shape[self.axis + 1 :])
        return x.reshape(len(x), *others).movedim(0, self.axis).reshape(-1)
