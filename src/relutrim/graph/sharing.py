"""Tensors of a source that are read in several places: each is stored once.

A weight may be read by several nodes (tied layers, a module that is called twice, an initializer with several
readers), or by something that the network does not hold as well. As long as all places read the same numbers,
they are one tensor of the source; where a rewrite makes them different, each of the different ones is a
tensor of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from relutrim.graph.operators import Array, Operator
from relutrim.graph.origin import Stored

if TYPE_CHECKING:
    from relutrim.graph.graph import Node

Slot = tuple[str, int]
"""A node of the source, and one of its inputs."""


@dataclass(frozen=True, eq=False)
class Place:
    """A field of a node that is kept in a shared tensor; ``source`` is the operator that was read."""

    node: str
    field: str
    stored: Stored
    source: Operator

    @property
    def count(self) -> int:
        """How many numbers a file stores for the field of the source."""
        return self.source.field_counts.get(self.field, 0)

    @property
    def numbers(self) -> Array:
        """What the field held in the source."""
        found: Array = getattr(self.source, self.field)
        return found


@dataclass(frozen=True, eq=False)
class Reading:
    """What a place reads in a network."""

    place: Place
    operator: Operator

    @property
    def count(self) -> int:
        """How many numbers a file stores for it."""
        return self.operator.field_counts.get(self.place.field, 0)

    @property
    def numbers(self) -> Array:
        """What the field holds."""
        found: Array = getattr(self.operator, self.place.field)
        return found

    @property
    def unchanged(self) -> bool:
        """Whether these are the numbers of the source."""
        return self.operator is self.place.source or _same(self.numbers, self.place.numbers)

    def agrees(self, other: Reading) -> bool:
        """Whether one tensor can hold both. Fields that are computed from it agree only if they were the same
        in the source.
        """
        if self.unchanged or other.unchanged:
            return self.unchanged and other.unchanged
        one, two = self.place, other.place
        if one.stored.sign and two.stored.sign:
            mine, its = one.stored.back(self.numbers), two.stored.back(other.numbers)
            return mine is not None and its is not None and _same(mine, its)
        alike = one.stored.axes == two.stored.axes and _same(one.numbers, two.numbers)
        return alike and _same(self.numbers, other.numbers)


@dataclass(frozen=True, eq=False)
class Shared:
    """A tensor of the source and the places that read it. ``outside`` says that something else reads it, too:
    then it stays as it is, whatever becomes of the places.
    """

    tensor: str
    places: tuple[Place, ...]
    outside: bool

    def tensors(self, get: Callable[[str], Node | None]) -> list[list[Reading]]:
        """What the places of a network read, one list per tensor that this takes; ``get`` finds its nodes."""
        found: list[list[Reading]] = []
        for place in self.places:
            node = get(place.node)
            if node is None or type(node.operator) is not type(place.source):
                continue
            reading = Reading(place, node.operator)
            own = next((group for group in found if group[0].agrees(reading)), None)
            if own is None:
                found.append([reading])
            else:
                own.append(reading)
        return found

    def whole(self, get: Callable[[str], Node | None]) -> bool:
        """Whether all that read the tensor still read the same numbers."""
        found = self.tensors(get)
        return len(found) <= 1 and not (self.outside and any(not group[0].unchanged for group in found))

    def repeated(self, get: Callable[[str], Node | None]) -> int:
        """How many numbers fewer a file stores than the nodes have between them; negative where the tensor
        itself stays besides.
        """
        found = self.tensors(get)
        counts = [[reading.count for reading in group] for group in found]
        fewer = sum(sum(own) - max(own) for own in counts)
        if self.outside and not any(group[0].unchanged for group in found):
            fewer -= max(place.count for place in self.places)
        return fewer


def shared_tensors(
    nodes: Iterable[Node], readers: Mapping[str, Collection[Slot]], root: Callable[[str], str] = str
) -> tuple[Shared, ...]:
    """The tensors that several places read, or one place and something else. ``readers`` are the inputs of
    the source's nodes that read a tensor, by its ``root``: its one name of several.
    """
    places: dict[str, list[Place]] = {}
    for node in nodes:
        for name, stored in node.origin.fields.items() if node.origin is not None else ():
            places.setdefault(root(stored.tensor), []).append(Place(node.name, name, stored, node.operator))
    found = []
    for tensor, own in places.items():
        slots = {(place.stored.node, place.stored.place) for place in own}
        outside = not {*readers.get(tensor, ())} <= slots
        if outside or len(own) > 1:
            found.append(Shared(tensor, tuple(own), outside))
    return tuple(found)


def _same(one: Array, other: Array) -> bool:
    """Whether two arrays are the same to the last bit."""
    if one is other:
        return True
    if one.shape != other.shape:
        return False
    return np.array_equal(one, other) and one.tobytes() == other.tobytes()
