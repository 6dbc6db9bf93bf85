"""Edits: what became of a graph, said of its source.

Rewrites make a graph of a graph. What that means for the source (a file, a module) is a list of edits, in a
handful of verbs:

* :class:`SliceTensor`: only these entries of a tensor stay, as they are;
* :class:`SetTensor`: a tensor holds these numbers;
* :class:`Resize`: a node stays, and what it says of sizes (groups, a shape, the sizes of a split) follows the
  values that it reads and makes;
* :class:`Rewire`: a node reads another tensor;
* :class:`Replace`: nodes of the source go, and nodes of the graph take their place (none, or new ones).

What no edit names stays as it is, to the last bit. :func:`difference` finds the edits between two graphs by
the origins of the first one's nodes. Whoever applies them reads the result again, which has to be the second
graph (:mod:`relutrim.graph.comparing`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TypeAlias

import numpy as np

from relutrim.graph.comparing import equal, same
from relutrim.graph.graph import Network, Node
from relutrim.graph.operators import (
    Add,
    Array,
    BatchNorm,
    Convolution,
    Linear,
    Operator,
    Reshape,
    Scale,
    Take,
)
from relutrim.graph.origin import Stored
from relutrim.graph.slicing import Index, Kept, cut


@dataclass(frozen=True, eq=False)
class SliceTensor:
    """Of the tensor at this input of a source's node only ``indices`` per axis stay (None: all of them)."""

    node: str
    place: int
    tensor: str
    indices: tuple[Index | None, ...]


@dataclass(frozen=True, eq=False)
class SetTensor:
    """The tensor at this input of a source's node holds ``numbers``."""

    node: str
    place: int
    tensor: str
    numbers: Array


@dataclass(frozen=True, eq=False)
class Replace:
    """Nodes of the source go, and nodes of the graph take their place, in topological order."""

    old: tuple[str, ...]
    new: tuple[Node, ...]


@dataclass(frozen=True, eq=False)
class Resize:
    """A node of the source stays, with sizes in it that are those of ``after``, a node of the graph that was
    ``before``; ``instead`` is for a source that cannot say them in that node.
    """

    node: str
    before: Node
    after: Node
    instead: Replace


@dataclass(frozen=True)
class Rewire:
    """A node of the source reads the value ``new`` wherever it read ``old``; all of a node's at once."""

    node: str
    old: str
    new: str


Edit: TypeAlias = SliceTensor | SetTensor | Resize | Rewire | Replace


@dataclass(frozen=True, eq=False)
class _Group:
    """Nodes of the source that belong together, and the nodes of the graph that stand for them."""

    old: tuple[str, ...]
    nodes: tuple[Node, ...]

    @property
    def names(self) -> set[str]:
        return {node.name for node in self.nodes}


def difference(before: Network, after: Network, kept: Mapping[str, Kept] | None = None) -> list[Edit]:
    """The edits that make the source of ``before`` one of ``after``, as it is :func:`settled`.

    Values have the same name in both as long as they mean the same; ``kept`` says which of their slices are
    left, where that is not all.
    """
    after = settled(before, after)
    known = {
        name: one
        for name, one in (kept or {}).items()
        if name in after.shapes and name in before.shapes
        if one.of(before.shapes[name]) == after.shapes[name]
    }
    edits: list[Edit] = []
    taken: set[str] = set()
    for group in _groups(before):
        taken |= group.names
        new = tuple(node for node in after.nodes if node.name in group.names)
        instead = Replace(group.old, new)
        found = None if _opened(before, after, group) else _regular(before, after, group, known, instead)
        edits += [instead] if found is None else found
    new = tuple(node for node in after.nodes if node.name not in taken and node.name not in before)
    return [*edits, Replace((), new)] if new else edits


def settled(before: Network, after: Network) -> Network:
    """``after`` as a source says it: with the identities (a dropout, say) that rewrites went around, which
    cost nothing; and a value that a sum adds several times, as it did not before, is multiplied instead.
    """
    return _without_repeats(before, _with_identities(before, after))


