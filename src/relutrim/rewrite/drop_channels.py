"""Drop channels: slices of values that are always 0, or that nobody reads, wherever they run through the
graph.

1. **Label** the slices of every value (:mod:`relutrim.rewrite.channels`): a channel runs on through ReLU,
   pooling, batch norm, flattening, sums and concatenations, and all of these places lose it together.
2. **Ask** which labels stay: those of the outputs, and those with an entry that can be other than 0 and that
   an output depends on; and as many more as let all groups of a convolution stay of one size
   (:mod:`relutrim.rewrite.grouped`).
3. **Cut** all others, everywhere. Nothing is rounded and no weight changes, so what an output depends on is
   exactly what it was.

A slice may stay only because it is tied to one that does: a branch of a sum whose last scale is 0, say. No
output depends on it, so it holds nothing in front of it; what it is then is worked out anew.

A tensor that several nodes read may come apart by that, and then each of them stores its own part.
:func:`drop_together` cuts what leaves it one tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from relutrim.bounds.interval import node_interval
from relutrim.graph.graph import Network, Node
from relutrim.graph.operators import Affine, Fresh, Relu, Shape
from relutrim.graph.slicing import Kept, cut
from relutrim.intervals import Interval
from relutrim.rewrite.channels import Labels
from relutrim.rewrite.draft import Draft, Mask, Step
from relutrim.rewrite.grouped import evened

NAME = "drop-channels"


def drop_channels(draft: Draft, *, unmoved: bool = False) -> Draft:
    """The draft without the slices that are always 0 or that nobody reads. With ``unmoved``, every slice that
    stays is what it was, whether an output depends on it or not.
    """
    return _dropped(draft, Labels(draft.network), unmoved=unmoved)


def drop_together(draft: Draft, *, unmoved: bool = False) -> Draft:
    """The same without what would make the places that read one tensor need different ones; the draft itself
    where no tensor is read in several places.
    """
    if not draft.network.shared:
        return draft
    return _dropped(draft, Labels(draft.network, together=True), unmoved=unmoved)


def _dropped(draft: Draft, labels: Labels, *, unmoved: bool) -> Draft:
    nonzero = can_be_nonzero(draft)
    staying, wanted = _staying(draft.network, labels, nonzero, unmoved=unmoved)
    return _cut(draft, labels, staying, _unknown(draft.network, labels, staying, wanted, nonzero))


def _staying(
    network: Network, labels: Labels, nonzero: dict[str, Mask], *, unmoved: bool
) -> tuple[set[int], dict[str, Mask]]:
    """The roots of the labels that stay: those that are pinned, those of entries that can be other than 0 and
    that an output depends on, and those without which a convolution would have groups of several sizes. And,
    of what stays, the entries that an output depends on, 0 or not: with ``unmoved``, all are taken for that.

    A unit that is inactive but stays is written as a ReLU, so it needs its inputs as much as any other.
    """
    roots = {name: labels.roots(name) for name in network.shapes}
    staying = {labels.root(label) for label in labels.pinned}
    wanted = {
        name: np.full(shape, unmoved or network.is_output(name)) for name, shape in network.shapes.items()
    }
    count = -1
    while count < len(staying):
        count = len(staying)
        for node in reversed(network.nodes):
            stays = np.isin(roots[node.name], list(staying))
            shapes = [network.shapes[name] for name in node.inputs]
            own = wanted[node.name] & _spread_out(
                stays, labels.slices[node.name].axis, wanted[node.name].shape
            )
            for name, read in zip(node.inputs, node.operator.reads(own, shapes), strict=True):
                axis = labels.slices[name].axis
                others = tuple(a for a in range(read.ndim) if a != axis)
                staying.update(roots[name][np.atleast_1d((read & nonzero[name]).any(axis=others))].tolist())
                wanted[name] |= read
        if count == len(staying):
            staying = evened(labels, staying)
        if count == len(staying):
            # A value without entries is no value.
            empty = (r for r in reversed(roots.values()) if len(r) and not np.isin(r, list(staying)).any())
            staying.update(int(own[0]) for own in islice(empty, 1))
    return staying, wanted


def _unknown(
    network: Network,
    labels: Labels,
    staying: set[int],
    wanted: Mapping[str, Mask],
    nonzero: Mapping[str, Mask],
) -> dict[str, Mask]:
    """Per value, which entries become something else when all but ``staying`` goes, where some do: no output
    depends on them, and something that they depend on goes.
    """
    found: dict[str, Mask] = {}
    for node in network.nodes:
        missing = [
            name for name in node.inputs if name in found or _loses(labels, name, staying, nonzero[name])
        ]
        if missing and not wanted[node.name].all():
            found[node.name] = ~wanted[node.name]
    return found


def _loses(labels: Labels, name: str, staying: set[int], nonzero: Mask) -> bool:
    """Whether something goes from a value that is not always 0."""
    goes = ~np.isin(labels.roots(name), list(staying))
    return bool((nonzero & _spread_out(goes, labels.slices[name].axis, nonzero.shape)).any())


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
    if isinstance(operator, Fresh):
        return np.ones(operator.shape, dtype=np.bool_)
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


def _cut(draft: Draft, labels: Labels, staying: set[int], unknown: Mapping[str, Mask]) -> Draft:
    """The draft of which only what is ``staying`` is left; nothing is known of the entries ``unknown`` but
    what follows from those in front of them.
    """
    network = draft.network
    keep = {name: np.isin(labels.roots(name), list(staying)) for name in network.shapes}
    if all(mask.all() for mask in keep.values()):
        return draft
    kept = {
        name: Kept(labels.slices[name].axis, np.flatnonzero(mask))
        for name, mask in keep.items()
        if not mask.all()
    }
    change: dict[str, Node | None] = {node.name: _without(network, node, kept) for node in network.nodes}
    smaller = network.edit(change=change)
    gone = network.neurons - smaller.neurons

    def flat(name: str, mask: Mask) -> Mask:
        found: Mask = _sliced(kept.get(name), mask.reshape(network.shapes[name])).reshape(-1)
        return found

    def stable(masks: Mapping[str, Mask]) -> dict[str, Mask]:
        known = {
            name: mask & ~unknown[name].reshape(mask.shape) if name in unknown else mask
            for name, mask in masks.items()
        }
        return {relu.name: flat(relu.name, known[relu.name]) for relu in network.relus}

    # Of a domain's normalisation the draft may know ranges too, of values in front of the network.
    ranges = {}
    for name in network.shapes:
        lo, hi = (
            _sliced(kept.get(name), end[0].numpy()) for end in (draft.ranges[name].lo, draft.ranges[name].hi)
        )
        ranges[name] = Interval(torch.as_tensor(lo)[None], torch.as_tensor(hi)[None])
    for node in smaller.nodes:
        if node.name in unknown:
            mask = torch.as_tensor(_sliced(kept.get(node.name), unknown[node.name]))[None]
            made, known = node_interval(node, ranges), ranges[node.name]
            ranges[node.name] = Interval(made.lo.where(mask, known.lo), made.hi.where(mask, known.hi))
    where = [
        name
        for node in network.nodes
        if isinstance(node.operator, Relu) and not keep[name := node.name].all()
    ]
    count = sum(int((~keep[name]).sum()) for name in where)
    step = Step(NAME, where[0] if where else "", f"removed {count} channels in {len(where)} layers", gone)
    identity, zero = stable(draft.identity), stable(draft.zero)
    return draft.rewritten(smaller, step, identity=identity, zero=zero, ranges=ranges, kept=kept)


def _without(network: Network, node: Node, kept: Mapping[str, Kept]) -> Node:
    """The node between values that have lost slices."""
    operator = cut(network, node, kept)
    assert operator is not None, node.name  # its labels would have been pinned
    return node if operator is node.operator else replace(node, operator=operator)


def _sliced(kept: Kept | None, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """An array of a value's shape without what goes."""
    return array if kept is None or not array.ndim else np.take(array, kept.indices, axis=kept.axis)
