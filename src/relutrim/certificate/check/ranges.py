"""Ranges of every unit of a network on the domain, layer by layer: the first half of a check.

Every nonlinear layer's inputs are expressions over the network's inputs and the outputs of earlier layers. A
lower bound of an expression replaces, from the last layer back, each output by a line below it where its
coefficient is positive and above it where it is negative:

* ReLU with ``y`` in ``[l, h]``, ``l < 0 < h``: ``s y <= max(0, y) <= t y + max(-t l, (1 - t) h)`` for **any**
  ``s, t`` in [0, 1] (the right side is convex in ``y``, so an end is the worst);
* maximum of a window: ``x_j <= max <= t x_k + max(max(l_k, V) - t l_k, max(h_k, V) - t h_k)`` for any ``j,
  k`` in it, where ``V`` is the largest upper end of the others.

Slopes are computed here, by fixed rules. A certificate adds hints for single units: see :mod:`hull`, and
:meth:`Ranges.on_parts` for boxes that fill the domain.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from relutrim.certificate.check.domain import Domain, box_least
from relutrim.certificate.check.expressions import Expression, Symbols, push
from relutrim.certificate.check.maps import Affine, Graph, Maximum
from relutrim.certificate.check.rounding import ETA, ROOM, Array, Index, Mask, U, gamma
from relutrim.errors import CheckFailed

RULES = ("adaptive", "zero", "one", "chord")
_NUMBERS = 2**22
"""How many coefficients are pulled back at once."""


@dataclass(eq=False)
class Layer:
    """A nonlinear layer: what it reads, between which ends, and which of its units are symbols."""

    node: int
    inputs: Expression
    windows: Index | None
    size: int
    lo: Array
    hi: Array
    kept: Index = field(default_factory=lambda: np.zeros(0, np.int64))
    start: int = 0

    def __post_init__(self) -> None:
        a = self.inputs.a
        once = (np.count_nonzero(a, axis=1) == 1).all() and (np.count_nonzero(a, axis=0) <= 1).all()
        self.places = a.argmax(1) if a.size and once and (a.max(1) == 1).all() else None
        """Where each symbol is an entry of its own, the entry: ``inputs.a`` only picks then."""

    @property
    def stop(self) -> int:
        """Where its symbols end."""
        return self.start + len(self.kept)

    def outputs(self, lo: Array, hi: Array) -> tuple[Array, Array]:
        """The ends of the units' outputs, from those of what they read (..., entries)."""
        if self.windows is None:
            return np.maximum(lo, 0), np.maximum(hi, 0)
        lows, highs = (_windowed(end, self.windows) for end in (lo, hi))
        return lows.max(-1), highs.max(-1)


@dataclass(eq=False)
class Box:
    """Ranges on one or several boxes: of symbols (boxes, symbols), and of each layer's inputs."""

    lo: Array
    hi: Array
    layers: list[tuple[Array, Array]] = field(default_factory=list)
    domain: Domain | None = None

    def add(self, layer: Layer, lo: Array, hi: Array) -> None:
        """A layer's inputs and its symbols."""
        self.layers.append((lo, hi))
        low, high = (end[:, layer.kept] for end in layer.outputs(lo, hi))
        self.lo, self.hi = np.concatenate([self.lo, low], 1), np.concatenate([self.hi, high], 1)


