"""Multipliers on their way to better ones: a look at the bounds where they are, and a step from there.

Leans, mixtures and pushes take Adam's steps (Kingma and Ba, 2015); mixtures are then clipped at 0 and scaled
to a sum of 1. The subgradient of a share is known up to a positive factor to lie in [-1, 1]: how far its term
is from where the neuron's state would have it. So shares take plain steps with momentum, which is quicker,
and as good.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from relutrim.prove.hull.dual import Dual, Multipliers, Pass


class Rates(NamedTuple):
    """``lengths`` are those of a first step: lean, mixture, push, share. Of averages this much remains with
    every step.
    """

    lengths: tuple[float, float, float, float]
    momentum: float
    squares: float


class Look(NamedTuple):
    """The bounds of a batch, and where they are attained."""

    bound: Tensor
    corner: Tensor


class Way(Protocol):
    """Multipliers of a batch that move."""

    @property
    def batch(self) -> Sequence[Multipliers]:
        """Where they are: always the same tensors."""

    def look(self) -> Look:
        """The bounds where they are."""

    def bound_of(self, batch: Sequence[Multipliers]) -> Tensor:
        """Those of others; after that, there is no step before the next look."""

    def measure(self, length: Tensor, steady: Tensor) -> None:
        """Say how long the next step is, for each node: of shares, and of all others."""

    def move(self) -> None:
        """Take a step from where the last look was."""


class Plain:
    """A way on any device, operation by operation."""

    _found: Pass

    def __init__(
        self, dual: Dual, batch: Sequence[Multipliers], states: Sequence[Tensor], rates: Rates
    ) -> None:
        self.batch = [own.clone() for own in batch]
        self._dual, self._states, self._rates = dual, states, rates
        self._along = [[torch.zeros_like(part) for part in own.parts] for own in self.batch]
        self._squares = [[torch.zeros_like(part) for part in own.parts[:3]] for own in self.batch]
        self._length, self._steady = (dual.cost.new_zeros(states[0].shape[1]) for _ in range(2))

    def look(self) -> Look:
        """The bounds where the multipliers are."""
        self._found = self._dual.run(self.batch, self._states)
        return Look(self._found.bound, self._found.corner)

    def bound_of(self, batch: Sequence[Multipliers]) -> Tensor:
        """Those of others."""
        return self._dual.run(batch, self._states).bound

    def measure(self, length: Tensor, steady: Tensor) -> None:
        """Say how long the next step is."""
        self._length.copy_(length)
        self._steady.copy_(steady)

    def move(self) -> None:
        """Take a step from where the last look was."""
        lengths, momentum, squares = self._rates
        slopes = self._dual.slopes(self.batch, self._states, self._found)
        for own, speed, square, slope in zip(self.batch, self._along, self._squares, slopes, strict=True):
            for kind, (part, rise) in enumerate(zip(own.parts, slope.parts, strict=True)):
                speed[kind].lerp_(rise, 1 - momentum)
                if kind < 3:
                    square[kind].mul_(squares).addcmul_(rise, rise, value=1 - squares)
                    rise = speed[kind] / square[kind].sqrt().add_(1e-12)
                    part.addcmul_(rise, self._steady, value=lengths[kind])
                else:
                    part.addcmul_(speed[kind], self._length, value=lengths[kind])
            own.lean.clamp_(0, 1)
            own.push.clamp_(min=0)
            own.share.clamp_(0, 1)
            own.mix.clamp_(min=0)
            own.mix /= own.mix.sum(0).clamp_(min=1e-12)
