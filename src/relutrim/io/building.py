"""The nodes of a network in the making, whatever it is read from: one node of the source after the other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from relutrim.graph import Fresh, Network, Node, Operator, Output, Port, Reshape, TailStep
from relutrim.graph.graph import live
from relutrim.graph.operators import Concat, Shape
from relutrim.graph.operators.moving import Index
from relutrim.graph.origin import Origin, Stored
from relutrim.graph.sharing import Slot, shared_tensors
from relutrim.io.picks import take
from relutrim.io.sizes import Room


@dataclass(frozen=True)
class Value:
    """A value of the network; ``shape`` is without the batch axis, ``tail`` the steps that follow the node of
    that name.
    """

    name: str
    shape: Shape
    tail: tuple[TailStep, ...] = ()


class Building:
    """A network in the making; ``taken`` are the names that are in use."""

    def __init__(self, port: Port, dtype: str, room: Room, taken: Iterable[str]) -> None:
        self.port, self.dtype, self.room = port, dtype, room
        self.room.value(port.shape, "the input is a value")
        self.taken = {port.name, *taken}
        self.nodes: dict[str, Node] = {}
        self.shapes: dict[str, Shape] = {port.name: port.shape}
        self.pinned: dict[str, None] = {}
        self.begin("", "")

    def begin(self, key: str, stem: str) -> None:
        """Turn to the node of the source that origins call ``key``; what it makes is named after ``stem``."""
        self.stem = stem
        self.sources: tuple[str, ...] = (key,)
        self.made: set[str] = set()
        self.removed: list[Node] = []

    def emit(self, operator: Operator, *inputs: Value, **fields: Stored | None) -> Value:
        """Apply an operator; ``fields`` say where its numbers are stored, if they are."""
        shape = operator.output_shape([value.shape for value in inputs])
        self.room.make(operator, shape)
        name = self.unique(f"{self.stem}/{operator.kind.lower()}")
        origin = Origin(self.sources, {field: found for field, found in fields.items() if found is not None})
        self.made.add(name)
        return self._add(Node(name, operator, tuple(value.name for value in inputs), origin), shape)

    def chain(self, value: Value, operators: Iterable[Operator]) -> Value:
        """Apply operators one after the other."""
        for operator in operators:
            value = self.emit(operator, value)
        return value

    def reshaped(self, value: Value, shape: Shape) -> Value:
        """The same numbers in another shape."""
        return value if value.shape == shape else self.emit(Reshape(value.shape, shape), value)

    def picked(self, value: Value, picks: Mapping[int, Index]) -> Value:
        """Entries of a value along some of its axes, the value itself if these are all."""
        operator = take(value.shape, picks)
        return value if operator is None else self.emit(operator, value)

    def expanded(self, value: Value, shape: Shape) -> Value:
        """A value broadcast to ``shape``: its axes of length 1 repeated, with new ones in front."""
        value = self.reshaped(value, (1,) * (len(shape) - len(value.shape)) + value.shape)
        pairs = enumerate(zip(value.shape, shape, strict=True))
        return self.picked(value, {axis: np.zeros(new, np.int64) for axis, (old, new) in pairs if old != new})

    def joined(self, parts: Sequence[Value | int], axis: int) -> Value:
        """Values one behind the other, and as many zeros as a number says; a value that occurs twice is read
        once.
        """
        distinct = {part.name: part for part in parts if isinstance(part, Value)}
        sizes = tuple(value.shape[axis] for value in distinct.values())
        starts = dict(zip(distinct, np.cumsum([0, *sizes]), strict=False))
        whole, *others = distinct.values()
        if others:
            whole = self.emit(Concat(axis, sizes), whole, *others)
        pieces = [
            np.full(part, -1, np.int64)
            if isinstance(part, int)
            else starts[part.name] + np.arange(part.shape[axis], dtype=np.int64)
            for part in parts
        ]
        return self.picked(whole, {axis: np.concatenate(pieces)})

    def absorb(self, start: str, *ends: str) -> None:
        """What is emitted from here on stands for the nodes between ``start`` and ``ends`` too."""
        found, waiting = dict.fromkeys(self.sources), list(ends)
        while waiting:
            name = waiting.pop()
            node = self.nodes.get(name)
            if name != start and node is not None:
                found.update(dict.fromkeys(node.origin.nodes if node.origin else ()))
                waiting += node.inputs
        self.sources = tuple(found)

    def remove(self, name: str) -> None:
        """Take out a node that another one, of this node of the source, does the work of."""
        self.removed.append(self.nodes.pop(name))

    def undo(self) -> None:
        """Leave everything as it was before this node of the source."""
        for name in self.made:
            self.nodes.pop(name, None)
            self.taken.discard(name)
        for node in self.removed:
            if node.name not in self.made:
                self.nodes[node.name] = node

    def renamed(self, value: Value, name: str) -> Value:
        """A value that this node of the source made, under this name, which is to be in use already."""
        node = self.nodes.pop(value.name)
        self.taken.discard(value.name)
        return self._add(replace(node, name=name), value.shape)

    def fresh(self, name: str, shape: Shape, origin: Origin | None = None) -> Value:
        """A value that may be anything, under this name, which is to be in use already."""
        return self._add(Node(name, Fresh(shape), (), origin), shape)

    def _add(self, node: Node, shape: Shape) -> Value:
        self.nodes[node.name], self.shapes[node.name] = node, shape
        return Value(node.name, shape)

    def is_fresh(self, name: str) -> bool:
        """Whether a value comes from nowhere."""
        return name in self.nodes and isinstance(self.nodes[name].operator, Fresh)

    def pin(self, value: object) -> None:
        """Demand that a value stays as it is."""
        if isinstance(value, Value):
            self.pinned[value.name] = None

    def unique(self, stem: str) -> str:
        """A name that is not in use; it is from now on."""
        name, count = stem, 1
        while name in self.taken:
            count += 1
            name = f"{stem}_{count}"
        self.taken.add(name)
        return name

    def network(
        self,
        outputs: Sequence[Output],
        metadata: Mapping[str, str],
        readers: Mapping[str, Collection[Slot]],
        **root: Callable[[str], Any],
    ) -> Network:
        """The network, without what no output and no pinned value needs; ``readers`` are the places that read
        each tensor of the source.
        """
        pinned = tuple(self.pinned)
        nodes = live(self.nodes.values(), [*(output.source for output in outputs), *pinned])
        shared = shared_tensors(nodes, readers, **root)
        return Network(self.port, nodes, tuple(outputs), self.dtype, metadata, pinned, shared)
