"""Better multipliers for a batch of nodes, by steps along the subgradient of their bounds.

Leans, mixtures and pushes take Adam's steps (Kingma and Ba, 2015); mixtures are then clipped at 0 and scaled
to a sum of 1. The subgradient of a share is known up to a positive factor to lie in [-1, 1]: how far its term
is from where the neuron's state would have it. So shares take plain steps with momentum, which is quicker,
and as good.

Every node has a pace, the length of its steps: near the best multipliers long steps only lead away, so where
they have gained little those of the node's children are shorter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from relutrim.prove.deadline import Deadline
from relutrim.prove.hull.dual import Dual, Multipliers, Pass
from relutrim.prove.hull.replay import Lane, Replay, on_lane

_LENGTHS = (0.04, 0.2, 0.3, 0.8)
"""The first steps' lengths: lean, mixture, push, share."""
_RISE = 8
"""So many steps are shorter, the first one the most: nobody knows yet how much the slopes vary, and
a parent's multipliers are good ones.
"""
_AVERAGED = 0.85
"""What remains of an average with every step."""
_END = 0.15
"""The last step's, as a part of the first's."""
_MOMENTUM, _SQUARES = 0.88, 0.95
_LITTLE, _MUCH = 0.03, 0.1
"""Gains as a share of what is missing at which steps become shorter, and longer again."""
_FASTER, _SLOWEST = 1.25, 1 / 64
_KEEP = 3
"""Every so many steps the best multipliers so far are kept."""


class Climb(NamedTuple):
    """The best bounds, the multipliers they come from, where they are attained, on average, and the paces to
    go on with.
    """

    bound: Tensor
    batch: list[Multipliers]
    point: Tensor
    pace: Tensor


@torch.no_grad()
def climb(
    dual: Dual,
    batch: Sequence[Multipliers],
    states: Sequence[Tensor],
    pace: Tensor,
    steps: int,
    enough: float,
    deadline: Deadline,
) -> Climb:
    """So many steps, fewer if every bound is enough or time is up."""
    with on_lane(dual.device) as lane:
        found = _climb(dual, batch, states, pace, steps, enough, deadline, lane)
    if lane is not None:  # whoever works there next may take the memory of what comes from there
        found = Climb(
            found.bound.clone(), [own.clone() for own in found.batch], found.point.clone(), found.pace.clone()
        )
        torch.cuda.current_stream(dual.device).synchronize()
    return found


def _climb(
    dual: Dual,
    batch: Sequence[Multipliers],
    states: Sequence[Tensor],
    pace: Tensor,
    steps: int,
    enough: float,
    deadline: Deadline,
    lane: Lane | None,
) -> Climb:
    way = _Way(dual, states, batch)
    look, move = Replay(way.look, lane), Replay(way.move, lane)
    best = _Best(dual, states, batch)
    first = best.bound
    average: list[Multipliers] = []
    total, summed = torch.zeros_like(dual.low), 0
    for number in range(steps):
        found = way.found = look()
        last = number == steps - 1 or deadline.passed
        if number % _KEEP == 0 or last:
            best.offer(found.bound, way.batch)
        if 2 * number >= steps - 1 or number == 0:
            total, summed = total + found.corner, summed + 1
        if last or (number % _KEEP == 0 and best.all_above(enough)):
            break
        if number == 0:
            first = found.bound
        way.measure(pace * _END ** (number / steps) * min(1, (number + 1) / _RISE), number)
        move()
        if not average and 2 * number >= steps:
            average = [own.clone() for own in way.batch]
        for mean, own in zip(average, way.batch, strict=bool(average)):
            for held, part in zip(mean.parts, own.parts, strict=True):
                held.lerp_(part, 1 - _AVERAGED)
    if average and not best.all_above(enough):
        best.try_out(average)
    for layers in (best.batch[-1:], best.batch):
        if not best.all_above(enough):
            best.try_out([*best.batch[: -len(layers)], *map(_at_ends, layers)])
    gained = (best.bound - first) / first.abs().clamp(min=1e-30)
    slower = torch.where(gained < _LITTLE, pace / 2, pace).clamp(min=_SLOWEST)
    pace = torch.where(gained > _MUCH, (pace * _FASTER).clamp(max=1), slower)
    return Climb(best.bound, best.batch, total / summed, pace)


