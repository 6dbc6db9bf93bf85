"""Ranges of every unit of a network on the domain, layer by layer: the first half of a check.

Every layer of ReLUs reads expressions over the network's inputs and the outputs of earlier layers. A lower
bound of an expression replaces, from the last layer back, each output by a line below it where its
coefficient is positive and above it where it is negative. For a ReLU whose input ``y`` lies in ``[l, h]``,
and any ``s, t`` in [0, 1],

``s y <= max(0, y) <= t y + max(-t l, (1 - t) h)``:

``max(0, y) - t y`` is convex, so it is largest at an end.

Slopes are computed here, by fixed rules. A certificate adds proofs for single units: see :mod:`proofs`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from relutrim.certificate.check.domain import Domain, box_least
from relutrim.certificate.check.expressions import Expression, Symbols, Values, push
from relutrim.certificate.check.maps import Graph
from relutrim.certificate.check.rounding import ETA, ROOM, Array, Index, gamma, up
from relutrim.errors import CheckFailed

RULES = ("adaptive", "zero", "one", "chord")
_NUMBERS = 2**22
"""How many coefficients are pulled back at once."""


@dataclass(eq=False)
class Layer:
    """A layer of ReLUs: what it reads, between which ends, and which of its units are symbols."""

    inputs: Expression
    lo: Array
    hi: Array
    kept: Index = field(init=False)
    own: slice = field(init=False)
    """The symbols of those."""
    form: Expression = field(init=False)
    """What those read."""

    def open(self) -> Index:
        """The units whose sign is not known."""
        return np.flatnonzero(~((self.lo >= 0) | (self.hi <= 0)))

    def meet(self, entries: Index, sign: float, lower: Array) -> None:
        """Keep better bounds of ``sign *`` entries; NaN is none."""
        if sign > 0:
            self.lo[entries] = np.fmax(self.lo[entries], lower)
        else:
            self.hi[entries] = np.fmin(self.hi[entries], -lower)


Lines: TypeAlias = tuple[Layer, Array, Array, Array, Array]
"""Per box and symbol of a layer: how large what it reads is, the slopes of the lines below and above it, and
the upper one's intercept.
"""


@dataclass(eq=False)
class Box:
    """Ranges on one or several boxes: of symbols (boxes, symbols), and of what the symbols' units read."""

    lo: Array
    hi: Array
    domain: Domain | None = None
    layers: list[tuple[Array, Array]] = field(default_factory=list)

    def add(self, lo: Array, hi: Array) -> None:
        """The units of a layer that are symbols."""
        self.layers.append((lo, hi))
        self.lo = np.concatenate([self.lo, np.maximum(lo, 0)], 1)
        self.hi = np.concatenate([self.hi, np.maximum(hi, 0)], 1)


