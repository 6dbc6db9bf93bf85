"""Ranges of every unit of a network on the domain, layer by layer: the first half of a check.

Every layer of maxima reads expressions over the network's inputs and the outputs of earlier layers. A lower
bound of an expression replaces, from the last layer back, each output by a line below it where its
coefficient is positive and above it where it is negative. For the maximum of a window, whose entries ``x_i``
lie in ``[l_i, h_i]``, and any ``j, k`` in it and ``t`` in [0, 1],

``x_j <= max_i x_i <= t x_k + max(max(l_k, V) - t l_k, max(h_k, V) - t h_k)``,

where ``V`` is the largest upper end of the others: the right side is convex in ``x_k``, so an end is the
worst. A ReLU is the maximum of ``y`` and 0, and ``s y`` is below it for any ``s`` in [0, 1].

Slopes are computed here, by fixed rules. A certificate adds hints for single units: see :mod:`hull`, and
:meth:`Ranges.on_parts` for boxes that fill the domain.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from relutrim.certificate.check.domain import Domain, box_least
from relutrim.certificate.check.expressions import Expression, Symbols, push
from relutrim.certificate.check.maps import Affine, Graph
from relutrim.certificate.check.rounding import ETA, ROOM, Array, Index, U, gamma
from relutrim.errors import CheckFailed

RULES = ("adaptive", "zero", "one", "chord")
_NUMBERS = 2**22
"""How many coefficients are pulled back at once."""


@dataclass(eq=False)
class Layer:
    """A layer of maxima: what it reads, between which ends, and which of its units are symbols."""

    inputs: Expression
    windows: Index
    relu: bool
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
    def own(self) -> slice:
        """Its symbols."""
        return slice(self.start, self.start + len(self.kept))

    def open(self) -> Index:
        """The entries whose sign is not known."""
        return np.flatnonzero(~((self.lo >= 0) | (self.hi <= 0)))

    def outputs(self, lo: Array, hi: Array) -> tuple[Array, Array]:
        """The ends of the units' outputs, from those of what they read (..., entries)."""
        return windowed(lo, self.windows).max(-1), windowed(hi, self.windows).max(-1)

    def meet(self, entries: Index, sign: float, lower: Array) -> None:
        """Keep better bounds of ``sign *`` entries; NaN is none."""
        if sign > 0:
            self.lo[entries] = np.fmax(self.lo[entries], lower)
        else:
            self.hi[entries] = np.fmin(self.hi[entries], -lower)


