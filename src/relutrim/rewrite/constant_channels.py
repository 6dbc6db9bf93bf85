"""Constant channels become bias.

A channel whose every entry is one number on the whole domain (a kernel of zeros, or one that is inactive and
then shifted) tells whoever weighs it nothing: what they make of it is a constant, and it goes. Behind a
convolution with padding the border differs from the middle, so that constant is not the same everywhere; it
becomes bias only where the kernel makes nothing of the difference, and otherwise a map, a number for each
entry of the convolution's value, if that is less than the channel was (:mod:`relutrim.rewrite.absorb`).

Constant means up to the last digits: half of what is left of a range is charged to the readers.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from relutrim.graph.operators import Convolution, Linear
from relutrim.intervals import Interval
from relutrim.rewrite.absorb import Substitute, absorb, as_bias, weighers
from relutrim.rewrite.channels import Labels
from relutrim.rewrite.draft import Draft, Mask, Step, middle
from relutrim.rewrite.drop_channels import drop_channels

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


def _some(draft: Draft) -> bool:
    """Whether a node that weighs what it reads reads a constant other than 0 at all."""
    sources = {n.inputs[0] for n in draft.network.nodes if isinstance(n.operator, Linear | Convolution)}
    return any(bool((_narrow(draft.ranges[name]) & (draft.reach(name) > 0)).any()) for name in sources)


def _narrow(known: Interval) -> Tensor:
    """Which entries are constant."""
    size = known.magnitude
    return (known.hi - known.lo <= _DIGITS * size) & size.isfinite()


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
