"""Bounds of single units by linear programs, from multipliers that a certificate proposes.

For a unit with pre-activation ``y`` in ``[l, h]``, output ``x`` and state ``z`` (1 where ``y > 0``, else 0),
these hold for every input of the domain, ``l`` and ``h`` being the checker's own ends:

* ``equation``: ``y - a v`` in ``[c - r, c + r]``, where ``a v + c`` is the expression of ``y``;
* ``above``: ``x - y >= 0``;  ``below``: ``x - y - l z <= -l``;  ``off``: ``x - h z <= 0``;
* ``active``: ``x - a v`` in ``[c - r, c + r + max(0, -l)]``;
* ``domain``: a constraint of the domain itself;
* a cut, for any set ``I`` of the symbols that ``y`` reads: ``x - sum_I a_i v_i - t z <= -m`` with ``m`` the
  least value of ``sum_I a_i v_i`` and ``t = m + c + r + `` the largest value of the rest. (``z = 0``: ``x =
  0`` and the sum is at least ``m``. ``z = 1``: ``x = y``, which is the sum over ``I`` plus at most ``c + r``
  and the rest.)

For **any** multipliers ``q``: ``cost v = (cost - q M) v + q M v``; the first is least at an end of each
column, the second at an end of each row. Leaves fix states, and must cover all of them. So nothing in a hint
is believed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relutrim.certificate.check.expressions import Expression
from relutrim.certificate.check.ranges import Layer, Ranges
from relutrim.certificate.check.rounding import ETA, ROOM, Array, down, gamma, up
from relutrim.errors import CheckFailed

KINDS = ("equation", "above", "below", "off", "active", "domain")
_MOST = 2**25


@dataclass(frozen=True)
class Unit:
    """A unit as a program sees it: the column of its output, its expression, and its ends."""

    column: int
    layer: Layer
    entry: int

    @property
    def ends(self) -> tuple[float, float]:
        """Of its pre-activation, 0 among them."""
        return min(0.0, float(self.layer.lo[self.entry])), max(0.0, float(self.layer.hi[self.entry]))


class Program:
    """The rows of one hint over columns: all symbols, then ``y`` and ``z`` of each unit it names."""

    def __init__(
        self, ranges: Ranges, rows: Sequence[Sequence[int]], cuts: Sequence[Any], states: Any
    ) -> None:
        self.ranges = ranges
        self.count = len(ranges.symbols.lo)
        self.units: dict[tuple[int, int], tuple[Unit, int]] = {}
        places = [(int(a), int(b)) for a, b, kind in rows if kind != KINDS.index("domain")]
        for place in [*places, *(cut[0] for cut in cuts), *states]:
            unit = self._unit(*place)
            if unit is not None and place not in self.units:
                self.units[place] = (unit, self.count + 2 * len(self.units))
        width = self.count + 2 * len(self.units)
        if width * (len(rows) + len(cuts)) > _MOST:
            raise CheckFailed(
                f"not checked: a hint with {len(rows)} rows and {len(cuts)} cuts over {width} columns"
            )
        self.lo, self.hi = np.zeros(width), np.ones(width)
        self.lo[: self.count], self.hi[: self.count] = ranges.symbols.lo, ranges.symbols.hi
        for unit, y in self.units.values():
            self.lo[y], self.hi[y] = unit.ends
        self.matrix = np.zeros((len(rows) + len(cuts), width))
        self.lower = np.full(len(self.matrix), -np.inf)
        self.upper = np.full(len(self.matrix), np.inf)
        for at, (layer, entry, kind) in enumerate(rows):
            self._row(at, int(layer), int(entry), KINDS[kind])
        for at, (place, chosen) in enumerate(cuts, len(rows)):
            if place in self.units:
                self._cut(at, *self.units[place], chosen)

    def _unit(self, number: int, entry: int) -> Unit | None:
        """A ReLU's unit that is a symbol; None if it is always 0, or there is none of that name."""
        if not 0 <= number < len(self.ranges.layers):
            return None
        layer = self.ranges.layers[number]
        at = int(np.searchsorted(layer.kept, entry))
        if layer.windows is not None or at >= len(layer.kept) or layer.kept[at] != entry:
            return None
        return Unit(layer.start + at, layer, entry)

    def _row(self, at: int, number: int, entry: int, kind: str) -> None:
        row = self.matrix[at]
        domain = self.ranges.domain
        if kind == "domain":
            if 0 <= number < len(domain.rows):
                row[: domain.lo.size] = domain.rows[number]
                self.lower[at], self.upper[at] = domain.lower[number], domain.upper[number]
            return
        if (number, entry) not in self.units:
            return
        unit, y = self.units[number, entry]
        x, z, (lo, hi), inputs = unit.column, y + 1, unit.ends, unit.layer.inputs
        if kind in ("equation", "active"):
            row[inputs.ids] = -inputs.a[:, entry]
            row[y if kind == "equation" else x] += 1
            c, r = inputs.c[entry], inputs.r[entry]
            self.lower[at] = down(c - r)
            self.upper[at] = up(up(c + r) - (lo if kind == "active" else 0))
        elif kind == "above":
            row[x], row[y], self.lower[at] = 1, -1, 0
        elif kind == "below":
            row[x], row[y], row[z], self.upper[at] = 1, -1, -lo, -lo
        else:
            row[x], row[z], self.upper[at] = 1, -hi, 0

    def _cut(self, at: int, unit: Unit, y: int, chosen: Any) -> None:
        inputs = unit.layer.inputs
        w, inside = inputs.a[:, unit.entry], chosen.among(self.ranges.places[inputs.ids])
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
        row[unit.column] += 1
        row[y + 1], self.upper[at] = -t, -m

    def leaf(
        self, target: Expression, sign: float, states: Mapping[tuple[int, int], bool], duals: Array
    ) -> float:
        """The bound of ``sign * target`` where units have these states; NaN if there is none."""
        lo, hi = self.lo.copy(), self.hi.copy()
        for place, on in states.items():
            if place not in self.units:
                continue
            unit, y = self.units[place]
            low, high = unit.ends
            lo[unit.column], hi[unit.column] = 0.0, high if on else 0.0
            lo[y], hi[y] = (0.0, high) if on else (low, 0.0)
            lo[y + 1] = hi[y + 1] = float(on)
        cost = np.zeros(len(lo))
        cost[target.ids] = sign * target.a[:, 0]
        return self._bound(cost, sign * float(target.c[0]), float(target.r[0]), lo, hi, duals)

    def empty(self, states: Mapping[tuple[int, int], bool], ray: Array) -> bool:
        """Whether the ray proves that no point has these states: 0 would be above 0."""
        nothing = Expression(np.zeros(0, np.int64), np.zeros((0, 1)), np.zeros(1), np.zeros(1))
        return self.leaf(nothing, 1.0, states, ray) > 0

    def _bound(self, cost: Array, offset: float, r: float, lo: Array, hi: Array, duals: Array) -> float:
        ends = np.where(duals > 0, self.lower, self.upper)
        duals = np.where(np.isfinite(duals) & np.isfinite(ends), duals, 0.0)
        used = np.flatnonzero(duals)
        q, rows = duals[used], self.matrix[used]
        reduced = cost - q @ rows
        reach = np.maximum(np.abs(lo), np.abs(hi))
        paid = q * ends[used]
        value = float(reduced @ np.where(reduced > 0, lo, hi)) + float(paid.sum()) + offset
        size = float((np.abs(cost) + np.abs(q) @ np.abs(rows)) @ reach + np.abs(paid).sum()) + abs(offset)
        terms = len(lo) + 2 * len(used) + 8
        off = (r + gamma(terms) * (2 * size + abs(value))) * ROOM + 4 * terms * ETA * (4 + float(reach.sum()))
        return float(down(value - off))


