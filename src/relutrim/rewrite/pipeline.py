"""Which rewrites are applied, and in which order."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from relutrim.bounds.values import Interval
from relutrim.network.graph import Network
from relutrim.network.operators import Linear, Relu
from relutrim.prove.stability import Stability
from relutrim.prove.verdict import Evidence
from relutrim.rewrite.budget import Budget
from relutrim.rewrite.carry_linear import carry_linear
from relutrim.rewrite.collapse import collapse
from relutrim.rewrite.collinear import merge_multiples, split_opposites
from relutrim.rewrite.constant_channels import constant_channels, mapped_constants
from relutrim.rewrite.cost import Cost
from relutrim.rewrite.draft import Draft, Mask, Step
from relutrim.rewrite.drop_channels import drop_channels
from relutrim.rewrite.drop_columns import drop_columns
from relutrim.rewrite.drop_inactive import drop_inactive
from relutrim.rewrite.drop_unread import drop_unread
from relutrim.rewrite.factor import factor, siblings
from relutrim.rewrite.fold_convolutions import fold_convolutions
from relutrim.rewrite.fold_stable import fold_stable, straighten_outputs
from relutrim.rewrite.fuse import fuse
from relutrim.rewrite.hold_biases import hold_biases
from relutrim.rewrite.layers import DenseLayer, any_layer, dense_layer, straight_layer
from relutrim.rewrite.lift import lift
from relutrim.rewrite.merge_active import merge_active
from relutrim.rewrite.merge_channels import merge_combinations, merge_kernels
from relutrim.rewrite.negligible import drop_connections, drop_negligible
from relutrim.rewrite.storage import held, storable
from relutrim.rewrite.straighten import straighten

REWRITES = ("leo++", "all")
_RESERVE = 2.0
"""How much of the budget storing takes, in units of what it takes of the exact result; half of it at most."""
_PARTS = (1.0, 0.8, 0.65, 0.5, 0.42, 0.35, 0.3, 0.25, 0.15, 0.05)
"""How much of the rest is spent; less if storing the result takes more than that leaves."""
_SPENT = 0.8
"""How much of what is left at the end goes to connections."""
_LINEAR = 0.7
"""The part of a layer's budget that carriers get; neurons get the rest."""


@dataclass(frozen=True, eq=False)
class Rewritten:
    """The outcome: the float64 network, the network as its file holds it, and what is proven of each."""

    network: Network
    stored: Network
    steps: tuple[Step, ...]
    deviation: float
    deviation_stored: float
    moved: Mapping[str, Tensor]
    """Per source of an output, how far each entry can have moved in memory."""
    inactive: Mapping[str, Mask]
    """Per ReLU, in its value's shape, which units of ``stored`` are always 0."""
    ranges: Mapping[str, Interval]
    """Bounds of every value of ``stored``, as good as the verdicts that were used."""


def rewrite(
    network: Network,
    stability: Stability,
    *,
    rewrites: str = "all",
    weakest: Evidence = Evidence.PROOF,
    allowed: Mapping[str, Tensor] | None = None,
    moved: Mapping[str, Tensor] | None = None,
    cost: Cost = Cost.PARAMETERS,
) -> Rewritten:
    """The smaller network. If no finite deviation can be proved, the network as it was.

    ``leo++`` is the paper's Algorithm 2 as it is meant: layer by layer collapse, fold whatever the cost, or
    merge and drop; the last hidden layer included. ``all`` does everything that makes the network smaller,
    again and again, from the last layer to the first: fewer readers need fewer neurons to read.

    ``allowed`` says, per source of an output, how far each entry may move on the domain, weights as stored;
    without it nothing moves but by the rounding of weights that are computed anew. ``moved`` is how far the
    outputs of a network that was rewritten before are from the original's. ``cost`` is what ``all`` makes
    smaller; the result never costs more than the network.
    """
    original = Draft.start(network, stability, weakest, moved)
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is not applied
        for draft in _proposed(fuse(original), rewrites, allowed, cost):
            if not draft.steps or (rewrites != "leo++" and cost.least(original, draft) is original):
                draft = original
            if _fits(draft, allowed):
                return _finished(draft if allowed is None else sparsify(draft, allowed, cost), weakest)
    kept = _plain(original).stored()
    why = Step(
        "none",
        "",
        "no deviation that is finite and allowed could be proved for the rewritten network, so it was left "
        "as it is",
    )
    return Rewritten(
        network,
        kept.network,
        (why,),
        original.proven,
        kept.proven,
        original.deviation,
        _inactive(kept, weakest),
        kept.ranges,
    )


