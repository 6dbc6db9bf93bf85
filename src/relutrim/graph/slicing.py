"""What is left of a node when slices of values go: the same numbers, fewer of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from relutrim.graph.graph import Network, Node
from relutrim.graph.operators import (
    Array,
    BatchNorm,
    Concat,
    Convolution,
    Linear,
    Operator,
    Reshape,
    Scale,
    Shape,
    Take,
)

Index = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Kept:
    """The slices of a value along ``axis`` (which does not count the batch) that stay, by their places in the
    value as it was; -1 is one that was not there.
    """

    axis: int
    indices: Index

    def of(self, shape: Shape) -> Shape:
        """The shape that is left of one."""
        return tuple(len(self.indices) if at == self.axis else size for at, size in enumerate(shape))

    def then(self, later: Kept) -> Kept:
        """What stays of what stays: of slices along two axes nothing is known any more."""
        if later.axis != self.axis or later.indices.max(initial=-1) >= len(self.indices):
            return Kept(later.axis, np.full(len(later.indices), -1))
        found = np.where(later.indices < 0, -1, np.append(self.indices, -1)[later.indices])
        return Kept(self.axis, found.astype(np.int64))


def composed(before: Mapping[str, Kept], now: Mapping[str, Kept], network: Network) -> dict[str, Kept]:
    """What is left of the values of ``network`` after another step."""
    found = {**before, **now}
    for name in before.keys() & now.keys():
        found[name] = before[name].then(now[name])
    return {name: kept for name, kept in found.items() if name in network.shapes}


def cut(network: Network, node: Node, kept: Mapping[str, Kept]) -> Operator | None:
    """The node's operator between values of which only what is ``kept`` stays; the operator itself if that
    changes nothing, None if it cannot lose these slices.
    """
    values = [*node.inputs, node.name]
    if not any(name in kept for name in values):
        return node.operator
    if any((kept[name].indices < 0).any() for name in values if name in kept):
        return None
    sliced = _Sliced(network, node, kept)
    operator = node.operator
    match operator:
        case Linear():
            return sliced.linear(operator)
        case Convolution():
            return sliced.convolution(operator)
        case Scale():
            return sliced.scale(operator)
        case Reshape():
            return Reshape(sliced.shape(node.inputs[0]), sliced.shape(node.name))
        case Take():
            return sliced.take(operator)
        case Concat():
            return Concat(operator.axis, tuple(sliced.shape(n)[operator.axis] for n in node.inputs))
        case _:
            return operator


@dataclass(frozen=True, eq=False)
class _Sliced:
    network: Network
    node: Node
    kept: Mapping[str, Kept]

    def shape(self, name: str) -> Shape:
        shape = self.network.shapes[name]
        return self.kept[name].of(shape) if name in self.kept and shape else shape

    def indices(self, name: str, axis: int) -> Index:
        """Which entries of an axis stay."""
        kept = self.kept.get(name)
        if kept is None or kept.axis != axis:
            return np.arange(self.network.shapes[name][axis])
        return kept.indices

    def linear(self, operator: Linear) -> Operator:
        last = len(self.network.shapes[self.node.name]) - 1
        rows, columns = self.indices(self.node.name, last), self.indices(self.node.inputs[0], last)
        return Linear(operator.weight[np.ix_(rows, columns)], operator.bias[rows])

    def convolution(self, operator: Convolution) -> Operator | None:
        """The same number of channels stays in every group, or whole groups go."""
        rows, columns = self.indices(self.node.name, 0), self.indices(self.node.inputs[0], 0)
        if operator.groups == 1:
            return replace(operator, weight=operator.weight[rows][:, columns], bias=operator.bias[rows])
        wide, deep = operator.weight.shape[0] // operator.groups, operator.weight.shape[1]
        made = [rows[rows // wide == group] for group in range(operator.groups)]
        read = [columns[columns // deep == group] % deep for group in range(operator.groups)]
        used = [group for group in range(operator.groups) if len(made[group]) or len(read[group])]
        sizes = {(len(made[group]), len(read[group])) for group in used}
        if len(sizes) != 1 or 0 in next(iter(sizes)):
            return None
        weight = np.concatenate([operator.weight[made[group]][:, read[group]] for group in used])
        return replace(operator, weight=weight, bias=operator.bias[rows], groups=len(used))

    def scale(self, operator: Scale) -> Operator:
        """Numbers that vary along the axis lose what goes."""
        kept = self.kept.get(self.node.name)
        if kept is None or not self.network.shapes[self.node.name]:
            return operator
        behind = len(self.network.shapes[self.node.name]) - kept.axis  # broadcasting counts from the last

        def part(array: Array) -> Array:
            if array.ndim < behind or array.shape[-behind] == 1:
                return array
            return np.take(array, kept.indices, axis=array.ndim - behind)

        if isinstance(operator, BatchNorm):
            gain, bias = part(operator.gain), part(operator.bias)
            mean, variance = part(operator.mean), part(operator.variance)
            return BatchNorm.of(gain, bias, mean, variance, operator.epsilon)
        return replace(
            operator,
            scale=part(operator.scale),
            shift=part(operator.shift),
            scale_radius=part(operator.scale_radius),
            shift_radius=part(operator.shift_radius),
        )

    def take(self, operator: Take) -> Operator | None:
        before, after = self.kept.get(self.node.inputs[0]), self.kept.get(self.node.name)
        if (before or after) is None or not operator.picks:
            return operator
        axis = (before or after).axis  # type: ignore[union-attr]
        if before is not None and after is not None and before.axis != after.axis:
            return None
        picks, pick = list(operator.picks), operator.picks[axis]
        if pick is None:
            return operator
        place = np.full(self.network.shapes[self.node.inputs[0]][axis], -2)
        stays = self.indices(self.node.inputs[0], axis)
        place[stays] = np.arange(len(stays))
        left = pick[self.indices(self.node.name, axis)]
        found = np.where(left < 0, -1, place[left])
        if (found == -2).any():
            return None
        picks[axis] = found
        return Take(tuple(picks))