def bound(ranges: Ranges, layer: Layer, hint: Mapping[str, Any]) -> float:
    """The lower bound of ``sign * y`` of a unit that a hint proves; NaN if it proves none."""
    ranges.in_time()
    entry, leaves = hint["unit"], hint["leaves"]
    if not 0 <= entry < len(layer.lo) or not covers([leaf["states"] for leaf in leaves], ranges.in_time):
        return float("nan")
    with np.errstate(all="ignore"):
        states = [place for leaf in leaves for place in leaf["states"]]
        program = Program(ranges, hint["rows"], hint["cuts"], states)
        target, least = layer.inputs.take(np.array([entry])), float("inf")
        for leaf in leaves:
            ranges.in_time()
            duals = np.zeros(len(program.matrix))
            duals[leaf["at"]] = leaf["values"]
            if leaf["empty"] and program.empty(leaf["states"], duals):
                continue
            found = program.leaf(target, float(hint["sign"]), leaf["states"], duals)
            if np.isnan(found):
                return found
            least = min(least, found)
    return least if least < np.inf else float("nan")


def covers(
    cases: Sequence[Mapping[tuple[int, int], bool]], in_time: Callable[[], None] = lambda: None
) -> bool:
    """Whether every assignment of states agrees with at least one case; False if that takes too long or too
    much memory to say, which the leaves of a tree never do: each of them goes to one side of a cut.
    """
    stack, steps, held = [list(cases)], 0, len(cases)
    while stack:
        in_time()
        every, steps = stack.pop(), steps + 1
        held -= len(every)
        if steps > 16 * len(cases) + 64 or held > 16 * len(cases) + 64:
            return False
        if any(not case for case in every):
            continue
        if not every:
            return False
        first = next(iter(every[0]))
        for on in (False, True):
            kept = [case for case in every if case.get(first, on) == on]
            held += len(kept)
            stack.append([{k: v for k, v in case.items() if k != first} for case in kept])
    return True
