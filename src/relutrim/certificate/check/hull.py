"""How multipliers that :mod:`levels` takes are written down: in bytes, for many cases at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from relutrim.certificate.check.expressions import Expression
from relutrim.certificate.check.levels import Levels, Multipliers, States
from relutrim.certificate.check.ranges import Ranges
from relutrim.certificate.check.rounding import Array, Index

HEAD = 9
"""Bytes of a unit before its shares."""
_CASES = 32
_NUMBERS = 2**22
"""So many shares, or coefficients, of packed leaves are looked at together."""
Bytes: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


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
