"""Drop channels: slices of values that are always 0, or that nobody reads, wherever they run through the
graph.

1. **Label** the slices of every value (:mod:`relutrim.rewrite.channels`): a channel runs on through ReLU,
   pooling, batch norm, flattening, sums and concatenations, and all of these places lose it together.
2. **Ask** which labels stay: those of the outputs, and those with an entry that can be other than 0 and that
   something that stays reads.
3. **Cut** all others, everywhere. Nothing is rounded and no weight changes, so what stays is exactly what it
   was.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import numpy.typing as npt
import torch

from relutrim.bounds.values import Interval
from relutrim.network.graph import Network, Node
from relutrim.network.operators import (
    Affine,
    Concat,
    Convolution,
    Linear,
    Operator,
    Relu,
    Reshape,
    Scale,
    Shape,
    Take,
)
from relutrim.rewrite.channels import Index, Labels
from relutrim.rewrite.draft import Draft, Mask, Step

NAME = "drop-channels"


def drop_channels(draft: Draft) -> Draft:
    """The draft without the slices that are always 0 or that nobody reads."""
    labels = Labels(draft.network)
    return _cut(draft, labels, _staying(draft.network, labels, can_be_nonzero(draft)))


def _staying(network: Network, labels: Labels, nonzero: dict[str, Mask]) -> set[int]:
    """The roots of the labels that stay: those that are pinned, and those of entries that can be other than 0
    and that a slice that stays reads.

    A unit that is inactive but stays is written as a ReLU, so it needs its inputs as much as any other.
    """
    roots = {name: labels.roots(name) for name in network.shapes}
    staying = {labels.root(label) for label in labels.pinned}
    count = -1
    while count < len(staying):
        count = len(staying)
        for node in reversed(network.nodes):
            stays = np.isin(roots[node.name], list(staying))
            shapes = [network.shapes[name] for name in node.inputs]
            wanted = _spread_out(stays, labels.slices[node.name].axis, network.shapes[node.name])
            for name, read in zip(node.inputs, node.operator.reads(wanted, shapes), strict=True):
                axis = labels.slices[name].axis
                others = tuple(a for a in range(read.ndim) if a != axis)
                staying.update(roots[name][np.atleast_1d((read & nonzero[name]).any(axis=others))].tolist())
        if count == len(staying):
            # A value without entries is no value.
            empty = (r for r in reversed(roots.values()) if len(r) and not np.isin(r, list(staying)).any())
            staying.update(int(own[0]) for own in islice(empty, 1))
    return staying


def _spread_out(slices: Mask, axis: int, shape: Shape) -> Mask:
    """What is said of each slice along an axis, said of each entry."""
    sizes = [-1 if a == axis else 1 for a in range(len(shape))]
    found: Mask = np.array(np.broadcast_to(slices.reshape(sizes), shape))
    return found


def can_be_nonzero(draft: Draft) -> dict[str, Mask]:
    """Per value, which entries can be other than 0 on the domain."""
    network = draft.network
    found: dict[str, Mask] = {network.input.name: np.ones(network.input.shape, dtype=np.bool_)}
    for node in network.nodes:
        found[node.name] = _nonzero(draft, node, [found[name] for name in node.inputs])
    return found


def _nonzero(draft: Draft, node: Node, before: list[Mask]) -> Mask:
    """Which entries of a value can be other than 0, if those of its inputs are as ``before`` says."""
    tensors = [torch.as_tensor(mask).to(torch.float64)[None] for mask in before]
    operator = node.operator
    if isinstance(operator, Affine):
        some = operator.spread(tensors) > 0
        some |= operator.magnitude([torch.zeros_like(t) for t in tensors]) > 0
        fuzz = operator.fuzz(tensors)
        some = some if fuzz is None else some | (fuzz > 0)
    else:
        some = operator.forward(tensors) > 0  # at 1 none of the functions is 0, and some are not at 0 either
    mask: Mask = some[0].numpy()
    if isinstance(operator, Relu):
        mask = mask & ~draft.zero[node.name].reshape(mask.shape)
    return mask


def _cut(draft: Draft, labels: Labels, staying: set[int]) -> Draft:
    network = draft.network
    keep = {name: np.isin(labels.roots(name), list(staying)) for name in network.shapes}
    if all(mask.all() for mask in keep.values()):
        return draft
    cut = _Cut(network, labels, keep)
    change: dict[str, Node | None] = {
        node.name: Node(node.name, cut.operator(node), node.inputs) for node in network.nodes
    }
    smaller = network.edit(change=change)
    gone = network.neurons - smaller.neurons
    identity = {relu.name: cut.flat(relu.name, draft.identity[relu.name]) for relu in network.relus}
    zero = {relu.name: cut.flat(relu.name, draft.zero[relu.name]) for relu in network.relus}
    ranges = {
        name: Interval(*(torch.as_tensor(cut.value(name, end[0].numpy()))[None] for end in (r.lo, r.hi)))
        for name, r in draft.ranges.items()
    }
    where = [
        name
        for node in network.nodes
        if isinstance(node.operator, Relu) and not keep[name := node.name].all()
    ]
    count = sum(int((~keep[name]).sum()) for name in where)
    step = Step(NAME, where[0] if where else "", f"removed {count} channels in {len(where)} layers", gone)
    return draft.rewritten(smaller, step, identity=identity, zero=zero, ranges=ranges)


@dataclass(frozen=True, eq=False)
class _Cut:
    """A network's parts without the slices that go."""

    network: Network
    labels: Labels
    keep: dict[str, Mask]

    def kept(self, name: str) -> Index:
        """Which slices of a value stay."""
        return np.flatnonzero(self.keep[name])

    def shape(self, name: str) -> Shape:
        """The shape that a value has then."""
        shape = list(self.network.shapes[name])
        if shape:
            shape[self.labels.slices[name].axis] = len(self.kept(name))
        return tuple(shape)

    def value(self, name: str, array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """An array of the value's shape without what goes."""
        return np.take(array, self.kept(name), axis=self.labels.slices[name].axis) if array.ndim else array

    def flat(self, name: str, mask: Mask) -> Mask:
        """The same for a flat mask over the value's entries."""
        found: Mask = self.value(name, mask.reshape(self.network.shapes[name])).reshape(-1).astype(np.bool_)
        return found

    def operator(self, node: Node) -> Operator:
        """The node's operator on what stays."""
        operator, rows = node.operator, self.kept(node.name)
        columns = self.kept(node.inputs[0])
        match operator:
            case Linear():
                own = operator.weight[rows]
                last = len(self.network.shapes[node.inputs[0]]) - 1
                inward = self.labels.slices[node.inputs[0]].axis == last
                return Linear(own[:, columns] if inward else own, operator.bias[rows])
            case Convolution():
                kernel = operator.weight[rows]
                if operator.groups == 1:
                    kernel = kernel[:, columns] if self.labels.slices[node.inputs[0]].axis == 0 else kernel
                    return replace(operator, weight=kernel, bias=operator.bias[rows])
                groups = operator.groups if len(rows) == len(operator.bias) else len(rows)
                return replace(operator, weight=kernel, bias=operator.bias[rows], groups=groups)
            case Scale():
                return self._scale(node.name, operator)
            case Reshape():
                return Reshape(self.shape(node.inputs[0]), self.shape(node.name))
            case Take():
                return Take(self._picks(node, operator))
            case Concat():
                return Concat(operator.axis, tuple(self.shape(n)[operator.axis] for n in node.inputs))
            case _:
                return operator

    def _scale(self, name: str, operator: Scale) -> Scale:
        """Parameters that vary along the axis lose what goes."""
        shape, axis = self.network.shapes[name], self.labels.slices[name].axis
        behind = len(shape) - axis  # axes are counted from the last when arrays broadcast

        def part(array: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
            if array.ndim < behind or array.shape[-behind] == 1:
                return array
            return np.take(array, self.kept(name), axis=array.ndim - behind)

        return replace(
            operator,
            scale=part(operator.scale),
            shift=part(operator.shift),
            scale_radius=part(operator.scale_radius),
            shift_radius=part(operator.shift_radius),
        )

    def _picks(self, node: Node, operator: Take) -> tuple[Index | None, ...]:
        axis = self.labels.slices[node.name].axis
        picks = list(operator.picks)
        pick = picks[axis] if picks else None
        if pick is not None:
            place = np.cumsum(self.keep[node.inputs[0]]) - 1
            left = pick[self.kept(node.name)]
            picks[axis] = np.where(left < 0, -1, place[left])
        return tuple(picks)
