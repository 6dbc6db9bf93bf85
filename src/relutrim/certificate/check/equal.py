"""That two networks differ by no more than a bound: the second half of a check.

Both networks are written as expressions over the same symbols: the inputs, and the outputs ``u_k`` of MODEL's
units that are neither linear nor zero on the domain. The ranges of all symbols are known from the first half.

*MODEL.* A unit that a certificate calls linear is ``max(0, y) = y + e`` with ``0 <= e <= max(0, -l)`` for ``y
>= l``; one that it calls zero is ``e`` with ``0 <= e <= max(0, h)``; any other is a symbol. A unit ``m`` may
be called a multiple of an earlier unit ``k``: with ``D = y_m - s y_k``, ``max(0, y_m) = s u_k + t D`` (``s >
0``) or ``-s (u_k - y_k) + t D`` (``s < 0``, as ``max(0, -y) = max(0, y) - y``) for some number ``t`` in [0,
1], because ``max(0, .)`` never moves by more than its argument, and in the same direction.

*OUT.* A unit with pre-activation ``p`` matches unit ``k`` of MODEL with scale ``s > 0`` in the same way; it
is called linear or zero with the range of ``p`` itself, or with that of ``s y_k`` and a bound of ``p - s
y_k``.

``t D = D / 2 + (t - 1/2) D``: half of the difference goes on as an expression, the rest is a new symbol of
size ``max |D| / 2``. So differences cancel wherever they do in the networks, whatever the rewrite was, and no
rewrite has to be known. Hints that do not hold only make the bound larger.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from relutrim.certificate.check.expressions import Expression, Symbols, push
from relutrim.certificate.check.maps import Affine, Graph, Maximum, Node
from relutrim.certificate.check.ranges import RULES, Layer, Ranges
from relutrim.certificate.check.rounding import ETA, ROOM, Array, Index, Mask, down, up
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
    """All units of MODEL by their places: what they read, their outputs, the ends of what they read."""

    inputs: list[Expression] = field(default_factory=list)
    outputs: list[Expression] = field(default_factory=list)
    windows: list[Index | None] = field(default_factory=list)
    ends: list[tuple[Array, Array]] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])

    def of(self, places: Index) -> list[tuple[Mask, int, Index]]:
        """Places by the layers they are in: which of them, the layer, and their numbers there."""
        layer = np.searchsorted(self.starts, places, side="right") - 1
        if ((places < 0) | (places >= self.starts[-1])).any():
            raise CheckFailed("a hint names a unit that MODEL does not have")
        return [(layer == n, int(n), places[layer == n] - self.starts[n]) for n in np.unique(layer)]


@dataclass(eq=False)
class Plain:
    """Plain intervals beside the expressions: every unit's output is a symbol of its own here, with all that
    is known of its range.
    """

    symbols: Symbols
    values: list[Expression]
    at: int = 0
    """The value that the layer reads whose ends are asked for."""

    def push(self, node: Node) -> None:
        """Go through an affine node."""
        assert isinstance(node.operation, Affine)
        self.values.append(push(node.operation, [self.values[i] for i in node.inputs], self.symbols))

    def ends(self, known: tuple[Array, Array]) -> tuple[Array, Array]:
        """Known ends, met with the intervals of what the layer reads."""
        lo, hi = self.values[self.at].ends(self.symbols)
        return np.fmax(known[0], lo), np.fmin(known[1], hi)

    def add(self, lo: Array, hi: Array) -> None:
        """A layer's outputs."""
        self.values.append(Expression.of_symbols(self.symbols.add(lo, hi)))


