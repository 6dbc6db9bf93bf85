"""Fuse: make dense layers visible by joining what stands between a linear node and a ReLU into the linear
node.

1. A reshape into the same shape (Identity, Dropout) goes.
2. A linear node followed by a scale (a batch norm, a bias added on its own) becomes one linear node.
3. A ReLU followed by a scale followed by linear nodes: the scale moves into their weights.

Nothing is fused at the network's input (its normalisation stays readable), nor across a value that someone
else reads. Adding a bias to a linear node that has none is exact; anything else rounds, and the rounding is
charged.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from relutrim.network.graph import Network, Node
from relutrim.network.operators import Linear, Relu, Reshape, Scale
from relutrim.rewrite.draft import Draft, Step, at_most
from relutrim.rewrite.layers import finite
from relutrim.rounding import ETA, gamma

NAME = "fuse"


def fuse(draft: Draft) -> Draft:
    """All fusions, until there is nothing left to fuse."""
    changed = True
    while changed:
        changed = False
        for node in draft.network.nodes:
            found = (
                _without_identity(draft, node)
                or _linear_then_scale(draft, node)
                or _scale_then_linear(draft, node)
            )
            if found is not None:
                draft, changed = found, True
                break
    return draft


def _without_identity(draft: Draft, node: Node) -> Draft | None:
    network, operator = draft.network, node.operator
    if not isinstance(operator, Reshape) or operator.before != operator.after or network.is_output(node.name):
        return None
    source = node.inputs[0]
    change: dict[str, Node | None] = {node.name: None}
    for reader in network.readers(node.name):
        change[reader.name] = Node(
            reader.name, reader.operator, tuple(source if n == node.name else n for n in reader.inputs)
        )
    # Both hold the same numbers, but only what a ReLU reads had its range tightened.
    both = draft.ranges[source].meet(draft.ranges[node.name])
    return draft.rewritten(network.edit(change=change), None, ranges={source: both})


def _linear_then_scale(draft: Draft, node: Node) -> Draft | None:
    network, scale = draft.network, node.operator
    if not isinstance(scale, Scale) or not _owned(network, node):
        return None
    linear = network[node.inputs[0]]
    if not isinstance(linear.operator, Linear) or len(network.shapes[node.name]) != 1:
        return None
    weight, bias = linear.operator.weight, linear.operator.bias
    size = bias.shape
    factor, shift = np.broadcast_to(scale.scale, size), np.broadcast_to(scale.shift, size)
    scaled, shifted = weight * factor[:, None], bias * factor + shift
    if not finite(scaled, shifted):
        return None
    fused = Linear(scaled, shifted)
    exact = (factor == 1) & ((bias == 0) | (shift == 0)) & scale.exact
    moved = _rounding(fused, draft.reach(linear.inputs[0]), bias * factor, shift)
    moved = moved.where(~torch.as_tensor(exact), 0 * moved)
    fuzz = scale.fuzz([draft.reach(linear.name)])
    if fuzz is not None:
        moved = moved + fuzz
    change: dict[str, Node | None] = {linear.name: None, node.name: Node(node.name, fused, linear.inputs)}
    step = Step(NAME, node.name, f"joined with {linear.name}")
    return draft.rewritten(network.edit(change=change), step, moved={node.name: moved})


def _scale_then_linear(draft: Draft, node: Node) -> Draft | None:
    """``W (s x + t) + b`` becomes ``(W s) x + (W t + b)`` in every reader."""
    network, scale = draft.network, node.operator
    if not isinstance(scale, Scale) or node.inputs[0] not in network or network.is_output(node.name):
        return None
    readers = network.readers(node.name)
    if (
        not isinstance(network[node.inputs[0]].operator, Relu)
        or len(network.shapes[node.name]) != 1
        or not readers
    ):
        return None
    change: dict[str, Node | None] = {node.name: None}
    moved = {}
    for reader in readers:
        if not isinstance(reader.operator, Linear):
            return None
        weight, bias = reader.operator.weight, reader.operator.bias
        size = weight.shape[1:]
        factor, shift = np.broadcast_to(scale.scale, size), np.broadcast_to(scale.shift, size)
        scaled, shifted = weight * factor, weight @ shift + bias
        if not finite(scaled, shifted):
            return None
        fused = Linear(scaled, shifted)
        change[reader.name] = Node(reader.name, fused, node.inputs)
        local = _rounding(fused, draft.reach(node.inputs[0]), np.abs(weight) @ np.abs(shift), bias)
        fuzz = scale.fuzz([draft.reach(node.inputs[0])])
        if fuzz is not None:
            local = local + at_most(weight, np.zeros(len(bias)), fuzz + ETA)
        moved[reader.name] = local
    step = Step(NAME, node.name, f"moved into {', '.join(reader.name for reader in readers)}")
    return draft.rewritten(network.edit(change=change), step, moved=moved)


def _rounding(fused: Linear, reach: Tensor, *terms: np.ndarray) -> Tensor:
    """How far the fused weights can be from the real products: one rounding each, and a short sum in the
    bias.
    """
    sizes = sum((np.abs(term) for term in terms), np.zeros(fused.bias.shape))
    bias = torch.as_tensor(np.asarray(sizes))[None]
    count = fused.terms([tuple(reach.shape[1:])])
    underflow = count * ETA * (2 + float(reach.sum()))
    return gamma(count) * (fused.magnitude([reach]) + bias) + underflow


def _owned(network: Network, node: Node) -> bool:
    """Whether ``node`` is all that reads its input, and no output shows it."""
    source = node.inputs[0]
    return source in network and network.readers(source) == (node,) and not network.is_output(source)
