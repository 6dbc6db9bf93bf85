"""What a change of a value means to the outputs.

If an entry of a node's value moves by ``d``, an output moves by ``J d`` with ``J = W_n L W_(n-1) L ... W``,
where each ``L`` holds a number from [0, 1] per ReLU: 1 for neurons that stand for the identity. ``J`` is
bounded by a matrix with a radius, ``C +- R``, pulled back node by node: ``l C`` lies in ``C / 2 +- |C| / 2``
for any ``l`` in [0, 1]. A maximum moves by a mean of what its entries move by, so each of them counts with a
number from [0, 1] as well. Where the linear parts cancel, this is far below the product of the absolute
weights. A barrier multiplies by a slope of its function, which lies between two numbers as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from relutrim.graph.graph import Network
from relutrim.graph.operators import Affine, Barrier, Fresh, MaxPool, Shape
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
        if isinstance(node.operator, Fresh):
            continue  # nothing before it moves it
        operator, shapes = node.operator, [network.shapes[name] for name in node.inputs]
        if isinstance(operator, Affine):
            pulled = operator.adjoint(middle, shapes)
            spread = adjoint_spread(operator, middle.abs(), radius, shapes)
            for name, one, other in zip(node.inputs, pulled, spread, strict=True):
                _add(waiting, name, one, other)
        elif isinstance(operator, MaxPool):
            _add(waiting, node.inputs[0], *_through_maxima(operator, middle, radius, shapes[0]))
        elif isinstance(operator, Barrier):
            _add(waiting, node.inputs[0], *operator.pulled(middle, radius))
        else:
            same = torch.as_tensor(identity[node.name]).reshape(middle.shape[1:])
            half = torch.where(same, middle, middle / 2)
            # Halves may underflow.
            wide = torch.where(same, radius, middle.abs() / 2 + radius + _some(middle))
            _add(waiting, node.inputs[0], half, wide)
    for name in wanted - found.keys():
        found[name] = torch.zeros(count, network.size(name), dtype=torch.float64)
    return found


def _some(size: Tensor) -> Tensor:
    """The smallest number there is, where something is not 0. (A bool times a number would be float32.)"""
    return ETA * (size != 0).to(size)


def _add(waiting: dict[str, tuple[Tensor, Tensor]], name: str, middle: Tensor, radius: Tensor) -> None:
    radius = radius.reshape(middle.shape)
    if name in waiting:
        one, other = waiting[name]
        total = one + middle
        waiting[name] = total, (other + radius) * (1 + 2.0**-40) + total.abs() * gamma(2)
    else:
        waiting[name] = middle, radius


def adjoint_spread(operator: Affine, size: Tensor, radius: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
    """``(R + g |C|) |W|``: what the radius becomes, with the rounding of ``C W`` and of fuzzy parameters."""
    terms = operator.terms(shapes)
    moved = radius + gamma(terms) * size + _some(size)
    back = operator.adjoint_spread(moved, shapes)
    unsure = operator.adjoint_fuzz(size + radius, shapes)
    if unsure is not None:
        back = [one + other for one, other in zip(back, unsure, strict=True)]
    room = terms * ETA
    return [form * (1 + 2.0**-30) + room for form in back]


def _through_maxima(operator: MaxPool, middle: Tensor, radius: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """A maximum moves by a mean of what its window's entries move by: each counts with some share from
    [0, 1].
    """
    half = middle / 2
    wide = half.abs() + radius + _some(middle)
    rounding = gamma(operator.overlap(shape)) * half.abs()
    return operator.to_window(half, shape), operator.to_window(wide + rounding, shape) * (1 + 2.0**-30)
