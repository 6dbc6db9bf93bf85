"""Negligible parts: neurons and connections whose whole effect on every output is within what is allowed.

A neuron goes by standing in the middle of its range; a connection likewise, by a weight of 0. Networks
trained with l1 are full of both: their zeros are 1e-8.
"""

from __future__ import annotations

import numpy as np
import torch

from relutrim.graph.graph import Node
from relutrim.graph.operators import Array, Linear
from relutrim.rewrite.budget import Budget, cheapest
from relutrim.rewrite.draft import Draft, Mask, Step, at_most, middle
from relutrim.rewrite.layers import DenseLayer, finite, keep_neurons
from relutrim.rewrite.storage import held
from relutrim.rounding import ETA, gamma

NEURONS = "drop-negligible"
CONNECTIONS = "drop-connections"


def drop_negligible(draft: Draft, layer: DenseLayer, budget: Budget, part: float) -> Draft:
    """The draft without the neurons of a layer that move no output by more than a part of what is left."""
    share = budget.share(draft, [reader.name for reader in layer.readers], part)
    if share is None or layer.size < 2:
        return draft
    outward = np.concatenate([_operator(reader).weight for reader in layer.readers])
    centre, radius = (t[0].numpy() for t in middle(draft.ranges[layer.relu.name]))
    costs = share.prices @ (np.abs(outward) * radius)
    if not finite(costs):
        return draft
    gone = cheapest(costs, part)[: layer.size - 1]
    if not len(gone):
        return draft
    keep: Mask = np.ones(layer.size, dtype=np.bool_)
    keep[gone] = False
    readers, moved = {}, {}
    for reader in layer.readers:
        old = _operator(reader)
        found = _without(old, ~keep, centre, radius, draft.network.dtype)
        if found is None:
            return draft
        readers[reader.name] = Linear(old.weight[:, keep], found[0].bias)
        moved[reader.name] = found[1]
    text = f"removed {len(gone)} {layer.entries} of little effect"
    step = Step(NEURONS, layer.relu.name, text, layer.neurons(len(gone)))
    return keep_neurons(draft, layer, keep, readers, step, moved)


def drop_connections(draft: Draft, name: str, budget: Budget, part: float) -> Draft:
    """The draft in which weights of a linear node that move no output by more than a part of what is left are
    0.
    """
    node = draft.network[name]
    old = _operator(node)
    share = budget.share(draft, [name], part)
    centre, radius = (t.flatten().numpy() for t in middle(draft.ranges[node.inputs[0]]))
    if share is None or len(draft.network.shapes[name]) != 1:
        return draft
    effects = np.abs(old.weight) * radius
    each = share.prices[:, :, None] * effects[None]
    chosen = cheapest(each.reshape(len(each), -1), part)
    gone = np.zeros(old.weight.size, dtype=np.bool_)
    gone[chosen] = True
    gone = gone.reshape(old.weight.shape) & (old.weight != 0)
    count = int(gone.sum())
    if not count:
        return draft
    found = _without(old, gone, centre, radius, draft.network.dtype)
    if found is None:
        return draft
    new, moved = found
    step = Step(CONNECTIONS, name, f"set {count} of {old.weight.size} connections of little effect to 0")
    network = draft.network.edit(change={name: Node(name, new, node.inputs)})
    return draft.rewritten(network, step, moved={name: moved})


def _operator(node: Node) -> Linear:
    assert isinstance(node.operator, Linear)
    return node.operator


def _without(
    old: Linear, gone: Mask, centre: Array, radius: Array, dtype: str
) -> tuple[Linear, torch.Tensor] | None:
    """An operator in which some weights, or columns, are 0, with a bias that stands for their inputs'
    middle, and how far its value can move; None where that bias overflows.

    The bias is a number that the file holds: what is gone is often too little to change it at all, where
    storing a bias that it did change would move the value by more.
    """
    lost = np.where(np.broadcast_to(gone, old.weight.shape), old.weight, 0.0)
    wanted = old.bias + lost @ centre
    bias = held(wanted, dtype)
    if not finite(wanted, bias):
        return None
    new = Linear(old.weight - lost, bias)
    terms = old.weight.shape[1] + 4
    size = at_most(lost, np.abs(old.bias), torch.as_tensor(np.abs(centre))[None])
    moved = at_most(lost, np.abs(wanted - bias), torch.as_tensor(radius)[None])
    return new, moved + gamma(terms) * size + terms * ETA * (2 + float(np.abs(centre).sum()))