def _plain(draft: Draft) -> Draft:
    """The draft in which every ReLU is a ReLU, and nothing else: a file's rounding breaks nothing then."""
    none = {name: np.zeros_like(mask) for name, mask in draft.identity.items()}
    return replace(draft, identity=none, zero=none)


def _proposed(
    draft: Draft, rewrites: str, allowed: Mapping[str, Tensor] | None, cost: Cost
) -> Iterator[Draft]:
    """What to try, best first. Storing a network moves its outputs too, so not all that is allowed can be
    spent.
    """
    if rewrites == "leo++":
        yield _leo(draft, None)
        return
    exact = cost.least(_leo(draft, cost), shrink(draft, cost, factors=allowed is None))
    if allowed is not None:
        reserved = exact.stored().realise().deviation
        for part in _PARTS:
            budget = Budget(
                {s: part * torch.fmax(allowed[s] - _RESERVE * reserved[s], allowed[s] / 2) for s in allowed}
            )
            spent = spend(exact, budget, cost)
            yield spent
            yield held_biases(spent, allowed, cost, exact)
    yield exact
    if allowed is not None:
        yield _untouched(draft)


def _fits(draft: Draft, allowed: Mapping[str, Tensor] | None) -> bool:
    """Whether a finite deviation is proved, in memory and as stored, and is not more than is allowed."""
    return all(
        math.isfinite(final.proven)
        and all(bool((final.deviation[s] <= limit).all()) for s, limit in (allowed or {}).items())
        for final in (draft.realise(), draft.stored().realise())
    )


def _finished(draft: Draft, weakest: Evidence) -> Rewritten:
    memory, file = draft.realise(), draft.stored().realise()
    return Rewritten(
        memory.network,
        file.network,
        memory.steps,
        memory.proven,
        file.proven,
        memory.deviation,
        _inactive(file, weakest),
        file.ranges,
    )


def _inactive(draft: Draft, weakest: Evidence) -> dict[str, Mask]:
    """Which units are always 0 by their proven ranges, or by what the draft rests on where that is less."""
    found = {}
    for relu in draft.network.relus:
        below = (draft.ranges[relu.inputs[0]].hi[0] <= 0).numpy()
        told = draft.zero[relu.name].reshape(below.shape) & (weakest != Evidence.PROOF)
        found[relu.name] = below | told
    return found


def _leo(draft: Draft, cost: Cost | None) -> Draft:
    """The paper's algorithm; with a cost, only what lowers it is collapsed or folded."""
    for relu in draft.network.relus:
        collapsed = _chosen(draft, collapse(draft, relu), cost)
        if collapsed is not draft:
            return collapsed
    draft = straighten_outputs(draft)
    for relu in draft.network.relus:
        layer = dense_layer(draft.network, relu.name)
        if layer is None:
            continue
        folded = _chosen(draft, fold_stable(draft, layer), cost)
        if folded is not draft:
            draft = folded
            continue
        draft = merge_active(draft, layer)
        layer = dense_layer(draft.network, relu.name)
        assert layer is not None
        draft = drop_inactive(draft, layer)
    return draft


def _untouched(draft: Draft) -> Draft:
    """Only what changes no weight."""
    for relu in draft.network.relus:
        for apply in (drop_inactive, drop_unread):
            layer = dense_layer(draft.network, relu.name)
            if layer is not None:
                draft = apply(draft, layer)
    return drop_channels(draft)


