"""Collapse: behind a layer that is inactive as a whole, everything is constant.

If every way from the input to the outputs leads through that layer, the network is its constant output: one
linear node with zero weights, as in the paper.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from relutrim.bounds.interval import node_interval
from relutrim.graph.graph import Network, Node
from relutrim.graph.operators import Fresh, Linear, Relu, Reshape
from relutrim.intervals import Interval
from relutrim.rewrite.draft import Draft, Step, middle
from relutrim.rewrite.layers import finite

NAME = "collapse"


def collapse(draft: Draft, relu: Node) -> Draft:
    """The constant network, if the ReLU is inactive as a whole (or empty) and nothing gets past it, and
    everything may go.

    ReLUs behind this one that stand for the identity are the identity: fusing may have moved them below 0.
    """
    network = draft.network
    if network.pinned or not draft.zero[relu.name].all() or _gets_past(network, relu.name):
        return draft
    values: dict[str, Interval] = {relu.name: _zeros(draft, relu.name)}
    for node in network.nodes:
        if node.name not in values and all(name in values for name in node.inputs):
            values[node.name] = _value(draft, node, values)
    if not all(finite(middle(values[source])[0].numpy()) for source in network.sources):
        return draft
    nodes, moved = _constants(network, values)
    constant = replace(network, nodes=tuple(nodes))
    size = network.size(relu.name)
    step = Step(
        NAME, relu.name, f"all {size} neurons are inactive, so the network is constant", network.neurons
    )
    return draft.rewritten(constant, step, moved=moved, ranges=_with_flat_input(draft, nodes))


def _value(draft: Draft, node: Node, values: dict[str, Interval]) -> Interval:
    """What a node makes of constants, ReLUs as the draft has them."""
    found = node_interval(node, values)
    if not isinstance(node.operator, Relu):
        return found
    before = values[node.inputs[0]]
    same = torch.as_tensor(draft.identity[node.name]).reshape(before.lo.shape)
    return Interval(torch.where(same, before.lo, found.lo), torch.where(same, before.hi, found.hi))


def _constants(network: Network, values: dict[str, Interval]) -> tuple[list[Node], dict[str, torch.Tensor]]:
    """For each output source a linear node that ignores the input, and how far its constant is from the real
    one.
    """
    nodes: list[Node] = []
    moved = {}
    flat = network.input.name
    if len(network.input.shape) != 1:
        flat = network.free_name(f"{network.input.name}.flat")
        nodes.append(Node(flat, Reshape(network.input.shape, (network.input.size,)), (network.input.name,)))
    for source in network.sources:
        value, shape = values[source], network.shapes[source]
        centre, moved[source] = middle(value)
        linear = Linear(np.zeros((centre.numel(), network.input.size)), centre.flatten().numpy())
        if len(shape) == 1:
            nodes.append(Node(source, linear, (flat,)))
        else:
            name = network.free_name(f"{source}.flat")
            nodes.append(Node(name, linear, (flat,)))
            nodes.append(Node(source, Reshape((centre.numel(),), shape), (name,)))
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
    """Whether an output can be reached around ``relu``, from the input or from a value from nowhere."""
    reached = {network.input.name}
    reached.update(node.name for node in network.nodes if isinstance(node.operator, Fresh))
    for node in network.nodes:
        if node.name != relu and any(name in reached for name in node.inputs):
            reached.add(node.name)
    return any(source in reached for source in network.sources)
