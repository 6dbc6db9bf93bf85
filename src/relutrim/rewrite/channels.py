"""Channels: which slices of which values belong together.

A convolution or a linear node makes new slices along one axis of its value; most operators pass them on, in
other places perhaps; sums tie the slices of what they add to each other. Slices with one label, or with tied
labels, go together or not at all. Of a convolution in groups the same number goes of every group, or whole
groups do (:mod:`relutrim.rewrite.grouped`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import numpy.typing as npt

from relutrim.graph.graph import Network, Node
from relutrim.graph.operators import (
    Add,
    Array,
    AveragePool,
    Concat,
    Convolution,
    Curve,
    Fresh,
    Linear,
    MaxPool,
    Mean,
    Operator,
    Relu,
    Reshape,
    Scale,
    Shape,
    Softmax,
    Take,
    Transpose,
)
from relutrim.graph.sharing import Place

Index = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Slices:
    """A value's slices along ``axis``, each with a label."""

    axis: int
    labels: Index


@dataclass(eq=False)
class Labels:
    """Labels of the slices of every value; tied ones have the same root. Those that are ``pinned`` stay;
    ``grouped`` are the convolutions whose groups have to stay of one size. With ``together``, slices that go
    with the same slice of a tensor that several nodes read are tied, so that it can be cut as one.
    """

    network: Network
    together: bool = False
    slices: dict[str, Slices] = field(default_factory=dict)
    parent: list[int] = field(default_factory=list)
    pinned: set[int] = field(default_factory=set)
    grouped: list[Node] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.slices[self.network.input.name] = self._pin(self._fresh(self.network.input.shape, 0))
        for node in self.network.nodes:
            self.slices[node.name] = self._of(node)
        for source in self.network.sources:
            self._pin(self.slices[source])
        if self.together:
            self._tie_shared()

    def root(self, label: int) -> int:
        """The label that stands for all that are tied to this one."""
        while self.parent[label] != label:
            self.parent[label] = self.parent[self.parent[label]]
            label = self.parent[label]
        return label

    def roots(self, name: str) -> Index:
        """The roots of a value's labels."""
        return np.array([self.root(label) for label in self.slices[name].labels.tolist()], dtype=np.int64)

    def fixed(self) -> set[int]:
        """The roots of labels whose slices nobody may take away by weighing others instead: those that stay,
        and those that may go only together with slices of other groups.
        """
        names = {name for node in self.grouped for name in (node.inputs[0], node.name)}
        grouped = (self.slices[name].labels.tolist() for name in names)
        return {self.root(label) for label in chain(self.pinned, *grouped)}

    def _fresh(self, shape: Shape, axis: int) -> Slices:
        count = shape[axis] if shape else 1
        labels = np.arange(len(self.parent), len(self.parent) + count)
        self.parent += labels.tolist()
        return Slices(axis, labels)

    def _pin(self, slices: Slices) -> Slices:
        self.pinned.update(slices.labels.tolist())
        return slices

    def _tie(self, one: int, other: int) -> None:
        self.parent[self.root(one)] = self.root(other)

    def _tie_shared(self) -> None:
        for shared in self.network.shared:
            for group in shared.tensors(self.network.get):
                fixed = shared.outside and group[0].unchanged
                along = [self._along(reading.place) for reading in group]
                for axis in range(group[0].place.stored.rank):
                    self._tie_all([labels.get(axis) for labels in along], fixed)

    def _along(self, place: Place) -> dict[int, Index]:
        """The labels of the slices of a tensor, as one place reads it, for each axis along which it can be
        cut.
        """
        node = self.network[place.node]
        found = _field_labels(node, place.field, self.slices, self.network.shapes)
        named = zip(place.stored.axes, found, strict=True)
        return {axis: labels for axis, labels in named if axis is not None and labels is not None}

    def _tie_all(self, labels: list[Index | None], fixed: bool) -> None:
        """What several places have for the same slices is tied; all of it stays if one place says nothing of
        them, or if they are ``fixed``.
        """
        known = [one for one in labels if one is not None]
        if fixed or len(known) < len(labels) or len({len(one) for one in known}) > 1:
            for one in known:
                self.pinned.update(one.tolist())
            return
        for one in known[1:]:
            for mine, other in zip(one.tolist(), known[0].tolist(), strict=True):
                self._tie(mine, other)

    def _of(self, node: Node) -> Slices:
        operator, shape = node.operator, self.network.shapes[node.name]
        before = [self.slices[name] for name in node.inputs]
        shapes = [self.network.shapes[name] for name in node.inputs]
        if isinstance(operator, Fresh):  # whatever makes the value makes all of it
            return self._pin(self._fresh(shape, 0))
        if isinstance(operator, Linear):
            if before[0].axis != len(shapes[0]) - 1:
                self._pin(before[0])
            return self._fresh(shape, len(shape) - 1)
        if isinstance(operator, Convolution):
            return self._convolved(node, operator, before[0], shape)
        found = _passed_on(operator, before, shapes)
        if found is None or 0 in shape:  # no entry says which label an empty slice has
            for slices in before:
                self._pin(slices)
            return self._pin(self._fresh(shape, 0))
        axis, grid = found
        return self._merged(axis, grid)

    def _convolved(self, node: Node, operator: Convolution, before: Slices, shape: Shape) -> Slices:
        fresh = self._fresh(shape, 0)
        if operator.groups == 1:
            if before.axis != 0:  # its slices run through all channels that the kernel reads
                self._pin(before)
            return fresh
        if before.axis != 0 or 0 in (len(before.labels), len(fresh.labels)):
            self._pin(before)
            return self._pin(fresh)
        if operator.weight.shape[1] == 1 and operator.groups == len(fresh.labels):
            for one, other in zip(before.labels.tolist(), fresh.labels.tolist(), strict=True):
                self._tie(one, other)  # a kernel per channel
            return fresh
        self.grouped.append(node)
        return fresh

    def _merged(self, axis: int, grid: Index) -> Slices:
        """One label per slice along the axis: all that a slice holds are tied. -1 is nobody's."""
        rows = _rows(grid, axis)
        labels = rows[:, 0].copy()
        one = (rows == rows[:, :1]).all(axis=1) & (labels >= 0)  # nothing to tie: so it is nearly everywhere
        for at in np.flatnonzero(~one).tolist():
            own = sorted(set(rows[at].tolist()) - {-1})
            for other in own[1:]:
                self._tie(other, own[0])
            labels[at] = own[0] if own else self._pin(self._fresh((1,), 0)).labels[0]
        return Slices(axis, labels)


