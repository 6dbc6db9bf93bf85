"""A mixed-integer linear program as plain arrays: what every solver is handed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from relutrim.graph.operators import Array

Index = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Milp:
    """``max cost . v + offset`` over ``lo <= v <= hi``, ``row_lo <= A v <= row_hi``, some ``v`` whole.

    ``A`` is given by rows: row ``i`` has the entries ``start[i]`` to ``start[i + 1]`` of ``index`` and
    ``value``. ``inputs`` are the columns of the network's input, ``marks`` those that a watcher may set to 0;
    ``cutoff`` is a value that a solution must exceed to be of interest.
    """

    lo: Array
    hi: Array
    whole: Flags
    cost: Array
    start: Index
    index: Index
    value: Array
    row_lo: Array
    row_hi: Array
    inputs: Index
    marks: Index
    offset: float = 0.0
    cutoff: float = -np.inf

    @property
    def size(self) -> tuple[int, int, int]:
        """Columns, rows, entries."""
        return self.lo.size, self.row_lo.size, self.value.size


@dataclass(eq=False)
class Draft:
    """A program in the making; blocks of columns and rows are added at once."""

    lo: list[Array] = field(default_factory=list)
    hi: list[Array] = field(default_factory=list)
    whole: list[Flags] = field(default_factory=list)
    columns: int = 0
    _rows: list[Index] = field(default_factory=list)
    _index: list[Index] = field(default_factory=list)
    _value: list[Array] = field(default_factory=list)
    _row_lo: list[Array] = field(default_factory=list)
    _row_hi: list[Array] = field(default_factory=list)
    rows: int = 0

    def add_columns(self, lo: Array, hi: Array, *, whole: bool = False) -> Index:
        """New columns with these ends; their numbers."""
        self.lo.append(lo)
        self.hi.append(hi)
        self.whole.append(np.full(lo.size, whole))
        self.columns += lo.size
        return np.arange(self.columns - lo.size, self.columns, dtype=np.int64)

    def add_rows(self, terms: Sequence[tuple[Index, Index, Array]], lo: Array, hi: Array) -> None:
        """New rows with these ends. A term holds entries as (row among the new ones, column, value)."""
        for row, column, value in terms:
            self._rows.append(row + self.rows)
            self._index.append(column)
            self._value.append(value)
        self._row_lo.append(lo)
        self._row_hi.append(hi)
        self.rows += lo.size

    def copy(self) -> Draft:
        """Another draft to go on from here."""
        return Draft(
            list(self.lo),
            list(self.hi),
            list(self.whole),
            self.columns,
            list(self._rows),
            list(self._index),
            list(self._value),
            list(self._row_lo),
            list(self._row_hi),
            self.rows,
        )

    def finish(
        self, cost: Array, inputs: Index, marks: Index, *, offset: float = 0.0, cutoff: float = -np.inf
    ) -> Milp:
        """The program; entries are put in the order of the rows."""
        rows = _joined(self._rows, np.int64)
        order = np.argsort(rows, kind="stable")
        start = np.zeros(self.rows + 1, dtype=np.int64)
        np.cumsum(np.bincount(rows, minlength=self.rows), out=start[1:])
        return Milp(
            lo=_joined(self.lo, np.float64),
            hi=_joined(self.hi, np.float64),
            whole=_joined(self.whole, np.bool_),
            cost=cost,
            start=start,
            index=_joined(self._index, np.int64)[order],
            value=_joined(self._value, np.float64)[order],
            row_lo=_joined(self._row_lo, np.float64),
            row_hi=_joined(self._row_hi, np.float64),
            inputs=inputs,
            marks=marks,
            offset=offset,
            cutoff=cutoff,
        )


def _joined(parts: Sequence[npt.NDArray[np.generic]], kind: npt.DTypeLike) -> npt.NDArray:  # type: ignore[type-arg]
    return np.concatenate([np.zeros(0, dtype=kind), *parts]).astype(kind, copy=False)
