"""Better multipliers for a batch of nodes, by steps along the subgradient of their bounds.

Every node has a pace, the length of its steps: near the best multipliers long steps only lead away, so where
they have gained little those of the node's children are shorter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from relutrim.prove.deadline import Deadline
from relutrim.prove.hull.compiling import can_compile, compiled_way, never_compile
from relutrim.prove.hull.dual import Dual, Multipliers
from relutrim.prove.hull.replay import Lane, Replay, on_lane
from relutrim.prove.hull.way import Plain, Rates, Way

_RATES = Rates((0.04, 0.2, 0.3, 0.8), 0.88, 0.95)
_RISE = 8
"""So many steps are shorter, the first one the most: nobody knows yet how much the slopes vary, and
a parent's multipliers are good ones.
"""
_AVERAGED = 0.6
"""What remains of an average of the multipliers whenever new ones are added."""
_END = 0.15
"""The last step's, as a part of the first's."""
_LITTLE, _MUCH = 0.03, 0.1
"""Gains as a share of what is missing at which steps become shorter, and longer again."""
_FASTER, _SLOWEST = 1.25, 1 / 64
_KEEP = 3
"""Every so many steps the best multipliers so far are kept."""


class Start(NamedTuple):
    """Multipliers of a batch of nodes, level by level, the states of neurons, and how fast to go."""

    batch: Sequence[Multipliers]
    states: Sequence[Tensor]
    pace: Tensor


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
    dual: Dual, start: Start, steps: int, enough: float, deadline: Deadline, *, compiled: bool = False
) -> Climb:
    """So many steps, fewer if every bound is enough or time is up."""
    if compiled and can_compile(dual.device, deadline):
        try:
            way = compiled_way(dual, start.batch, start.states, _RATES)
            return _climb(way, start, steps, enough, deadline, None)
        except Exception:  # whatever numba may come across, a full disk for one
            never_compile()
    with on_lane(dual.device) as lane:
        way = Plain(dual, start.batch, start.states, _RATES)
        found = _climb(way, start, steps, enough, deadline, lane)
    if lane is not None:  # whoever works there next may take the memory of what comes from there
        found = Climb(
            found.bound.clone(), [own.clone() for own in found.batch], found.point.clone(), found.pace.clone()
        )
        torch.cuda.current_stream(dual.device).synchronize()
    return found


def _climb(way: Way, start: Start, steps: int, enough: float, deadline: Deadline, lane: Lane | None) -> Climb:
    look, move = Replay(way.look, lane), Replay(way.move, lane)
    best, pace = _Best(way), start.pace
    first = best.bound
    average: list[Multipliers] = []
    total, summed = torch.zeros(()).to(pace), 0
    for number in range(steps):
        found = look()
        last = number == steps - 1 or deadline.passed
        if number == 0:
            first = best.bound = found.bound.nan_to_num(-torch.inf, torch.inf, -torch.inf)
        kept = number % _KEEP == 0 and 3 * number >= steps
        if kept or last:
            best.offer(found.bound, way.batch)
        if 2 * number >= steps - 1 or number == 0:
            total, summed = total + found.corner, summed + 1
        if last or (number % _KEEP == 0 and best.all_above(enough)):
            break
        length = pace * _END ** (number / steps) * min(1, (number + 1) / _RISE)
        way.measure(length, length * _steady(number + 1))
        move()
        if not average and 2 * number >= steps:
            average = [own.clone() for own in way.batch]
        elif kept:
            for mean, own in zip(average, way.batch, strict=bool(average)):
                for held, part in zip(mean.parts, own.parts, strict=True):
                    held.lerp_(part, 1 - _AVERAGED)
    if average and not best.all_above(enough):
        best.try_out(average)
    for layers in (best.batch[-1:], best.batch):
        if not best.all_above(enough):
            best.try_out([*best.batch[: -len(layers)], *map(_at_ends, layers)])
    gained = (best.bound - first) / first.abs().clamp(min=1e-30)
    slower = torch.where(gained < _LITTLE, (pace / 2).clamp(min=_SLOWEST), pace).minimum(pace)
    pace = torch.where(gained > _MUCH, (pace * _FASTER).clamp(max=1), slower)
    return Climb(best.bound, best.batch, total / summed, pace)


def _steady(number: int) -> float:
    """What makes up for averages of so few numbers."""
    return float((1 - _RATES.squares**number) ** 0.5 / (1 - _RATES.momentum**number))


class _Best:
    """The best bounds so far, node by node, and their multipliers."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self.batch = [own.clone() for own in way.batch]
        self.bound = torch.full_like(self.batch[0].lean[0], -torch.inf)

    def offer(self, bound: Tensor, batch: Sequence[Multipliers]) -> None:
        """Keep these where they are better."""
        better = bound > self.bound
        self.bound = torch.where(better, bound, self.bound)
        for mine, own in zip(self.batch, batch, strict=True):
            for held, part in zip(mine.parts, own.parts, strict=True):
                torch.where(better, part, held, out=held)

    def try_out(self, batch: Sequence[Multipliers]) -> None:
        """Keep these where they turn out to be better."""
        self.offer(self._way.bound_of(batch), batch)

    def all_above(self, enough: float) -> bool:
        """Whether no node needs more."""
        return bool((self.bound > enough).all())


def _at_ends(own: Multipliers) -> Multipliers:
    """Leans at the end that they are near, and no pushes: steps only come close to that. Where a node has
    little left but a constant, such as all neurons of a layer off, close is not enough.
    """
    return Multipliers(own.lean.round(), own.mix, torch.zeros_like(own.push), own.share)
