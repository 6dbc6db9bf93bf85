"""That two networks differ by no more than a bound: the second half of a check.

Both networks are written as expressions over the same symbols: the inputs, and the outputs ``u_k`` of MODEL's
units that are neither linear nor zero on the domain. The ranges of all symbols are known from the first half.

*Decided units.* If one entry ``x_j`` of a window is said to be the largest, ``max_i x_i = x_j + e`` with ``0
<= e <= max_i (x_i - x_j)``. For a ReLU that is ``y``, where the unit is called linear, or 0, where it is
called zero; for other maxima the entry with the largest lower end. Any other unit of MODEL is a symbol.

*Matches.* A unit of OUT whose window holds ``p_i`` is said to match a unit ``k`` of MODEL, whose window holds
``x_i``, with scale ``s > 0``. With ``d_i = p_i - s x_i``, ``max_i p_i - s u_k`` lies between the least and
the largest ``d_i``. For a ReLU these are ``D`` and 0, so it is ``t D`` with some number ``t`` in [0, 1], that
is ``D / 2 + e`` with ``|e| <= max |D| / 2``: half of the difference goes on as an expression, the rest is a
new symbol. So differences cancel wherever they do in the networks, whatever the rewrite was, and no rewrite
has to be known. For other maxima, all of it is a new symbol.

A ReLU of MODEL may be called a multiple of an earlier one in the same way, also with ``s < 0``: ``max(0, -y)
= max(0, y) - y``, so ``-s (u_k - y_k)`` stands for ``s u_k`` there.

Hints that do not hold only make the bound larger.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from relutrim.certificate.check.expressions import Expression, Symbols, push
from relutrim.certificate.check.maps import Affine, Graph
from relutrim.certificate.check.ranges import Layer, Ranges, best, windowed
from relutrim.certificate.check.rounding import ETA, Array, Index, Mask, down, up
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
    """A layer of MODEL: its ranges, what it reads, and its outputs."""

    layer: Layer
    inputs: Expression
    outputs: Expression


class Comparison:
    """One MODEL on its domain, and what is compared with it."""

    def __init__(self, graph: Graph, ranges: Ranges, hints: Hints) -> None:
        self.symbols, self._ranges = Symbols(), ranges
        self._inputs = self.symbols.add(ranges.domain.lo, ranges.domain.hi)
        self.units: list[Units] = []
        self.slack: list[float] = []
        self.outputs = self._through(graph, hints, self._model_layer)

    def bounds(self, other: Graph, hints: Hints) -> list[Array]:
        """For each output, how far each entry of the other network's can be away. NaN: no bound."""
        ranges = Ranges(other, self._ranges.domain, self._ranges.deadline)

        def layer(number: int, inputs: Expression, hint: Hint) -> Expression:
            known = ranges.advance()
            assert known is not None
            made = self._other_layer(number, inputs, hint, known, ranges)
            ranges.close(known)
            return made

        found = self._through(other, hints, layer)
        return [
            self.largest(b.minus(a, np.ones(len(a.c)), self.symbols))
            for a, b in zip(self.outputs, found, strict=True)
        ]

    def largest(self, gap: Expression) -> Array:
        """How far each entry can be from 0; the domain's constraints hold for what it has of the inputs."""
        plain, domain = gap.largest(self.symbols), self._ranges.domain
        if not len(domain.rows):
            return plain
        inputs = gap.ids < domain.lo.size
        forms = np.zeros((len(gap.c), domain.lo.size))
        forms[:, gap.ids[inputs]] = gap.a[inputs].T
        low, high = Expression(gap.ids[~inputs], gap.a[~inputs], gap.c, gap.r).ends(self.symbols)
        ends = down(low + domain.least(forms)), up(high - domain.least(-forms))
        found: Array = np.fmin(plain, np.maximum(0.0, np.maximum(-ends[0], ends[1])))
        return found

    @np.errstate(all="ignore")
    def _through(
        self, graph: Graph, hints: Hints, layer: Callable[[int, Expression, Hint], Expression]
    ) -> list[Expression]:
        values, number = [self._inputs], 0
        for node in graph.nodes:
            self._ranges.in_time()
            inputs = [values[i] for i in node.inputs]
            if isinstance(node.operation, Affine):
                values.append(push(node.operation, inputs, self.symbols))
                continue
            hint, units = hints(number, inputs[0]), len(node.operation.windows)
            if not hint.kind.shape == hint.place.shape == hint.scale.shape == (units,):
                raise CheckFailed(f"layer {number} has {units} units, and hints for {hint.kind.size}")
            values.append(layer(number, inputs[0], hint))
            number += 1
        return [values[output.number] for output in graph.outputs.values()]

    def _model_layer(self, number: int, inputs: Expression, hint: Hint) -> Expression:
        known = self._ranges.layers[number]
        decided, match = self._kinds(hint, known)
        start = sum(len(units.layer.windows) for units in self.units)
        if np.isin(hint.place[match], start + np.flatnonzero(match)).any():
            raise CheckFailed("a unit of MODEL is said to be a multiple of one that is a multiple itself")
        free = np.flatnonzero(~(decided | match))
        symbols = self.symbols.add(*(end[free] for end in known.outputs(known.lo, known.hi)))
        part, slack = self._decided(inputs, hint, known, decided)
        self.slack.append(float(slack.max(initial=0.0)))
        made = Expression.joined(len(hint.kind), part, (free, symbols), self._errors(0 * slack, slack))
        self.units.append(Units(known, inputs, made))
        if match.any():
            parts = self._matched(inputs, hint, known, np.flatnonzero(match), opposite=True)
            self.units[-1].outputs = made = Expression.joined(
                len(hint.kind), (np.arange(len(hint.kind)), made), *parts
            )
        return made

    def _other_layer(
        self, number: int, inputs: Expression, hint: Hint, known: Layer, ranges: Ranges
    ) -> Expression:
        decided, match = self._kinds(hint, known)
        if not (decided | match).all():
            raise CheckFailed(f"layer {number} of OUT has units without a hint that fits them")
        low, high = inputs.ends(self.symbols)
        known.lo, known.hi = np.fmax(known.lo, low), np.fmin(known.hi, high)
        at = np.flatnonzero(hint.place >= 0)
        if known.relu and at.size:  # the range of the unit that is named, and the distance from it
            groups, scale = self.groups(hint.place[at], relu=True), self._scales(hint, at)
            ends = np.zeros((2, at.size))
            for own, units, numbers in groups:
                ends[:, own] = units.layer.lo[numbers], units.layer.hi[numbers]
            gap = self.largest(inputs.take(at).minus(self.named(groups)[0], scale, self.symbols))
            known.meet(at, 1.0, down(down(scale * ends[0]) - gap))
            known.meet(at, -1.0, -up(up(scale * ends[1]) + gap))
        ranges.tighten(known, lambda: self._open(hint, known))
        part, slack = self._decided(inputs, hint, known, decided)
        matched = self._matched(inputs, hint, known, np.flatnonzero(match), opposite=False)
        return Expression.joined(len(hint.kind), part, self._errors(0 * slack, slack), *matched)

    @staticmethod
    def _kinds(hint: Hint, known: Layer) -> tuple[Mask, Mask]:
        """Which units are decided, and which are compared."""
        return (hint.kind == LINEAR) | ((hint.kind == ZERO) & known.relu), hint.kind == MATCH

    @staticmethod
    def _open(hint: Hint, known: Layer) -> Index:
        """The units that are called linear or zero and are not known to be."""
        lo, hi = known.lo[known.windows[:, 0]], known.hi[known.windows[:, 0]]
        return np.flatnonzero(((hint.kind == LINEAR) & ~(lo >= 0)) | ((hint.kind == ZERO) & ~(hi <= 0)))

    def _decided(
        self, inputs: Expression, hint: Hint, known: Layer, which: Mask
    ) -> tuple[tuple[Index, Expression], Array]:
        """The entry that is said to be the largest of each decided window, and how far others can be ahead:
        by their ranges, or by what lies between them.
        """
        at, slack = np.flatnonzero(which), np.zeros(len(which))
        table, zero = known.windows[at], (hint.kind[at, None] == ZERO).astype(np.int64)
        column = zero if known.relu else best(windowed(known.lo, table), table)
        chosen = np.take_along_axis(table, column, 1)[:, 0]
        for other in table.T if at.size else ():
            low, high = known.lo[chosen], known.hi[other]
            ahead = np.where(high <= low, 0.0, up(high - low))
            if not known.relu:
                gap = inputs.take(other).minus(inputs.take(chosen), np.ones(len(at)), self.symbols)
                ahead = np.fmin(ahead, gap.ends(self.symbols)[1])
            slack[at] = np.maximum(slack[at], np.where((other < 0) | (other == chosen), 0.0, ahead))
        return (at, inputs.take(chosen)), slack

    def _matched(
        self, inputs: Expression, hint: Hint, known: Layer, at: Index, *, opposite: bool
    ) -> list[tuple[Index, Expression]]:
        """``s u_k`` and what lies between that and the units ``at`` that are compared."""
        if not at.size:
            return []
        scale, size = self._scales(hint, at, opposite=opposite and known.relu), np.zeros(len(at))
        groups = self.groups(hint.place[at], relu=known.relu)
        widths = [known.windows.shape[1], *(units.layer.windows.shape[1] for _, units, _ in groups)]
        for column in range(1 if known.relu else max(widths)):
            near, theirs = self.named(groups, column)
            mine = _column(known.windows[at], column)
            if ((mine < 0) != (theirs < 0)).any():
                raise CheckFailed("a hint compares windows of different kinds")
            gap = inputs.take(mine).minus(near, scale, self.symbols)
            size = np.maximum(size, np.where(mine < 0, 0.0, self.largest(gap)))
        made = Expression.joined(len(at), *((own, units.outputs.take(n)) for own, units, n in groups))
        rest = Expression(np.zeros(0, np.int64), np.zeros((0, len(at))), np.zeros(len(at)), np.zeros(len(at)))
        if known.relu:
            if (scale < 0).any():
                made = made.minus(near, np.where(scale < 0, 1.0, 0.0), self.symbols)
            tiny = (len(gap.ids) + 2) * ETA * (2 + self.symbols.reach[gap.ids].sum())
            rest = Expression(gap.ids, gap.a / 2, gap.c / 2, gap.r / 2 + np.where(size == 0, 0.0, tiny))
            size = np.where(size == 0, 0.0, up(size / 2))
        error = np.zeros(len(hint.kind))
        error[at] = size
        return [(at, rest.minus(made, -np.abs(scale), self.symbols)), self._errors(-error, error)]

    @staticmethod
    def _scales(hint: Hint, at: Index, *, opposite: bool = False) -> Array:
        scale = hint.scale[at]
        if not (np.isfinite(scale) & ((scale > 0) | (opposite & (scale < 0)))).all():
            raise CheckFailed("a hint has a scale that is not positive")
        return scale

    def groups(self, places: Index, *, relu: bool) -> list[tuple[Index, Units, Index]]:
        """Places of MODEL's units by their layers: which of them, the layer, and their numbers there."""
        starts = np.cumsum([0, *(len(units.layer.windows) for units in self.units)])
        if ((places < 0) | (places >= starts[-1])).any():
            raise CheckFailed("a hint names a unit that MODEL does not have")
        layer = np.searchsorted(starts, places, side="right") - 1
        if any(self.units[n].layer.relu != relu for n in np.unique(layer)):
            raise CheckFailed("a hint compares a ReLU with a maximum")
        return [
            (np.flatnonzero(layer == n), self.units[n], places[layer == n] - starts[n])
            for n in np.unique(layer)
        ]

    @staticmethod
    def named(groups: Sequence[tuple[Index, Units, Index]], column: int = 0) -> tuple[Expression, Index]:
        """One entry of each named unit's window, and its place in what the unit reads (-1: there is none)."""
        count = sum(len(own) for own, _, _ in groups)
        parts, places = [], np.zeros(count, np.int64)
        for own, units, numbers in groups:
            places[own] = _column(units.layer.windows[numbers], column)
            parts.append((own, units.inputs.take(places[own])))
        return Expression.joined(count, *parts), places

    def _errors(self, lo: Array, hi: Array) -> tuple[Index, Expression]:
        """A new symbol where the range is more than 0; NaN is more."""
        at = np.flatnonzero(~((lo == 0) & (hi == 0)))
        return at, self.symbols.add(lo[at], hi[at])


def _column(table: Index, column: int) -> Index:
    return table[:, column] if column < table.shape[1] else np.full(len(table), -1)
