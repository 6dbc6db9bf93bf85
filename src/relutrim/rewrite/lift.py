"""Lift a ReLU into the layer before.

A neuron ``relu(c u + b)`` that reads nothing but one linear neuron ``u`` of the layer before, which nobody
else reads, can stand there itself: the row of ``u`` becomes ``c w``, its bias ``c s + b``, and the neuron
passes its value on. In its own layer it is linear then, so that the layer may fold: this undoes
networks that were split on purpose.
"""

from __future__ import annotations

import numpy as np
import torch

from relutrim.bounds.interval import node_interval
from relutrim.graph.graph import Node
from relutrim.graph.operators import Linear
from relutrim.intervals import Interval
from relutrim.rewrite.draft import Draft, Step, at_most
from relutrim.rewrite.layers import DenseLayer, dense_layer, finite, new_units
from relutrim.rounding import ETA, gamma

NAME = "lift-relu"


def lift(draft: Draft, layer: DenseLayer) -> Draft:
    """The draft in which no neuron that reads only one linear neuron of ``layer`` is left where it was."""
    behind = _behind(draft, layer)
    if behind is None:
        return draft
    weight, bias = behind.operator.weight, behind.operator.bias
    alone = (weight != 0).sum(1) == 1
    stable = draft.identity[behind.relu.name] | draft.zero[behind.relu.name]
    once = (weight != 0).sum(0) == 1
    found = [
        (j, i)
        for j in np.flatnonzero(alone & ~stable).tolist()
        if draft.identity[layer.relu.name][i := int(np.flatnonzero(weight[j])[0])] and once[i]
    ]
    if not found:
        return draft
    readers, carriers = (np.array(side, dtype=np.int64) for side in zip(*found, strict=True))
    factor = weight[readers, carriers]
    rows, shifts = layer.operator.weight.copy(), layer.operator.bias.copy()
    rows[carriers] = factor[:, None] * rows[carriers]
    shifts[carriers] = factor * shifts[carriers] + bias[readers]
    passing, none = weight.copy(), bias.copy()
    passing[readers, carriers], none[readers] = 1.0, 0.0
    if not finite(rows, shifts):
        return draft
    first, second = Linear(rows, shifts), Linear(passing, none)
    reach = draft.reach(layer.linear.inputs[0])
    size = at_most(np.abs(rows[carriers]), np.abs(shifts[carriers]) + np.abs(bias[readers]), reach)
    moved = torch.zeros(1, len(bias), dtype=torch.float64)
    moved[0, readers] = (gamma(6) * 2 * size + 8 * ETA * (2 + float(reach.sum())))[0]
    identity = {
        layer.relu.name: draft.identity[layer.relu.name].copy(),
        behind.relu.name: draft.identity[behind.relu.name].copy(),
    }
    identity[layer.relu.name][carriers] = False
    identity[behind.relu.name][readers] = True
    change: dict[str, Node | None] = {
        layer.linear.name: Node(layer.linear.name, first, layer.linear.inputs),
        behind.linear.name: Node(behind.linear.name, second, behind.linear.inputs),
    }
    step = Step(NAME, behind.relu.name, f"moved {len(found)} ReLUs into {layer.relu.name}")
    return draft.rewritten(
        draft.network.edit(change=change),
        step,
        moved={behind.relu.name: moved},
        identity=identity,
        ranges=_ranges(draft, layer, behind, first, carriers, readers),
        kept={name: new_units(layer.size, carriers) for name in (layer.linear.name, layer.relu.name)},
    )


def _behind(draft: Draft, layer: DenseLayer) -> DenseLayer | None:
    """The only reader, if it is a dense layer too."""
    if len(layer.readers) != 1:
        return None
    for relu in draft.network.readers(layer.readers[0].name):
        return dense_layer(draft.network, relu.name)
    return None


def _ranges(
    draft: Draft,
    layer: DenseLayer,
    behind: DenseLayer,
    first: Linear,
    carriers: np.ndarray,
    readers: np.ndarray,
) -> dict[str, Interval]:
    """What is known of the values that have changed their meaning."""
    pre = node_interval(Node("", first, layer.linear.inputs), dict(draft.ranges))
    at, to = torch.as_tensor(carriers), torch.as_tensor(readers)
    new: dict[str, Interval] = {}
    for name, index, lo, hi in (
        (layer.linear.name, at, pre.lo[:, at], pre.hi[:, at]),
        (layer.relu.name, at, pre.lo[:, at].clamp(min=0), pre.hi[:, at].clamp(min=0)),
        (behind.linear.name, to, pre.lo[:, at].clamp(min=0), pre.hi[:, at].clamp(min=0)),
    ):
        known = draft.ranges[name]
        new[name] = Interval(known.lo.clone(), known.hi.clone())
        new[name].lo[:, index], new[name].hi[:, index] = lo, hi
    return new
