"""Which rewrites are applied, and in which order."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from relutrim.network.graph import Network
from relutrim.network.operators import Linear
from relutrim.prove.stability import Stability
from relutrim.prove.verdict import Evidence
from relutrim.rewrite.budget import Budget
from relutrim.rewrite.carry_linear import carry_linear
from relutrim.rewrite.collapse import collapse
from relutrim.rewrite.collinear import merge_multiples, split_opposites
from relutrim.rewrite.draft import Draft, Step
from relutrim.rewrite.drop_inactive import drop_inactive
from relutrim.rewrite.drop_unread import drop_unread
from relutrim.rewrite.fold_stable import fold_stable, straighten_outputs
from relutrim.rewrite.fuse import fuse
from relutrim.rewrite.hold_biases import hold_biases
from relutrim.rewrite.layers import DenseLayer, dense_layer
from relutrim.rewrite.lift import lift
from relutrim.rewrite.merge_active import merge_active
from relutrim.rewrite.negligible import drop_connections, drop_negligible
from relutrim.rewrite.storage import held

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


def rewrite(
    network: Network,
    stability: Stability,
    *,
    rewrites: str = "all",
    weakest: Evidence = Evidence.PROOF,
    allowed: Mapping[str, Tensor] | None = None,
    moved: Mapping[str, Tensor] | None = None,
) -> Rewritten:
    """The smaller network. If no finite deviation can be proved, the network as it was.

    ``leo++`` is the paper's Algorithm 2 as it is meant: layer by layer collapse, fold whatever the cost, or
    merge and drop; the last hidden layer included. ``all`` does everything that makes the network smaller,
    again and again, from the last layer to the first: fewer readers need fewer neurons to read.

    ``allowed`` says, per source of an output, how far each entry may move on the domain, weights as stored;
    without it nothing moves but by the rounding of weights that are computed anew. ``moved`` is how far the
    outputs of a network that was rewritten before are from the original's.
    """
    original = Draft.start(network, stability, weakest, moved)
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is not applied
        for draft in _proposed(fuse(original), rewrites, allowed):
            if not draft.steps or (draft.network.parameters > network.parameters and rewrites != "leo++"):
                draft = original
            if _fits(draft, allowed):
                return _finished(draft if allowed is None else sparsify(draft, allowed))
    kept = _plain(original).stored()
    why = Step(
        "none",
        "",
        "no deviation that is finite and allowed could be proved for the rewritten network, so it was left "
        "as it is",
    )
    return Rewritten(network, kept.network, (why,), original.proven, kept.proven, original.deviation)


def _plain(draft: Draft) -> Draft:
    """The draft in which every ReLU is a ReLU, and nothing else: a file's rounding breaks nothing then."""
    none = {name: np.zeros_like(mask) for name, mask in draft.identity.items()}
    return replace(draft, identity=none, zero=none)


def _proposed(draft: Draft, rewrites: str, allowed: Mapping[str, Tensor] | None) -> Iterator[Draft]:
    """What to try, best first. Storing a network moves its outputs too, so not all that is allowed can be
    spent.
    """
    if rewrites == "leo++":
        yield _leo(draft, may_grow=True)
        return
    exact = _smaller(_leo(draft, may_grow=False), shrink(draft))
    if allowed is not None:
        reserved = exact.stored().realise().deviation
        for part in _PARTS:
            budget = Budget(
                {s: part * torch.fmax(allowed[s] - _RESERVE * reserved[s], allowed[s] / 2) for s in allowed}
            )
            spent = spend(exact, budget)
            yield spent
            yield held_biases(spent, allowed, exact.network.parameters)
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


def _finished(draft: Draft) -> Rewritten:
    memory, file = draft.realise(), draft.stored().realise()
    return Rewritten(memory.network, file.network, memory.steps, memory.proven, file.proven, memory.deviation)


def _leo(draft: Draft, *, may_grow: bool) -> Draft:
    for relu in draft.network.relus:
        collapsed = collapse(draft, relu, may_grow=may_grow)
        if collapsed is not draft:
            return collapsed
    draft = straighten_outputs(draft)
    for relu in draft.network.relus:
        layer = dense_layer(draft.network, relu.name)
        if layer is None:
            continue
        folded = fold_stable(draft, layer, may_grow=may_grow)
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
    return draft