def shrink(draft: Draft, cost: Cost, *, factors: bool = False) -> Draft:
    """Every rewrite that makes the network smaller and moves nothing but by rounding, until none does.

    Factors are new weights throughout, so where the outputs may move by so much and no more, what rounding
    them takes is part of that (:func:`spend`).
    """
    for relu in draft.network.relus:
        constant = collapse(draft, relu)
        if constant is not draft:
            constant = _chosen(draft, _narrowed(constant, cost, factors=factors), cost)
        if constant is not draft:
            return constant
    draft = straighten_outputs(draft)
    before = None
    while before is not draft:
        before = draft
        for relu in reversed(draft.network.relus):
            for apply in (drop_inactive, drop_unread, merge_multiples, _linear, _opposites, _lifted):
                layer = dense_layer(draft.network, relu.name)
                if layer is not None:
                    draft = _chosen(draft, apply(draft, layer), cost)
        draft = _channels(draft, cost)
        draft = _folded(draft, cost)
        if draft is before:  # a ReLU that is the identity is of use to the others as long as it is there
            straight = straighten(draft)
            straight = _chosen(straight, fuse(straight), cost)
            draft = _narrowed(straight, cost, factors=factors)
    return draft


def spend(draft: Draft, budget: Budget, cost: Cost) -> Draft:
    """What the outputs may move, spent on carriers and neurons as long as any goes, then on factors."""
    before = None
    while before is not draft:
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
                    draft = _chosen(draft, carry_linear(draft, layer, share), cost)
            layer = any_layer(draft.network, name)
            if layer is not None:
                draft = _chosen(draft, drop_negligible(draft, layer, budget, (1 - _LINEAR) * part), cost)
        if draft is before:
            draft = _factored(draft, budget, cost)
        if draft is not before:
            draft = shrink(draft, cost)
    return draft


def held_biases(draft: Draft, allowed: Mapping[str, Tensor], cost: Cost, exact: Draft) -> Draft:
    """Constant neurons for the biases whose storing costs most, as many as it takes for the outputs to move
    no more than is allowed; the draft itself if it does not cost less than the exact one then.
    """
    layers = [layer for relu in draft.network.relus if (layer := dense_layer(draft.network, relu.name))]
    prices = {layer.relu.name: _bias_price(draft, layer, allowed) for layer in layers}
    found = draft
    for name in sorted(prices, key=lambda name: -prices[name]):
        layer = dense_layer(found.network, name)
        if layer is None or not prices[name] > 0:
            break
        found = hold_biases(found, layer)
        if cost.least(exact, found) is exact:
            break
        if _fits(found, allowed):
            return found
    return draft


def _bias_price(draft: Draft, layer: DenseLayer, allowed: Mapping[str, Tensor]) -> float:
    """What storing the biases behind a layer takes of what the outputs may move."""
    share = Budget(allowed).share(draft, [reader.name for reader in layer.readers], 1.0)
    biases = [reader.operator.bias for reader in layer.readers if isinstance(reader.operator, Linear)]
    if share is None or not biases:
        return 0.0
    bias = np.concatenate(biases)
    return float((share.prices @ np.abs(bias - held(bias, draft.network.dtype))).max(initial=0.0))


def sparsify(draft: Draft, allowed: Mapping[str, Tensor], cost: Cost) -> Draft:
    """What is left of what the outputs may move, spent on connections."""
    spent = draft.stored().realise().deviation
    budget = Budget({s: draft.deviation[s] + _SPENT * (allowed[s] - spent[s]) for s in allowed})
    sparse = draft
    linear = [node.name for node in draft.network.nodes if isinstance(node.operator, Linear)]
    for at, name in enumerate(reversed(linear)):
        sparse = drop_connections(sparse, name, budget, 1 / (len(linear) - at))
    smaller = shrink(sparse, cost)
    return next((one for one in (smaller, sparse) if one is not draft and _fits(one, allowed)), draft)


