"""Hints for the checker, found by looking: which unit of OUT does what which unit of MODEL does.

Both networks are run on inputs of the domain, and units are paired by their pre-activations. Nothing of this
has to be right: a bad hint makes a weak bound or none, never a false one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from relutrim.certificate.check.equal import LINEAR, MATCH, SYMBOL, ZERO, Comparison, Hint
from relutrim.certificate.check.expressions import Expression
from relutrim.certificate.check.maps import Affine, Graph
from relutrim.certificate.check.ranges import Layer, windowed
from relutrim.certificate.check.rounding import Array, Index

_NEAR = 1e-3
"""How far pre-activations of units that do the same may be apart, relative to their size."""
_STABLE = 1e-9
"""How far a unit may be from linear or zero and still be called so, relative to its range."""


def run(graph: Graph, batch: Array) -> list[Array]:
    """All values on a batch of flat inputs, in plain float64."""
    values = [batch]
    for node in graph.nodes:
        inputs, operation = [values[i] for i in node.inputs], node.operation
        if isinstance(operation, Affine):
            made = sum(m.forward(x) for m, x in zip(operation.maps, inputs, strict=True))
            values.append(np.asarray(made if operation.bias is None else made + operation.bias))
        else:
            values.append(windowed(inputs[0], operation.windows).max(-1))
    return values


@dataclass(eq=False)
class Seen:
    """What the layers of a network read (maxima: make) on sample inputs: (samples, units), layer by layer."""

    graph: Graph
    values: list[Array] = field(default_factory=list)
    pooled: list[bool] = field(default_factory=list)

    @classmethod
    def of(cls, graph: Graph, samples: Array) -> Seen:
        """Run it."""
        found, values = cls(graph), run(graph, samples)
        for number in graph.layers:
            node = graph.nodes[number]
            assert not isinstance(node.operation, Affine)
            read = values[node.inputs[0]][:, node.operation.windows[:, 0]]
            found.pooled.append(not node.operation.relu)
            found.values.append(read if node.operation.relu else values[number + 1])
        return found


def treatment(layers: Sequence[Layer]) -> list[Hint]:
    """Which units of MODEL are linear, zero or neither, by the ranges that the checker proved."""
    found = []
    for layer in layers:
        kind = np.zeros(len(layer.windows), np.uint8)
        if layer.relu:
            lo, hi = layer.lo[: len(kind)], layer.hi[: len(kind)]
            room = _STABLE * np.maximum(np.abs(lo), np.abs(hi))
            kind[lo >= -room] = LINEAR
            kind[hi <= room] = ZERO
        else:
            lows, highs = (windowed(end, layer.windows) for end in (layer.lo, layer.hi))
            best = lows.argmax(1)[:, None]
            top = np.take_along_axis(lows, best, 1)[:, 0]
            np.put_along_axis(highs, best, -np.inf, 1)
            kind[top >= highs.max(1)] = LINEAR
        found.append(Hint(kind, np.full(kind.size, -1), np.ones(kind.size)))
    return found


@dataclass(eq=False)
class Pairing:
    """Units of OUT with units of MODEL."""

    before: Seen
    after: Seen
    model: list[Hint]

    def __post_init__(self) -> None:
        sizes = [hint.kind.size for hint in self.model]
        self.starts = np.cumsum([0, *sizes])
        self._every = np.concatenate([*self.before.values, np.zeros((len(self.before.values[0]), 0))], 1)
        pooled = np.repeat(self.before.pooled, sizes).astype(bool)
        kinds = np.concatenate([hint.kind for hint in self.model])
        self._free = {flag: np.flatnonzero((kinds == SYMBOL) & (pooled == flag)) for flag in (False, True)}
        self._linear = np.flatnonzero((kinds == LINEAR) & ~pooled)
        self.out = [self._layer(*item) for item in zip(self.after.values, self.after.pooled, strict=True)]
        self._alias()

    def _layer(self, values: Array, pooled: bool) -> Hint:
        place, scale, apart = self._nearest(values, self._free[pooled], once=pooled)
        low, high, size = values.min(0), values.max(0), np.abs(values).max(0)
        match = (place >= 0) & ((apart <= _NEAR) | ((low < -1e-9 * size) & (high > 1e-9 * size)))
        if pooled:
            kind = np.where(match, MATCH, LINEAR)
            return Hint(kind.astype(np.uint8), np.where(match, place, -1), scale)
        kind = np.where(match, MATCH, np.where(high + low >= 0, LINEAR, ZERO))
        beside, factor, _ = self._nearest(values, self._linear)
        place, scale = np.where(match, place, beside), np.where(match, scale, factor)
        place = np.where(kind == ZERO, -1, place)
        return Hint(kind.astype(np.uint8), place, np.where(place < 0, 1.0, scale))

    def _nearest(self, values: Array, candidates: Index, *, once: bool = False) -> tuple[Index, Array, Array]:
        """The candidate that each column is best a positive multiple of, the factor, and its error; of those
        that are equally good the first, or (``once``) the first that has been chosen least.
        """
        count = values.shape[1]
        nothing = np.full(count, -1), np.ones(count), np.full(count, np.inf)
        if not len(candidates) or not count:
            return nothing
        theirs = self._every[:, candidates]
        norms, own = np.linalg.norm(theirs, axis=0), np.linalg.norm(values, axis=0)
        with np.errstate(all="ignore"):
            cosines = np.nan_to_num((values / own).T @ (theirs / norms), nan=-1.0)
        best, chosen = cosines.argmax(1), np.zeros(len(candidates), np.int64)
        for row in range(count if once else 0):
            equal = np.flatnonzero(cosines[row] >= cosines[row, best[row]] - 1e-12)
            best[row] = equal[chosen[equal].argmin()]
            chosen[best[row]] += 1
        some = cosines[np.arange(count), best] > 0
        found = theirs[:, best]
        with np.errstate(all="ignore"):
            factor = (values * found).sum(0) / (found * found).sum(0)
            apart = np.abs(values - factor * found).max(0) / np.abs(values).max(0)
        good = some & np.isfinite(factor) & (factor > 0)
        return (
            np.where(good, candidates[best], -1),
            np.where(good, factor, 1.0),
            np.where(good & np.isfinite(apart), apart, np.inf),
        )

    def _alias(self) -> None:
        """Units of MODEL that no unit of OUT matches, but that are multiples of others of their layer: of one
        that is matched, or of the first of their kind; positive multiples rather than negative ones.
        """
        matched = np.concatenate([np.zeros(0, np.int64), *(h.place[h.kind == MATCH] for h in self.out)])
        for number, hint in enumerate(self.model):
            start = self.starts[number]
            free = start + np.flatnonzero(hint.kind == SYMBOL)
            own = np.isin(free, matched)
            if self.before.pooled[number] or own.all():
                continue
            free = np.concatenate([free[own], free[~own]])
            size = np.linalg.norm(self._every[:, free], axis=0)
            with np.errstate(all="ignore"):
                near = np.nan_to_num((self._every[:, free] / size).T @ (self._every[:, free] / size))
            first = np.tril(np.abs(near) > 1 - 1e-9, -1)
            first[: int(own.sum())] = False
            for row in np.flatnonzero(first.any(1)):
                others = [c for c in np.flatnonzero(first[row]) if not first[c].any()]
                if not others:
                    continue
                other = max(others, key=lambda c: near[row, c] > 0)
                mine, theirs = self._every[:, free[row]], self._every[:, free[other]]
                with np.errstate(all="ignore"):  # squares of subnormal numbers are 0
                    scale = _round(float(np.nan_to_num((mine @ theirs) / (theirs @ theirs))))
                if scale != 0 and np.abs(mine - scale * theirs).max() <= 1e-6 * np.abs(mine).max():
                    at = free[row] - start
                    hint.kind[at], hint.place[at], hint.scale[at] = MATCH, free[other], scale
                else:
                    first[row] = False

    def exactly(self, hint: Hint, inputs: Expression, comparison: Comparison, *, relu: bool) -> Hint:
        """A hint with scales refined by the expressions themselves: of 1, what was seen, and the ratio of the
        largest coefficients, whichever leaves least between both.
        """
        at = np.flatnonzero(hint.place >= 0)
        if not at.size or not relu:
            return hint
        near, _ = comparison.named(comparison.groups(hint.place[at], relu=True))
        own = inputs.take(at)
        ids = np.union1d(own.ids, near.ids)
        mine, theirs = own.over(ids), near.over(ids)
        seen = hint.scale[at]
        if len(ids):
            weight = np.abs(theirs) * comparison.symbols.reach[ids][:, None]
            largest = weight.argmax(0)
            with np.errstate(all="ignore"):
                ratio = mine[largest, np.arange(len(at))] / theirs[largest, np.arange(len(at))]
        else:
            ratio = seen
        sign = np.sign(seen)
        best, least = seen.copy(), np.full(len(at), np.inf)
        for scale in (sign, seen, np.where(np.isfinite(ratio) & (np.sign(ratio) == sign), ratio, seen)):
            gap = comparison.largest(own.minus(near, scale, comparison.symbols))
            better = gap < least
            best, least = np.where(better, scale, best), np.where(better, gap, least)
        refined = hint.scale.copy()
        refined[at] = best
        return Hint(hint.kind, hint.place, refined)


def _round(number: float) -> float:
    """A number near by with few bits, if there is one: such factors are mostly meant."""
    near = float(np.round(number * 2**16) / 2**16)
    return near if abs(near - number) <= 1e-9 * abs(number) else number
