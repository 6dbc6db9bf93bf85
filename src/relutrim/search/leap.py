"""A stronger search for the last missing states: leaps along the piece of the network an input lies on.

Where no neuron switches, the target is linear and best at a corner of the domain. So from each start: take
the gradient, find the corner it points to, and try many ways of going there: all coordinates part of the way,
or only the coordinates that gain most, all of the way. The best of all candidates is the next input. This
keeps exact improvements only, so it climbs where sign-gradient steps oscillate between pieces.
"""

from __future__ import annotations

import torch
from torch import Tensor

from relutrim.domain.region import Region
from relutrim.network.graph import Network
from relutrim.prove.deadline import Deadline
from relutrim.search.climb import Targets, gradient, grouped

_PARTS = (1.0, 0.6, 0.3, 0.15, 0.07, 0.03, 0.01, 0.003)
"""Shares of the way to the corner."""
_FEW = (0.5, 0.1, 0.03, 0.01, 0.001)
"""Shares of the coordinates that go all of the way."""


def leap(network: Network, region: Region, targets: Targets, steps: int, deadline: Deadline) -> Tensor:
    """The best input met for each target, (k, n), in the region up to rounding."""
    points = targets.starts
    groups = grouped(targets)
    best = _values(network, points[:, None], targets, groups)[:, 0]
    for step in range(steps):
        if deadline.passed:
            break
        # Every other gradient leaks through inactive neurons, so that a flat piece is no end.
        leak = 0.1 * (1 - step / steps) ** 2 if step % 2 else 0.0
        slope = gradient(network, points, targets, groups, leak)
        corner = torch.where(slope == 0, points, region.minimisers(-slope))
        candidates = _candidates(points, corner, slope)
        if region.constrained:
            count, tries, size = candidates.shape
            candidates = region.project(candidates.reshape(-1, size)).reshape(count, tries, size)
        values = _values(network, candidates, targets, groups)
        value, choice = torch.where(values.isnan(), -torch.inf, values).max(1)
        rows = torch.arange(len(points), device=points.device)
        better = value > best
        points = torch.where(better[:, None], candidates[rows, choice], points)
        best = torch.where(better, value, best)
    return points


def _candidates(points: Tensor, corner: Tensor, slope: Tensor) -> Tensor:
    way = corner - points
    tries = [points + part * way for part in _PARTS[1:]]
    gain = slope * way
    ranked = gain.sort(dim=1, descending=True).values
    for share in _FEW:
        threshold = ranked[:, max(0, int(share * gain.shape[1]) - 1)].clamp(min=0)
        tries.append(torch.where(gain > threshold[:, None] * (1 - 1e-12), corner, points))
    return torch.stack([corner, *tries], dim=1)


def _values(network: Network, candidates: Tensor, targets: Targets, groups: dict[str, Tensor]) -> Tensor:
    """What each row's target is worth at each of the row's candidates: (k, tries)."""
    count, tries, size = candidates.shape
    worth = candidates.new_full((count, tries), -torch.inf)
    computed = network.run(candidates.reshape(-1, size), until=[network[name].inputs[0] for name in groups])
    for name, rows in groups.items():
        y = computed[network[name].inputs[0]].reshape(count, tries, -1)[rows]
        index = targets.index[rows][:, None, None].expand(-1, tries, 1)
        worth[rows] = targets.sign[rows, None] * y.gather(2, index)[:, :, 0]
    return worth
