"""That two networks differ by no more than a bound: the second half of a check.

Both networks are written as expressions over the same symbols: the inputs, and the outputs ``u_k`` of MODEL's
units that are neither linear nor zero on the domain. The ranges of all symbols are known from the first half.

*Decided units.* Where a unit is called linear, ``max(0, y) = y + e`` with ``0 <= e <= max(0, -l)``; where it
is called zero, it is ``e`` with ``0 <= e <= max(0, h)``. Any other unit of MODEL is a symbol.

*Matches.* A unit of OUT that reads ``p`` is said to match a unit ``k`` of MODEL, which reads ``y_k``, with
scale ``s > 0``. With ``D = p - s y_k``, ``max(0, p) - s u_k`` is ``t D`` with some number ``t`` in [0, 1],
that is ``D / 2 + e`` with ``|e| <= max |D| / 2``: half of the difference goes on as an expression, the rest
is a new symbol. So differences cancel wherever they do in the networks, whatever the rewrite was, and no
rewrite has to be known.

A unit of MODEL may be called a multiple of an earlier one in the same way, also with ``s < 0``: ``max(0, -y)
= max(0, y) - y``, so ``-s (u_k - y_k)`` stands for ``s u_k`` there.

Hints that do not hold only make the bound larger.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from relutrim.certificate.check.expressions import Expression, Symbols, Values, push
from relutrim.certificate.check.maps import Graph
from relutrim.certificate.check.ranges import Layer, Ranges
from relutrim.certificate.check.rounding import ETA, Array, Index, down, up
from relutrim.errors import CheckFailed

SYMBOL, LINEAR, ZERO, MATCH = 0, 1, 2, 3


@dataclass(frozen=True, eq=False)
class Hint:
    """Per unit of a layer: how it is treated, the unit of MODEL it is compared with (a place, -1 for none),
    and the scale.
    """

    kind: npt.NDArray[np.uint8]
    place: Index
    scale: Array


Hints: TypeAlias = Callable[[int, Expression], Hint]
"""The hint for a layer, by its number and what it reads."""


@dataclass(eq=False)
class Units:
    """Units of MODEL: what they read, between which ends, and their outputs."""

    inputs: Expression
    lo: Array
    hi: Array
    outputs: Expression


class Comparison:
    """One MODEL on its domain, and what is compared with it."""

    def __init__(self, graph: Graph, ranges: Ranges, hints: Hints) -> None:
        self.symbols, self._ranges = Symbols(deadline=ranges.deadline), ranges
        self._origins = np.zeros(0, np.int64)
        """Which of the ranges' symbols each symbol is; -1 for errors, and for what is always 0."""
        domain = ranges.domain
        self._inputs = self._new(domain.lo, domain.hi, np.arange(domain.lo.size))
        self.units: list[Units] = []
        self.slack: list[float] = []
        self.outputs = self._through(graph, hints, self._model_layer)

    def bounds(self, other: Graph, hints: Hints) -> list[Array]:
        """For each output, how far each entry of the other network's can be away. NaN: no bound."""
        found = self._through(other, hints, self._other_layer)
        return [
            self.largest(b.minus(a, np.ones(len(a.c)), self.symbols))
            for a, b in zip(self.outputs, found, strict=True)
        ]

    def largest(self, gap: Expression) -> Array:
        """How far each entry can be from 0; the domain's constraints hold for what it has of the inputs."""
        domain, (low, high) = self._ranges.domain, gap.ends(self.symbols)
        if len(domain.rows):
            inputs = gap.ids < domain.lo.size
            rest = Expression(gap.ids[~inputs], gap.a[~inputs], gap.c, gap.r).ends(self.symbols)
            for piece in domain.pieces(len(gap.c)):
                forms = np.zeros((len(gap.c[piece]), domain.lo.size))
                forms[:, gap.ids[inputs]] = gap.a[inputs, piece].T
                low[piece] = np.fmax(low[piece], down(rest[0][piece] + domain.least(forms)))
                high[piece] = np.fmin(high[piece], up(rest[1][piece] - domain.least(-forms)))
        return np.maximum(0.0, np.maximum(-low, high))

    @np.errstate(all="ignore")
    def _through(
        self, graph: Graph, hints: Hints, layer: Callable[[int, Expression, Hint], Expression]
    ) -> list[Expression]:
        values, number = Values(graph, self._inputs), 0
        while (following := values.following()) is not None:
            self._ranges.in_time()
            node, inputs = following
            if node.operation is not None:
                values.add(push(node.operation, inputs, self.symbols))
                continue
            made = layer(number, inputs[0], hints(number, inputs[0]))
            values.add(made, inputs[0], made)
            number += 1
        return values.outputs()

    def _model_layer(self, number: int, inputs: Expression, hint: Hint) -> Expression:
        known, match = self._ranges.layers[number], hint.kind == MATCH
        start, count = sum(len(units.lo) for units in self.units), len(hint.kind)
        if np.isin(hint.place[match], start + np.flatnonzero(match)).any():
            raise CheckFailed("a unit of MODEL is said to be a multiple of one that is a multiple itself")
        free = np.flatnonzero(~(match | (hint.kind == LINEAR) | (hint.kind == ZERO)))
        origins = np.full(count, -1)
        origins[known.kept] = np.arange(known.own.start, known.own.stop)
        ends = np.maximum(known.lo[free], 0), np.maximum(known.hi[free], 0)
        symbols = self._new(*ends, origins[free])
        decided, slack = self._decided(inputs, hint, known)
        self.slack.append(float(slack.max(initial=0.0)))
        made = Expression.joined(count, (free, symbols), *decided)
        self.units.append(Units(inputs, known.lo, known.hi, made))
        if match.any():
            parts = self._matched(inputs, hint, opposite=True)
            self.units[-1].outputs = made = Expression.joined(count, (np.arange(count), made), *parts)
        return made

    def _other_layer(self, number: int, inputs: Expression, hint: Hint) -> Expression:
        if not np.isin(hint.kind, (LINEAR, ZERO, MATCH)).all():
            raise CheckFailed(f"layer {number} of OUT has units without a hint that fits them")
        known = Layer(self._over_model(inputs), *inputs.ends(self.symbols))
        at = np.flatnonzero(hint.place >= 0)
        if at.size:  # the range of the unit that is named, and the distance from it
            near, scale = self.named(hint.place[at]), self._scales(hint, at)
            gap = self.largest(inputs.take(at).minus(near.inputs, scale, self.symbols))
            known.meet(at, 1.0, down(down(scale * near.lo) - gap))
            known.meet(at, -1.0, -up(up(scale * near.hi) + gap))
        self._ranges.tighten(
            known,
            lambda: np.flatnonzero(
                ((hint.kind == LINEAR) & ~(known.lo >= 0)) | ((hint.kind == ZERO) & ~(known.hi <= 0))
            ),
        )
        parts = self._decided(inputs, hint, known)[0] + self._matched(inputs, hint, opposite=False)
        return Expression.joined(len(hint.kind), *parts)

    def _over_model(self, inputs: Expression) -> Expression:
        """The same expression over the symbols of MODEL's ranges, so that linear bounds apply to it."""
        origins = self._origins[inputs.ids]
        others = origins < 0
        rest = Expression(inputs.ids[others], inputs.a[others], np.zeros(len(inputs.c)), inputs.r)
        low, high = rest.ends(self.symbols)
        size = np.maximum(np.abs(low), np.abs(high))
        return Expression(origins[~others], inputs.a[~others], inputs.c, size)

    def _decided(
        self, inputs: Expression, hint: Hint, known: Layer
    ) -> tuple[list[tuple[Index, Expression]], Array]:
        """The units that are called linear or zero, and how far they can be from it."""
        linear = np.flatnonzero(hint.kind == LINEAR)
        ends = np.where(hint.kind == LINEAR, -known.lo, np.where(hint.kind == ZERO, known.hi, 0.0))
        slack = np.maximum(ends, 0.0)  # NaN stays
        return [(linear, inputs.take(linear)), self._errors(0 * slack, slack)], slack

    def _matched(self, inputs: Expression, hint: Hint, *, opposite: bool) -> list[tuple[Index, Expression]]:
        """``s u_k`` and what lies between that and the units that are compared."""
        at = np.flatnonzero(hint.kind == MATCH)
        scale, near = self._scales(hint, at, opposite=opposite), self.named(hint.place[at])
        gap = inputs.take(at).minus(near.inputs, scale, self.symbols)
        size, outputs = self.largest(gap), near.outputs
        if (scale < 0).any():
            outputs = outputs.minus(near.inputs, np.where(scale < 0, 1.0, 0.0), self.symbols)
        tiny = (len(gap.ids) + 2) * ETA * (2 + self.symbols.reach[gap.ids].sum())
        half = Expression(gap.ids, gap.a / 2, gap.c / 2, gap.r / 2 + np.where(size == 0, 0.0, tiny))
        error = np.zeros(len(hint.kind))
        error[at] = np.where(size == 0, 0.0, up(size / 2))
        return [(at, half.minus(outputs, -np.abs(scale), self.symbols)), self._errors(-error, error)]

    @staticmethod
    def _scales(hint: Hint, at: Index, *, opposite: bool = False) -> Array:
        scale = hint.scale[at]
        if not (np.isfinite(scale) & ((scale > 0) | (opposite & (scale < 0)))).all():
            raise CheckFailed("a hint has a scale that is not positive")
        return scale

    def named(self, places: Index) -> Units:
        """The units of MODEL at these places, of whatever layers."""
        starts = np.cumsum([0, *(len(units.lo) for units in self.units)])
        if ((places < 0) | (places >= starts[-1])).any():
            raise CheckFailed("a hint names a unit that MODEL does not have")
        layer, lo, hi = np.searchsorted(starts, places, side="right") - 1, *np.zeros((2, len(places)))
        inputs, outputs = list[tuple[Index, Expression]](), list[tuple[Index, Expression]]()
        for number in np.unique(layer):
            own, units = np.flatnonzero(layer == number), self.units[number]
            entries = places[own] - starts[number]
            lo[own], hi[own] = units.lo[entries], units.hi[entries]
            inputs.append((own, units.inputs.take(entries)))
            outputs.append((own, units.outputs.take(entries)))
        joined = (Expression.joined(len(places), *parts) for parts in (inputs, outputs))
        return Units(next(joined), lo, hi, next(joined))

    def _errors(self, lo: Array, hi: Array) -> tuple[Index, Expression]:
        """A new symbol where the range is more than 0; NaN is more."""
        at = np.flatnonzero(~((lo == 0) & (hi == 0)))
        return at, self._new(lo[at], hi[at], np.full(len(at), -1))

    def _new(self, lo: Array, hi: Array, origins: Index) -> Expression:
        self._origins = np.concatenate([self._origins, origins])
        return self.symbols.add(lo, hi)
