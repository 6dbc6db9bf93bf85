"""Spend: what the outputs may move, used to remove what matters that little.

Carriers and neurons first, then factors, and what is left at the end goes to connections. Storing a network
moves its outputs too, so not all that is allowed can be spent.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from relutrim.graph.operators import Linear, Relu
from relutrim.rewrite.budget import Budget
from relutrim.rewrite.carry_linear import carry_linear
from relutrim.rewrite.draft import Draft
from relutrim.rewrite.factor import factor, siblings
from relutrim.rewrite.hold_biases import hold_biases
from relutrim.rewrite.layers import DenseLayer, any_layer, dense_layer, straight_layer
from relutrim.rewrite.negligible import drop_connections, drop_negligible
from relutrim.rewrite.rules import Limits, Rules, fits
from relutrim.rewrite.shrink import shrink
from relutrim.rewrite.storage import held

_RESERVE = 2.0
"""How much of the budget storing takes, in units of what it takes of the exact result; half of it at most."""
_PARTS = (1.0, 0.8, 0.65, 0.5, 0.42, 0.35, 0.3, 0.25, 0.15, 0.05)
"""How much of the rest is spent; less if storing the result takes more than that leaves."""
_SPENT = 0.8
"""How much of what is left at the end goes to connections."""
_LINEAR = 0.7
"""The part of a layer's budget that carriers get; neurons get the rest."""


def proposals(exact: Draft, limits: Limits, rules: Rules) -> Iterator[Draft]:
    """What spending makes of an exact result, the most daring first; whether it fits is known only once it is
    stored.
    """
    reserved = exact.stored().realise().deviation
    for part in _PARTS:
        if rules.over:
            return
        left = {s: torch.fmax(limit - _RESERVE * reserved[s], limit / 2) for s, limit in limits.items()}
        spent = spend(exact, Budget({s: part * most for s, most in left.items()}), rules)
        yield spent
        yield held_biases(spent, limits, rules, exact)


def spend(draft: Draft, budget: Budget, rules: Rules) -> Draft:
    """What the outputs may move, spent on carriers and neurons as long as any goes, then on factors."""
    before = None
    while before is not draft and not rules.over:
        before = draft
        nodes = reversed(draft.network.nodes)
        names = [
            n.name for n in nodes if isinstance(n.operator, Relu) or straight_layer(draft.network, n.name)
        ]
        for at, name in enumerate(names):
            part = 1 / (len(names) - at)
            layer = any_layer(draft.network, name)
            if layer is not None:
                share = budget.share(draft, [reader.name for reader in layer.readers], _LINEAR * part)
                if share is not None:
                    draft = rules.better(draft, carry_linear(draft, layer, share))
            layer = any_layer(draft.network, name)
            if layer is not None:
                draft = rules.better(draft, drop_negligible(draft, layer, budget, (1 - _LINEAR) * part))
        if draft is before:
            draft = _factored(draft, budget, rules)
        if draft is not before:
            draft = shrink(draft, rules)
    return draft


def held_biases(draft: Draft, limits: Limits, rules: Rules, exact: Draft) -> Draft:
    """Constant neurons for the biases whose storing costs most, as many as it takes for the outputs to move
    no more than is allowed; the draft itself if it does not cost less than the exact one then.
    """
    layers = [layer for relu in draft.network.relus if (layer := dense_layer(draft.network, relu.name))]
    prices = {layer.relu.name: _bias_price(draft, layer, limits) for layer in layers}
    found = draft
    for name in sorted(prices, key=lambda name: -prices[name]):
        layer = dense_layer(found.network, name)
        if layer is None or not prices[name] > 0:
            break
        found = hold_biases(found, layer)
        if rules.cost is None or rules.cost.least(exact, found) is exact:
            break
        if fits(found, limits) and rules.sayable(found):
            return found
    return draft


def _bias_price(draft: Draft, layer: DenseLayer, limits: Limits) -> float:
    """What storing the biases behind a layer takes of what the outputs may move."""
    share = Budget(limits).share(draft, [reader.name for reader in layer.readers], 1.0)
    biases = [reader.operator.bias for reader in layer.readers if isinstance(reader.operator, Linear)]
    if share is None or not biases:
        return 0.0
    bias = np.concatenate(biases)
    return float((share.prices @ np.abs(bias - held(bias, draft.network.dtype))).max(initial=0.0))


def sparsify(draft: Draft, limits: Limits, rules: Rules) -> Draft:
    """What is left of what the outputs may move, spent on connections."""
    spent = draft.stored().realise().deviation
    budget = Budget({s: draft.deviation[s] + _SPENT * (limits[s] - spent[s]) for s in limits})
    sparse = draft
    linear = [node.name for node in draft.network.nodes if isinstance(node.operator, Linear)]
    for at, name in enumerate(reversed(linear)):
        found = drop_connections(sparse, name, budget, 1 / (len(linear) - at))
        if found.network.parameters <= sparse.network.parameters:  # a tensor that others read stays one
            sparse = found
    smaller = shrink(sparse, rules)
    made = [one for one in (smaller, sparse) if one is not draft and rules.sayable(one)]
    return next((one for one in made if fits(one, limits)), draft)


def _factored(draft: Draft, budget: Budget, rules: Rules) -> Draft:
    """Linear nodes as two with fewer values in between, as far as the outputs may move."""
    groups = siblings(draft.network)
    for at, names in enumerate(groups):
        share = budget.share(draft, list(names), 1 / (len(groups) - at))
        if share is not None:
            found = rules.better(draft, factor(draft, names, share))
            # The weights are new, all of them: what their rounding costs is known only now.
            if all(bool((found.deviation[s] <= budget.allowed[s]).all()) for s in found.deviation):
                draft = found
    return draft