def _passed_on(operator: Operator, before: list[Slices], shapes: list[Shape]) -> tuple[int, Index] | None:
    """The axis of the slices behind an operator that makes none of its own, and the labels of what it
    shows, broadcast to its shape; None where that cannot be said.
    """
    first = before[0]
    if isinstance(operator, Relu | Scale | Curve) or (
        isinstance(operator, Take | Transpose) and not shapes[0]
    ):
        return first.axis, _grid(first, shapes[0])
    if isinstance(operator, Softmax) and operator.axis != first.axis:
        return first.axis, _grid(first, shapes[0])
    if isinstance(operator, Add):
        if any(slices.axis != first.axis for slices in before):
            return None
        # Tied by putting all labels of a slice side by side.
        stacked = np.stack([slices.labels for slices in before])
        return _side_by_side(first.axis, stacked, shapes[0])
    if isinstance(operator, AveragePool | MaxPool):
        if first.axis != 0:
            return None
        space = operator.output_shape(shapes)[1:]
        return 0, np.broadcast_to(first.labels.reshape(-1, *(1,) * len(space)), (len(first.labels), *space))
    if isinstance(operator, Mean):
        if first.axis in operator.axes:
            return None
        axis = first.axis - (0 if operator.keep else sum(a < first.axis for a in operator.axes))
        return axis, _grid(Slices(axis, first.labels), operator.output_shape(shapes))
    if isinstance(operator, Reshape):
        return _reshaped(first, operator)
    if isinstance(operator, Transpose):
        axis = operator.order.index(first.axis)
        return axis, _grid(Slices(axis, first.labels), operator.output_shape(shapes))
    if isinstance(operator, Take):
        pick = operator.picks[first.axis]
        labels = first.labels if pick is None else np.where(pick < 0, -1, first.labels[pick])
        return first.axis, _grid(Slices(first.axis, labels), operator.output_shape(shapes))
    if isinstance(operator, Concat):
        return _joined(operator, before, shapes)
    return None