def shrink(draft: Draft) -> Draft:
    """Every rewrite that makes the network smaller and moves nothing but by rounding, until none does."""
    for relu in draft.network.relus:
        collapsed = collapse(draft, relu, may_grow=False)
        if collapsed is not draft:
            return collapsed
    draft = straighten_outputs(draft)
    before = None
    while before is not draft:
        before = draft
        for relu in reversed(draft.network.relus):
            for apply in (drop_inactive, drop_unread, merge_multiples, _linear, _opposites, _lifted, _folded):
                layer = dense_layer(draft.network, relu.name)
                if layer is not None:
                    draft = apply(draft, layer)
    return draft


def spend(draft: Draft, budget: Budget) -> Draft:
    """What the outputs may move, spent on carriers and neurons as long as any goes."""
    before = None
    while before is not draft:
        before = draft
        names = [relu.name for relu in reversed(draft.network.relus)]
        for at, name in enumerate(names):
            part = 1 / (len(names) - at)
            layer = dense_layer(draft.network, name)
            if layer is not None:
                share = budget.share(draft, [reader.name for reader in layer.readers], _LINEAR * part)
                if share is not None:
                    draft = _smaller(draft, carry_linear(draft, layer, share))
            layer = dense_layer(draft.network, name)
            if layer is not None:
                draft = drop_negligible(draft, layer, budget, (1 - _LINEAR) * part)
        if draft is not before:
            draft = shrink(draft)
    return draft


def held_biases(draft: Draft, allowed: Mapping[str, Tensor], most: int) -> Draft:
    """Constant neurons for the biases whose storing costs most, as many as it takes for the outputs to move
    no more than is allowed; the draft itself if that takes more than ``most`` parameters.
    """
    layers = [layer for relu in draft.network.relus if (layer := dense_layer(draft.network, relu.name))]
    costs = {layer.relu.name: _bias_cost(draft, layer, allowed) for layer in layers}
    found = draft
    for name in sorted(costs, key=lambda name: -costs[name]):
        layer = dense_layer(found.network, name)
        if layer is None or not costs[name] > 0:
            break
        found = hold_biases(found, layer)
        if found.network.parameters >= most:
            break
        if _fits(found, allowed):
            return found
    return draft


def _bias_cost(draft: Draft, layer: DenseLayer, allowed: Mapping[str, Tensor]) -> float:
    """What storing the biases behind a layer takes of what the outputs may move."""
    share = Budget(allowed).share(draft, [reader.name for reader in layer.readers], 1.0)
    biases = [reader.operator.bias for reader in layer.readers if isinstance(reader.operator, Linear)]
    if share is None or not biases:
        return 0.0
    bias = np.concatenate(biases)
    return float((share.prices @ np.abs(bias - held(bias, draft.network.dtype))).max(initial=0.0))


def sparsify(draft: Draft, allowed: Mapping[str, Tensor]) -> Draft:
    """What is left of what the outputs may move, spent on connections."""
    spent = draft.stored().realise().deviation
    budget = Budget({s: draft.deviation[s] + _SPENT * (allowed[s] - spent[s]) for s in allowed})
    sparse = draft
    linear = [node.name for node in draft.network.nodes if isinstance(node.operator, Linear)]
    for at, name in enumerate(reversed(linear)):
        sparse = drop_connections(sparse, name, budget, 1 / (len(linear) - at))
    smaller = shrink(sparse)
    return next((one for one in (smaller, sparse) if one is not draft and _fits(one, allowed)), draft)


def _linear(draft: Draft, layer: DenseLayer) -> Draft:
    """The layer's linear part on fewer neurons: some of its own if those are as few as any."""
    return _smaller(_smaller(draft, merge_active(draft, layer)), carry_linear(draft, layer))


def _opposites(draft: Draft, layer: DenseLayer) -> Draft:
    """Linear parts of opposite neurons, where they join what is carried or leave neurons unread."""
    split = split_opposites(draft, layer)
    for apply in (drop_unread, _linear):
        found = dense_layer(split.network, layer.relu.name)
        if found is not None and split is not draft:
            split = apply(split, found)
    return _smaller(draft, split)


def _lifted(draft: Draft, layer: DenseLayer) -> Draft:
    """ReLUs moved into this layer, if the layer behind folds then."""
    lifted = lift(draft, layer)
    if lifted is draft:
        return draft
    for relu in lifted.network.relus:
        found = dense_layer(lifted.network, relu.name)
        if found is not None and found.linear.inputs[0] == layer.relu.name:
            lifted = _folded(lifted, found)
    return _smaller(draft, lifted)


def _folded(draft: Draft, layer: DenseLayer) -> Draft:
    return _smaller(draft, fold_stable(draft, layer, may_grow=False))


def _smaller(one: Draft, other: Draft) -> Draft:
    """The draft with fewer parameters; the first if they have as many."""
    return other if other.network.parameters < one.network.parameters else one
