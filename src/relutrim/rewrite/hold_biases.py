"""Hold biases: what a file's type cannot hold of the biases behind a layer goes through a constant neuron.

A bias that is computed anew is rounded when it is stored, which costs half a unit in its last place, times
what that means to the outputs: behind several layers that can be all that they may move. A neuron of the
layer before that is always 1 holds the rest: its outward weights are what rounding took, and those are
rounded too, but to 48 bits in all.
"""

from __future__ import annotations

import numpy as np
import torch

from relutrim.graph.graph import Node
from relutrim.graph.operators import Array, Linear
from relutrim.graph.slicing import Kept
from relutrim.intervals import Interval
from relutrim.rewrite.draft import Draft, Step
from relutrim.rewrite.layers import DenseLayer, finite
from relutrim.rewrite.storage import held
from relutrim.rounding import ETA, UNIT

NAME = "hold-biases"


def hold_biases(draft: Draft, layer: DenseLayer) -> Draft:
    """The draft with one more neuron in the layer, and biases behind it that the file holds; the draft itself
    if it holds them as they are.
    """
    change: dict[str, Node | None] = {}
    moved = {}
    for reader in layer.readers:
        old = reader.operator
        assert isinstance(old, Linear)
        bias, rest = split(old.bias, draft.network.dtype)
        if not finite(bias, rest):
            return draft
        weight = np.concatenate([old.weight, rest[:, None]], axis=1)
        change[reader.name] = Node(reader.name, Linear(weight, bias), reader.inputs)
        # The difference of neighbouring floats is exact; that of others rounds once.
        lost = np.abs((old.bias - bias) - rest) + 4 * UNIT * np.abs(old.bias - bias) + ETA
        moved[reader.name] = torch.as_tensor(np.where(old.bias == bias, 0.0, lost))[None]
    if not any(bool((m != 0).any()) for m in moved.values()):
        return draft
    own = layer.operator
    row = np.zeros((1, own.weight.shape[1]))
    constant = Linear(np.concatenate([own.weight, row]), np.append(own.bias, 1.0))
    change[layer.linear.name] = Node(layer.linear.name, constant, layer.linear.inputs)
    one = torch.ones(1, 1, dtype=torch.float64)
    return draft.rewritten(
        draft.network.edit(change=change),
        Step(NAME, layer.relu.name, "added a constant neuron for what storing takes from biases"),
        moved=moved,
        identity={layer.relu.name: np.append(draft.identity[layer.relu.name], True)},
        zero={layer.relu.name: np.append(draft.zero[layer.relu.name], False)},
        ranges={
            name: Interval(
                torch.cat([draft.ranges[name].lo, one], 1), torch.cat([draft.ranges[name].hi, one], 1)
            )
            for name in (layer.linear.name, layer.relu.name)
        },
        kept={
            name: Kept(0, np.append(np.arange(len(own.bias)), -1))
            for name in (layer.linear.name, layer.relu.name)
        },
    )


def split(bias: Array, dtype: str) -> tuple[Array, Array]:
    """A bias as the sum of two numbers that the file holds, nearly."""
    first = held(bias, dtype)
    with np.errstate(invalid="ignore"):
        return first, held(bias - first, dtype)