@dataclass(eq=False)
class Ranges:
    """The layers so far, and their ranges on the whole domain."""

    graph: Graph
    domain: Domain
    deadline: float = float("inf")
    layers: list[Layer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.symbols = Symbols(self.domain.lo, self.domain.hi)
        self.box = Box(self.domain.lo[None], self.domain.hi[None], domain=self.domain)
        self.places = np.arange(self.domain.lo.size)
        """The place of each symbol: inputs first, then all units of the layers one behind the other."""
        self._values: list[Expression] = [Expression.of_symbols(np.arange(self.domain.lo.size))]

    def in_time(self) -> None:
        """Raise when a check has taken as long as it may: a hostile certificate can ask for a lot."""
        if time.monotonic() > self.deadline:
            raise CheckFailed("not checked: it takes longer than the limit; --time-limit allows for more")

    def advance(self, node: int) -> Layer | None:
        """Go through one node; a nonlinear one becomes a layer, which is to be closed by :meth:`close`."""
        made = self.graph.nodes[node]
        inputs = [self._values[i] for i in made.inputs]
        if isinstance(made.operation, Affine):
            self._values.append(push(made.operation, inputs, self.symbols))
            return None
        windows = made.operation.windows if isinstance(made.operation, Maximum) else None
        (expression,) = inputs
        lo, hi = expression.ends(self.symbols)
        return Layer(node, expression, windows, self.graph.sizes[node + 1], lo, hi)

    def tighten(self, layer: Layer) -> None:
        """Linear bounds for the inputs of ReLUs whose sign is open."""
        if layer.windows is not None or (not self.layers and not len(self.domain.rows)):
            return
        for rule in RULES[: None if self.layers else 1]:
            open_ = np.flatnonzero(~((layer.lo >= 0) | (layer.hi <= 0)))
            for sign in (1.0, -1.0):
                self.meet(layer, open_, sign, self.lower(layer.inputs.take(open_), sign, rule, self.box)[0])

    @staticmethod
    def meet(layer: Layer, entries: Index, sign: float, lower: Array) -> None:
        """Keep better bounds of ``sign * y``; NaN is none."""
        if sign > 0:
            layer.lo[entries] = np.fmax(layer.lo[entries], lower)
        else:
            layer.hi[entries] = np.fmin(layer.hi[entries], -lower)

    def close(self, layer: Layer) -> None:
        """Make the units that can be other than 0 symbols."""
        low, high = layer.outputs(layer.lo, layer.hi)
        nothing = (low == 0) & (high == 0)
        layer.kept, layer.start = np.flatnonzero(~nothing), len(self.symbols.lo)
        ids = self.symbols.add(low[layer.kept], high[layer.kept])
        before = self.domain.lo.size + sum(other.size for other in self.layers)
        self.places = np.concatenate([self.places, before + layer.kept])
        self.box.add(layer, layer.lo[None], layer.hi[None])
        self.layers.append(layer)
        a = np.zeros((len(ids), layer.size))
        a[np.arange(len(ids)), layer.kept] = 1.0
        self._values.append(Expression(ids, a, np.zeros(layer.size), np.zeros(layer.size)))

    def lower(self, forms: Expression, sign: float, rule: str, box: Box) -> Array:
        """Lower bounds (boxes, entries) of ``sign *`` each entry on each box, by lines of one rule."""
        found = np.full((len(box.lo), len(forms.c)), np.nan)
        step = max(1, _NUMBERS // (len(box.lo) * max(1, box.lo.shape[1])))
        with np.errstate(all="ignore"):
            lines = [_lines(layer, *ends, rule) for layer, ends in zip(self.layers, box.layers, strict=False)]
            sizes = [
                _magnitudes(layer.inputs, box) for layer, _ in zip(self.layers, box.layers, strict=False)
            ]
            for at in range(0, len(forms.c), step):
                self.in_time()
                part = forms.take(np.arange(at, min(at + step, len(forms.c))))
                found[:, at : at + step] = self._pull(part, sign, box, lines, sizes)
        return found

    def _pull(
        self, forms: Expression, sign: float, box: Box, lines: Sequence[Lines], sizes: Sequence[Array]
    ) -> Array:
        """The lines of each layer put in place of its symbols, last layer first. All coefficients on the way
        are taken as given; that they are rounded costs what is added to ``off``.
        """
        boxes, count = len(box.lo), len(forms.c)
        reach = np.maximum(np.abs(box.lo), np.abs(box.hi))
        a = np.zeros((boxes, count, box.lo.shape[1]))
        a[:, :, forms.ids] = sign * forms.a.T
        constant = np.broadcast_to(sign * forms.c, (boxes, count)).copy()
        off, total = np.broadcast_to(forms.r, (boxes, count)).copy(), np.abs(constant)
        for layer, line, size in zip(
            reversed(self.layers[: len(lines)]), lines[::-1], sizes[::-1], strict=True
        ):
            own = a[:, :, layer.start : layer.stop]
            if not own.any():
                continue
            rows = line.weights(own, len(layer.inputs.c))
            shift = (np.minimum(own, 0) @ line.shift[:, :, None])[:, :, 0] + rows @ layer.inputs.c
            constant += shift
            # Coefficients of one entry that come from several maxima may cancel; their rounding does not.
            width = line.weights(own, len(layer.inputs.c), absolute=True)
            terms = gamma(2 * rows.shape[2] + 8)
            big = (np.abs(np.minimum(own, 0)) @ np.abs(line.shift)[:, :, None])[:, :, 0]
            tiny = (len(layer.inputs.ids) + 4) * ETA  # what underflow takes from the radius
            off += (width @ (layer.inputs.r + terms * size + tiny)[:, :, None])[:, :, 0] + terms * big
            off += (rows.shape[2] + 4) * ETA * (4 + reach.sum(1) + size.sum(1))[:, None]
            total += np.abs(shift) + big
            ids = layer.inputs.ids
            picked = rows[:, :, layer.places] if layer.places is not None else rows @ layer.inputs.a.T
            new = a[:, :, ids] + picked
            off += 2 * U * (np.abs(new) @ reach[:, ids, None])[:, :, 0]
            a[:, :, ids] = new
        inputs = a[:, :, : self.domain.lo.size]
        if box.domain is not None:
            low = box.domain.least(inputs[0])[None]
        else:
            low = box_least(inputs, *(end[:, : inputs.shape[2]] for end in (box.lo, box.hi)))
        off = (off + gamma(2 * len(lines) + 8) * (total + np.abs(low))) * ROOM
        found: Array = np.nextafter(constant + low - off, -np.inf)
        return found

    def on_parts(self, layer: Layer, lo: Array, hi: Array) -> tuple[Array, Array]:
        """Ranges (boxes, entries) of a layer's inputs on boxes, on each of which all layers are bounded
        anew.
        """
        box = Box(lo, hi)
        for at, (before, known) in enumerate(
            zip([*self.layers, layer], [*self.box.layers, None], strict=True)
        ):
            ends = before.inputs.ends(Symbols(box.lo, box.hi))
            whole = known if known is not None else (layer.lo[None], layer.hi[None])
            low, high = np.fmax(ends[0], whole[0]), np.fmin(ends[1], whole[1])
            if at:
                open_ = np.flatnonzero((~((low >= 0) | (high <= 0))).any(0))
                forms = before.inputs.take(open_)
                for rule in RULES if before is layer else RULES[:1]:
                    low[:, open_] = np.fmax(low[:, open_], self.lower(forms, 1.0, rule, box))
                    high[:, open_] = np.fmin(high[:, open_], -self.lower(forms, -1.0, rule, box))
            if before is not layer:
                box.add(before, low, high)
        return low, high


@dataclass(eq=False)
class Lines:
    """Per box and symbol: the entries and slopes of the lines below and above, and the upper's intercept."""

    below: Index
    above: Index
    low: Array
    high: Array
    shift: Array

    def weights(self, own: Array, entries: int, *, absolute: bool = False) -> Array:
        """Coefficients of symbols (boxes, forms, symbols) as coefficients of entries, or the sums of their
        magnitudes.
        """
        positive, negative = np.maximum(own, 0) * self.low[:, None], np.minimum(own, 0) * self.high[:, None]
        if absolute:
            negative = -negative
        made = np.zeros((*own.shape[:2], entries))
        if self.below is self.above:  # a ReLU's: one entry each
            made[:, :, self.below[0]] = positive + negative
            return made
        for box in range(len(own)):
            for at, part in ((self.below[box], positive[box]), (self.above[box], negative[box])):
                np.add.at(made[box].T, at, part.T)
        return made


def _lines(layer: Layer, lo: Array, hi: Array, rule: str) -> Lines:
    if layer.windows is not None:
        return _maximum_lines(layer, lo, hi)
    lo, hi = lo[:, layer.kept], hi[:, layer.kept]
    on, off = lo >= 0, hi <= 0
    chord = np.clip(hi / (hi - lo), 0, 1)
    high = np.where(off, 0.0, np.where(on, 1.0, chord))
    shift = np.maximum(-high * lo, (1 - high) * hi)
    shift = np.where(on | off, 0.0, shift + (np.abs(shift) * (16 * U) + 2.0**-1060))
    zero = np.zeros_like(lo)
    low = {"adaptive": np.where(hi > -lo, 1.0, zero), "zero": zero, "one": zero + 1, "chord": chord}[rule]
    low = np.where(on | off, high, np.where(np.isnan(low), 0.0, low))
    at = np.broadcast_to(layer.kept, lo.shape)
    return Lines(at, at, low, high, shift)


def _maximum_lines(layer: Layer, lo: Array, hi: Array) -> Lines:
    assert layer.windows is not None
    table = layer.windows[layer.kept]
    lows, highs = _windowed(lo, table), _windowed(hi, table)
    first = highs.argmax(-1)[..., None]
    bottom, top = (np.take_along_axis(end, first, -1)[..., 0] for end in (lows, highs))
    rest = highs.copy()
    np.put_along_axis(rest, first, -np.inf, -1)
    others = rest.max(-1)
    wins = bottom >= others
    slope = np.where(wins, 1.0, np.clip((top - others) / (top - bottom), 0, 1))
    slope = np.where(np.isfinite(slope), slope, 0.0)
    ends = [np.maximum(end, others) - slope * end for end in (bottom, top)]
    size = 16 * U * (np.maximum(np.abs(bottom), np.abs(top)) + np.abs(others)) + 2.0**-1060
    shift = np.where(wins, 0.0, np.maximum(*ends) + size)
    above = np.take_along_axis(np.broadcast_to(table, highs.shape), first, -1)[..., 0]
    best = np.where(table < 0, -np.inf, lows / 2 + highs / 2).argmax(-1)[..., None]
    below = np.take_along_axis(np.broadcast_to(table, highs.shape), best, -1)[..., 0]
    below = np.where(wins, above, below)
    return Lines(below, above, np.ones_like(bottom), slope, shift)


def _windowed(ends: Array, windows: Index) -> Array:
    found: Array = np.where(windows < 0, -np.inf, ends[..., windows])
    return found


def _magnitudes(inputs: Expression, box: Box) -> Array:
    reach = np.maximum(np.abs(box.lo), np.abs(box.hi))[:, inputs.ids]
    found: Array = (reach @ np.abs(inputs.a) + np.abs(inputs.c)) * ROOM + ETA
    return found


def fills(
    lo: Array, hi: Array, lows: Array, highs: Array, in_time: Callable[[], None] = lambda: None
) -> bool:
    """Whether boxes fill the box from ``lo`` to ``hi``: one contains it, or a cut that none of them crosses
    parts it into two that are filled.
    """
    stack = [(lo, hi, np.ones(len(lows), bool))]
    while stack:
        lo, hi, here = stack.pop()
        low, high = lows[here], highs[here]
        if ((low <= lo) & (high >= hi)).all(1).any():
            continue
        cut = _cut(lo, hi, low, high, in_time)
        if cut is None:
            return False
        axis, at = cut
        left, right = hi.copy(), lo.copy()
        left[axis] = right[axis] = at
        sides: list[tuple[Array, Array, Mask]] = [
            (lo, left, highs[:, axis] <= at),
            (right, hi, lows[:, axis] >= at),
        ]
        stack += [(a, b, here & keep) for a, b, keep in sides]
    return True


def _cut(
    lo: Array, hi: Array, lows: Array, highs: Array, in_time: Callable[[], None]
) -> tuple[int, float] | None:
    """An axis and a place strictly inside where a box begins and that no box crosses."""
    for axis in range(len(lo)):
        in_time()
        order = np.argsort(lows[:, axis], kind="stable")
        low, reached = lows[order, axis], np.maximum.accumulate(highs[order, axis])
        clean = np.flatnonzero((reached[:-1] <= low[1:]) & (low[1:] > lo[axis]) & (low[1:] < hi[axis]))
        if clean.size:
            return axis, float(low[1 + clean[clean.size // 2]])
    return None
