"""Multipliers of a leaf in few bytes, and the bound that they prove.

Going from the goal back to the columns where the model begins, ``goal >= W v + K`` holds with ever earlier
columns, and every neuron ``x = max(0, y)`` with weight ``A`` in ``W`` is replaced by what ``A x`` is at
least:

- where it has one state, ``A y``;
- where it is off, ``push * y``, since ``y <= 0``;
- where ``A >= 0``: ``lean * A * y``, and where it is on ``-push * y`` beside it;
- where ``A < 0``: ``A`` is divided among inequalities that hold for ``x`` with a state ``z``, which is 0 or
  1: ``x <= y - lo (1 - z)``, ``x <= hi z``, ``x <= hi`` and ``x <= sum a_i w_i v_i - (1 - z) S + z T``, for
  any ``a_i`` in [0, 1], where ``S`` is the least value of that sum and ``T`` the largest of ``y`` without it.
  (The last one with ``a_i`` of 0 and 1 is an inequality of the neuron's convex hull, Anderson et al. 2020;
  with others it is a mixture of those.) The state is where the sum of them
  is less; where the neuron is on it is 1, and ``-push * y`` may be added.

**Rounding.** The parts of ``A``, once computed, are the numbers that are used: what they do not add up to is
charged at the largest ``|x|``. A computed ``lean * A`` is between 0 and ``A``, and a push only takes away, so
these are right as they are computed. What is left are the coefficients ``W`` of earlier columns, which are
charged at the largest ``|v|``, and the constant. Where the domain has constraints, what the network's inputs
contribute is :meth:`relutrim.domain.region.Region.lower`, which has its own rounding in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch

from relutrim.graph.operators import Array
from relutrim.prove.hull.layers import Layer, free_columns, layers_of, too_large, without
from relutrim.prove.hull.model import Index, Model
from relutrim.rounding import ETA, gamma

WHOLE = 255
"""What 1 is packed as."""
MIXED = 4
"""How many kinds of inequalities are mixed."""
_BATCH = 64
"""Leaves that are evaluated together, fewer where they have very many shares."""
_SHARES = 4 * 10**6


@dataclass(frozen=True, eq=False)
class Part:
    """The multipliers of one layer: ``lean`` ``[neurons]``, ``mix`` ``[4, neurons]``, ``push`` ``[neurons]``,
    and ``share`` ``[neurons, k]``, what the ``a_i`` at ``places`` are; all others are a half.
    """

    lean: np.ndarray
    mix: np.ndarray
    push: np.ndarray
    share: np.ndarray


@dataclass(frozen=True, eq=False)
class Packed:
    """The multipliers of a leaf, layer by layer; ``places`` are one object for all leaves of a tree."""

    places: tuple[Index, ...]
    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        """How many bytes it takes, without the places."""
        kinds = ("lean", "mix", "push", "share")
        return sum(int(getattr(part, kind).nbytes) for part in self.parts for kind in kinds)


def fits(model: Model, leaves: Sequence[Packed]) -> bool:
    """Whether all have the model's layers, and numbers that can be meant."""
    if not leaves:
        return True
    if too_large(model):
        return False
    shapes = [layer.weight.shape for layer in layers_of(model)]
    places = {id(leaf.places): leaf.places for leaf in leaves}  # many leaves share theirs
    return all(_places_fit(shapes, own) for own in places.values()) and all(
        len(leaf.parts) == len(leaf.places) and all(map(_part_fits, leaf.places, leaf.parts))
        for leaf in leaves
    )


def _places_fit(shapes: Sequence[tuple[int, ...]], places: Sequence[Index]) -> bool:
    if len(places) != len(shapes):
        return False
    for (count, width), own in zip(shapes, places, strict=True):
        if own.ndim != 2 or own.dtype.kind not in "iu" or own.shape[0] != count:
            return False
        if own.size and not (int(own.min()) >= 0 and int(own.max()) < width):
            return False
        ranked = np.sort(own, axis=1)
        if bool((ranked[:, 1:] == ranked[:, :-1]).any()):
            return False
    return True


def _part_fits(places: Index, part: Part) -> bool:
    count = len(places)
    shapes = [(count,), (MIXED, count), (count,), places.shape]
    own = [part.lean, part.mix, part.push, part.share]
    kinds = [np.dtype(np.uint8), np.dtype(np.uint8), np.dtype(np.float32), np.dtype(np.uint8)]
    if [a.shape for a in own] != shapes or [a.dtype for a in own] != kinds:
        return False
    return bool((np.isfinite(part.push) & (part.push >= 0)).all())


