"""Two ways to write down the multipliers that :mod:`levels` takes: by the rows of a program, and in bytes.

The rows of a program are about units with output ``x``, ``y`` and state ``z``: ``equation`` (``y = w v +
c``), ``above`` (``x - y >= 0``), ``below`` (``x - y - l z <= -l``), ``off`` (``x - h z <= 0``); ``domain``,
whose constraints the checker makes the best of by itself; and cuts, which have shares of 1 and 0. Several
cuts of a unit are one whose shares are a mixture. What an equation's multiplier differs from the others' by,
a push makes up for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from relutrim.certificate.check.expressions import Expression
from relutrim.certificate.check.levels import Levels, Multipliers, Place, States
from relutrim.certificate.check.ranges import Ranges
from relutrim.certificate.check.rounding import Array, Index

KINDS = ("equation", "above", "below", "off", "domain")
HEAD = 9
"""Bytes of a unit before its shares."""
_CASES = 32
_NUMBERS = 2**22
"""So many shares, or coefficients, of packed leaves are looked at together."""
Bytes: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


class Program(Levels):
    """The units of rows and cuts, with a share of its own for everything that they read."""

    def __init__(
        self, ranges: Ranges, rows: Sequence[Sequence[int]], cuts: Sequence[tuple[Place, bool, Index]]
    ) -> None:
        places = [(layer, unit) for layer, unit, _ in rows] + [place for place, _, _ in cuts]
        self._kinds = np.array([kind for _, _, kind in rows] + [len(KINDS)] * len(cuts), np.int64)
        own: dict[int, set[int]] = {}
        for (layer, unit), kind in zip(places, self._kinds.tolist(), strict=True):
            if kind != KINDS.index("domain") and 0 <= layer < len(ranges.layers):
                own.setdefault(layer, set()).add(unit)
        read = {layer: ranges.places[ranges.layers[layer].inputs.ids] for layer in sorted(own)}
        super().__init__(
            ranges,
            [
                (layer, np.array(sorted(own[layer])), np.broadcast_to(one, (len(own[layer]), len(one))))
                for layer, one in read.items()
            ],
        )
        self.size, self._units = len(places), np.array([self.units.get(p, -1) for p in places], np.int64)
        self._subsets = {
            at: np.isin(read[place[0]], subset) != outside
            for at, (place, outside, subset) in enumerate(cuts, len(rows))
            if place in self.units
        }

    def least(self, target: Expression | None, sign: float, states: States, duals: Array) -> float:
        """The bound of ``sign * target`` (or of 0) where units have these states; NaN if there is none."""
        kinds, units, q = self._kinds, self._units, np.zeros((len(KINDS) + 1, len(self.units)))
        duals = np.where(kinds == 0, duals, np.maximum(np.where(kinds == 1, duals, -duals), 0))
        used = np.flatnonzero((duals != 0) & (units >= 0))
        np.add.at(q, (kinds[used], units[used]), duals[used])

        def multipliers(at: int, _: Array) -> Multipliers:
            start, end = self.starts[at : at + 2]
            share = np.zeros((end - start, len(self.every[at].ids)))
            for row in used.tolist():
                if kinds[row] == len(KINDS) and start <= units[row] < end:
                    share[units[row] - start] += duals[row] * self._subsets[row]
            equation, above, below, off, _, cut = q[:, start:end, None]
            share = np.where(cut > 0, np.minimum(share / cut, 1.0), 0.0)
            return above, below, off, cut, above - below - equation, share[:, :, None]

        return float(self.bounds(target, sign, [states], multipliers)[0])


class Packed(Levels):
    """Units and places as they are listed, for many cases at once.

    Bytes are 255ths: one for what ``above`` is of a positive coefficient, four for what ``below``, ``off``,
    nothing and ``cut`` are of a negative one, relative to their sum, and the shares. A push is a float32.
    """

    def __init__(self, ranges: Ranges, listed: Sequence[tuple[int, Index, Index]]) -> None:
        super().__init__(ranges, listed)
        self.shapes = [places.shape for _, _, places in listed]
        widest = max((count * width for count, width in self.shapes), default=0)
        self.most = max(1, min(_CASES, _NUMBERS // max(1, widest, len(ranges.symbols.lo))))

    def least(
        self, target: Expression, sign: float, leaves: Sequence[tuple[States, Sequence[tuple[Bytes, Bytes]]]]
    ) -> float:
        """The bound of ``sign * target`` in all cases. A leaf has for each level all units' bytes, and the
        shares of those with a cut.
        """

        def multipliers(at: int, a: Array) -> Multipliers:
            level, (count, width) = self.every[at], self.shapes[at]
            heads = np.stack([parts[at][0] for _, parts in leaves])
            push = np.ascontiguousarray(heads[:, 5 * count :]).view("<f4").astype(np.float64)
            mix = heads[:, count : 5 * count].reshape(len(leaves), 4, count)
            share, own = np.zeros((len(leaves), count, width), np.uint8), mix[:, 3] > 0
            listed = np.concatenate([parts[at][1] for _, parts in leaves])
            share[own] = listed.reshape(int(own.sum()), width)
            every: Any = (heads[:, :count], push, share, *mix.swapaxes(0, 1))
            every = [np.moveaxis(part[:, level.here], 0, -1).astype(np.float64) for part in every]
            mixed = np.array(every[3:]) / np.maximum(sum(every[3:]), 1.0)
            mixed = np.where(level.stable, np.reshape([1.0, 0.0, 0.0, 0.0], (4, 1, 1)), mixed)
            below, off, _, cut = np.maximum(-a, 0) * mixed
            above = np.maximum(a, 0) * np.where(level.stable, 1.0, every[0] / 255)
            return above, below, off, cut, every[1], every[2] / 255

        return float(self.bounds(target, sign, [states for states, _ in leaves], multipliers).min())
