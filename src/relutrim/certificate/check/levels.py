"""Bounds of single units, from multipliers that a certificate proposes: true whatever these are.

From the last layer back, the symbols of units give way to what they are at least; what is left of others is
least at an end. A unit ``x = max(0, y)``, ``y = w v + c + e`` with ``|e| <= r``, whose range ``l <= y <= h``
is the checker's own, has a state ``z``, 1 where ``y > 0`` and 0 elsewhere. With ``l <= 0 <= h``,

``x >= y``,  ``x <= y - l (1 - z)``,  ``x <= h z``,  ``x <= s(v) - (1 - z) m + z t``

where ``s(v) = sum a_i w_i v_i`` with any shares ``a_i`` in [0, 1], ``m`` is its least value and ``t`` the
largest of ``y - s(v)``. (``z = 0``: ``x`` is 0, and the sum at least ``m``. ``z = 1``: ``x`` is ``y``.) So
with any ``above``, ``below``, ``off``, ``cut >= 0`` for these four and any ``push``, the coefficient of ``x``
being ``rest + above - below - off - cut``, its term is at least

``through y - cut s(v) + min_x rest x + min_y push y
+ min_z (below l (1 - z) - off h z + cut (m (1 - z) - t z))``,  ``through = above - below - push``,

the least values being over what a case leaves: where the unit is on, ``z = 1`` and ``y >= 0``; where it is
off, ``z = 0``, ``x = 0`` and ``y <= 0``.

Multipliers, shares and the coefficients of symbols are taken as the floats that they become. What these do
not add up to is a share of ``size``, which no sum of magnitudes exceeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from relutrim.certificate.check.domain import box_least
from relutrim.certificate.check.expressions import Expression
from relutrim.certificate.check.ranges import Ranges
from relutrim.certificate.check.rounding import ETA, ROOM, Array, Index, Mask, down, gamma
from relutrim.errors import CheckFailed, InputError

MOST = 2**23
"""No proof may have units with more coefficients."""
Place: TypeAlias = tuple[int, int]
States: TypeAlias = Mapping[Place, bool]
Marks: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.int8]]
"""1 where a unit is on, -1 where it is off, ``[units, cases]``."""
Multipliers: TypeAlias = tuple[Array, Array, Array, Array, Array, Array]
"""Above, below, off, cut and push ``[units, cases]``, and shares ``[units, k, cases]``."""


class Level:
    """Units of one layer, and the places of the symbols whose shares are not a half, ``[units, k]``. Units
    that are always 0, or not there, and places that a unit does not read, count for nothing.
    """

    def __init__(self, ranges: Ranges, number: int, units: Index, places: Index) -> None:
        layer, symbols = ranges.layers[number], ranges.symbols
        self.number, self.here = number, np.isin(units, layer.kept)
        units, places = units[self.here], places[self.here]
        self.rows = {int(unit): row for row, unit in enumerate(units)}
        inputs = layer.inputs.take(units)
        self.symbols, self.ids = layer.own.start + np.searchsorted(layer.kept, units), inputs.ids
        self.weight, known = inputs.a.T, np.append(ranges.places[self.ids], 2**40)
        at = np.searchsorted(known, places)
        read = known[at] == places
        own = (at + np.arange(len(units))[:, None] * len(self.ids))[read]
        if len(self.rows) != len(units) or not np.diff(np.sort(own)).all():
            raise InputError("a proof lists a unit, or a place of a unit, twice")
        ends = self.weight * symbols.lo[self.ids], self.weight * symbols.hi[self.ids]
        self.near, self.far = _split(self.weight, read, own)
        both = [_split(end, read, own) for end in (np.minimum(*ends), np.maximum(*ends))]
        self.ends = np.stack([near for near, _ in both], 1)
        self.halves = [far.sum(1)[:, None] for _, far in both]
        self.magnitude, terms = inputs.magnitude(symbols.reach)[:, None], 4 * (len(self.ids) + 8)
        self.slack = gamma(terms) * self.magnitude * ROOM + 4 * terms * ETA
        self.order = np.flatnonzero(read)[np.argsort(at[read], kind="stable")]
        self.targets, self.starts = np.unique(at.reshape(-1)[self.order], return_index=True)
        lo, hi = layer.lo[units][:, None], layer.hi[units][:, None]
        self.c, self.r = inputs.c[:, None], inputs.r[:, None]
        self.stable, self.least = lo >= 0, np.maximum(lo, 0)
        self.lo, self.hi = np.minimum(lo, 0), np.maximum(hi, 0)

    def replace(self, weights: Array, marks: Marks, multipliers: Multipliers) -> tuple[Array, Array, Array]:
        """Put what the units are at least for ``weights``, ``[symbols, cases]``, of their symbols; the
        constant that comes with it, the sum of all magnitudes, and what the units' own radii cost.
        """
        a, on, off = weights[self.symbols], marks > 0, marks < 0
        above, below, flat, cut, push, share = multipliers
        through, rest = above - below - push, a - above + below + flat + cut
        least, most = np.moveaxis(self.ends @ share, 1, 0)
        m = least + 0.5 * self.halves[0] - self.slack
        t = (self.ends[:, 1].sum(1)[:, None] - most) + 0.5 * self.halves[1] + self.slack
        t = (t + (self.c + self.r)) + gamma(8) * (np.abs(t) + np.abs(self.c) + self.r)
        at_0, at_1 = below * self.lo + cut * m, -flat * self.hi - cut * t
        constant = np.where(on, at_1, np.where(off, at_0, np.minimum(at_0, at_1))) + through * self.c
        low, high = np.where(on, 0.0, self.lo), np.where(off, 0.0, self.hi)
        constant += np.minimum(push * low, push * high)
        constant += np.minimum(rest * np.where(off, 0.0, self.least), rest * high)
        weights[self.symbols] = 0
        found = self.weight.T @ through - 0.5 * (self.far.T @ cut)
        # The weight comes last: if a product of it underflowed, that would be multiplied by the cut.
        near = (self.near[:, :, None] * (share * cut[:, None])).reshape(-1, a.shape[1])
        if len(self.order):
            found[self.targets] -= np.add.reduceat(near[self.order], self.starts)
        weights[self.ids] += found
        size = np.abs(a) + above + below + flat + cut + np.abs(push)
        size = size * np.maximum(-self.lo, self.hi) + cut * (np.abs(m) + np.abs(t))
        size += self.magnitude * (np.abs(through) + cut)
        return constant.sum(0), size.sum(0), (np.abs(through) * self.r).sum(0)


class Levels:
    """All units that a proof replaces, layer by layer."""

    def __init__(self, ranges: Ranges, listed: Sequence[tuple[int, Index, Index]]) -> None:
        numbers = [number for number, _, _ in listed]
        if numbers != sorted({*numbers} & {*range(len(ranges.layers))}):
            raise InputError("a proof lists layers that are not there, or not in their order")
        sizes = [(len(ranges.layers[n].inputs.ids) + p.shape[1]) * (len(u) + 1) for n, u, p in listed]
        if sum(sizes) > MOST:
            raise CheckFailed(f"not checked: a proof about units with {sum(sizes)} coefficients")
        self.ranges, self.every = ranges, [Level(ranges, *one) for one in listed]
        places = [(level.number, unit) for level in self.every for unit in level.rows]
        self.units = {place: at for at, place in enumerate(places)}
        self.starts = np.cumsum([0, *(len(level.rows) for level in self.every)]).tolist()

    def bounds(
        self,
        target: Expression,
        sign: float,
        cases: Sequence[States],
        multipliers: Callable[[int, Array], Multipliers],
    ) -> Array:
        """Those of ``sign * target`` in each case, with what is proposed for each level and the
        coefficients of its units; NaN if there is none.
        """
        symbols = self.ranges.symbols
        weights, reach = np.zeros((len(symbols.lo), len(cases))), symbols.reach
        total, size, off = np.zeros((3, len(cases)))
        weights[target.ids] = sign * target.a
        total, size, off = total + sign * target.c, size + target.magnitude(reach), off + target.r
        marks = np.zeros((len(self.units), len(cases)), np.int8)
        for case, states in enumerate(cases):
            for place in self.units.keys() & states.keys():
                marks[self.units[place], case] = 1 if states[place] else -1
        for at in range(len(self.every) - 1, -1, -1):
            self.ranges.in_time()
            level, own = self.every[at], slice(*self.starts[at : at + 2])
            made = level.replace(weights, marks[own], multipliers(at, weights[level.symbols]))
            total, size, off = total + made[0], size + made[1], off + made[2]
        inputs = self.ranges.domain.lo.size
        left = self.ranges.domain.least(weights[:inputs].T)
        left = left + box_least(weights[inputs:].T, symbols.lo[inputs:], symbols.hi[inputs:])
        terms = 16 * sum(len(level.symbols) + 4 for level in self.every) + 64
        tiny = 8 + reach.sum() + sum(level.magnitude.sum() for level in self.every)
        off = (off + gamma(terms) * (size + np.abs(left))) * ROOM + terms * ETA * tiny
        found = down(total + left - off)
        return np.where(np.isfinite(found), found, np.nan)


def _split(matrix: Array, read: Mask, own: Index) -> tuple[Array, Array]:
    """The entries at places, which are the flat numbers ``own`` where they are read, and the matrix with 0
    there.
    """
    far, near = np.array(matrix, order="C"), np.zeros(read.shape)
    near[read] = far.reshape(-1)[own]
    far.reshape(-1)[own] = 0
    return near, far