def _with_identities(before: Network, after: Network) -> Network:
    back: dict[str, Node] = {}

    def restored(name: str, was: str) -> str:
        """What a node reads that read ``was`` and now reads ``name``, where only identities lie between."""
        skipped = []
        while was != name and was in before and was not in after and _is_identity(before[was]):
            skipped.append(before[was])
            was = before[was].inputs[0]
        if was != name or not skipped:
            return name
        same_shape = Reshape(after.shapes[name], after.shapes[name])
        back.update({node.name: replace(node, operator=same_shape) for node in skipped})
        return skipped[0].name

    nodes = []
    for node in after.nodes:
        old = before[node.name].inputs if node.name in before else ()
        if len(old) == len(node.inputs):
            inputs = tuple(map(restored, node.inputs, old))
            node = node if inputs == node.inputs else replace(node, inputs=inputs)
        nodes.append(node)
    return replace(after, nodes=(*back.values(), *nodes)) if back else after


def _is_identity(node: Node) -> bool:
    return isinstance(node.operator, Reshape) and node.operator.before == node.operator.after


def _without_repeats(before: Network, network: Network) -> Network:
    change: dict[str, Node | None] = {}
    more: list[Node] = []
    for node in network.nodes:
        times = Counter(node.inputs)
        if not isinstance(node.operator, Add) or len(times) == len(node.inputs):
            continue
        if node.name in before and _pattern(before[node.name].inputs) == _pattern(node.inputs):
            continue
        if len(times) == 1:
            change[node.name] = Node(node.name, Scale.exactly(float(len(node.inputs))), tuple(times))
            continue
        names = []
        for name, count in times.items():
            if count > 1:
                more.append(
                    Node(network.free_name(f"{node.name}.{name}"), Scale.exactly(float(count)), (name,))
                )
                name = more[-1].name
            names.append(name)
        change[node.name] = Node(node.name, Add(len(names)), tuple(names))
    found = network.edit(change=change)
    return replace(found, nodes=(*more, *found.nodes)) if change else network


def _pattern(names: tuple[str, ...]) -> list[int]:
    """Which of the names are the same."""
    return [names.index(name) for name in names]


def _groups(network: Network) -> list[_Group]:
    """Nodes of the graph that come from the same nodes of the source; those that come from nowhere (another
    input) are in none.
    """
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            name = parent[name]
        return name

    known = [(node, node.origin) for node in network.nodes if node.origin is not None and node.origin.nodes]
    for _, origin in known:
        first, *others = origin.nodes
        for other in others:
            parent[root(other)] = root(first)
    nodes: dict[str, list[Node]] = defaultdict(list)
    sources: dict[str, dict[str, None]] = defaultdict(dict)
    for node, origin in known:
        key = root(origin.nodes[0])
        nodes[key].append(node)
        sources[key].update(dict.fromkeys(origin.nodes))
    return [_Group(tuple(sources[key]), tuple(nodes[key])) for key in nodes]


def _opened(before: Network, after: Network, group: _Group) -> bool:
    """Whether a part of a group that only the group has read is read by somebody else now."""
    own = group.names
    inner = {name for node in group.nodes for name in node.inputs if name in own}
    inner = {name for name in inner if not _read_outside(before, own, name)}
    return any(_read_outside(after, own, name) for name in inner)


def _read_outside(network: Network, own: set[str], name: str) -> bool:
    return network.is_output(name) or any(node.name not in own for node in network.readers(name))


def _regular(
    before: Network, after: Network, group: _Group, kept: Mapping[str, Kept], instead: Replace
) -> list[Edit] | None:
    """What becomes of the source's nodes of a group; None if they cannot stay."""
    own = group.names
    if any(node.name not in after for node in group.nodes):
        return None
    edits: list[Edit] = []
    renamed: dict[str, str] = {}
    for node in group.nodes:
        assert node.origin is not None
        new = after[node.name]
        if len(new.inputs) != len(node.inputs):
            return None
        for was, now in zip(node.inputs, new.inputs, strict=True):
            if (was != now and (was in own or now in own)) or renamed.setdefault(was, now) != now:
                return None
            if was != now:
                edits += [Rewire(key, was, now) for key in node.origin.nodes]
        if new.operator is not node.operator:
            tensors = _tensors(before, node, new, kept)
            if tensors is None:
                return None
            edits += tensors
        if _says_sizes(node.operator, new.operator) or _takes_of_less(before, after, node, new):
            edits += [Resize(key, node, new, instead) for key in node.origin.nodes]
    return edits if len({*renamed.values()}) == len(renamed) else None


def _says_sizes(old: Operator, new: Operator) -> bool:
    """Whether two operators of a kind differ in more than arrays."""
    pairs = [(getattr(old, one.name), getattr(new, one.name)) for one in fields(old) if one.name[0] != "_"]
    return any(not isinstance(now, np.ndarray) and not equal(was, now) for was, now in pairs)


