"""A proof by parts: linear bounds on pieces of the domain's box that together fill it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from relutrim.bounds.boxes import bound_boxes
from relutrim.bounds.linear import Backward
from relutrim.intervals import Interval, flat
from relutrim.prove.hull.proof import Proof


@dataclass(frozen=True, eq=False)
class PartsProof:
    """A lower bound of ``sign * y`` of a neuron that linear bounds give on every part of the domain's box."""

    target: str
    neuron: int
    sign: float
    bound: float
    ranges: Mapping[str, Interval]
    lo: Tensor
    hi: Tensor

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return 16 * self.lo.numel()

    def check(self, backward: Backward) -> float:
        """The bound, proved anew; NaN if the parts do not cover the region's box. The ranges are taken as
        given.
        """
        if abs(self.sign) != 1 or self.neuron not in range(backward.network.size(self.target)):
            return math.nan
        region, known = backward.region, dict(self.ranges)
        lo, hi = self.lo.to(region.lo), self.hi.to(region.lo)
        if not fills(region.lo, region.hi, lo, hi):
            return math.nan
        least = math.inf
        for part in torch.split(torch.arange(len(lo), device=lo.device), 64):
            values, _ = bound_boxes(backward.network, region, known, lo[part], hi[part], self.target)
            pre = values[self.target]
            ends = flat(pre.lo if self.sign > 0 else -pre.hi)[:, self.neuron]
            if bool(ends.isnan().any()):
                return math.nan
            least = min(least, float(ends.min()))
        return least


def fills(lo: Tensor, hi: Tensor, lows: Tensor, highs: Tensor) -> bool:
    """Whether boxes fill the box from ``lo`` to ``hi``: one contains it, or it can be cut such that none of
    them crosses the cut and those on each side fill it.
    """
    stack = [(lo, hi, lows, highs)]
    while stack:
        lo, hi, lows, highs = stack.pop()
        if bool(((lows <= lo) & (highs >= hi)).all(1).any()):
            continue
        cut = _clean_cut(lo, hi, lows, highs)
        if cut is None:
            return False
        axis, at = cut
        for side, keep in ((0, highs[:, axis] <= at), (1, lows[:, axis] >= at)):
            end = hi.clone() if side == 0 else lo.clone()
            end[axis] = at
            ends = (lo, end) if side == 0 else (end, hi)
            stack.append((*ends, lows[keep], highs[keep]))
    return True


def _clean_cut(lo: Tensor, hi: Tensor, lows: Tensor, highs: Tensor) -> tuple[int, float] | None:
    """An axis and a place strictly inside of the box that no other box crosses."""
    for axis in range(len(lo)):
        places = torch.cat([lows[:, axis], highs[:, axis]])
        places = places[(places > lo[axis]) & (places < hi[axis])]
        for at in sorted(set(places.tolist())):
            if not bool(((lows[:, axis] < at) & (highs[:, axis] > at)).any()):
                return axis, at
    return None


AnyProof: TypeAlias = Proof | PartsProof
"""What a bound that took more than one backward pass leaves behind."""
