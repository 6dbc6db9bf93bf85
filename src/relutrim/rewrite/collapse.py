"""Collapse: behind a layer that is inactive as a whole, everything is constant.

If every way from the input to the outputs leads through that layer, the network is its constant output: one
linear node with zero weights, as in the paper.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from relutrim.bounds.interval import node_interval
from relutrim.bounds.values import Interval
from relutrim.network.graph import Network, Node
from relutrim.network.operators import Linear, Reshape
from relutrim.rewrite.draft import Draft, Step
from relutrim.rewrite.layers import DenseLayer

NAME = "collapse"


def collapse(draft: Draft, layer: DenseLayer) -> Draft:
    """The constant network, if the layer is inactive (or empty) and nothing gets past it."""
    network = draft.network
    if not draft.zero[layer.relu.name].all() or _gets_past(network, layer.relu.name):
        return draft
    values: dict[str, Interval] = {layer.relu.name: _zeros(draft, layer.relu.name)}
    for node in network.nodes:
        if node.name not in values and all(name in values for name in node.inputs):
            values[node.name] = node_interval(node, values)
    nodes, moved = _constants(network, values)
    gone = network.neurons
    constant = replace(network, nodes=tuple(nodes))
    step = Step(
        NAME, layer.relu.name, f"all {layer.size} neurons are inactive, so the network is constant", gone
    )
    return draft.rewritten(constant, step, moved=moved, ranges=_with_flat_input(draft, nodes))


def _constants(network: Network, values: dict[str, Interval]) -> tuple[list[Node], dict[str, torch.Tensor]]:
    """For each output source a linear node that ignores the input, and how far its constant is from the real
    one.
    """
    nodes: list[Node] = []
    moved = {}
    flat = network.input.name
    if len(network.input.shape) != 1:
        flat = f"{network.input.name}.flat"
        nodes.append(Node(flat, Reshape(network.input.shape, (network.input.size,)), (network.input.name,)))
    for source in network.sources:
        value, shape = values[source], network.shapes[source]
        middle = (value.lo + value.hi) / 2
        middle = torch.where(value.lo == value.hi, value.lo, middle)
        linear = Linear(np.zeros((middle.numel(), network.input.size)), middle.flatten().numpy())
        if len(shape) == 1:
            nodes.append(Node(source, linear, (flat,)))
        else:
            nodes.append(Node(f"{source}.flat", linear, (flat,)))
            nodes.append(Node(source, Reshape((middle.numel(),), shape), (f"{source}.flat",)))
        moved[source] = torch.maximum(value.hi - middle, middle - value.lo) * (1 + 2.0**-20)
    return nodes, moved


def _with_flat_input(draft: Draft, nodes: list[Node]) -> dict[str, Interval]:
    """Ranges of the helper nodes that only change shapes."""
    ranges: dict[str, Interval] = {}
    known = dict(draft.ranges)
    for node in nodes:
        if node.name not in known:
            ranges[node.name] = known[node.name] = node_interval(node, known)
    return ranges


def _zeros(draft: Draft, name: str) -> Interval:
    zero = torch.zeros(1, *draft.network.shapes[name], dtype=torch.float64)
    return Interval(zero, zero)


def _gets_past(network: Network, relu: str) -> bool:
    """Whether an output can be reached from the input around ``relu``."""
    reached = {network.input.name}
    for node in network.nodes:
        if node.name != relu and any(name in reached for name in node.inputs):
            reached.add(node.name)
    return any(source in reached for source in network.sources)
