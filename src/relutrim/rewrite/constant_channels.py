"""Constant channels become bias.

A channel whose every entry is one number on the whole domain (a kernel of zeros, or one that is inactive and
then shifted) tells whoever weighs it nothing: what they make of it is a constant, and it goes. Behind a
convolution with padding the border differs from the middle, so that constant is not the same everywhere; it
becomes bias only where the kernel makes nothing of the difference, and otherwise a map, a number for each
entry of the convolution's value, if that is less than the channel was (:mod:`relutrim.rewrite.absorb`).

Where neither is less, one constant channel holds what the others add
(:func:`~relutrim.rewrite.merge_channels.merge_constants`), or a pair of them: what storing rounds off the
weight of the first one is for the second, whose weight is so small that its own rounding is nothing.

Constant means up to the last digits: half of what is left of a range is charged to the readers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from relutrim.bounds.interval import magnitude
from relutrim.graph.graph import Node
from relutrim.graph.operators import Convolution, Linear
from relutrim.intervals import Interval
from relutrim.rewrite.absorb import Substitute, absorb, as_bias, weighers
from relutrim.rewrite.channels import Labels
from relutrim.rewrite.draft import Draft, Mask, Step, middle
from relutrim.rewrite.drop_channels import drop_channels
from relutrim.rewrite.kinship import ordinary
from relutrim.rewrite.layers import finite
from relutrim.rewrite.storage import held
from relutrim.rounding import ETA, gamma

NAME = "constant-channels"
_DIGITS = 2.0**-46
"""A range this narrow, as a share of what lies in it, is what rounding has made of a number."""


def constant_channels(draft: Draft) -> Draft:
    """The draft without the channels whose constants fit into biases."""
    if not _some(draft):
        return draft
    found = _Constant(draft)
    gone = {root for root, uniform in found.uniform.items() if uniform}
    return found.without(gone, maps=False)


def mapped_constants(draft: Draft) -> list[Draft]:
    """Drafts without constant channels that need maps, one for each set of values that these run through."""
    if not _some(draft):
        return []
    found = _Constant(draft)
    together: dict[tuple[str, ...], set[int]] = {}
    for root, uniform in found.uniform.items():
        if not uniform:
            together.setdefault(found.where[root], set()).add(root)
    return [found.without(gone, maps=True) for gone in together.values()]


def pair_constants(draft: Draft) -> Draft:
    """The draft in which, of three or more constant channels that run through the same values, two stay."""
    if not _some(draft):
        return draft
    found = _Constant(draft)
    together: dict[tuple[str, ...], list[dict[str, _Number]]] = {}
    for root, where in found.where.items():
        numbers = found.numbers(root)
        if numbers is not None:
            together.setdefault(where, []).append(numbers)
    change: dict[str, Node | None] = {}
    moved: dict[str, Tensor] = {}
    count = 0
    for where, channels in together.items():
        if len(channels) < 3:
            continue
        channels.sort(key=lambda numbers: -abs(numbers[where[0]].number))
        count += len(channels) - 2
        for node in (reader for name in where for reader in found.readers[name]):
            slices = [numbers[node.inputs[0]] for numbers in channels]
            paired = _paired(draft, change.get(node.name) or node, slices)
            if paired is None:
                return draft
            change[node.name], off = paired
            moved[node.name] = off + moved.get(node.name, 0.0)
    if not count:
        return draft
    step = Step(NAME, next(iter(change)), f"{count} channels are constant, and two others hold what they add")
    return drop_channels(draft.rewritten(draft.network.edit(change=change), step, moved=moved))


def _paired(draft: Draft, node: Node, slices: list[_Number]) -> tuple[Node, Tensor] | None:
    """A node that weighs only the first two of these slices, and how far its value can be from what it was.
    The weights of the two are numbers that the file holds.
    """
    operator, dtype = node.operator, draft.network.dtype
    assert isinstance(operator, Linear | Convolution)
    at = [one.place for one in slices]
    number, radius = np.array([one.number for one in slices]), np.array([one.radius for one in slices])
    wide = (1, -1, *(1,) * (operator.weight.ndim - 2))
    old = operator.weight[:, at]
    new = np.zeros_like(old)
    total = (old * number.reshape(wide)).sum(1)
    new[:, 0] = held(total / number[0], dtype)
    new[:, 1] = held((total - number[0] * new[:, 0]) / number[1], dtype)
    sizes = (np.abs(old) + np.abs(new)) * np.abs(number).reshape(wide)
    off = np.abs(((old - new) * number.reshape(wide)).sum(1)) + gamma(len(at) + 6) * sizes.sum(1)
    off += ((np.abs(old) + np.abs(new)) * radius.reshape(wide)).sum(1) * (1 + 2.0**-20)
    if not finite(new, off):
        return None
    weight, gap = operator.weight.copy(), np.zeros_like(operator.weight)
    weight[:, at], gap[:, at[0]] = new, off * (1 + 2.0**-20) + 8 * len(at) * ETA
    ones = torch.ones_like(draft.ranges[node.inputs[0]].lo)
    apart = magnitude(replace(operator, weight=gap, bias=np.zeros_like(operator.bias)), [ones])
    return Node(node.name, replace(operator, weight=weight), node.inputs), apart * (1 + 2.0**-20)


def _some(draft: Draft) -> bool:
    """Whether a node that weighs what it reads reads a constant other than 0 at all."""
    sources = {n.inputs[0] for n in draft.network.nodes if isinstance(n.operator, Linear | Convolution)}
    return any(bool((_narrow(draft.ranges[name]) & (draft.reach(name) > 0)).any()) for name in sources)


def _narrow(known: Interval) -> Tensor:
    """Which entries are constant."""
    size = known.magnitude
    return (known.hi - known.lo <= _DIGITS * size) & size.isfinite()


@dataclass(frozen=True)
class _Number:
    """A slice of a value, at ``place``, that is a number all over, up to a radius."""

    place: int
    number: float
    radius: float


class _Constant:
    """The channels of a draft that are constant wherever they are weighed."""

    def __init__(self, draft: Draft) -> None:
        self.draft, self.labels = draft, Labels(draft.network)
        self.readers = weighers(draft.network, self.labels)
        self.roots = {name: self.labels.roots(name) for name in self.readers}
        self.where: dict[int, tuple[str, ...]] = {}
        self.uniform: dict[int, bool] = {}
        varying = self.labels.fixed()
        for name, roots in self.roots.items():
            constant = self._constant(name)
            varying.update(roots[~constant].tolist())
        for name, roots in self.roots.items():
            for root in sorted(set(roots.tolist()) - varying):
                self.where[root] = (*self.where.get(root, ()), name)
        for root, names in self.where.items():
            self.uniform[root] = all(self._uniform(root, name) for name in names)

    def without(self, gone: set[int], *, maps: bool) -> Draft:
        """The draft without these channels."""
        if not gone:
            return self.draft
        instead = {
            name: self._substitute(name, np.isin(roots, list(gone))) for name, roots in self.roots.items()
        }
        text = f"{len(gone)} channels are constant and became " + ("maps of numbers" if maps else "bias")
        first = self.where[min(gone)][0]
        return drop_channels(absorb(self.draft, self.labels, instead, Step(NAME, first, text), maps=maps))

    def numbers(self, root: int) -> dict[str, _Number] | None:
        """What the channel is in each value where it is weighed; None if it is not one slice of one number
        there.
        """
        found = {}
        for name in self.where[root]:
            places = np.flatnonzero(self.roots[name] == root)
            if len(places) != 1:
                return None
            known, axis = self.draft.ranges[name], self.labels.slices[name].axis
            lo, hi = (end[0].numpy().take(places[0], axis) for end in (known.lo, known.hi))
            number = float(lo.min() / 2 + hi.max() / 2)
            off = max(float(hi.max()) - number, number - float(lo.min())) * (1 + 2.0**-20)
            if not off <= _DIGITS * abs(number) or not ordinary(np.array(number)):
                return None
            found[name] = _Number(int(places[0]), number, off)
        return found

    def _slices(self, name: str, mask: Mask) -> Mask:
        """What is said of slices of a value, to be broadcast into its shape."""
        shape, axis = self.draft.network.shapes[name], self.labels.slices[name].axis
        return mask.reshape(tuple(-1 if a == axis else 1 for a in range(len(shape))))

    def _constant(self, name: str) -> Mask:
        """Which slices of a value are constant."""
        entries = _narrow(self.draft.ranges[name])[0].numpy()
        others = tuple(a for a in range(entries.ndim) if a != self.labels.slices[name].axis)
        found: Mask = np.asarray(entries.all(axis=others))
        return found

    def _substitute(self, name: str, gone: Mask) -> Substitute:
        centre, radius = middle(self.draft.ranges[name])
        wide = torch.as_tensor(self._slices(name, gone))
        none = np.zeros(0, dtype=np.int64)
        constant = torch.where(wide, centre[0], torch.zeros_like(centre[0])).numpy()
        gap = torch.where(wide, radius[0], torch.zeros_like(radius[0])).numpy()
        return Substitute(gone, none, none, np.zeros(0), constant, gap)

    def _uniform(self, root: int, name: str) -> bool:
        """Whether every node that weighs the channel makes the same number of it all over."""
        constant = self._substitute(name, self.roots[name] == root).constant
        operators = [node.operator for node in self.readers[name] if constant.any()]
        return all(as_bias(o, constant) is not None for o in operators if isinstance(o, Linear | Convolution))
