"""Exact compression beside magnitude pruning, as the paper compares them.

Connections of neurons that are never on can go at no cost. Magnitude pruning takes the smallest weights
first: when would it find these connections, and how many of them does it miss if it takes as many?
"""

from __future__ import annotations

from typing import Any

import numpy as np

from relutrim.graph.graph import Network
from relutrim.graph.operators import Linear
from relutrim.prove.stability import Stability
from relutrim.prove.verdict import Evidence, Verdict


def magnitude_pruning(network: Network, stability: Stability) -> dict[str, Any] | None:
    """``removable`` of ``connections`` belong to inactive neurons; pruning the smallest weights has found
    half of these, and all of them, once it has pruned the shares ``median`` and ``last`` of all; at the
    percentile 99, the share ``beyond_99`` of them still stands. ``missed`` is how many stand when it prunes
    as many as are removable. None where layers are not all linear, or where nothing is removable.
    """
    layers = [node for node in network.nodes if isinstance(node.operator, Linear)]
    others = [node for node in network.nodes if not isinstance(node.operator, Linear)]
    if any(node.operator.kind not in ("Relu", "Reshape") for node in others):
        return None
    inactive: dict[str, np.ndarray[Any, Any]] = {}
    for found in stability.layers:
        off = np.zeros(found.size, dtype=bool)
        off[found.which(Verdict.INACTIVE, Evidence.PROOF)] = True
        inactive[found.name] = off
    weights, gone = [], []
    for node in layers:
        assert isinstance(node.operator, Linear)
        weight = np.abs(np.asarray(node.operator.weight, dtype=np.float64))
        mask = np.zeros(weight.shape, dtype=bool)
        for reader in network.readers(node.name):
            if reader.name in inactive:
                mask |= inactive[reader.name][:, None]
        if node.inputs[0] in inactive:
            mask |= inactive[node.inputs[0]][None, :]
        weights.append(weight.ravel())
        gone.append(mask.ravel())
    magnitude, removable = np.concatenate(weights), np.concatenate(gone)
    count = int(removable.sum())
    if not count:
        return None
    order = np.argsort(magnitude, kind="stable")
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(1, len(order) + 1)
    ranks = np.sort(rank[removable])
    return {
        "connections": len(order),
        "removable": count,
        "median": float(ranks[(count - 1) // 2] / len(order)),
        "last": float(ranks[-1] / len(order)),
        "beyond_99": float((ranks > 0.99 * len(order)).mean()),
        "missed": int((ranks > count).sum()),
    }
