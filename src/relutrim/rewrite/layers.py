"""The places where a rewrite of dense layers can take hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from relutrim.bounds.values import Interval
from relutrim.network.graph import Network, Node
from relutrim.network.operators import Array, Linear, Relu
from relutrim.rewrite.draft import Draft, Mask, Step


@dataclass(frozen=True, eq=False)
class DenseLayer:
    """A linear node that only a ReLU reads, and the linear nodes that read the ReLU: rows and columns can go
    together.
    """

    linear: Node
    relu: Node
    readers: tuple[Node, ...]

    @property
    def operator(self) -> Linear:
        """The layer's own weights."""
        assert isinstance(self.linear.operator, Linear)
        return self.linear.operator

    @property
    def size(self) -> int:
        """How many neurons."""
        return int(self.operator.weight.shape[0])


def dense_layers(network: Network) -> list[DenseLayer]:
    """Every dense layer, first to last. A ReLU that is an output, or that anything but a linear node reads,
    is none.
    """
    found = []
    for relu in network.relus:
        layer = dense_layer(network, relu.name)
        if layer is not None:
            found.append(layer)
    return found


def dense_layer(network: Network, name: str) -> DenseLayer | None:
    """The dense layer of a ReLU, if the node of that name is one and has one."""
    if name not in network:
        return None
    relu = network[name]
    readers = network.readers(name)
    if not isinstance(relu.operator, Relu) or network.is_output(name) or relu.inputs[0] not in network:
        return None
    linear = network[relu.inputs[0]]
    flat = len(network.shapes[name]) == 1
    alone = network.readers(linear.name) == (relu,) and not network.is_output(linear.name)
    if (
        flat
        and alone
        and isinstance(linear.operator, Linear)
        and all(isinstance(r.operator, Linear) for r in readers)
    ):
        return DenseLayer(linear, relu, readers)
    return None


def keep_neurons(
    draft: Draft,
    layer: DenseLayer,
    keep: Mask,
    readers: Mapping[str, Linear],
    step: Step,
    moved: Mapping[str, Tensor] | None = None,
) -> Draft:
    """The draft with only the neurons ``keep`` of a layer; ``readers`` are the readers' operators over
    those.
    """
    rows = np.flatnonzero(keep)
    index = torch.as_tensor(rows)
    change: dict[str, Node | None] = {
        reader.name: Node(reader.name, readers[reader.name], reader.inputs) for reader in layer.readers
    }
    own = Linear(layer.operator.weight[rows], layer.operator.bias[rows])
    change[layer.linear.name] = Node(layer.linear.name, own, layer.linear.inputs)
    return draft.rewritten(
        draft.network.edit(change=change),
        step,
        moved=moved,
        identity={layer.relu.name: draft.identity[layer.relu.name][rows]},
        zero={layer.relu.name: draft.zero[layer.relu.name][rows]},
        ranges={
            name: Interval(draft.ranges[name].lo[:, index], draft.ranges[name].hi[:, index])
            for name in (layer.linear.name, layer.relu.name)
        },
    )


def finite(*arrays: Array) -> bool:
    """Whether re-written weights overflowed nowhere; if they did, the rewrite is not for this layer."""
    return all(bool(np.isfinite(array).all()) for array in arrays)


def columns(reader: Node, keep: Mask) -> Linear:
    """A reader's operator without the columns of neurons that go."""
    assert isinstance(reader.operator, Linear)
    return Linear(reader.operator.weight[:, keep], reader.operator.bias)
