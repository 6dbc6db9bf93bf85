"""Inputs of mixed kinds that look for a contradiction to verdicts, and the extremes that they show."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from relutrim.domain.region import Region
from relutrim.graph.operators import Array
from relutrim.prove.stability import LayerStability, Stability
from relutrim.prove.verdict import Verdict

SAMPLES = 100_000
_BATCH = 4000
_BYTES = 2**28
_CLEAR = 1e-9
"""How far beyond 0 a float64 forward pass must get to count."""


@dataclass(frozen=True, eq=False)
class Extremes:
    """Per ReLU the lowest and highest pre-activations met, and how many mixed inputs were tried.

    The witnesses of the analysis were tried too, but are not counted.
    """

    lowest: dict[str, Array]
    highest: dict[str, Array]
    inputs: int

    def refuted(self, layer: LayerStability) -> int:
        """How many stable verdicts of a layer an input contradicts clearly."""
        low, high = self.lowest[layer.name], self.highest[layer.name]
        wrong = (layer.verdict == Verdict.ACTIVE) & (low < -_CLEAR)
        wrong |= (layer.verdict == Verdict.INACTIVE) & (high > _CLEAR)
        return int(wrong.sum())


def extremes(stability: Stability, device: str = "cpu") -> Extremes:
    """What :data:`SAMPLES` mixed inputs, less those outside the domain, and all witnesses show."""
    network, region = stability.problem.network, stability.problem.region(device)
    before = {relu.name: relu.inputs[0] for relu in network.relus}
    lowest = {name: region.lo.new_full((network.size(name),), torch.inf) for name in before}
    highest = {name: -low for name, low in lowest.items()}
    values_of_one = network.input.size + sum(network.size(node.name) for node in network.nodes)
    chunk = max(1, _BYTES // (8 * values_of_one))

    def show(points: Tensor) -> None:
        for part in torch.split(points, chunk) if len(points) else ():
            values = network.run(part, until=before.values())
            for name, source in before.items():
                y = values[source].flatten(1)
                lowest[name] = torch.fmin(lowest[name], y.amin(0))
                highest[name] = torch.fmax(highest[name], y.amax(0))

    generator, inputs = torch.Generator().manual_seed(7), 0
    for kind in range(SAMPLES // _BATCH):
        points = _into(region, _mixed(region.size, kind, generator).to(region.lo))
        inputs += len(points)
        show(points)
    show(torch.as_tensor(stability.witnesses).to(region.lo))
    return Extremes(
        {name: low.cpu().numpy() for name, low in lowest.items()},
        {name: high.cpu().numpy() for name, high in highest.items()},
        inputs,
    )


def _into(region: Region, mixed: Tensor) -> Tensor:
    """Points of [0, 1]^n scaled to the box; those that cannot be moved into the constraints are left out."""
    points = (region.lo + mixed * (region.hi - region.lo)).clamp(region.lo, region.hi)
    if not region.constrained:
        return points
    points = region.project(points)
    return points[region.inside(points)]


def _mixed(size: int, kind: int, generator: torch.Generator) -> Tensor:
    """Inputs in [0, 1]: uniform, corners of every density, sparse grey images, or smooth ramps."""
    x = torch.rand(_BATCH, size, generator=generator, dtype=torch.float64)
    density = torch.rand(_BATCH, 1, generator=generator, dtype=torch.float64)
    if kind % 4 == 1:
        return (x < density).to(x)
    if kind % 4 == 2:
        return torch.where(torch.rand(_BATCH, size, generator=generator) < density, x, 0 * x)
    if kind % 4 == 3:
        ramp = torch.linspace(0, 1, size, dtype=torch.float64)
        return (ramp * (2 * density - 1) + x[:, :1] + 0.1 * x).clamp(0, 1)
    return x
