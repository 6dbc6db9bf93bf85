"""The bound that multipliers prove, for many nodes of a tree at once, and in which direction it grows.

This is :mod:`relutrim.prove.hull.packed` in whatever precision is quick, on any device: nothing rests on the
numbers here. Nodes are the last dimension of every tensor, so that what belongs to an input of a neuron lies
together. Only the inputs of a neuron that matter have a share ``a_i`` of their own; trained with an l1
penalty most do not.

The subgradient is a point of the model: going forward from the corner of the box where the bound is
attained, or from the input where it is attained under the domain's constraints, every neuron has the value
that its replacement has there.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from relutrim.domain.region import Region
from relutrim.prove.hull.layers import Layer, free_columns, layers_of, without
from relutrim.prove.hull.model import Index, Model

_LEAST = 1e-3
"""Inputs that together make out a smaller share of a neuron's range have no share of their own."""
_SPARE = 1.3


@dataclass(eq=False)
class Multipliers:
    """Of one layer: lean and push ``[neurons, nodes]``, mixture ``[4, neurons, nodes]`` (its sum is 1), and
    the shares ``[neurons, k, nodes]``. Pushes are in units of what a neuron weighs at the root.
    """

    lean: Tensor
    mix: Tensor
    push: Tensor
    share: Tensor

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """All four."""
        return self.lean, self.mix, self.push, self.share

    @property
    def count(self) -> int:
        """Of how many nodes they are."""
        return self.lean.shape[-1]

    def __getitem__(self, index: Tensor | slice) -> Multipliers:
        return Multipliers(*(part[..., index] for part in self.parts))

    def repeated(self, times: int) -> Multipliers:
        """Every node so many times in a row."""
        return Multipliers(*(part.repeat_interleave(times, -1) for part in self.parts))

    def clone(self) -> Multipliers:
        """A copy, node by node together."""
        return Multipliers(*(part.clone(memory_format=torch.contiguous_format) for part in self.parts))

    @classmethod
    def joined(cls, blocks: Sequence[Multipliers]) -> Multipliers:
        """Those of all nodes, one block behind the other."""
        if len(blocks) == 1:
            return blocks[0]
        return cls(*(torch.cat(parts, -1) for parts in zip(*(own.parts for own in blocks), strict=True)))


class Level:
    """A layer, as tensors: vectors are columns ``[neurons, 1]``. ``ends`` are those of the terms with a share
    of their own, ``rest`` half the weights of all others; ``place`` says which of ``read`` a term has.
    """

    def __init__(self, layer: Layer, ends: tuple[np.ndarray, np.ndarray], like: Tensor) -> None:
        self.layer = layer
        self.places = heaviest(layer)

        def tensor(values: np.ndarray) -> Tensor:
            return torch.as_tensor(values, dtype=like.dtype, device=like.device)

        def index(values: np.ndarray) -> Tensor:
            return torch.as_tensor(values, dtype=torch.int64, device=like.device)

        def own(matrix: np.ndarray) -> np.ndarray:
            return np.take_along_axis(matrix, self.places, 1)

        def half(matrix: np.ndarray) -> np.ndarray:
            return 0.5 * without(matrix, self.places)

        self.columns, self.read, self.place = (
            index(part) for part in (layer.columns, layer.read, self.places.reshape(-1))
        )
        # A term that falls with its input is at its smallest where the input is at its largest.
        self.side = index(
            np.where(own(layer.weight) < 0, self.places + len(layer.read), self.places).reshape(-1)
        )
        self.weight, self.rest = tensor(layer.weight), tensor(half(layer.weight))
        self.bias, self.lo, self.hi = (tensor(part)[:, None] for part in (layer.bias, layer.lo, layer.hi))
        self.both = torch.as_tensor(layer.both, device=like.device)[:, None]
        self.terms = tensor(own(layer.weight))[:, :, None]
        self.ends = tensor(np.stack([own(layer.smallest), own(layer.largest)], axis=1))
        self.width = self.ends[:, 1:] - self.ends[:, :1]
        self.rest_low = tensor(half(layer.smallest).sum(1))[:, None]
        self.high = tensor(layer.largest.sum(1) - half(layer.largest).sum(1))[:, None]
        low, high = (end[layer.read] for end in ends)
        self.low, self.span = tensor(low)[:, None], tensor(np.where(high > low, high - low, 1.0))[:, None]

    def middling(self) -> Multipliers:
        """Multipliers of one node to begin with: something of everything."""
        lean = torch.full_like(self.bias, 0.5)
        mix = torch.stack([self.hi, -self.lo, torch.zeros_like(lean), (self.hi - self.lo) / 2]).clamp(min=0)
        mix = torch.where(self.both, mix / mix.sum(0).clamp(min=1e-30), 0.25)
        return Multipliers(lean, mix, torch.zeros_like(lean), torch.full_like(self.terms, 0.5))


