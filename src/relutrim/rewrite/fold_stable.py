"""Fold: a layer whose neurons are all stable, or that has no ReLU, is linear, so its readers can read its
input instead.

``D (W x + b) + c`` over the active rows becomes ``(D W) x + (D b + c)``; the bias uses the readers' *old*
weights. Where the layer is a bottleneck, the product is larger than its factors: the pipeline decides.
"""

from __future__ import annotations

from collections.abc import Set

import numpy as np
import torch

from relutrim.graph.graph import Node
from relutrim.graph.operators import Array, Linear
from relutrim.rewrite.draft import Draft, Mask, Step, at_most
from relutrim.rewrite.exactness import powers_of_two, sum_is_exact
from relutrim.rewrite.layers import DenseLayer, finite
from relutrim.rounding import ETA, gamma

NAME = "fold-stable"


def fold_stable(draft: Draft, layer: DenseLayer) -> Draft:
    """The draft without the layer, if all of it is stable."""
    active, zero = layer.active(draft), layer.inactive(draft)
    if not (active | zero).all() or not active.any() or not layer.readers:
        return draft
    weight, bias = layer.operator.weight[active], layer.operator.bias[active]
    change: dict[str, Node | None] = {layer.linear.name: None, layer.relu.name: None}
    moved = {}
    source = layer.linear.inputs[0]
    reach = draft.reach(source)
    for reader in layer.readers:
        assert isinstance(reader.operator, Linear)
        outward = reader.operator.weight[:, active]
        product, constant = outward @ weight, outward @ bias + reader.operator.bias
        if not finite(product, constant):
            return draft
        change[reader.name] = Node(reader.name, Linear(product, constant), (source,))
        size = at_most(outward, reader.operator.bias, at_most(weight, bias, reach))
        counts = (outward != 0).sum(axis=1) + 2
        terms = torch.as_tensor(counts)
        shares = torch.tensor([gamma(count) for count in counts.tolist()], dtype=size.dtype)
        rounding = shares * size + terms * ETA * (2 + float(reach.sum()))
        exact = torch.as_tensor(_exact_rows(outward, weight, bias, reader.operator.bias))
        moved[reader.name] = rounding.where(~exact, 0.0)
    network = draft.network.edit(change=change)
    grown = network.parameters - draft.network.parameters
    what = "values without ReLUs" if layer.straight else "stable neurons"
    text = f"folded a layer of {layer.size} {what} ({grown:+d} parameters)"
    step = Step(NAME, layer.relu.name, text, layer.neurons(layer.size))
    return draft.rewritten(network, step, moved=moved)


def _exact_rows(outward: Array, weight: Array, bias: Array, own: Array) -> Mask:
    """Readers whose new weights and bias are not rounded, since every product that is summed up is the only
    one, by a power of two: readers of one neuron, or neurons that pass single inputs on.
    """
    rows: Mask = np.zeros(len(outward), dtype=np.bool_)
    if _pass_on(weight.T):
        rows |= ~bias.any()
    once = np.flatnonzero((outward != 0).sum(axis=1) == 1)
    at = np.abs(outward[once]).argmax(axis=1)
    factor = outward[once, at]
    read = np.column_stack([weight[at], bias[at]])
    good = powers_of_two(factor) & ((factor[:, None] * read) / factor[:, None] == read).all(axis=1)
    scaled = factor * bias[at]
    rows[once] |= good & sum_is_exact(scaled, own[once], scaled + own[once])
    return rows


def _pass_on(columns: Array) -> bool:
    """Whether each of these holds one number at most, and that a 1 or its opposite."""
    return bool(((columns != 0).sum(axis=1) <= 1).all() and (np.abs(columns[columns != 0]) == 1).all())


def straighten_outputs(draft: Draft, fixed: Set[str] = frozenset()) -> Draft:
    """An output ReLU whose neurons are all stable goes, unless it is ``fixed``: its linear node, with
    inactive rows set to 0, is the output.
    """
    for relu in (relu for relu in draft.network.relus if relu.name not in fixed):
        network = draft.network
        active, zero = draft.identity[relu.name], draft.zero[relu.name]
        if not network.is_output(relu.name) or network.readers(relu.name) or not (active | zero).all():
            continue
        if relu.inputs[0] not in network or len(network.shapes[relu.name]) != 1:
            continue
        linear = network[relu.inputs[0]]
        if not isinstance(linear.operator, Linear):
            continue
        if network.readers(linear.name) != (relu,) or network.is_output(linear.name):
            continue
        straight = Linear(linear.operator.weight * active[:, None], linear.operator.bias * active)
        change: dict[str, Node | None] = {
            linear.name: None,
            relu.name: Node(relu.name, straight, linear.inputs),
        }
        step = Step(
            NAME, relu.name, f"the output's {active.size} ReLUs are all stable and went", int(active.size)
        )
        draft = draft.rewritten(network.edit(change=change), step)
    return draft
