"""The strongest search for a missing state: climb a smoothed network while the smoothing fades.

A neuron that resists gradient steps mostly sits on a ridge: the input lies on the border of several linear
pieces, and each piece's gradient leads across the border and down. Or on a plateau, where everything it reads
is off. Softplus in place of ReLU rounds the ridges and tilts the plateaus; its temperature falls to 0 over
the steps, and Adam's steps shrink with it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from relutrim.domain.region import Region
from relutrim.graph.graph import Network
from relutrim.prove.deadline import Deadline
from relutrim.search.climb import Activation, Targets, gradient, grouped, worth

_STEP = 0.1
"""The first steps, as a share of the domain's width."""
_LOOK = 5
"""How many steps to go between two looks at the true network."""


def anneal(
    network: Network,
    region: Region,
    targets: Targets,
    heat: Tensor,
    steps: int,
    deadline: Deadline,
    enough: Tensor | None = None,
) -> Tensor:
    """The best input met for each target, (k, n), in the region up to rounding.

    ``heat`` (k,) is the first temperature of each row, in units of each layer's typical pre-activation. Rows
    may share a target; the search ends when each target has a row that is worth more than is ``enough`` (k,)
    for it.
    """
    groups = grouped(targets)
    points = targets.starts
    scales = _scales(network, points)
    width = region.width
    best, best_at = worth(network, points, targets, groups), points
    target = _numbered(targets) if enough is not None else None
    mean, square = torch.zeros_like(points), torch.zeros_like(points)
    for step in range(1, steps + 1):
        if deadline.passed:
            break
        left = 1 - (step - 1) / steps
        temperature = {name: heat * (left**2 * scale) for name, scale in scales.items()}
        slope = gradient(network, points, targets, groups, _softplus(temperature)).nan_to_num(0.0, 0.0, 0.0)
        mean, square = 0.9 * mean + 0.1 * slope, 0.99 * square + 0.01 * slope**2
        typical = (square / (1 - 0.99**step)).sqrt()
        move = (mean / (1 - 0.9**step)) / typical.clamp(min=1e-300)
        points = region.project(points + _STEP * (left + 0.02) * width * move)
        if step % _LOOK == 0 or step == steps:
            # The corner that the gradient points to is the best input of all if no neuron switches before it.
            for candidate in (points, torch.where(slope == 0, points, region.minimisers(-slope))):
                value = worth(network, candidate, targets, groups)
                better = value > best
                best = torch.where(better, value, best)
                best_at = torch.where(better[:, None], candidate, best_at)
            if target is not None and enough is not None:
                found = torch.zeros(int(target.max()) + 1, dtype=torch.bool, device=target.device)
                found[target[best > enough]] = True
                if bool(found.all()):
                    break
    return best_at


def _numbered(targets: Targets) -> Tensor:
    """A number for each row (k,), the same for rows of the same target, from 0 on."""
    numbers: dict[tuple[str, int, float], int] = {}
    keys = zip(targets.relu, targets.index.tolist(), targets.sign.tolist(), strict=True)
    rows = [numbers.setdefault(key, len(numbers)) for key in keys]
    return torch.tensor(rows, dtype=torch.int64, device=targets.index.device)


def _scales(network: Network, points: Tensor) -> dict[str, float]:
    """The mean size of the pre-activations of each ReLU at some inputs."""
    names = [relu.inputs[0] for relu in network.relus]
    values = network.run(points, until=names)
    return {
        relu.name: float(values[relu.inputs[0]].abs().mean().nan_to_num(1.0, 1.0, 1.0))
        for relu in network.relus
    }


def _softplus(temperature: dict[str, Tensor]) -> Activation:
    """ReLU smoothed by each row's temperature."""

    def activation(name: str, y: Tensor) -> Tensor:
        t = temperature[name].clamp(min=1e-12).reshape(-1, *[1] * (y.dim() - 1))
        return t * torch.nn.functional.softplus(y / t)

    return activation
