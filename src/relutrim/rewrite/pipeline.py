"""Which rewrites are applied, and in which order."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from relutrim.network.graph import Network
from relutrim.prove.stability import Stability
from relutrim.prove.verdict import Evidence
from relutrim.rewrite.carry_linear import carry_linear
from relutrim.rewrite.collapse import collapse
from relutrim.rewrite.collinear import merge_multiples, split_opposites
from relutrim.rewrite.draft import Draft, Step
from relutrim.rewrite.drop_inactive import drop_inactive
from relutrim.rewrite.drop_unread import drop_unread
from relutrim.rewrite.fold_stable import fold_stable, straighten_outputs
from relutrim.rewrite.fuse import fuse
from relutrim.rewrite.layers import DenseLayer, dense_layer
from relutrim.rewrite.lift import lift
from relutrim.rewrite.merge_active import merge_active

REWRITES = ("leo++", "all")


@dataclass(frozen=True, eq=False)
class Rewritten:
    """The outcome: the float64 network, the network as its file holds it, and what is proven of each."""

    network: Network
    stored: Network
    steps: tuple[Step, ...]
    deviation: float
    deviation_stored: float


def rewrite(
    network: Network, stability: Stability, *, rewrites: str = "all", weakest: Evidence = Evidence.PROOF
) -> Rewritten:
    """The smaller network. If no finite deviation can be proved, the network as it was.

    ``leo++`` is the paper's Algorithm 2 as it is meant: layer by layer collapse, fold whatever the cost, or
    merge and drop; the last hidden layer included. ``all`` does everything that makes the network smaller,
    again and again, from the last layer to the first: fewer readers need fewer neurons to read.
    """
    original = Draft.start(network, stability, weakest)
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is not applied
        draft = fuse(original)
        if rewrites == "leo++":
            draft = _leo(draft, may_grow=True)
        else:
            draft = _smaller(_leo(draft, may_grow=False), _shrink(draft))
    if not draft.steps or (draft.network.parameters > network.parameters and rewrites != "leo++"):
        draft = original
    memory, file = draft.realise(), draft.stored().realise()
    if math.isfinite(memory.proven) and math.isfinite(file.proven):
        return Rewritten(memory.network, file.network, memory.steps, memory.proven, file.proven)
    kept = original.stored()
    why = Step(
        "none", "", "no finite deviation could be proved for the rewritten network, so it was left as it is"
    )
    return Rewritten(network, kept.network, (why,), 0.0, kept.proven)


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


def _shrink(draft: Draft) -> Draft:
    """Every rewrite that makes the network smaller, until none does."""
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