class _Way:
    """Multipliers that move: always the same tensors, so that a step can be replayed. ``found`` is what the
    last look at them found.
    """

    found: Pass

    def __init__(self, dual: Dual, states: Sequence[Tensor], batch: Sequence[Multipliers]) -> None:
        self.batch = [own.clone() for own in batch]
        self._dual, self._states = dual, states
        self._along = [[torch.zeros_like(part) for part in own.parts] for own in self.batch]
        self._squares = [[torch.zeros_like(part) for part in own.parts[:3]] for own in self.batch]
        self._length, self._steady = (dual.cost.new_zeros(states[0].shape[1]) for _ in range(2))

    def look(self) -> Pass:
        """The bounds where the multipliers are."""
        return self._dual.run(self.batch, self._states)

    def measure(self, length: Tensor, number: int) -> None:
        """Say how long the step of this number is, for each node."""
        self._length.copy_(length)
        self._steady.copy_(length * ((1 - _SQUARES ** (number + 1)) ** 0.5 / (1 - _MOMENTUM ** (number + 1))))

    def move(self) -> None:
        """Take a step from where the last look was."""
        slopes = self._dual.slopes(self.batch, self._states, self.found)
        for own, speed, square, slope in zip(self.batch, self._along, self._squares, slopes, strict=True):
            for kind, (part, rise) in enumerate(zip(own.parts, slope.parts, strict=True)):
                speed[kind].lerp_(rise, 1 - _MOMENTUM)
                if kind < 3:
                    square[kind].mul_(_SQUARES).addcmul_(rise, rise, value=1 - _SQUARES)
                    rise = speed[kind] / square[kind].sqrt().add_(1e-12)
                    part.addcmul_(rise, self._steady, value=_LENGTHS[kind])
                else:
                    part.addcmul_(speed[kind], self._length, value=_LENGTHS[kind])
            own.lean.clamp_(0, 1)
            own.push.clamp_(min=0)
            own.share.clamp_(0, 1)
            own.mix.clamp_(min=0)
            own.mix /= own.mix.sum(0).clamp_(min=1e-12)


class _Best:
    """The best bounds so far, node by node, and their multipliers."""

    def __init__(self, dual: Dual, states: Sequence[Tensor], batch: Sequence[Multipliers]) -> None:
        self._dual, self._states = dual, states
        self.batch = [own.clone() for own in batch]
        self.bound = dual.cost.new_full((states[0].shape[1],), -torch.inf)

    def offer(self, bound: Tensor, batch: Sequence[Multipliers]) -> None:
        """Keep these where they are better."""
        better = bound > self.bound
        self.bound = torch.where(better, bound, self.bound)
        for mine, own in zip(self.batch, batch, strict=True):
            for held, part in zip(mine.parts, own.parts, strict=True):
                torch.where(better, part, held, out=held)

    def try_out(self, batch: Sequence[Multipliers]) -> None:
        """Keep these where they turn out to be better."""
        self.offer(self._dual.run(batch, self._states).bound, batch)

    def all_above(self, enough: float) -> bool:
        """Whether no node needs more."""
        return bool((self.bound > enough).all())


def _at_ends(own: Multipliers) -> Multipliers:
    """Leans at the end that they are near, and no pushes: steps only come close to that. Where a node has
    little left but a constant, such as all neurons of a layer off, close is not enough.
    """
    return Multipliers(own.lean.round(), own.mix, torch.zeros_like(own.push), own.share)