@dataclass(eq=False)
class Ranges:
    """The layers so far, and their ranges on the whole domain."""

    graph: Graph
    domain: Domain
    deadline: float = float("inf")
    layers: list[Layer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.box = Box(self.domain.lo[None], self.domain.hi[None], self.domain)
        self.symbols = Symbols(deadline=self.deadline)
        self._values = Values(self.graph, self.symbols.add(self.domain.lo, self.domain.hi))
        self.places = np.arange(self.domain.lo.size)
        """The place of each symbol: inputs first, then all units of the layers one behind the other."""

    def in_time(self) -> None:
        """Raise when a check has taken as long as it may: a hostile certificate can ask for a lot."""
        if time.monotonic() > self.deadline:
            raise CheckFailed("not checked: it takes longer than the limit; --time-limit allows for more")

    def until(self, deadline: float) -> None:
        """What comes next has its own time."""
        self.deadline = self.symbols.deadline = deadline
        self.domain = replace(self.domain, deadline=deadline)
        self.box = replace(self.box, domain=self.domain)

    def advance(self) -> Layer | None:
        """Go on to the next layer, which is to be closed by :meth:`close`."""
        while (following := self._values.following()) is not None:
            self.in_time()
            node, inputs = following
            if node.operation is None:
                return Layer(inputs[0], *inputs[0].ends(self.symbols))
            self._values.add(push(node.operation, inputs, self.symbols))
        return None

    def tighten(self, layer: Layer, entries: Callable[[], Index]) -> None:
        """Linear bounds for some units; which, is asked again for each rule."""
        if self.layers or len(self.domain.rows):
            for rule in RULES[: None if self.layers else 1]:
                at = entries()
                for sign in (1.0, -1.0):
                    layer.meet(at, sign, self.lower(layer.inputs.take(at), sign, rule, self.box)[0])

    def close(self, layer: Layer) -> None:
        """Make the units that can be other than 0 symbols."""
        layer.kept, start = np.flatnonzero(~(layer.hi <= 0)), len(self.symbols.lo)
        layer.own, whole = slice(start, start + len(layer.kept)), len(layer.kept) == len(layer.lo)
        layer.form = layer.inputs if whole else layer.inputs.take(layer.kept)
        before = self.domain.lo.size + sum(len(other.lo) for other in self.layers)
        self.places = np.concatenate([self.places, before + layer.kept])
        self.box.add(layer.lo[None, layer.kept], layer.hi[None, layer.kept])
        made = self.symbols.add(self.box.lo[0, layer.own], self.box.hi[0, layer.own])
        self.layers.append(layer)
        made = made if whole else Expression.joined(len(layer.lo), (layer.kept, made))
        self._values.add(made, layer.inputs, *(() if whole else (layer.form,)))

    def lower(self, forms: Expression, sign: float, rule: str, box: Box) -> Array:
        """Lower bounds (boxes, entries) of ``sign *`` each entry on each box, by lines of one rule."""
        found = np.full((len(box.lo), len(forms.c)), np.nan)
        step = max(1, _NUMBERS // (len(box.lo) * max(1, box.lo.shape[1])))
        reach = np.maximum(np.abs(box.lo), np.abs(box.hi))
        known = [
            (layer, layer.form.magnitude(reach), *_lines(*ends, rule))
            for layer, ends in zip(self.layers, box.layers, strict=False)
        ]
        for at in range(0, len(forms.c), step):
            self.in_time()
            part = forms.take(np.arange(at, min(at + step, len(forms.c))))
            found[:, at : at + step] = self._pull(part, sign, box, reach, known)
        return found

    def _pull(self, forms: Expression, sign: float, box: Box, reach: Array, known: Sequence[Lines]) -> Array:
        """The lines of each layer put in place of its symbols, last layer first.

        All coefficients on the way are taken as given. ``mass`` bounds the magnitudes of all terms that are
        ever added up, so what their rounding costs is a share of it.
        """
        a = np.zeros((len(box.lo), len(forms.c), box.lo.shape[1]))
        a[:, :, forms.ids] = sign * forms.a.T
        low, off, mass = sign * forms.c, forms.r, forms.magnitude(reach)
        tiny = 4 + reach.sum(1)[:, None]
        for layer, size, under, over, shift in known[::-1]:
            own, form = a[:, :, layer.own], layer.form
            if not own.any():
                continue
            negative = np.minimum(own, 0)
            rows = np.maximum(own, 0) * under[:, None] + negative * over[:, None]
            low = low + rows @ form.c + _times(negative, shift)
            off = off + np.abs(rows) @ form.r
            mass = mass + _times(np.abs(rows), size) + _times(-negative, shift)
            tiny = tiny + (size + form.r).sum(1)[:, None]
            a[:, :, form.ids] += rows @ form.a.T
        inputs = a[:, :, : self.domain.lo.size]
        if box.domain is not None:
            least = box.domain.least(inputs[0])[None]
        else:
            least = box_least(inputs, *(end[:, : inputs.shape[2]] for end in (box.lo, box.hi)))
        terms = 2 * box.lo.shape[1] + 8 * len(known) + 32
        off = (off + gamma(terms) * (mass + np.abs(least)) + terms * ETA * tiny) * ROOM
        found: Array = np.nextafter(low + least - off, -np.inf)
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
                box.add(low[:, before.kept], high[:, before.kept])
        return low, high


def _lines(lo: Array, hi: Array, rule: str) -> tuple[Array, Array, Array]:
    chord = hi / (hi - lo)
    over = np.where(np.isfinite(chord), np.clip(chord, 0, 1), 0.0)
    over = np.where(lo >= 0, 1.0, np.where(hi <= 0, 0.0, over))
    stable = (lo >= 0) | (hi <= 0)
    shift = np.where(stable, 0.0, up(np.maximum(-over * lo, up(1 - over) * hi)))
    zero = np.zeros_like(hi)
    under = {"adaptive": 1.0 * (hi > -lo), "zero": zero, "one": zero + 1, "chord": over}[rule]
    return np.where(stable, over, under), over, shift


def _times(rows: Array, column: Array) -> Array:
    """Rows (boxes, forms, entries) times a vector (boxes, entries)."""
    found: Array = (rows @ column[:, :, None])[:, :, 0]
    return found
