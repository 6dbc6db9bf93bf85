"""Factor: linear nodes that read the same value become one that computes ``r`` numbers and narrow ones that
read those, where ``r`` is the rank of their weights. That is ``r (m + n)`` weights for ``m n``.

Behind the nodes' stacked rows, identities change nothing; between the two stands a layer without ReLUs, and
:mod:`relutrim.rewrite.carry_linear` finds how few values it takes, exactly or nearly, and accounts for it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from relutrim.graph.graph import Network, Node
from relutrim.graph.operators import Array, Linear
from relutrim.intervals import Interval
from relutrim.rewrite.budget import Share
from relutrim.rewrite.carry_linear import carry_linear
from relutrim.rewrite.draft import Draft, Step
from relutrim.rewrite.layers import straight_layer

NAME = "factor"
_RANK = 1e-9
"""Singular values below this, relative to the largest, may be 0: that is worth a closer look."""
_FULL = 1e-12
"""If all squares of singular values are above this, relative to their sum, the rank is full."""


def siblings(network: Network) -> list[tuple[str, ...]]:
    """The linear nodes that may be factored together, last first: all that read the same value, and each."""
    groups: dict[str, list[str]] = {}
    for node in network.nodes:
        if isinstance(node.operator, Linear) and len(network.shapes[node.name]) == 1:
            groups.setdefault(node.inputs[0], []).append(node.name)
    found = [tuple(names) for names in groups.values()]
    return [*reversed(found), *((name,) for names in reversed(found) if len(names) > 1 for name in names)]


def factor(draft: Draft, names: tuple[str, ...], share: Share | None = None) -> Draft:
    """The draft in which linear nodes that read the same value do so through as few numbers as their weights
    have rank; with a share of what the outputs may move, as they need.
    """
    nodes = [draft.network[name] for name in names]
    weight = np.concatenate([_linear(node).weight for node in nodes])
    if share is None and not _worth_it(weight):
        return draft
    split, inner = _split(draft, nodes, weight)
    layer = straight_layer(split.network, inner)
    assert layer is not None
    found = carry_linear(split, layer, share)
    if found is split:
        return draft
    count = found.network.size(inner)
    text = f"{' and '.join(names)} read {count} numbers in place of {weight.shape[1]}"
    step = Step(NAME, names[0], text, deviation=found.steps[-1].deviation)
    return replace(found, steps=(*draft.steps, step))


def _split(draft: Draft, nodes: list[Node], weight: Array) -> tuple[Draft, str]:
    """The draft with the rows of all nodes in one new node, and identities in their place. Exact."""
    network = draft.network
    inner = network.free_name(f"{nodes[0].name}.inner")
    bias = np.concatenate([_linear(node).bias for node in nodes])
    change: dict[str, Node] = {}
    start = 0
    for node in nodes:
        own = np.eye(len(weight))[start : start + len(_linear(node).bias)]
        start += len(own)
        change[node.name] = Node(node.name, Linear(own, np.zeros(len(own))), (inner,))
    stacked = Node(inner, Linear(weight, bias), nodes[0].inputs)
    known = [draft.ranges[node.name] for node in nodes]
    both = Interval(torch.cat([r.lo for r in known], 1), torch.cat([r.hi for r in known], 1))
    after = [change.get(node.name, node) for node in network.nodes]
    after.insert(network.nodes.index(nodes[0]), stacked)
    return draft.rewritten(replace(network, nodes=tuple(after)), None, ranges={inner: both}), inner


def _worth_it(weight: Array) -> bool:
    """Whether the rank may be low enough for two factors to hold fewer numbers than their product."""
    rows = np.ldexp(weight, -np.frexp(np.abs(weight).max(axis=1, initial=0.0))[1][:, None])
    square = rows @ rows.T if len(rows) <= rows.shape[1] else rows.T @ rows
    try:
        np.linalg.cholesky(square - _FULL * np.trace(square) * np.eye(len(square)))
        return False  # of full rank, as nearly all are, which takes far less to see than the rank
    except np.linalg.LinAlgError:
        pass
    try:
        values = np.linalg.svd(rows, compute_uv=False)
    except np.linalg.LinAlgError:
        return False
    rank = int((values > _RANK * values.max(initial=0.0)).sum())
    return rank * sum(weight.shape) < weight.size


def _linear(node: Node) -> Linear:
    assert isinstance(node.operator, Linear)
    return node.operator