class Comparison:
    """One MODEL on its domain, and what is compared with it."""

    def __init__(self, graph: Graph, ranges: Ranges, hints: Hints) -> None:
        self.symbols = Symbols(ranges.domain.lo, ranges.domain.hi)
        self.units = Units()
        self.slack: list[float] = []
        self._ranges = ranges
        self.inputs = len(self.symbols.lo)
        self._known: dict[int, int] = dict(enumerate(range(self.inputs)))
        """The symbols that the first half has too, and their numbers there."""
        self.outputs = self._through(graph, hints, self._model_layer)

    def bounds(self, other: Graph, hints: Hints) -> list[Array]:
        """For each output, how far each entry of the other network's can be away. NaN: no bound."""
        found = self._through(other, hints, self._other_layer)
        return [
            self._largest(b.minus(a, np.ones(len(a.c)), self.symbols))
            for a, b in zip(self.outputs, found, strict=True)
        ]

    def _through(
        self, graph: Graph, hints: Hints, layer: Callable[[int, Expression, Index | None, Hint], Expression]
    ) -> list[Expression]:
        values, number = [Expression.of_symbols(np.arange(self.inputs))], 0
        self._plain = Plain(
            Symbols(self.symbols.lo[: self.inputs], self.symbols.hi[: self.inputs]), [values[0]]
        )
        with np.errstate(all="ignore"):
            for node in graph.nodes:
                inputs = [values[i] for i in node.inputs]
                if isinstance(node.operation, Affine):
                    values.append(push(node.operation, inputs, self.symbols))
                    self._plain.push(node)
                    continue
                windows = node.operation.windows if isinstance(node.operation, Maximum) else None
                self._plain.at = node.inputs[0]
                units = len(inputs[0].c) if windows is None else len(windows)
                hint = hints(number, inputs[0])
                if not hint.kind.shape == hint.place.shape == hint.scale.shape == (units,):
                    raise CheckFailed(f"layer {number} has {units} units, and hints for {hint.kind.size}")
                values.append(layer(number, inputs[0], windows, hint))
                number += 1
        return [values[output.value] for output in graph.outputs]

    def _model_layer(self, number: int, inputs: Expression, windows: Index | None, hint: Hint) -> Expression:
        known = self._ranges.layers[number]
        low, high = known.lo, known.hi
        if windows is not None:
            made, slack = self._pooled(inputs, windows, known, hint)
        else:
            linear, zero, match = (hint.kind == kind for kind in (LINEAR, ZERO, MATCH))
            slack = np.where(linear, np.maximum(0, -low), np.where(zero, np.maximum(0, high), 0.0))
            free = ~(linear | zero | match)
            symbols = self._symbols(free, np.maximum(low, 0), np.maximum(high, 0))
            self._remember(symbols, known, free)
            made = self._sum([self._only(inputs, linear), symbols, self._errors(0 * slack, slack)])
        self._plain.add(*known.outputs(low, high))
        self.slack.append(float(slack.max(initial=0.0)))
        self._note(inputs, made, windows, low, high)
        if windows is None and match.any():
            start = self.units.starts[-2]
            if np.isin(hint.place[match], start + np.flatnonzero(match)).any():
                raise CheckFailed("a unit of MODEL is said to be a multiple of one that is a multiple itself")
            made = self._sum([made, self._matched(inputs, hint, np.flatnonzero(match), opposite=True)])
            self.units.outputs[-1] = made
        return made

    def _remember(self, symbols: Expression, known: Layer, which: Mask) -> None:
        """The numbers that a layer's symbols have in the first half; units that are always 0 have none."""
        own = dict(zip(known.kept.tolist(), range(known.start, known.stop), strict=True))
        for symbol, unit in zip(symbols.ids.tolist(), np.flatnonzero(which).tolist(), strict=True):
            if unit in own:
                self._known[symbol] = own[unit]

    def _pulled(self, inputs: Expression, at: Index, sign: float) -> Array:
        """Lower bounds of ``sign *`` some entries by the lines of the first half: the symbols of a network
        are not independent of each other. Errors are taken at their worst.
        """
        part = inputs.take(at)
        known = np.array([int(i) in self._known for i in part.ids], bool)
        ids = np.array([self._known[int(i)] for i in part.ids[known]], np.int64)
        zero = np.zeros(len(at))
        errors = self._largest(Expression(part.ids[~known], part.a[~known], zero, zero))
        forms = Expression(ids, part.a[known], part.c, (part.r + errors) * ROOM)
        found = np.full(len(at), np.nan)
        for rule in RULES:
            found = np.fmax(found, self._ranges.lower(forms, sign, rule, self._ranges.box)[0])
        return found

    def _note(
        self, inputs: Expression, made: Expression, windows: Index | None, lo: Array, hi: Array
    ) -> None:
        units = self.units
        units.inputs.append(inputs)
        units.outputs.append(made)
        units.windows.append(windows)
        units.ends.append((lo, hi))
        units.starts.append(units.starts[-1] + len(made.c))

    def _other_layer(self, number: int, inputs: Expression, windows: Index | None, hint: Hint) -> Expression:
        if windows is not None:
            return self._other_pool(inputs, windows, hint)
        linear, zero, match = (hint.kind == kind for kind in (LINEAR, ZERO, MATCH))
        if not (linear | zero | match).all():
            raise CheckFailed(f"layer {number} of OUT has units without a hint")
        low, high = self._plain.ends(inputs.ends(self.symbols))
        # Where a unit of MODEL is named, its range and the distance from it.
        at = np.flatnonzero(hint.place >= 0)
        if at.size:
            scale = hint.scale[at]
            if not (scale > 0).all():
                raise CheckFailed("a hint has a scale that is not positive")
            near, known = self._named(hint.place[at])
            gap = self._largest(inputs.take(at).minus(near, scale, self.symbols))
            low[at] = np.fmax(low[at], down(down(scale * known[0]) - gap))
            high[at] = np.fmin(high[at], up(up(scale * known[1]) + gap))
        for sign, ends, open_ in ((1.0, low, linear & ~(low >= 0)), (-1.0, high, zero & ~(high <= 0))):
            at = np.flatnonzero(open_)
            ends[at] = sign * np.fmax(sign * ends[at], self._pulled(inputs, at, sign))
        self._plain.add(np.maximum(low, 0), np.maximum(high, 0))
        slack = np.where(linear, np.maximum(0, -low), np.where(zero, np.maximum(0, high), 0.0))
        made = self._sum([self._only(inputs, linear), self._errors(0 * slack, slack)])
        return self._sum([made, self._matched(inputs, hint, np.flatnonzero(match), opposite=False)])

    def _named(self, places: Index) -> tuple[Expression, tuple[Array, Array]]:
        """What units of MODEL read, one column for each place, and between which ends."""
        parts, lo, hi = [], np.full(len(places), np.nan), np.full(len(places), np.nan)
        for mask, layer, entries in self.units.of(places):
            if self.units.windows[layer] is not None:
                raise CheckFailed("a hint compares a ReLU with a maximum")
            parts.append(
                self._spread(self.units.inputs[layer].take(entries), np.flatnonzero(mask), len(places))
            )
            lo[mask], hi[mask] = (end[entries] for end in self.units.ends[layer])
        return self._sum(parts), (lo, hi)

    def _matched(self, inputs: Expression, hint: Hint, at: Index, *, opposite: bool) -> Expression:
        """``s u_k + D / 2 + e`` for the units ``at``, or with ``u_k - y_k`` where ``s`` is negative."""
        count = len(inputs.c)
        if not at.size:
            return self._only(inputs, np.zeros(count, bool))
        places, scale = hint.place[at], hint.scale[at]
        if not np.isfinite(scale).all() or not ((scale > 0) | (opposite & (scale < 0))).all():
            raise CheckFailed("a hint has a scale that is not positive")
        near, _ = self._named(places)
        gap = inputs.take(at).minus(near, scale, self.symbols)
        size = self._largest(gap)
        outputs = self._sum(
            [
                self._spread(self.units.outputs[layer].take(entries), np.flatnonzero(mask), len(at))
                for mask, layer, entries in self.units.of(places)
            ]
        )
        flipped = np.where(scale < 0, 1.0, 0.0)
        base = outputs.minus(near, flipped, self.symbols) if flipped.any() else outputs
        tiny = np.where(size == 0, 0.0, (len(gap.ids) + 2) * ETA * (2 + self.symbols.reach[gap.ids].sum()))
        half = Expression(gap.ids, gap.a / 2, gap.c / 2, gap.r / 2 + tiny)
        made = self._spread(half.minus(base, -np.abs(scale), self.symbols), at, count)
        error = np.zeros(count)
        error[at] = up(size / 2)
        error[at[size == 0]] = 0.0
        return self._sum([made, self._errors(-error, error)])

    def _pooled(
        self, inputs: Expression, windows: Index, known: Layer, hint: Hint
    ) -> tuple[Expression, Array]:
        """A maximum whose winner is known is that entry; any other is a symbol."""
        lows, highs = (np.where(windows < 0, -np.inf, end[windows]) for end in (known.lo, known.hi))
        best = _winners(known.lo, windows)
        winner = np.take_along_axis(windows, best[:, None], 1)[:, 0]
        rest = highs.copy()
        np.put_along_axis(rest, best[:, None], -np.inf, 1)
        slack = np.maximum(0, up(rest.max(1, initial=-np.inf) - known.lo[winner]))
        linear = hint.kind == LINEAR
        slack = np.where(linear, slack, 0.0)
        chosen = self._only(inputs.take(winner), linear)
        symbols = self._symbols(~linear, lows.max(1), highs.max(1))
        self._remember(symbols, known, ~linear)
        return self._sum([chosen, symbols, self._errors(0 * slack, slack)]), slack

    def _other_pool(self, inputs: Expression, windows: Index, hint: Hint) -> Expression:
        """``max_i (s x_i + d_i)`` is ``s max_i x_i`` up to the largest ``|d_i|``; a known winner is as
        above.
        """
        count, linear = len(windows), hint.kind == LINEAR
        if not (linear | (hint.kind == MATCH)).all() or not (hint.scale[~linear] > 0).all():
            raise CheckFailed("a maximum of OUT has no hint that fits it")
        lo, hi = self._plain.ends(inputs.ends(self.symbols))
        self._plain.add(*(np.where(windows < 0, -np.inf, end[windows]).max(1) for end in (lo, hi)))
        parts = []
        at = np.flatnonzero(linear)
        if at.size:
            table = windows[at]
            best = _winners(lo, table)
            winner = table[np.arange(len(at)), best]
            ahead = np.zeros(len(at))
            for j in range(windows.shape[1]):  # how far any other entry can be ahead of the winner
                other = np.where(table[:, j] < 0, winner, table[:, j])
                gap = inputs.take(other).minus(inputs.take(winner), np.ones(len(at)), self.symbols)
                ahead = np.maximum(ahead, np.where(other == winner, 0.0, gap.ends(self.symbols)[1]))
            error = np.zeros(count)
            error[at] = ahead
            parts += [self._spread(inputs.take(winner), at, count), self._errors(0 * error, error)]
        at = np.flatnonzero(~linear)
        if at.size:
            places, scale, error = hint.place[at], hint.scale[at], np.zeros(count)
            for mask, layer, entries in self.units.of(places):
                theirs, own = self.units.windows[layer], at[mask]
                if theirs is None:
                    raise CheckFailed("a hint compares a maximum with a ReLU")
                size = np.zeros(len(own))
                for j in range(max(windows.shape[1], theirs.shape[1])):
                    pair = [
                        t[:, j] if j < t.shape[1] else np.full(len(own), -1)
                        for t in (windows[own], theirs[entries])
                    ]
                    if ((pair[0] < 0) != (pair[1] < 0)).any():
                        raise CheckFailed("a hint compares windows of different kinds")
                    real = pair[0] >= 0
                    gap = inputs.take(pair[0]).minus(
                        self.units.inputs[layer].take(pair[1]), scale[mask], self.symbols
                    )
                    size = np.maximum(size, np.where(real, self._largest(gap), 0.0))
                nothing = Expression(
                    np.zeros(0, np.int64), np.zeros((0, len(own))), np.zeros(len(own)), np.zeros(len(own))
                )
                scaled = nothing.minus(self.units.outputs[layer].take(entries), -scale[mask], self.symbols)
                error[own] = size
                parts.append(self._spread(scaled, own, count))
            parts.append(self._errors(-error, error))
        return self._sum(parts)

    # Expressions put together.

    def _largest(self, gap: Expression) -> Array:
        """The largest magnitude of each entry."""
        low, high = gap.ends(self.symbols)
        return np.maximum(np.abs(low), np.abs(high))

    def _symbols(self, which: Mask, lo: Array, hi: Array) -> Expression:
        """A new symbol for each chosen unit."""
        at = np.flatnonzero(which)
        return self._spread(Expression.of_symbols(self.symbols.add(lo[at], hi[at])), at, len(which))

    def _errors(self, lo: Array, hi: Array) -> Expression:
        """A new symbol where the range is more than 0; NaN is more."""
        return self._symbols(~((lo == 0) & (hi == 0)), lo, hi)

    def _only(self, inputs: Expression, which: Mask) -> Expression:
        """Chosen entries, 0 elsewhere."""
        at = np.flatnonzero(which)
        return self._spread(inputs.take(at), at, len(which))

    @staticmethod
    def _spread(part: Expression, at: Index, count: int) -> Expression:
        """Entries at their places among ``count``, 0 elsewhere."""
        keep = part.a.any(1)
        a, c, r = np.zeros((int(keep.sum()), count)), np.zeros(count), np.zeros(count)
        a[:, at], c[at], r[at] = part.a[keep], part.c, part.r
        return Expression(part.ids[keep], a, c, r)

    @staticmethod
    def _sum(parts: list[Expression]) -> Expression:
        """A sum of which at most one part is other than 0 in any entry and symbol: nothing is rounded."""
        ids = np.unique(np.concatenate([part.ids for part in parts]))
        a, c, r = (np.zeros((len(ids), len(parts[0].c))), *(np.zeros(len(parts[0].c)) for _ in "cr"))
        for part in parts:
            a[np.searchsorted(ids, part.ids)] += part.a
            c, r = c + part.c, r + part.r
        return Expression(ids, a, c, r * ROOM)


def _winners(lo: Array, table: Index) -> Index:
    """The place in each window of the entry with the largest lower end; never one in the padding."""
    found: Index = np.where(table < 0, -np.inf, np.maximum(lo[table], -np.finfo(np.float64).max)).argmax(1)
    return found