def _linear(draft: Draft, layer: DenseLayer) -> Draft:
    """The layer's linear part on fewer neurons: some of its own if those are as few as any."""
    every = (draft, merge_active(draft, layer), carry_linear(draft, layer))
    return min(every, key=lambda one: one.network.size(layer.relu.name))


def _opposites(draft: Draft, layer: DenseLayer) -> Draft:
    """Linear parts of opposite neurons, where they join what is carried or leave neurons unread."""
    split = split_opposites(draft, layer)
    for apply in (drop_unread, _linear):
        found = dense_layer(split.network, layer.relu.name)
        if found is not None and split is not draft:
            split = apply(split, found)
    return split


def _lifted(draft: Draft, layer: DenseLayer) -> Draft:
    """ReLUs moved into this layer, if the layer behind folds then."""
    lifted = lift(draft, layer)
    if lifted is draft:
        return draft
    for relu in lifted.network.relus:
        found = dense_layer(lifted.network, relu.name)
        if found is not None and found.linear.inputs[0] == layer.relu.name:
            lifted = fold_stable(lifted, found)
    return lifted


def _channels(draft: Draft, cost: Cost) -> Draft:
    """What is for channels, and what reads them flattened."""
    for apply in (drop_channels, constant_channels, merge_kernels):
        draft = _chosen(draft, apply(draft), cost)
    for node in reversed(draft.network.nodes):
        if node.name in draft.network:
            draft = _chosen(draft, merge_combinations(draft, node.name), cost)
    for mapped in mapped_constants(draft):
        draft = _chosen(draft, mapped, cost)
    return _chosen(draft, drop_columns(draft), cost)


def _folded(draft: Draft, cost: Cost) -> Draft:
    """Layers that are linear folded, always the one first that saves most: what is left of a stack of them is
    its narrowest place, or nothing.
    """
    before = None
    while before is not draft:
        before = draft
        layers = (any_layer(draft.network, node.name) for node in draft.network.nodes)
        folds = [fold_stable(before, layer) for layer in layers if layer is not None]
        for folded in [*folds, *(fold_convolutions(before, node.name) for node in before.network.nodes)]:
            draft = _chosen(draft, folded, cost)
    return draft


def _narrowed(draft: Draft, cost: Cost, *, factors: bool) -> Draft:
    """Linear nodes that follow one another through fewer values, and such nodes made where that is less."""
    for node in reversed(draft.network.nodes):
        for apply in (drop_unread, _linear):
            layer = straight_layer(draft.network, node.name)
            if layer is not None:
                draft = _chosen(draft, apply(draft, layer), cost)
    for names in siblings(draft.network) if factors else ():
        if all(name in draft.network for name in names):
            draft = _chosen(draft, factor(draft, names), cost)
    return draft


def _factored(draft: Draft, budget: Budget, cost: Cost) -> Draft:
    """Linear nodes as two with fewer values in between, as far as the outputs may move."""
    groups = siblings(draft.network)
    for at, names in enumerate(groups):
        share = budget.share(draft, list(names), 1 / (len(groups) - at))
        if share is not None:
            found = _chosen(draft, factor(draft, names, share), cost)
            # The weights are new, all of them: what their rounding costs is known only now.
            if all(bool((found.deviation[s] <= budget.allowed[s]).all()) for s in found.deviation):
                draft = found
    return draft


def _chosen(draft: Draft, other: Draft, cost: Cost | None) -> Draft:
    """The other draft if it costs less and can be told how far it is from the original."""
    if cost is None or other is draft:
        return other
    if cost.least(draft, other) is draft or (math.isfinite(draft.proven) and not math.isfinite(other.proven)):
        return draft
    dtype = other.network.dtype
    return other if all(storable(node.operator, dtype) for node in other.network.nodes) else draft
