"""Fold: a layer whose neurons are all stable, or that has no ReLU, is linear, so its readers can read its
input instead.

``D (W x + b) + c`` over the active rows becomes ``(D W) x + (D b + c)``; the bias uses the readers' *old*
weights. Where the layer is a bottleneck, the product is larger than its factors: the pipeline decides.
"""

from __future__ import annotations

from relutrim.network.graph import Node
from relutrim.network.operators import Linear
from relutrim.rewrite.draft import Draft, Step, at_most
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
        terms = int(active.sum()) + 2
        moved[reader.name] = gamma(terms) * size + terms * ETA * (2 + float(reach.sum()))
    network = draft.network.edit(change=change)
    grown = network.parameters - draft.network.parameters
    what = "values without ReLUs" if layer.straight else "stable neurons"
    text = f"folded a layer of {layer.size} {what} ({grown:+d} parameters)"
    step = Step(NAME, layer.relu.name, text, layer.neurons(layer.size))
    return draft.rewritten(network, step, moved=moved)


def straighten_outputs(draft: Draft) -> Draft:
    """An output ReLU whose neurons are all stable goes: its linear node, with inactive rows set to 0, is the
    output.
    """
    for relu in draft.network.relus:
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
