"""Interval bounds: one sweep through the graph, each operator's image of the ranges before it."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from relutrim.bounds.values import Interval
from relutrim.network.graph import Network, Node
from relutrim.network.operators import Convolution, Linear
from relutrim.rounding import gamma

if TYPE_CHECKING:
    from relutrim.prove.deadline import Deadline


def input_interval(network: Network, box: Interval) -> Interval:
    """The domain's box in the shape of the network's input."""
    shape = (1, *network.input.shape)
    return Interval(box.lo.reshape(shape), box.hi.reshape(shape))


def node_interval(node: Node, values: dict[str, Interval]) -> Interval:
    """The image of what is known about a node's inputs."""
    return node.operator.interval([values[name] for name in node.inputs])


def settle_ties(
    node: Node, values: dict[str, Interval], found: Interval, deadline: Deadline | None = None
) -> Interval:
    """Decide in rational arithmetic those ends that are too close to 0 for float64.

    A sum such as 2 - 1 - 1 is exactly 0 and so a proof, but its rounding radius is not. Only linear nodes and
    convolutions, and only ends within the radius, of which a trained network has next to none; those that the
    deadline leaves stay as they are.
    """
    operator = node.operator
    if not isinstance(operator, Linear | Convolution) or (
        isinstance(operator, Linear) and found.lo.ndim != 2
    ):
        return found
    source = values[node.inputs[0]]
    terms = operator.terms([tuple(source.lo.shape[1:])])
    reach = 4 * gamma(terms) * operator.magnitude([source.magnitude])
    near = ((found.lo.abs() <= reach) | (found.hi.abs() <= reach)) & (reach > 0) & torch.isfinite(reach)
    rows = near.flatten().nonzero()[:, 0].tolist()
    ends = (source.lo[0].cpu().numpy(), source.hi[0].cpu().numpy())
    if not rows or not (np.isfinite(ends[0]).all() and np.isfinite(ends[1]).all()):
        return found
    lo, hi = found.lo.clone().flatten(), found.hi.clone().flatten()
    for row in rows:
        if deadline is not None and deadline.passed:
            break
        low, high = operator.exact_extremes(row, *ends)
        lo[row], hi[row] = _float_below(low), -_float_below(-high)
    return found.meet(Interval(lo.reshape(found.lo.shape), hi.reshape(found.hi.shape)))


def _float_below(value: Fraction) -> float:
    """The largest float64 at or below an exact value (or close to it)."""
    try:
        near = float(value)
    except OverflowError:
        return float("nan")
    return near if Fraction(near) <= value else float(np.nextafter(near, -np.inf))


def forward_radius(network: Network, values: dict[str, Interval]) -> dict[str, Tensor]:
    """How far a float64 forward pass can be from the real value, for every node and any input of the domain.

    One radius for the whole domain, from the ranges in ``values``: each affine operator adds ``gamma |W|
    |x|`` and passes on ``|W| r``; ReLU passes the radius on, and max pooling the largest of each window; a
    barrier passes on what its slope makes of it, and adds what it rounds itself.
    """
    from relutrim.network.operators import Affine, Barrier
    from relutrim.rounding import ETA

    source = values[network.input.name]
    radius = {network.input.name: torch.zeros_like(source.lo)}
    for node in network.nodes:
        before = [radius[name] for name in node.inputs]
        operator = node.operator
        total = operator.spread(before)
        if isinstance(operator, Barrier):
            reach, result = values[node.inputs[0]].magnitude + before[0], values[node.name].magnitude + total
            radius[node.name] = (total + operator.rounding(reach, result)) * (1 + 2.0**-20)
            continue
        if not isinstance(operator, Affine):
            radius[node.name] = total
            continue
        reaches = [values[name].magnitude + r for name, r in zip(node.inputs, before, strict=True)]
        terms = operator.terms([network.shapes[name] for name in node.inputs])
        if terms:
            total = total + gamma(terms) * operator.magnitude(reaches) + terms * ETA
        fuzz = operator.fuzz(reaches)
        radius[node.name] = total * (1 + 2.0**-20) if fuzz is None else (total + fuzz) * (1 + 2.0**-20)
    return radius