@dataclass(eq=False)
class Box:
    """Ranges on one or several boxes: of symbols (boxes, symbols), and of each layer's inputs."""

    lo: Array
    hi: Array
    domain: Domain | None = None
    layers: list[tuple[Array, Array]] = field(default_factory=list)

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
        self.box = Box(self.domain.lo[None], self.domain.hi[None], self.domain)
        self.symbols = Symbols()
        self._values = [self.symbols.add(self.domain.lo, self.domain.hi)]
        self.places = np.arange(self.domain.lo.size)
        """The place of each symbol: inputs first, then all units of the layers one behind the other."""

    def in_time(self) -> None:
        """Raise when a check has taken as long as it may: a hostile certificate can ask for a lot."""
        if time.monotonic() > self.deadline:
            raise CheckFailed("not checked: it takes longer than the limit; --time-limit allows for more")

    def advance(self) -> Layer | None:
        """Go on to the next layer, which is to be closed by :meth:`close`."""
        while len(self._values) <= len(self.graph.nodes):
            self.in_time()
            node = self.graph.nodes[len(self._values) - 1]
            inputs = [self._values[i] for i in node.inputs]
            if not isinstance(node.operation, Affine):
                ends = inputs[0].ends(self.symbols)
                return Layer(inputs[0], node.operation.windows, node.operation.relu, *ends)
            self._values.append(push(node.operation, inputs, self.symbols))
        return None

    def tighten(self, layer: Layer, entries: Callable[[], Index]) -> None:
        """Linear bounds for some of a ReLU's inputs; which, is asked again for each rule."""
        if layer.relu and (self.layers or len(self.domain.rows)):
            for rule in RULES[: None if self.layers else 1]:
                at = entries()
                for sign in (1.0, -1.0):
                    layer.meet(at, sign, self.lower(layer.inputs.take(at), sign, rule, self.box)[0])

    def close(self, layer: Layer) -> None:
        """Make the units that can be other than 0 symbols."""
        low, high = layer.outputs(layer.lo, layer.hi)
        layer.kept, layer.start = np.flatnonzero(~((low == 0) & (high == 0))), len(self.symbols.lo)
        made = self.symbols.add(low[layer.kept], high[layer.kept])
        before = self.domain.lo.size + sum(len(other.windows) for other in self.layers)
        self.places = np.concatenate([self.places, before + layer.kept])
        self.box.add(layer, layer.lo[None], layer.hi[None])
        self.layers.append(layer)
        whole = len(layer.kept) == len(low)
        self._values.append(made if whole else Expression.joined(len(low), (layer.kept, made)))

    def lower(self, forms: Expression, sign: float, rule: str, box: Box) -> Array:
        """Lower bounds (boxes, entries) of ``sign *`` each entry on each box, by lines of one rule."""
        found = np.full((len(box.lo), len(forms.c)), np.nan)
        step = max(1, _NUMBERS // (len(box.lo) * max(1, box.lo.shape[1])))
        known = list(zip(self.layers, box.layers, strict=False))
        reach = np.maximum(np.abs(box.lo), np.abs(box.hi))
        lines = [_lines(layer, *ends, rule) for layer, ends in known]
        sizes = [layer.inputs.magnitude(reach) for layer, _ in known]
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
        for layer, line, size in zip(self.layers[: len(lines)][::-1], lines[::-1], sizes[::-1], strict=True):
            own, ids = a[:, :, layer.own], layer.inputs.ids
            if not own.any():
                continue
            rows = line.weights(own, len(layer.inputs.c))
            shift = _times(np.minimum(own, 0), line.shift) + rows @ layer.inputs.c
            constant += shift
            # Coefficients of one entry that come from several maxima may cancel; their rounding does not.
            width = line.weights(own, len(layer.inputs.c), absolute=True)
            terms = gamma(2 * rows.shape[2] + 8)
            big = _times(np.abs(np.minimum(own, 0)), np.abs(line.shift))
            tiny = (len(ids) + 4) * ETA  # what underflow takes from the radius
            off += _times(width, layer.inputs.r + terms * size + tiny) + terms * big
            off += (rows.shape[2] + 4) * ETA * (4 + reach.sum(1) + size.sum(1))[:, None]
            total += np.abs(shift) + big
            picked = rows[:, :, layer.places] if layer.places is not None else rows @ layer.inputs.a.T
            new = a[:, :, ids] + picked
            off += 2 * U * _times(np.abs(new), reach[:, ids])
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
        for before in (*self.layers, layer):
            ends = before.inputs.ends(Symbols(box.lo, box.hi))
            low, high = np.fmax(ends[0], before.lo), np.fmin(ends[1], before.hi)
            if box.layers:
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
        negative = -negative if absolute else negative
        made = np.zeros((*own.shape[:2], entries))
        if self.below is self.above:  # a ReLU's: one entry each
            made[:, :, self.below[0]] = positive + negative
            return made
        for box in range(len(own)):
            for at, part in ((self.below[box], positive[box]), (self.above[box], negative[box])):
                np.add.at(made[box].T, at, part.T)
        return made


def _lines(layer: Layer, lo: Array, hi: Array, rule: str) -> Lines:
    table = layer.windows[layer.kept]
    lows, highs = windowed(lo, table), windowed(hi, table)
    first = np.zeros_like(highs[..., :1], np.int64) if layer.relu else best(highs, table)
    bottom, top = (np.take_along_axis(end, first, -1)[..., 0] for end in (lows, highs))
    rest = highs.copy()
    np.put_along_axis(rest, first, -np.inf, -1)
    others = rest.max(-1)
    wins = bottom >= others
    chord = np.clip((top - others) / (top - bottom), 0, 1)
    slope = np.where(wins, 1.0, np.where(np.isfinite(chord), chord, 0.0))
    ends = [np.maximum(end, others) - slope * end for end in (bottom, top)]
    size = 16 * U * (np.maximum(np.abs(bottom), np.abs(top)) + np.abs(others)) + 2.0**-1060
    every = np.broadcast_to(table, highs.shape)
    above = np.take_along_axis(every, first, -1)[..., 0]
    if not layer.relu:
        shift = np.where(wins, 0.0, np.maximum(*ends) + size)
        below = np.take_along_axis(every, best(lows / 2 + highs / 2, table), -1)[..., 0]
        return Lines(np.where(wins, above, below), above, np.ones_like(bottom), slope, shift)
    off, zero = top <= 0, np.zeros_like(top)
    low = {"adaptive": np.where(top > -bottom, 1.0, zero), "zero": zero, "one": zero + 1, "chord": slope}[
        rule
    ]
    slope, low = np.where(off, 0.0, slope), np.where(off, 0.0, np.where(wins, 1.0, low))
    return Lines(above, above, low, slope, np.where(wins | off, 0.0, np.maximum(*ends) + size))


def windowed(ends: Array, windows: Index) -> Array:
    """The entries (..., windows, entries) of each window; no entry is the least of all."""
    found: Array = np.where(windows < 0, -np.inf, ends[..., windows])
    return found


def best(numbers: Array, windows: Index) -> Index:
    """The place (..., 1) of the largest of each window; never one without an entry."""
    least = np.maximum(numbers, -np.finfo(np.float64).max)
    found: Index = np.where(windows < 0, -np.inf, least).argmax(-1)[..., None]
    return found


def _times(rows: Array, column: Array) -> Array:
    """Rows (boxes, forms, entries) times a vector (boxes, entries)."""
    found: Array = (rows @ column[:, :, None])[:, :, 0]
    return found


def fills(lo: Array, hi: Array, lows: Array, highs: Array, in_time: Callable[[], None]) -> bool:
    """Whether boxes fill the box from ``lo`` to ``hi``: one contains it, or a cut that none of them crosses
    parts it into two that are filled.
    """
    stack = [(lo, hi, np.arange(len(lows)))]
    while stack:
        lo, hi, here = stack.pop()
        low, high = lows[here], highs[here]
        if ((low <= lo) & (high >= hi)).all(1).any():
            continue
        axis, at = next(_cuts(lo, hi, low, high, in_time), (-1, 0.0))
        if axis < 0:
            return False
        left, right, first = hi.copy(), lo.copy(), high[:, axis] <= at
        left[axis] = right[axis] = at
        stack += [(lo, left, here[first]), (right, hi, here[~first])]
    return True


def _cuts(
    lo: Array, hi: Array, low: Array, high: Array, in_time: Callable[[], None]
) -> Iterator[tuple[int, float]]:
    """Axes and places strictly inside where a box begins and that no box crosses."""
    for axis in range(len(lo)):
        for at in np.unique(low[:, axis]):
            in_time()
            if lo[axis] < at < hi[axis] and ((high[:, axis] <= at) | (low[:, axis] >= at)).all():
                yield axis, float(at)
