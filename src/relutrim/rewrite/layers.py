"""The places where a rewrite of dense layers can take hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from relutrim.graph.graph import Network, Node
from relutrim.graph.operators import Array, Linear, Relu
from relutrim.graph.slicing import Index, Kept
from relutrim.intervals import Interval
from relutrim.rewrite.draft import Draft, Mask, Step


@dataclass(frozen=True, eq=False)
class DenseLayer:
    """A linear node that only a ReLU reads, and the linear nodes that read the ReLU: rows and columns can go
    together.

    Where linear nodes read the linear node itself, ``relu`` is that node: a layer without ReLUs is one whose
    neurons are all active.
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

    @property
    def straight(self) -> bool:
        """Whether there is no ReLU."""
        return self.relu is self.linear

    def neurons(self, count: int) -> int:
        """How many neurons ``count`` entries are: none without a ReLU."""
        return 0 if self.straight else count

    @property
    def entries(self) -> str:
        """What the entries are called in a report."""
        return "values" if self.straight else "neurons"

    def active(self, draft: Draft) -> Mask:
        """Which entries stand for the identity."""
        return np.ones(self.size, dtype=np.bool_) if self.straight else draft.identity[self.relu.name]

    def inactive(self, draft: Draft) -> Mask:
        """Which entries stand for 0."""
        return np.zeros(self.size, dtype=np.bool_) if self.straight else draft.zero[self.relu.name]


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


def straight_layer(network: Network, name: str) -> DenseLayer | None:
    """The layer without ReLUs that a linear node makes up, if linear nodes are all that reads it."""
    if name not in network or network.is_output(name) or len(network.shapes[name]) != 1:
        return None
    node, readers = network[name], network.readers(name)
    if readers and all(isinstance(one.operator, Linear) for one in (node, *readers)):
        return DenseLayer(node, node, readers)
    return None


def any_layer(network: Network, name: str) -> DenseLayer | None:
    """The layer of a ReLU, or of a linear node that none follows."""
    return dense_layer(network, name) or straight_layer(network, name)


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
        identity={layer.relu.name: layer.active(draft)[rows]},
        zero={layer.relu.name: layer.inactive(draft)[rows]},
        ranges={
            name: Interval(draft.ranges[name].lo[:, index], draft.ranges[name].hi[:, index])
            for name in (layer.linear.name, layer.relu.name)
        },
        kept={name: Kept(0, rows) for name in (layer.linear.name, layer.relu.name)},
    )


def new_units(size: int, changed: Index) -> Kept:
    """All units of a layer, of which some have become others."""
    units = np.arange(size)
    units[changed] = -1
    return Kept(0, units)


def finite(*arrays: Array) -> bool:
    """Whether re-written weights overflowed nowhere; if they did, the rewrite is not for this layer."""
    return all(bool(np.isfinite(array).all()) for array in arrays)


def columns(reader: Node, keep: Mask) -> Linear:
    """A reader's operator without the columns of neurons that go."""
    assert isinstance(reader.operator, Linear)
    return Linear(reader.operator.weight[:, keep], reader.operator.bias)
