"""Shrink: every rewrite that makes the network smaller and moves nothing but by rounding, until none does.

From the last layer to the first, because fewer readers need fewer neurons to read, and again until nothing
changes.
"""

from __future__ import annotations

from relutrim.rewrite.carry_linear import carry_linear
from relutrim.rewrite.collapse import collapse
from relutrim.rewrite.collinear import merge_multiples, split_opposites
from relutrim.rewrite.constant_channels import constant_channels, mapped_constants, pair_constants
from relutrim.rewrite.draft import Draft
from relutrim.rewrite.drop_channels import drop_channels, drop_together
from relutrim.rewrite.drop_columns import drop_columns
from relutrim.rewrite.drop_inactive import drop_inactive
from relutrim.rewrite.drop_terms import drop_terms
from relutrim.rewrite.drop_unread import drop_unread
from relutrim.rewrite.factor import factor, siblings
from relutrim.rewrite.fold_convolutions import fold_convolutions
from relutrim.rewrite.fold_stable import fold_stable, straighten_outputs
from relutrim.rewrite.fuse import fuse
from relutrim.rewrite.layers import DenseLayer, any_layer, dense_layer, straight_layer
from relutrim.rewrite.lift import lift
from relutrim.rewrite.merge_active import merge_active
from relutrim.rewrite.merge_channels import merge_combinations, merge_constants, merge_kernels
from relutrim.rewrite.rules import Rules
from relutrim.rewrite.straighten import straighten


def shrink(draft: Draft, rules: Rules, *, factors: bool = False) -> Draft:
    """Every rewrite that makes the network smaller and moves nothing but by rounding, until none does.

    Factors are new weights throughout, so where what is allowed is to be spent, what rounding them takes is
    part of that (:func:`relutrim.rewrite.spend.spend`).
    """
    for relu in draft.network.relus:
        constant = collapse(draft, relu)
        if constant is not draft:
            constant = rules.better(draft, _narrowed(constant, rules, factors=factors))
        if constant is not draft:
            return constant
    draft = straighten_outputs(draft, rules.fixed)
    before = None
    while before is not draft and not rules.over:
        before = draft
        for relu in reversed(draft.network.relus):
            for apply in _DENSE:
                layer = dense_layer(draft.network, relu.name)
                if layer is not None and not rules.over:
                    draft = rules.better(draft, apply(draft, layer))
        draft = _channels(draft, rules)
        draft = _folded(draft, rules)
        if draft is before:  # a ReLU that is the identity is of use to the others as long as it is there
            straight = straighten(draft, rules.fixed)
            straight = rules.better(straight, fuse(straight))
            draft = _narrowed(straight, rules, factors=factors)
    return draft


def leo(draft: Draft, rules: Rules) -> Draft:
    """The paper's Algorithm 2 as it is meant: layer by layer collapse, fold, or merge and drop."""
    for relu in draft.network.relus:
        collapsed = rules.better(draft, collapse(draft, relu))
        if collapsed is not draft:
            return collapsed
    draft = straighten_outputs(draft, rules.fixed)
    for relu in draft.network.relus:
        for apply in (fold_stable, merge_active, drop_inactive):
            layer = dense_layer(draft.network, relu.name)
            if layer is not None:
                draft = rules.better(draft, apply(draft, layer))
    return draft


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


def _channels(draft: Draft, rules: Rules) -> Draft:
    """What is for channels, and what reads them flattened."""
    draft = rules.better(draft, drop_terms(draft, rules.fixed))
    for apply in _CHANNELS:
        draft = draft if rules.over else rules.better(draft, apply(draft))
    for node in reversed(draft.network.nodes):
        if node.name in draft.network and not rules.over:
            draft = rules.better(draft, merge_combinations(draft, node.name))
    for mapped in () if rules.over else mapped_constants(draft):
        draft = rules.better(draft, mapped)
    return rules.better(draft, drop_columns(draft))


def _folded(draft: Draft, rules: Rules) -> Draft:
    """Layers that are linear folded, always the one first that saves most: what is left of a stack of them is
    its narrowest place, or nothing.
    """
    before = None
    while before is not draft and not rules.over:
        before = draft
        layers = (any_layer(draft.network, node.name) for node in draft.network.nodes)
        folds = [fold_stable(before, layer) for layer in layers if layer is not None]
        for folded in [*folds, *(fold_convolutions(before, node.name) for node in before.network.nodes)]:
            draft = rules.better(draft, folded)
    return draft


def _narrowed(draft: Draft, rules: Rules, *, factors: bool) -> Draft:
    """Linear nodes that follow one another through fewer values, and such nodes made where that is less."""
    for node in reversed(draft.network.nodes):
        for apply in (drop_unread, _linear):
            layer = straight_layer(draft.network, node.name)
            if layer is not None:
                draft = rules.better(draft, apply(draft, layer))
    for names in siblings(draft.network) if factors else ():
        if all(name in draft.network for name in names):
            draft = rules.better(draft, factor(draft, names))
    return draft


_DENSE = (drop_inactive, drop_unread, merge_multiples, _linear, merge_active, _opposites, _lifted)
"""What is for one layer of neurons. Its linear part is merged by itself where carrying it goes too far."""
_CHANNELS = (drop_together, drop_channels, constant_channels, merge_kernels, merge_constants, pair_constants)
"""What is for all channels at once. Two constant channels stay only where one cannot hold all."""