def packed_bounds(
    model: Model,
    cases: Sequence[dict[int, bool]],
    leaves: Sequence[Packed],
    layers: Sequence[Layer] | None = None,
) -> list[float]:
    """What the leaves prove the goal to be at least where states are fixed; NaN where they prove nothing.

    The leaves have to fit.
    """
    layers = layers if layers is not None else layers_of(model)
    bounds: list[float] = []
    for _, group in groupby(zip(cases, leaves, strict=True), key=lambda pair: id(pair[1].places)):
        own = list(group)
        most = max((places.size for places in own[0][1].places), default=0)
        width = max(1, min(_BATCH, _SHARES // max(1, most)))
        for at in range(0, len(own), width):
            some = own[at : at + width]
            bounds += _bounds(model, layers, [case for case, _ in some], [leaf for _, leaf in some])
    return bounds


@np.errstate(over="ignore", invalid="ignore", under="ignore")
def _bounds(
    model: Model, layers: Sequence[Layer], cases: Sequence[dict[int, bool]], leaves: Sequence[Packed]
) -> list[float]:
    count = len(leaves)
    weights = np.repeat(model.cost[:, None], count, axis=1)
    total = np.full(count, model.offset)
    size = np.full(count, abs(model.offset))
    charged = np.zeros(count)
    lo, hi = model.ends
    reach = np.maximum(np.abs(lo), np.abs(hi))
    largest = 1.0
    for layer, _, step, sizes in _steps(weights, layers, cases, leaves):
        # Every column may get one term of each neuron from each of three sums, and what it had.
        terms = gamma(4 * len(layer.numbers) + 16)
        charged += terms * (reach[layer.read] @ sizes) + step.charged
        total += step.constant
        size += step.size
        largest = max(largest, float(np.abs(layer.weight).max(initial=0)))
    least, sizes = _least(model, weights)
    total += least
    size += sizes
    ops = 16 * (len(lo) + sum(layer.weight.shape[0] for layer in layers)) + 64
    off = charged * (1 + gamma(ops)) + gamma(ops) * size
    off += ops * ETA * (4 + largest) * (4 + float(reach.sum()))
    found = np.nextafter(np.nextafter(total - off, -np.inf) - model.slack, -np.inf)
    return [float(value) if np.isfinite(value) else float("nan") for value in found]


def _least(model: Model, weights: Array) -> tuple[Array, Array]:
    """What the free columns contribute at least with these weights, ``[columns, leaves]``, and what is summed
    up for it. Where the domain has constraints, the network's inputs contribute what the region says.
    """
    lo, hi = model.ends
    free, region = free_columns(model), model.backward.region
    least = np.zeros(weights.shape[1])
    entries, columns = model.input_columns
    if region.constrained and len(entries):
        forms = region.lo.new_zeros(weights.shape[1], region.size)
        forms[:, torch.as_tensor(entries, device=forms.device)] = torch.as_tensor(weights[columns].T).to(
            forms
        )
        least = region.lower(forms).cpu().numpy()
        free = np.setdiff1d(free, columns)
    left = weights[free]
    at = np.where(left > 0, lo[free][:, None], hi[free][:, None])
    return least + (left * at).sum(0), np.abs(least) + (np.abs(left) * np.abs(at)).sum(0)


@np.errstate(over="ignore", invalid="ignore", under="ignore")
def coefficients(
    model: Model, layers: Sequence[Layer], cases: Sequence[dict[int, bool]], leaves: Sequence[Packed]
) -> list[Array]:
    """What the neurons of each layer weigh when they are replaced, ``[neurons, leaves]``; the leaves have to
    fit, and to share their places.
    """
    weights = np.repeat(model.cost[:, None], len(leaves), axis=1)
    return [at for _, at, _, _ in _steps(weights, layers, cases, leaves)][::-1]


def _steps(
    weights: Array, layers: Sequence[Layer], cases: Sequence[dict[int, bool]], leaves: Sequence[Packed]
) -> Iterator[tuple[Layer, Array, _Step, Array]]:
    """The layers, the last first, each with its neurons' weights, what they are replaced by, and the sizes of
    all that is added to the ``weights`` of what it reads, which are changed.
    """
    for number in reversed(range(len(layers))):
        layer, places = layers[number], leaves[0].places[number]
        parts = [leaf.parts[number] for leaf in leaves]
        lean, push, mix, share = (
            np.stack([getattr(part, kind) for part in parts], axis=-1).astype(np.float64)
            for kind in ("lean", "push", "mix", "share")
        )
        at = weights[layer.columns]
        step = _Step.of(layer, places, at, layer.marks(cases), lean, push, mix, share)
        reads, sizes = step.reads(layer, places)
        sizes += np.abs(weights[layer.read])
        weights[layer.read] += reads
        yield layer, at, step, sizes


@dataclass(frozen=True, eq=False)
class _Step:
    """What a layer's neurons are replaced by: ``y`` with weights ``through``, the sums with the shares with
    weights ``cut``, a constant, how large the terms of that are, and what was charged.
    """

    through: Array
    cut: Array
    share: Array
    constant: Array
    size: Array
    charged: Array

    @classmethod
    def of(
        cls,
        layer: Layer,
        places: Index,
        weights: Array,
        marks: np.ndarray,
        lean: Array,
        push: Array,
        mix: Array,
        share: Array,
    ) -> _Step:
        """From packed numbers, ``[..., leaves]``."""
        lo, hi, bias, radius = (end[:, None] for end in (layer.lo, layer.hi, layer.bias, layer.radius))
        both = layer.both[:, None]
        on, off = both & (marks > 0), both & (marks < 0)
        share = np.minimum(share / WHOLE, 1.0)
        below = np.where(both & ~off, np.minimum(weights, 0.0), 0.0)
        mixed = mix / np.maximum(mix.sum(0), 1.0)
        parts = below * mixed  # none is positive
        missing = np.abs(below - parts.sum(0)) + gamma(8) * (np.abs(below) + np.abs(parts).sum(0))
        above = np.where(both & ~off, np.maximum(weights, 0.0), 0.0)
        leaning = np.minimum(above * np.minimum(lean / WHOLE, 1.0), above)
        through = parts[0] + leaning - np.where(on, push, 0.0)
        through = np.where(both, np.where(off, push, through), weights)
        least, most, slack = _ends_of_sums(layer, places, share)
        begins = -parts[0] * lo + parts[2] * hi - parts[3] * (least - slack)
        ends = (parts[1] + parts[2]) * hi + parts[3] * (bias + radius + most + slack)
        constant = np.where(on, ends, np.minimum(begins, ends)) + through * bias
        size = (
            np.abs(parts[0] * lo)
            + (np.abs(parts[1]) + 2 * np.abs(parts[2])) * hi
            + np.abs(parts[3]) * (np.abs(least) + np.abs(most) + 2 * slack + np.abs(bias) + radius)
            + np.abs(through * bias)
        )
        charged = missing * hi + np.abs(through) * radius
        return cls(through, parts[3], share, constant.sum(0), size.sum(0), charged.sum(0))

    def reads(self, layer: Layer, places: Index) -> tuple[Array, Array]:
        """The coefficients of what the layer reads, and the sum of the sizes of their terms."""
        rest = without(layer.weight, places)
        # The weight comes last: if a product of it underflowed first, that would be multiplied by the cut.
        near = np.take_along_axis(layer.weight, places, 1)[:, :, None] * (self.share * self.cut[:, None])
        found = layer.weight.T @ self.through + 0.5 * (rest.T @ self.cut)
        for own, terms in zip(places, near, strict=True):  # no place twice, and much quicker than np.add.at
            found[own] += terms
        # No share is larger than 1.
        sizes = np.abs(layer.weight).T @ (np.abs(self.through) + np.abs(self.cut))
        return found, sizes


def _ends_of_sums(layer: Layer, places: Index, share: Array) -> tuple[Array, Array, Array]:
    """The least value of ``sum a_i w_i v_i``, the largest of ``sum (1 - a_i) w_i v_i``, and how far both can
    be off.
    """
    least, most = (np.take_along_axis(end, places, 1)[:, :, None] for end in (layer.smallest, layer.largest))
    beside = [without(end, places) for end in (layer.smallest, layer.largest)]
    low = (share * least).sum(1) + 0.5 * beside[0].sum(1)[:, None]
    high = ((1.0 - share) * most).sum(1) + 0.5 * beside[1].sum(1)[:, None]
    size = (np.abs(least) + np.abs(most)).sum(1) + sum(np.abs(end).sum(1)[:, None] for end in beside)
    width = layer.weight.shape[1]
    return low, high, gamma(width + 16) * size + (4 * width + 16) * ETA
