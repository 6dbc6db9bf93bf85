"""Fuse: make dense layers visible by joining what stands between a linear node and a ReLU into the linear
node.

1. A reshape into the same shape (Identity, Dropout) goes.
2. A linear node or a convolution followed by a scale (a bias added on its own, say) becomes one node; behind
   a convolution the scale must be the same all over a channel.
3. A ReLU followed by a scale followed by linear nodes: the scale moves into their weights. Not into those of
   convolutions, whose padding is 0 and not the scale's shift.

A batch norm stays a node, with its own numbers; :func:`fold_batch_norms` is a rewrite of its own.

Nothing is fused at the network's input (its normalisation stays readable), nor across a value that someone
else reads. Adding a bias to a linear node that has none is exact; anything else rounds, and the rounding is
charged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from relutrim.graph.graph import Network, Node
from relutrim.graph.operators import Array, BatchNorm, Convolution, Linear, Relu, Reshape, Scale, Shape
from relutrim.rewrite.draft import Draft, Step, at_most
from relutrim.rewrite.layers import finite
from relutrim.rounding import ETA, gamma

NAME = "fuse"


def fuse(draft: Draft, accept: Callable[[Draft, Draft], bool] = lambda before, after: True) -> Draft:
    """All fusions that are accepted, until there is nothing left to fuse."""
    changed = True
    while changed:
        changed = False
        for node in draft.network.nodes:
            for join in (_without_identity, *(() if isinstance(node.operator, BatchNorm) else _JOINS)):
                found = join(draft, node)
                if found is not None and accept(draft, found):
                    draft, changed = found, True
                    break
            if changed:
                break
    return draft


def fold_batch_norms(
    draft: Draft, accept: Callable[[Draft, Draft], bool] = lambda before, after: True
) -> Draft:
    """Batch norms folded into the linear nodes and convolutions before them, or into the linear nodes behind
    them, as far as that is accepted. It rounds every weight, so it is done only where somebody asks for it.
    """
    for name in [node.name for node in draft.network.nodes if isinstance(node.operator, BatchNorm)]:
        for join in _JOINS:
            node = draft.network.get(name)
            if node is not None and isinstance(node.operator, BatchNorm):
                found = join(draft, node)
                draft = found if found is not None and accept(draft, found) else draft
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
    operator, shape = linear.operator, network.shapes[node.name]
    if not isinstance(operator, Linear | Convolution) or (isinstance(operator, Linear) and len(shape) != 1):
        return None
    factor, shift = _per_channel(scale.scale, shape), _per_channel(scale.shift, shape)
    if factor is None or shift is None:
        return None
    weight, bias = operator.weight, operator.bias
    scaled, shifted = weight * factor.reshape(-1, *[1] * (weight.ndim - 1)), bias * factor + shift
    if not finite(scaled, shifted):
        return None
    fused = replace(operator, weight=scaled, bias=shifted)
    exact = (factor == 1) & ((bias == 0) | (shift == 0)) & scale.exact
    moved = _rounding(fused, draft.reach(linear.inputs[0]), bias * factor, shift)
    moved = moved.where(~torch.as_tensor(exact).reshape(-1, *[1] * (moved.ndim - 2)), 0.0)
    fuzz = scale.fuzz([draft.reach(linear.name)])
    if fuzz is not None:
        moved = moved + fuzz
    change: dict[str, Node | None] = {linear.name: None, node.name: Node(node.name, fused, linear.inputs)}
    step = Step(NAME, node.name, f"joined with {linear.name}")
    return draft.rewritten(network.edit(change=change), step, moved={node.name: moved})


def _per_channel(numbers: Array, shape: Shape) -> Array | None:
    """One number per entry of the first axis, if that is how they broadcast into a value of this shape."""
    wide = numbers.reshape(*[1] * (len(shape) - numbers.ndim), *numbers.shape)
    if any(size != 1 for size in wide.shape[1:]):
        return None
    return np.broadcast_to(wide.reshape(-1), shape[:1])


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


_JOINS = (_linear_then_scale, _scale_then_linear)


def _rounding(fused: Linear | Convolution, reach: Tensor, *terms: np.ndarray) -> Tensor:
    """How far the fused weights can be from the real products: one rounding each, and a short sum in the
    bias.
    """
    sizes = sum((np.abs(term) for term in terms), np.zeros(fused.bias.shape))
    bias = torch.as_tensor(np.asarray(sizes)).reshape(1, -1, *[1] * (fused.weight.ndim - 2))
    count = fused.terms([tuple(reach.shape[1:])])
    underflow = count * ETA * (2 + float(reach.sum()))
    return gamma(count) * (fused.magnitude([reach]) + bias) + underflow


def _owned(network: Network, node: Node) -> bool:
    """Whether ``node`` is all that reads its input, and no output shows it."""
    source = node.inputs[0]
    return source in network and network.readers(source) == (node,) and not network.is_output(source)
