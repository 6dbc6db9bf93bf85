"""Bounds of single units by linear programs, from multipliers that a certificate proposes.

For a unit with pre-activation ``y`` in ``[l, h]``, output ``x`` and state ``z`` (1 where ``y > 0``, else 0),
these hold for every input of the domain, ``l`` and ``h`` being the checker's own ends:

* ``equation``: ``y - a v`` in ``[c - r, c + r]``, where ``a v + c`` is the expression of ``y``;
* ``above``: ``x - y >= 0``;  ``below``: ``x - y - l z <= -l``;  ``off``: ``x - h z <= 0``;
* ``domain``: a constraint of the domain itself;
* a cut, for any set ``I`` of the symbols that ``y`` reads: ``x - sum_I a_i v_i - t z <= -m`` with ``m`` the
  least value of ``sum_I a_i v_i`` and ``t = m + c + r + `` the largest value of the rest. (``z = 0``: ``x =
  0`` and the sum is at least ``m``. ``z = 1``: ``x = y``, which is the sum over ``I`` plus at most ``c + r``
  and the rest.)

For **any** multipliers ``q``: ``cost v = (cost - q M) v + q M v``; the first is least at an end of each
column, the second at an end of each row. Leaves of a tree fix states. So nothing in a proof is believed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from relutrim.certificate.check.expressions import Expression
from relutrim.certificate.check.ranges import Layer, Ranges
from relutrim.certificate.check.rounding import ETA, ROOM, Array, Index, down, gamma, up
from relutrim.errors import CheckFailed

KINDS = ("equation", "above", "below", "off", "domain")
MOST = 2**25
"""No program may have more coefficients."""


@dataclass(frozen=True)
class Unit:
    """A unit as a program sees it: its entry, and the columns of its output, ``y`` and state."""

    layer: Layer
    entry: int
    x: int
    y: int
    z: int

    @property
    def ends(self) -> tuple[float, float]:
        """Of its pre-activation, 0 among them; NaN stays."""
        lo, hi = self.layer.lo[self.entry], self.layer.hi[self.entry]
        return float(np.minimum(0.0, lo)), float(np.maximum(0.0, hi))


class Program:
    """The rows of one proof over columns: all symbols, then ``y`` and ``z`` of each unit it names."""

    def __init__(
        self,
        ranges: Ranges,
        rows: Sequence[Sequence[int]],
        cuts: Sequence[tuple[tuple[int, int], bool, Index]],
    ) -> None:
        self.ranges, self.units = ranges, dict[tuple[int, int], Unit]()
        count, total = len(ranges.symbols.lo), len(rows) + len(cuts)
        places = [(layer, entry) for layer, entry, kind in rows if kind != KINDS.index("domain")]
        for place in dict.fromkeys([*places, *(cut[0] for cut in cuts)]):
            x, y = self._symbol(place), count + 2 * len(self.units)
            if x is not None:
                self.units[place] = Unit(ranges.layers[place[0]], place[1], x, y, y + 1)
        width = count + 2 * len(self.units)
        if width * total > MOST:
            raise CheckFailed(f"not checked: a proof with {total} rows and cuts over {width} columns")
        self.lo, self.hi = np.zeros(width), np.ones(width)
        self.lo[:count], self.hi[:count] = ranges.symbols.lo, ranges.symbols.hi
        for unit in self.units.values():
            self.lo[unit.y], self.hi[unit.y] = unit.ends
        self.matrix = np.zeros((total, width))
        self.lower, self.upper = np.full(total, -np.inf), np.full(total, np.inf)
        for at, (layer, entry, kind) in enumerate(rows):
            self._row(at, (layer, entry), KINDS[kind])
        for at, (place, outside, listed) in enumerate(cuts, len(rows)):
            if place in self.units:
                self._cut(at, self.units[place], listed, outside)

    def _symbol(self, place: tuple[int, int]) -> int | None:
        """The column of a unit's output; None if it is always 0, or not there."""
        if 0 <= place[0] < len(self.ranges.layers):
            layer = self.ranges.layers[place[0]]
            for at in np.flatnonzero(layer.kept == place[1]):
                return int(layer.own.start + at)
        return None

    def _row(self, at: int, place: tuple[int, int], kind: str) -> None:
        row, domain = self.matrix[at], self.ranges.domain
        if kind == "domain" and 0 <= place[0] < len(domain.rows):
            row[: domain.lo.size] = domain.rows[place[0]]
            self.lower[at], self.upper[at] = domain.lower[place[0]], domain.upper[place[0]]
        if kind == "domain" or place not in self.units:
            return
        unit = self.units[place]
        (lo, hi), inputs = unit.ends, unit.layer.inputs
        if kind == "equation":
            row[inputs.ids], row[unit.y] = -inputs.a[:, unit.entry], 1
            c, r = inputs.c[unit.entry], inputs.r[unit.entry]
            self.lower[at], self.upper[at] = down(c - r), up(c + r)
        elif kind == "above":
            row[unit.x], row[unit.y], self.lower[at] = 1, -1, 0
        elif kind == "below":
            row[unit.x], row[unit.y], row[unit.z], self.upper[at] = 1, -1, -lo, -lo
        else:
            row[unit.x], row[unit.z], self.upper[at] = 1, -hi, 0

    def _cut(self, at: int, unit: Unit, listed: Index, outside: bool) -> None:
        """The cut for the symbols at these places, or for all but those."""
        inputs = unit.layer.inputs
        w, inside = inputs.a[:, unit.entry], np.isin(self.ranges.places[inputs.ids], listed) != outside
        ends = w * self.lo[inputs.ids], w * self.hi[inputs.ids]
        least, most = np.minimum(*ends)[inside], np.maximum(*ends)[~inside]
        slack, tiny = gamma(len(w) + 8), (len(w) + 8) * ETA
        m = float(down(least.sum() - slack * np.abs(least).sum() - tiny))
        rest = float(most.sum() + slack * np.abs(most).sum() + tiny)
        c, r = float(inputs.c[unit.entry]), float(inputs.r[unit.entry])
        t = m + c + r + rest
        t = float(up(t + slack * (abs(m) + abs(c) + r + abs(rest)) + tiny))
        row = self.matrix[at]
        row[inputs.ids[inside]] = -w[inside]
        row[unit.x] += 1
        row[unit.z], self.upper[at] = -t, -m

    def least(
        self, target: Expression | None, sign: float, states: Mapping[tuple[int, int], bool], duals: Array
    ) -> float:
        """The bound of ``sign * target`` (or of 0) where units have these states; NaN if there is none."""
        lo, hi = self.lo.copy(), self.hi.copy()
        for place, on in states.items():
            x, unit = self._symbol(place), self.units.get(place)
            if x is not None and not on:
                lo[x] = hi[x] = 0.0
            if unit is not None:
                low, high = unit.ends
                lo[unit.y], hi[unit.y] = (0.0, high) if on else (low, 0.0)
                lo[unit.z] = hi[unit.z] = float(on)
        cost, offset, r = np.zeros(len(lo)), 0.0, 0.0
        if target is not None:
            cost[target.ids] = sign * target.a[:, 0]
            offset, r = sign * float(target.c[0]), float(target.r[0])
        ends = np.where(duals > 0, self.lower, self.upper)
        used = np.flatnonzero((duals != 0) & np.isfinite(duals) & np.isfinite(ends))
        q, rows = duals[used], self.matrix[used]
        reduced, paid = cost - q @ rows, q * ends[used]
        reach = np.maximum(np.abs(lo), np.abs(hi))
        value = float(reduced @ np.where(reduced > 0, lo, hi)) + float(paid.sum()) + offset
        size = float((np.abs(cost) + np.abs(q) @ np.abs(rows)) @ reach + np.abs(paid).sum()) + abs(offset)
        terms = len(lo) + 2 * len(used) + 8
        off = (r + gamma(terms) * (2 * size + abs(value))) * ROOM + 4 * terms * ETA * (4 + float(reach.sum()))
        return float(down(value - off))
