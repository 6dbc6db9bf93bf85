"""Gradient search for a missing state: push one neuron up (or down) from each start, all targets at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from relutrim.domain.region import Region
from relutrim.graph.graph import Network
from relutrim.graph.operators import Fresh, Relu
from relutrim.intervals import flat
from relutrim.prove.deadline import Deadline

Activation: TypeAlias = Callable[[str, Tensor], Tensor]
"""What takes the place of the ReLU of a name."""


@contextmanager
def gradients() -> Iterator[None]:
    """With gradients, whatever the caller has switched off."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


@dataclass(frozen=True, eq=False)
class Targets:
    """Neuron ``index`` of ReLU ``relu`` in direction ``sign`` (+1: find it active), each with a start (k,
    n).
    """

    relu: list[str]
    index: Tensor
    sign: Tensor
    starts: Tensor

    def __len__(self) -> int:
        return len(self.relu)

    def take(self, rows: Tensor) -> Targets:
        """Some of the targets, in the order of ``rows``; repeated rows are repeated targets."""
        return Targets(
            [self.relu[row] for row in rows.tolist()], self.index[rows], self.sign[rows], self.starts[rows]
        )


def climb(network: Network, region: Region, targets: Targets, steps: int, deadline: Deadline) -> Tensor:
    """Where sign-gradient steps of shrinking size lead: (k, n), in the region up to rounding.

    Going through ReLUs the gradient is that of a leaky ReLU whose leak shrinks with the steps, so that
    neurons which are off at the start can still be switched on.
    """
    width = region.width
    points = targets.starts
    groups = grouped(targets)
    for step in range(steps):
        if deadline.passed:
            break
        left = 1 - step / steps
        slope = gradient(network, points, targets, groups, _leaky(0.3 * left**2))
        points = region.project(points + (0.5 * left**2 + 0.002) * width * slope.sign())
    return points


def _leaky(leak: float) -> Activation:
    return lambda _, y: torch.nn.functional.leaky_relu(y, leak)


def gradient(
    network: Network, points: Tensor, targets: Targets, groups: dict[str, Tensor], activation: Activation
) -> Tensor:
    """The gradient of each row's own target with respect to that row, with another function for ReLU."""
    x = points.detach().requires_grad_(True)
    values = {network.input.name: x.reshape(len(x), *network.input.shape)}
    total = x.new_zeros(())
    waiting = set(groups)
    for node in network.nodes:
        inputs = [values[name] for name in node.inputs]
        if isinstance(node.operator, Relu):
            y = inputs[0]
            if node.name in groups:
                rows = groups[node.name]
                total = total + (targets.sign[rows] * flat(y)[rows, targets.index[rows]]).sum()
                waiting.discard(node.name)
            if not waiting:
                break
            values[node.name] = activation(node.name, y)
        elif isinstance(node.operator, Fresh):
            values[node.name] = node.operator.unknown(x)
        else:
            values[node.name] = node.operator.forward(inputs)
    if not total.requires_grad:  # nothing depends on the input
        return torch.zeros_like(points)
    (slope,) = torch.autograd.grad(total, x, allow_unused=True, materialize_grads=True)
    return slope


def grouped(targets: Targets) -> dict[str, Tensor]:
    """Rows of the batch by the ReLU they are about."""
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(targets.relu):
        rows.setdefault(name, []).append(row)
    return {name: torch.tensor(found, device=targets.index.device) for name, found in rows.items()}


def worth(network: Network, points: Tensor, targets: Targets, groups: dict[str, Tensor]) -> Tensor:
    """What each row's own target is worth at that row, by the true network: (k,). NaN counts as nothing."""
    found = points.new_full((len(points),), -torch.inf)
    computed = network.run(points, until=[network[name].inputs[0] for name in groups])
    for name, rows in groups.items():
        y = flat(computed[network[name].inputs[0]])[rows, targets.index[rows]]
        found[rows] = targets.sign[rows] * y
    return found.nan_to_num(-torch.inf, -torch.inf, -torch.inf)


def standing(network: Network, points: Tensor, targets: Targets) -> Tensor:
    """What every target is worth at every input: (inputs, targets). NaN counts as nothing."""
    groups = grouped(targets)
    found = points.new_full((len(points), len(targets)), -torch.inf)
    computed = network.run(points, until=[network[name].inputs[0] for name in groups])
    for name, rows in groups.items():
        found[:, rows] = targets.sign[rows] * flat(computed[network[name].inputs[0]])[:, targets.index[rows]]
    return found.nan_to_num(-torch.inf, -torch.inf, -torch.inf)
