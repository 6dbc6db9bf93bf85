"""Hints for the checker, found by looking: which unit of OUT does what which unit of MODEL does.

Both networks are run on inputs of the domain, and units are paired by their pre-activations. Nothing of this
has to be right: a bad hint makes a weak bound or none, never a false one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from relutrim.certificate.check.equal import LINEAR, MATCH, SYMBOL, ZERO, Comparison, Hint
from relutrim.certificate.check.expressions import Expression
from relutrim.certificate.check.maps import Graph
from relutrim.certificate.check.ranges import Layer
from relutrim.certificate.check.rounding import Array, Index

_NEAR = 1e-3
"""How far pre-activations of units that do the same may be apart, relative to their size."""
_TIE = 1e-12
"""Cosines that differ by less say nothing."""
_STABLE = 1e-9
"""How far a unit may be from linear or zero and still be called so, relative to its range."""


def run(graph: Graph, batch: Array) -> list[Array]:
    """All values on a batch of flat inputs, in plain float64."""
    values = [batch]
    for node in graph.nodes:
        inputs, operation = [values[i] for i in node.inputs], node.operation
        if operation is None:
            values.append(np.maximum(inputs[0], 0))
        else:
            made = sum(m.forward(x) for m, x in zip(operation.maps, inputs, strict=True))
            values.append(np.asarray(made + operation.bias))
    return values


def seen(graph: Graph, samples: Array) -> list[Array]:
    """What the layers of a network read on sample inputs: (samples, units), layer by layer."""
    values = run(graph, samples)
    return [values[graph.nodes[number].inputs[0]] for number in graph.layers]


def treatment(layers: Sequence[Layer]) -> list[Hint]:
    """Which units of MODEL are linear, zero or neither, by the ranges that the checker proved."""
    found = []
    for layer in layers:
        kind = np.zeros(len(layer.lo), np.uint8)
        room = _STABLE * np.maximum(np.abs(layer.lo), np.abs(layer.hi))
        kind[layer.lo >= -room] = LINEAR
        kind[layer.hi <= room] = ZERO
        found.append(Hint(kind, np.full(kind.size, -1), np.ones(kind.size)))
    return found


@dataclass(eq=False)
class Pairing:
    """Units of OUT with units of MODEL."""

    before: list[Array]
    after: list[Array]
    model: list[Hint]

    def __post_init__(self) -> None:
        self.starts = np.cumsum([0, *(hint.kind.size for hint in self.model)])
        nothing = np.zeros((len(next(iter(self.before + self.after), ())), 0))
        self._every = np.concatenate([*self.before, nothing], 1)
        kinds = np.concatenate([np.zeros(0, np.uint8), *(hint.kind for hint in self.model)])
        self._free, self._linear = (np.flatnonzero(kinds == kind) for kind in (SYMBOL, LINEAR))
        self.out = [self._layer(number, values) for number, values in enumerate(self.after)]
        self._alias()

    def _layer(self, number: int, values: Array) -> Hint:
        same = number < len(self.model) and self.model[number].kind.size == values.shape[1]
        place, scale, apart = self._nearest(values, self._free, self.starts[number] if same else None)
        if number < len(self.before):  # what was 0 on all inputs (two zeros compared by a maximum), in order
            theirs = np.flatnonzero(~self.before[number].any(0) & (self.model[number].kind == SYMBOL))
            mine = np.flatnonzero(~values.any(0))
            if len(mine) == len(theirs):
                place[mine], apart[mine] = self.starts[number] + theirs, 0.0
        low, high, size = values.min(0), values.max(0), np.abs(values).max(0)
        match = (place >= 0) & ((apart <= _NEAR) | ((low < -1e-9 * size) & (high > 1e-9 * size)))
        kind = np.where(match, MATCH, np.where(high + low >= 0, LINEAR, ZERO))
        beside, factor, _ = self._nearest(values, self._linear)
        place, scale = np.where(match, place, beside), np.where(match, scale, factor)
        place = np.where(kind == ZERO, -1, place)
        return Hint(kind.astype(np.uint8), place, np.where(place < 0, 1.0, scale))

    def _nearest(
        self, values: Array, candidates: Index, start: int | None = None
    ) -> tuple[Index, Array, Array]:
        """The candidate that each column is best a positive multiple of, the factor, and its error. Of those
        that are equally good, the one at its own place from ``start`` on, or the first.
        """
        count = values.shape[1]
        nothing = np.full(count, -1), np.ones(count), np.full(count, np.inf)
        if not len(candidates) or not count:
            return nothing
        theirs = self._every[:, candidates]
        norms, own = np.linalg.norm(theirs, axis=0), np.linalg.norm(values, axis=0)
        with np.errstate(all="ignore"):
            cosines = np.nan_to_num((values / own).T @ (theirs / norms), nan=-1.0)
        if start is not None:
            cosines[start + np.arange(count)[:, None] == candidates] += _TIE
        best = cosines.argmax(1)
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
            if own.all():
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

    def exactly(self, hint: Hint, inputs: Expression, comparison: Comparison) -> Hint:
        """A hint with scales refined by the expressions themselves: of 1, what was seen, and the ratio of the
        largest coefficients, whichever leaves least between both.
        """
        at = np.flatnonzero(hint.place >= 0)
        if not at.size:
            return hint
        near = comparison.named(hint.place[at]).inputs
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
