"""Strip: every rewrite that keeps what stays bit for bit as it was.

1. What is always 0, on the whole domain, goes: neurons, channels, columns.
2. What nobody reads goes, and so do terms of sums that are 0 or constant.
3. Neurons and channels that are others times a power of two go where every weight that takes over for them
   is a number that the file holds.
4. Where a whole layer is 0 and the constant that is left is one that the file holds, that is the network.

The deviation is exactly 0, so no error is propagated anywhere. Each rewrite is asked for that: what moves a
value, or computes a weight that storing would round, is not taken.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from relutrim.graph.graph import Node
from relutrim.prove.deadline import Deadline
from relutrim.rewrite.collapse import collapse
from relutrim.rewrite.collinear import merge_exact_multiples
from relutrim.rewrite.draft import Draft
from relutrim.rewrite.drop_channels import drop_channels, drop_together
from relutrim.rewrite.drop_columns import drop_columns
from relutrim.rewrite.drop_inactive import drop_inactive
from relutrim.rewrite.drop_terms import drop_terms
from relutrim.rewrite.drop_unread import drop_unread
from relutrim.rewrite.fuse import fuse
from relutrim.rewrite.layers import any_layer, dense_layer
from relutrim.rewrite.merge_channels import merge_exact_constants, merge_exact_kernels
from relutrim.rewrite.rules import Rules
from relutrim.rewrite.storage import held_as_it_is, storable


def cut(draft: Draft, rules: Rules) -> Draft:
    """The draft without what is 0 and what nobody reads, and nothing else: every node stays, and what is
    left of its value is what it was.
    """
    before = None
    while before is not draft:
        before = draft
        draft = _kept(draft, drop_together(draft, unmoved=True), rules)
        for name in [node.name for node in reversed(draft.network.nodes)]:
            layer = dense_layer(draft.network, name)
            if layer is not None:
                draft = _kept(draft, drop_inactive(draft, layer), rules)
            reader = any_layer(draft.network, name)
            if reader is not None:
                draft = _kept(draft, drop_unread(draft, reader), rules)
        draft = _kept(draft, drop_channels(draft, unmoved=True), rules)
    return draft


def strip(draft: Draft, rules: Rules) -> Draft:
    """The draft without whatever can go without a trace; all that goes at once, however late it is."""
    for relu in draft.network.relus:
        constant = _kept(draft, collapse(draft, relu), rules)
        if constant is not draft:
            return constant
    draft = fuse(draft, unmoved)
    draft = _kept(draft, drop_terms(draft, rules.fixed), replace(rules, deadline=Deadline()))
    before, at_once = None, replace(rules, deadline=Deadline())
    while before is not draft:
        own = at_once if before is None else rules
        before = draft
        draft = _kept(draft, drop_together(draft), own)
        for name in [node.name for node in reversed(draft.network.nodes)]:
            layer = dense_layer(draft.network, name)
            for apply in (drop_inactive, merge_exact_multiples) if layer is not None else ():
                layer = dense_layer(draft.network, name)
                if layer is not None:
                    draft = _kept(draft, apply(draft, layer), own)
            layer = any_layer(draft.network, name)
            if layer is not None:
                draft = _kept(draft, drop_unread(draft, layer), own)
        for whole in (drop_channels, merge_exact_kernels, merge_exact_constants, drop_columns):
            draft = _kept(draft, whole(draft), own)
    return draft


def unmoved(before: Draft, after: Draft) -> bool:
    """Whether nothing has moved, and storing rounds no weight that it did not round before."""
    same = all(torch.equal(after.deviation[source], before.deviation[source]) for source in after.deviation)
    known, network = {node.name: node for node in before.network.nodes}, after.network
    return same and all(_held(node, known.get(node.name), network.dtype) for node in network.nodes)


def _held(node: Node, before: Node | None, dtype: str) -> bool:
    if before is not None and before.operator is node.operator:
        return True
    if node.origin is not None or held_as_it_is(node.operator, dtype):
        return True
    return before is not None and not held_as_it_is(before.operator, dtype) and storable(node.operator, dtype)


def _kept(draft: Draft, other: Draft, rules: Rules) -> Draft:
    return rules.better(draft, other) if other is not draft and unmoved(draft, other) else draft