def _field_labels(
    node: Node, field: str, slices: Mapping[str, Slices], shapes: Mapping[str, Shape]
) -> list[Index | None]:
    """Per axis of a field of an operator the labels of the slices that go with it; None where it is never
    cut.
    """
    operator, own = node.operator, slices[node.name]
    array: Array = getattr(operator, field)
    found: list[Index | None] = [None] * array.ndim
    if isinstance(operator, Linear | Convolution):
        found[0] = own.labels
        before = slices[node.inputs[0]]
        last = len(shapes[node.inputs[0]]) - 1 if isinstance(operator, Linear) else 0
        if field == "weight" and before.axis == last and getattr(operator, "groups", 1) == 1:
            found[1] = before.labels
    elif isinstance(operator, Scale) and shapes[node.name]:
        behind = len(shapes[node.name]) - own.axis  # broadcasting counts from the last
        if array.ndim >= behind and array.shape[-behind] != 1:
            found[array.ndim - behind] = own.labels
    return found


def _grid(slices: Slices, shape: Shape) -> Index:
    if not shape:
        return slices.labels.reshape(())
    return np.broadcast_to(
        slices.labels.reshape(tuple(-1 if a == slices.axis else 1 for a in range(len(shape)))), shape
    )


def _rows(grid: Index, axis: int) -> Index:
    """What each slice along the axis holds, a row each."""
    if not grid.ndim:
        return grid.reshape(1, 1)
    size = grid.shape[axis]
    return np.moveaxis(grid, axis, 0).reshape(size, grid.size // size if size else 0)


def _side_by_side(axis: int, labels: Index, shape: Shape) -> tuple[int, Index]:
    """Several labels for each slice along the axis, in a grid of the slices by the labels."""
    between = (1,) * (max(len(shape), 1) - 1)
    grid = labels.T.reshape(shape[axis] if shape else 1, *between, len(labels))
    return axis, np.moveaxis(grid, 0, axis)


def _reshaped(slices: Slices, operator: Reshape) -> tuple[int, Index] | None:
    """Along the axis that keeps most labels apart: one whose slices hold one label each, or whose labels lie
    in one slice each.
    """
    if not operator.after:
        return None
    grid = np.ascontiguousarray(_grid(slices, operator.before)).reshape(operator.after)
    best = (0, 0)
    for axis, size in enumerate(operator.after if grid.size else ()):
        rows = _rows(grid, axis)
        if (rows == rows[:, :1]).all():
            best = max(best, (len(np.unique(rows[:, 0])), -axis))
        elif sum(len(np.unique(row)) for row in rows) == len(np.unique(rows)):
            best = max(best, (size, -axis))
    return -best[1], grid


def _joined(operator: Concat, before: list[Slices], shapes: list[Shape]) -> tuple[int, Index] | None:
    axis = before[0].axis
    if any(slices.axis != axis for slices in before):
        return None
    if axis != operator.axis:
        return _side_by_side(axis, np.stack([s.labels for s in before]), operator.output_shape(shapes))
    labels = np.concatenate([slices.labels for slices in before])
    return axis, _grid(Slices(axis, labels), operator.output_shape(shapes))
