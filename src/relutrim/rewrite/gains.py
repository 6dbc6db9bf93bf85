"""What a change of a value means to the outputs.

If an entry of a node's value moves by ``d``, an output moves by ``J d`` with ``J = W_n L W_(n-1) L ... W``,
where each ``L`` holds a number from [0, 1] per ReLU: 1 for neurons that stand for the identity. ``J`` is
bounded by a matrix with a radius, ``C +- R``, pulled back node by node: ``l C`` lies in ``C / 2 +- |C| / 2``
for any ``l`` in [0, 1]. Where the linear parts cancel, this is far below the product of the absolute weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from relutrim.network.graph import Network
from relutrim.network.operators import Affine, Linear, Scale
from relutrim.rounding import ETA, gamma

Masks = Mapping[str, npt.NDArray[np.bool_]]


def gains(network: Network, identity: Masks, names: Iterable[str]) -> dict[str, Tensor]:
    """Per node (outputs, entries): how far an output moves at most if an entry moves by 1, rounding
    included. The outputs are the entries of all sources, one after the other.

    A neuron that is inactive counts like any other: what moves its pre-activation may bring it above 0.
    """
    wanted = set(names)
    found: dict[str, Tensor] = {}
    count = sum(network.size(source) for source in network.sources)
    waiting: dict[str, tuple[Tensor, Tensor]] = {}
    start = 0
    for source in network.sources:
        unit = torch.zeros(count, network.size(source), dtype=torch.float64)
        unit[start : start + unit.shape[1]] = torch.eye(unit.shape[1], dtype=torch.float64)
        start += unit.shape[1]
        _add(waiting, source, unit.reshape(count, *network.shapes[source]), torch.zeros_like(unit))
    for node in reversed(network.nodes):
        if node.name not in waiting:
            continue
        middle, radius = waiting.pop(node.name)
        radius = radius.reshape(middle.shape)
        if node.name in wanted:
            found[node.name] = (middle.abs() + radius).reshape(count, -1)
        if isinstance(node.operator, Affine):
            pulled = node.operator.adjoint(middle)
            spread = _adjoint_spread(node.operator, middle.abs(), radius)
            for name, one, other in zip(node.inputs, pulled, spread, strict=True):
                _add(waiting, name, one, other)
        else:
            same = torch.as_tensor(identity[node.name]).reshape(middle.shape[1:])
            half = torch.where(same, middle, middle / 2)
            # Halves may underflow.
            wide = torch.where(same, radius, middle.abs() / 2 + radius + ETA * (middle != 0))
            _add(waiting, node.inputs[0], half, wide)
    for name in wanted - found.keys():
        found[name] = torch.zeros(count, network.size(name), dtype=torch.float64)
    return found


def _add(waiting: dict[str, tuple[Tensor, Tensor]], name: str, middle: Tensor, radius: Tensor) -> None:
    radius = radius.reshape(middle.shape)
    if name in waiting:
        one, other = waiting[name]
        total = one + middle
        waiting[name] = total, (other + radius) * (1 + 2.0**-40) + total.abs() * gamma(2)
    else:
        waiting[name] = middle, radius


def _adjoint_spread(operator: Affine, size: Tensor, radius: Tensor) -> list[Tensor]:
    """``(R + g |C|) |W|``: what the radius becomes, with the rounding of ``C W`` and of fuzzy parameters."""
    moved = radius + gamma(operator.terms) * size + ETA * (size != 0)
    match operator:
        case Linear():
            back = [moved @ torch.as_tensor(np.abs(operator.weight))]
        case Scale():
            unsure = torch.as_tensor(np.array(operator.scale_radius)) * (size + radius)
            back = [moved * torch.as_tensor(np.abs(operator.scale)) + unsure]
        case _:
            back = operator.adjoint(moved)  # sums and reshapes: their weights are 1
    room = operator.terms * ETA
    return [form * (1 + 2.0**-30) + room for form in back]
