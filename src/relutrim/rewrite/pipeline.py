"""Which rewrites are applied, and in which order."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from relutrim.network.graph import Network
from relutrim.prove.stability import Stability
from relutrim.prove.verdict import Evidence
from relutrim.rewrite.collapse import collapse
from relutrim.rewrite.draft import Draft, Step
from relutrim.rewrite.drop_inactive import drop_inactive
from relutrim.rewrite.fold_stable import fold_stable, straighten_outputs
from relutrim.rewrite.fuse import fuse
from relutrim.rewrite.layers import dense_layer
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
    merge and drop; the last hidden layer included. ``all`` folds only where that does not make the network
    larger.
    """
    original = Draft.start(network, stability, weakest)
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is not applied
        draft = _leo(fuse(original), may_grow=rewrites == "leo++")
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