def _takes_of_less(before: Network, after: Network, node: Node, new: Node) -> bool:
    """Whether a node takes some entries along an axis that is not as long as it was. (They may be the same,
    but a source may count from the end.)
    """
    if not isinstance(node.operator, Take):
        return False
    was, now = before.shapes[node.inputs[0]], after.shapes[new.inputs[0]]
    pairs = zip(node.operator.picks, was, now, strict=False)
    return any(pick is not None and size != left for pick, size, left in pairs)


def _tensors(before: Network, node: Node, new: Node, kept: Mapping[str, Kept]) -> list[Edit] | None:
    """What becomes of the tensors of a node that stays; None if they cannot say it."""
    old, operator = node.operator, new.operator
    assert node.origin is not None
    if type(old) is not type(operator):
        return None
    kept = _as_read_now(before, node, new, kept)
    expected = cut(before, node, kept)
    sliced = expected is not None and same(expected, operator)
    edits: list[Edit] = []
    for one in fields(old):
        was, now = getattr(old, one.name), getattr(operator, one.name)
        if not isinstance(now, np.ndarray) or equal(was, now):
            continue
        stored = node.origin.fields.get(one.name)
        if stored is not None:
            edit = _tensor(before, node, one.name, stored, now, kept if sliced else None)
            if edit is None:
                return None
            edits.append(edit)
        elif not _derived(old, one.name) and not (sliced and _is_no_bias(old, one.name)):
            return None
    return edits


def _as_read_now(before: Network, node: Node, new: Node, kept: Mapping[str, Kept]) -> Mapping[str, Kept]:
    """The same with what is left of values that the node no longer reads, such as those of a ReLU that is
    gone: what is left of those in their place.
    """
    moved = {
        was: kept[now]
        for was, now in zip(node.inputs, new.inputs, strict=True)
        if was != now and now in kept and before.shapes[was] == before.shapes[now]
    }
    return {**kept, **moved} if moved else kept


def _derived(operator: Operator, name: str) -> bool:
    """Whether a field follows from others: the radii of a scale, and the scale of a batch norm."""
    computed = {"scale_radius", "shift_radius"} if isinstance(operator, Scale) else set()
    return name in computed | ({"scale", "shift"} if isinstance(operator, BatchNorm) else set())


def _is_no_bias(operator: Operator, name: str) -> bool:
    """Whether a field may be a bias that the source does not have."""
    return isinstance(operator, Linear | Convolution) and name == "bias" and not operator.bias.any()


def _tensor(
    before: Network, node: Node, name: str, stored: Stored, now: Array, kept: Mapping[str, Kept] | None
) -> Edit | None:
    """How the tensor of a field gets the numbers that the field has now."""
    if kept is not None:
        indices = _indices(before, node, name, stored, kept)
        if indices is not None:
            return SliceTensor(stored.node, stored.place, stored.tensor, indices)
    numbers = stored.back(now)
    return None if numbers is None else SetTensor(stored.node, stored.place, stored.tensor, numbers)


def _indices(
    before: Network, node: Node, name: str, stored: Stored, kept: Mapping[str, Kept]
) -> tuple[Index | None, ...] | None:
    """Which entries of the tensor stay, axis by axis; None if that is not how it is cut.

    Found by cutting an operator whose field holds, in place of numbers, where along an axis they are.
    """
    was: Array = getattr(node.operator, name)
    found: list[Index | None] = [None] * stored.rank
    for at, axis in enumerate(stored.axes):
        if axis is None or was.shape[at] == 1:
            continue
        along = np.arange(1.0, was.shape[at] + 1)
        places = np.broadcast_to(along.reshape([-1 if a == at else 1 for a in range(was.ndim)]), was.shape)
        left = cut(before, _with_field(node, name, places), kept)
        if left is None:
            return None
        left_places: Array = getattr(left, name)
        rows = np.moveaxis(left_places, at, 0).reshape(left_places.shape[at], -1)
        if not rows.size or (rows != rows[:, :1]).any():
            return None
        indices = rows[:, 0].astype(np.int64) - 1
        if not np.array_equal(indices, np.arange(was.shape[at])):
            found[axis] = indices
    return tuple(found)


def _with_field(node: Node, name: str, numbers: Array) -> Node:
    """The node with other numbers in one field, which are never computed with."""
    operator = object.__new__(type(node.operator))
    operator.__dict__.update({**vars(node.operator), "_cache": {}, name: numbers})
    return replace(node, operator=operator)
