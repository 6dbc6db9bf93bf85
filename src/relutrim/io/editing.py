"""Edits of a graph, applied to the source that it was read from, whatever the source.

1. A node that cannot say its new sizes is replaced. Nodes of the graph that take the place of others are
   written where those were, new ones as early as what they read is there.
2. What nobody reads any more goes; what nobody has read before stays, unless what it reads has another shape
   now, or is no more.
3. What a tensor loses, or is set to, is done in the tensor where all its readers agree, else in ones of their
   own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from relutrim.errors import NetworkError, UnsupportedError
from relutrim.graph.edits import Edit, Replace, Resize, Rewire, SetTensor, SliceTensor
from relutrim.graph.graph import Network, Node
from relutrim.graph.sharing import Slot
from relutrim.io.order import ordered

Array = npt.NDArray[Any]
N = TypeVar("N")


class Editor(ABC, Generic[N]):
    """A source that is being edited: its nodes by name, and what they read and make.

    ``values`` are the values that its tensors are; ``results`` are the tensors that are read from outside.
    """

    def __init__(
        self,
        before: Network,
        after: Network,
        nodes: Mapping[str, N],
        values: Mapping[str, str],
        results: Iterable[str],
    ) -> None:
        self.before, self.after, self.values = before, after, values
        self.nodes, self.results = dict(nodes), {*results}
        self.index = {key: at for at, key in enumerate(nodes)}
        self.read_before, self.live = self.read(nodes), self.needed()
        self.contents: dict[Slot, Array] = {}
        """What inputs of nodes are to hold."""
        self.gone: set[str] = set()
        """The nodes that others have replaced."""
        self.touched: set[str] = set()
        """The tensors that they make, and those around which shapes change."""

    # What a format says.

    @abstractmethod
    def slots(self, node: N) -> Iterator[tuple[int, str]]:
        """The tensors that a node reads, each with the input that it is."""

    @abstractmethod
    def makes(self, node: N) -> set[str]:
        """The tensors that a node makes."""

    @abstractmethod
    def held(self) -> set[str]:
        """The tensors that no node makes."""

    @abstractmethod
    def root(self, tensor: str) -> str:
        """The tensor that one is, if it is but another under another name, or with its axes moved."""

    @abstractmethod
    def array(self, tensor: str) -> Array | None:
        """What a tensor holds; None if it is computed."""

    @abstractmethod
    def resize(self, edit: Resize) -> bool:
        """Let a node say its new sizes; False if it cannot."""

    @abstractmethod
    def rewire(self, key: str, values: Mapping[str, str]) -> None:
        """Let a node read other values."""

    @abstractmethod
    def write(self, node: Node, old: Sequence[str]) -> Mapping[str, N]:
        """A node of the graph in the place of old ones, as the source has it."""

    @abstractmethod
    def hold(self, tensor: str, array: Array) -> None:
        """Let a tensor hold something else."""

    @abstractmethod
    def own(self, slots: Sequence[Slot], array: Array) -> None:
        """Let inputs of nodes read a tensor of their own."""

    def only_sizes(self, node: N) -> bool:
        """Whether a node reads no numbers; then its reading keeps nothing."""
        return False

    def repaired(self, node: N, made: set[str]) -> N | None:
        """A node as it is where nothing but these tensors is left; None if there is no need for it."""
        return node

    # What is done.

    def reads(self, node: N) -> set[str]:
        """The tensors that a node reads."""
        return {name for _, name in self.slots(node)}

    def read(self, keys: Iterable[str]) -> set[str]:
        """The tensors whose numbers these nodes read, or somebody outside."""
        nodes = (self.nodes[key] for key in keys)
        return self.results.union(*(self.reads(node) for node in nodes if not self.only_sizes(node)))

    def made(self, keys: Iterable[str]) -> set[str]:
        """The tensors that there are with these nodes."""
        return self.held().union(*(self.makes(self.nodes[key]) for key in keys))

    def needed(self) -> set[str]:
        """The nodes that a result depends on; and those that make nothing."""
        wanted, found = {*self.results}, set()
        for key, node in reversed(self.nodes.items()):
            makes = self.makes(node)
            if not makes or makes & wanted:
                found.add(key)
                wanted |= set() if self.only_sizes(node) else self.reads(node)
        return found

    def apply(self, edits: Sequence[Edit]) -> list[str]:
        """Do it, and tell which nodes there are then, in order."""
        replaces = [edit for edit in edits if isinstance(edit, Replace)]
        for edit in edits:
            if isinstance(edit, Resize) and edit.instead not in replaces and not self.resize(edit):
                replaces.append(edit.instead)
        self.gone = {key for edit in replaces for key in edit.old}
        self.touched = self._touched()
        places = self._places(replaces)
        rewired: dict[str, dict[str, str]] = defaultdict(dict)
        for edit in edits:
            if isinstance(edit, Rewire) and edit.node not in self.gone:
                rewired[edit.node][edit.old] = edit.new
        for key, values in rewired.items():
            self.rewire(key, values)
        keys = self._remaining(self._sorted(places))
        there = {*keys} - self.gone
        for edit in edits:
            if isinstance(edit, SliceTensor | SetTensor) and edit.node in there:
                self.contents[edit.node, edit.place] = self._content(edit)
        self._hold(keys, {slot: array for slot, array in self.contents.items() if slot[0] in there})
        return keys

    def _touched(self) -> set[str]:
        """The tensors that are made by nodes which go, or around which shapes change."""
        shapes = self.after.shapes
        changed = {name for name, shape in self.before.shapes.items() if shapes.get(name) != shape}
        around = (node for node in self.before.nodes if changed & {node.name, *node.inputs})
        keys = self.gone.union(*(node.origin.nodes for node in around if node.origin is not None))
        return set[str]().union(*(self.makes(self.nodes[key]) for key in keys))

    def _places(self, replaces: Sequence[Replace]) -> dict[str, tuple[int, int]]:
        """Where the nodes that stay are, and where the new ones, which are written, belong."""
        places = {key: (at, 0) for key, at in self.index.items() if key not in self.gone}
        new = {node.name: edit.old for edit in replaces for node in edit.new}
        for node in self.after.nodes:
            if node.name in new:
                at = max((self.index[key] for key in new[node.name]), default=-1)
                written = self.write(node, new[node.name])
                places |= {key: (at, len(places) + count) for count, key in enumerate(written, start=1)}
                self.nodes |= written
        return places

    def _sorted(self, places: Mapping[str, tuple[int, int]]) -> list[str]:
        """The nodes in topological order, by their places where that leaves a choice."""
        keys = list(places)
        makers = {name: at for at, key in enumerate(keys) for name in self.makes(self.nodes[key])}
        reads = (self.reads(self.nodes[key]) for key in keys)
        needs = [{makers[one] for one in names if one in makers} - {at} for at, names in enumerate(reads)]
        return [keys[at] for at in ordered(needs, list(places.values()))]

    def _remaining(self, keys: list[str]) -> list[str]:
        """Without nodes that something read before and nothing reads now; and without those that were not
        needed, where what they read has another shape now, or is no more.
        """
        shapes = self.after.shapes
        left = {tensor: value for tensor, value in self.values.items() if value in shapes}
        moved = {tensor for tensor, value in left.items() if shapes[value] != self.before.shapes[value]}
        moved |= self.touched - self.values.keys()
        while True:
            read, made, stay = self.read(keys), self.made(keys), list[str]()
            for key in keys:
                node = self.repaired(self.nodes[key], made)
                if node is not None and not self._goes(key, node, moved, read, made):
                    self.nodes[key] = node
                    stay.append(key)
            if len(stay) == len(keys):
                break
            keys = stay
        missing = [name for key in keys for _, name in self.slots(self.nodes[key]) if name not in made]
        if missing:
            raise UnsupportedError(
                "something that relutrim does not follow reads it, and it would go",
                where=f"tensor {missing[0]!r}",
            )
        return keys

    def _goes(self, key: str, node: N, moved: set[str], read: set[str], made: set[str]) -> bool:
        if self.only_sizes(node):
            return False
        makes, reads, old = self.makes(node), self.reads(node), key in self.index and key not in self.gone
        if old and key not in self.live and (reads & moved or not reads <= made):
            return True
        return bool(makes) and not makes & read and (not old or bool(makes & self.read_before))

    def _content(self, edit: SliceTensor | SetTensor) -> Array:
        """What a tensor is to hold."""
        found = self.array(dict(self.slots(self.nodes[edit.node]))[edit.place])
        if found is None:
            raise UnsupportedError("it is computed, so nothing can be cut", where=f"tensor {edit.tensor!r}")
        if isinstance(edit, SliceTensor):
            for axis, indices in enumerate(edit.indices):
                found = found if indices is None else np.take(found, indices, axis)
            return np.ascontiguousarray(found).reshape(found.shape)
        with np.errstate(over="ignore"):
            numbers = np.ascontiguousarray(edit.numbers.astype(found.dtype)).reshape(edit.numbers.shape)
        if not np.array_equal(numbers.astype(np.float64), edit.numbers):
            raise NetworkError(f"numbers of it are no {found.dtype}", where=f"tensor {edit.tensor!r}")
        return numbers

    def _hold(self, keys: Sequence[str], contents: Mapping[Slot, Array]) -> None:
        """A tensor whose readers agree is changed; else those that differ get tensors of their own."""
        readers = Counter(map(self.root, self.results))
        for key in keys:
            node = self.nodes[key]
            if all(self.root(name) == name for name in self.makes(node)):  # it does not just pass one on
                readers.update(self.root(name) for _, name in self.slots(node))
        wanted: dict[tuple[object, ...], list[Slot]] = defaultdict(list)
        for slot, array in contents.items():
            tensor = dict(self.slots(self.nodes[slot[0]]))[slot[1]]
            wanted[self.root(tensor), array.dtype.str, array.shape, array.tobytes()].append(slot)
        for (root, *_), slots in wanted.items():
            if len(slots) == readers[str(root)]:
                self.hold(str(root), contents[slots[0]])
            else:
                self.own(slots, contents[slots[0]])