def heaviest(layer: Layer) -> Index:
    """The places of the inputs that have shares of their own, ``[neurons, k]``."""
    return layer.heaviest(_LEAST, _SPARE)


class Use(NamedTuple):
    """What a layer's neurons were replaced by: their weights ``A``, the negative ones of those that are
    mixed, the states of the mixtures, and the constants and slopes of the sums with shares.
    """

    weights: Tensor
    below: Tensor
    state: Tensor
    constant: Tensor
    slope: Tensor
    most: Tensor
    """The mixture's constant, at its state."""


class Pass(NamedTuple):
    """The bounds of a batch, what each layer came to, the first first, and the corner of the box where the
    bound is attained.
    """

    bound: Tensor
    uses: list[Use]
    corner: Tensor


class Dual:
    """The passes of a model, on a device, in a precision. ``scales`` are the units of pushes.

    ``cost`` and ``offset`` have one column for all nodes, or one for each: see :meth:`aimed`.
    """

    def __init__(self, model: Model, device: torch.device, dtype: torch.dtype) -> None:
        self.model, self.device, self.dtype = model, device, dtype
        like = torch.zeros(0, dtype=dtype, device=device)
        self.cost = torch.as_tensor(model.cost, dtype=dtype, device=device)[:, None]
        self.offset = self.cost.new_tensor([float(model.offset)])
        self.levels = [Level(layer, model.ends, like) for layer in layers_of(model)]
        self.scales = [torch.ones_like(level.bias) for level in self.levels]
        free = free_columns(model)
        self.free = torch.as_tensor(free, device=device)
        self.low, self.high = (
            torch.as_tensor(end[free], dtype=dtype, device=device)[:, None] for end in model.ends
        )
        self.inputs = self._constrained_inputs(free)

    def _constrained_inputs(self, free: Index) -> tuple[Region, Tensor, Tensor] | None:
        """The domain, which of its inputs have columns, and the places of these among the free ones; None
        where the model does not reach back to them, or there is nothing but a box.
        """
        region = self.model.backward.region
        entries, columns = self.model.input_columns
        if not region.constrained or not len(entries):
            return None
        places = torch.as_tensor(np.searchsorted(free, columns), device=self.device)
        return region.to(self.device, self.dtype), torch.as_tensor(entries, device=self.device), places

    @property
    def shares(self) -> int:
        """Shares of one node, in all levels."""
        return sum(level.places.size for level in self.levels)

    def aimed(self, cost: Tensor, offset: Tensor) -> Dual:
        """The same model with a goal for each node: ``[columns, nodes]`` and ``[nodes]``."""
        other = copy(self)
        other.cost, other.offset = cost, offset
        return other

    @torch.no_grad()
    def run(self, batch: Sequence[Multipliers], states: Sequence[Tensor]) -> Pass:
        """``states`` are 1 (on), -1 (off) or 0 (free), ``[neurons, nodes]`` for each layer."""
        count = states[0].shape[1]
        weights = self.cost.expand(-1, count).clone(memory_format=torch.contiguous_format)
        bound = self.offset.expand(count).clone()
        uses = []
        for level, scale, own, state in zip(
            *(reversed(part) for part in (self.levels, self.scales, batch, states)), strict=True
        ):
            at, mix = weights[level.columns], own.mix
            on, off = state > 0, state < 0
            sums = torch.bmm(level.ends, own.share)
            constant = -(sums[:, 0] + level.rest_low)
            slope = level.bias + level.high - sums[:, 1] - constant
            rise = mix[0] * level.lo + mix[1] * level.hi + mix[3] * slope
            z = on | (rise > 0)
            most = mix[2] * level.hi + mix[3] * constant - mix[0] * level.lo + z * rise
            below = torch.where(off | ~level.both, 0, at.clamp(max=0))
            push = own.push * scale
            straight = at.clamp(min=0) * own.lean - torch.where(on, push, 0) + below * mix[0]
            through = torch.where(level.both, torch.where(off, push, straight), at)
            bound += (below * most + through * level.bias).sum(0)
            cut = below * mix[3]
            reads = level.weight.T @ through
            reads.addmm_(level.rest.T, cut)
            reads.index_add_(0, level.place, (own.share * level.terms).mul_(cut[:, None]).flatten(0, 1))
            weights.index_add_(0, level.read, reads)
            uses.append(Use(at, below, z, constant, slope, most))
        least, corner = self.least(weights[self.free])
        return Pass(bound + least, uses[::-1], corner)

    def least(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """What the free columns contribute at least with these weights, ``[free, nodes]``, and where they are
        then: at an end each, or where the domain's constraints leave the network's inputs.
        """
        corner = torch.where(weights > 0, self.low, self.high)
        if self.inputs is None:
            return (weights * corner).sum(0), corner
        region, entries, places = self.inputs
        forms = weights.new_zeros(weights.shape[1], region.size)
        forms[:, entries] = weights[places].T
        least, points = region.relaxed(forms)
        corner[places] = points[:, entries].T
        others = weights.index_fill(0, places, 0)
        return least + (others * corner).sum(0), corner

    @torch.no_grad()
    def with_leans_at_ends(self, batch: Sequence[Multipliers], states: Sequence[Tensor]) -> list[Multipliers]:
        """The same bounds with leans of 1 for all neurons that are on: pushes make up for it, and those are
        packed in more bytes.
        """
        found = []
        uses = self.run(batch, states).uses
        for own, state, use, scale in zip(batch, states, uses, self.scales, strict=True):
            on = state > 0
            more = use.weights.clamp(min=0) * (1 - own.lean) / scale
            push = torch.where(on, own.push + more, own.push)
            found.append(Multipliers(torch.where(on, 1.0, own.lean), own.mix, push, own.share))
        return found

    @torch.no_grad()
    def slopes(
        self, batch: Sequence[Multipliers], states: Sequence[Tensor], found: Pass
    ) -> list[Multipliers]:
        """The subgradient of the bounds, for shares in units of their terms' width and of the neuron's weight
        (and as if that were negative, where it is not: the shares do not matter there).
        """
        values = found.corner.new_zeros(len(self.cost), found.corner.shape[1])
        values[self.free] = found.corner
        slopes = []
        for level, scale, own, state, use in zip(
            self.levels, self.scales, batch, states, found.uses, strict=True
        ):
            reads = values[level.read]
            y = torch.addmm(level.bias, level.weight, reads)
            on, off = state > 0, state < 0
            z = use.state.to(y.dtype)
            terms, sums = self._terms(level, own, use, reads)
            near = y - level.lo * (1 - z)
            flat = level.hi * z
            cut = sums + use.constant + z * use.slope
            mix = own.mix
            mixed = mix[0] * near + mix[1] * flat + mix[2] * level.hi + mix[3] * cut
            x = torch.where(off, 0, torch.where(use.weights > 0, own.lean * y, mixed))
            values[level.columns] = torch.where(level.both, x, y)
            direction = torch.stack([near, flat, level.hi.expand_as(near), cut]).sub_(mixed).mul_(use.below)
            slopes.append(
                Multipliers(
                    use.weights.clamp(min=0) * y * level.both,
                    direction,
                    scale * torch.where(on, -y, torch.where(off, y, 0)),
                    torch.sub(z[:, None], terms, out=terms),
                )
            )
        return slopes

    @torch.no_grad()
    def gaps(
        self, batch: Sequence[Multipliers], states: Sequence[Tensor], uses: Sequence[Use], point: Tensor
    ) -> Tensor:
        """What each neuron's relaxation costs at a point, ``[all neurons, nodes]``, -1 if there is nothing to
        split.
        """
        values = point.new_zeros(len(self.cost), point.shape[1])
        values[self.free] = point
        costs = []
        for level, own, state, use in zip(self.levels, batch, states, uses, strict=True):
            reads = values[level.read]
            y = torch.addmm(level.bias, level.weight, reads)
            split = (state != 0) | ~level.both
            _, sums = self._terms(level, own, use, reads)
            most = own.mix[0] * y + own.mix[3] * sums + use.most
            least = y.clamp(min=0)
            relaxed = (use.weights < 0) & ~split
            x = torch.where(relaxed, torch.maximum(torch.minimum(most, level.hi), least), least)
            x = torch.where(state < 0, 0, x)
            values[level.columns] = torch.where(level.both, x, y)
            costs.append(torch.where(split, -1, (x - least).abs() * use.weights.abs()))
        return torch.cat(costs)

    def _terms(self, level: Level, own: Multipliers, use: Use, reads: Tensor) -> tuple[Tensor, Tensor]:
        """How far each term is from its smallest value, as a share of its width, and the sum with the
        shares.
        """
        part = (reads - level.low) / level.span
        terms = torch.cat([part, 1 - part]).index_select(0, level.side)
        terms = terms.view(*level.places.shape, reads.shape[1])
        sums = torch.bmm(level.width, own.share * terms)[:, 0] - use.constant - level.rest_low
        return terms, sums.addmm_(level.rest, reads)
