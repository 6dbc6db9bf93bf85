"""A linear program with finite column bounds, and lower bounds of it that hold whatever the solver says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import highspy
import numpy as np
import numpy.typing as npt

from relutrim.graph.operators import Array
from relutrim.highs import quiet_solver, run
from relutrim.rounding import ETA, gamma

Index = npt.NDArray[np.int64]
_CLEAR = (
    highspy.HighsModelStatus.kOptimal,
    highspy.HighsModelStatus.kInfeasible,
    highspy.HighsModelStatus.kTimeLimit,
    highspy.HighsModelStatus.kObjectiveBound,
)
_ITERATIONS = 20_000
"""Iterations of the simplex method that a program of this kind never needs unless it stalls."""
_BEYOND = 1e-6
"""How far beyond what is enough a solve goes, so that rounding does not take it below again."""


@dataclass(frozen=True, eq=False)
class Row:
    """``lower <= values . v[columns] <= upper``; an end may be infinite.

    ``owner`` is the column of the neuron that the row is about, -1 if there is none.
    """

    columns: Index
    values: Array
    lower: float
    upper: float
    owner: int = -1


class Program:
    """``min cost . v + offset`` over ``lo <= v <= hi`` and rows; rows can be added between solves."""

    def __init__(self, lo: Array, hi: Array, cost: Array, offset: float, rows: list[Row]) -> None:
        self._own = lo, hi
        self._narrowed: set[int] = set()
        self.lo, self.hi, self.cost, self.offset = lo.copy(), hi.copy(), cost, offset
        self.rows: list[Row] = []
        self.ray: Array | None = None
        self.late = False
        """Whether the last solve was cut short by its limit of time: that says nothing about the program."""
        self._solver = _solver()
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = len(lo), 0
        model.col_cost_, model.col_lower_, model.col_upper_ = cost, lo, hi
        self._solver.passModel(model)
        self.add(rows)

    def add(self, rows: list[Row]) -> None:
        """Add rows; the next solve starts from where the last one ended."""
        if not rows:
            return
        starts = np.cumsum([0, *(len(row.columns) for row in rows[:-1])]).astype(np.int32)
        columns = np.concatenate([row.columns for row in rows]).astype(np.int32)
        self._solver.addRows(
            len(rows),
            np.array([row.lower for row in rows]),
            np.array([row.upper for row in rows]),
            len(columns),
            starts,
            columns,
            np.concatenate([row.values for row in rows]),
        )
        self.rows += rows

    def purge(self, keep: int, duals: Array) -> list[int]:
        """Drop rows behind the first ``keep`` that carry no dual: cuts that no longer cut.

        Rows that are not basic stay as well: without them there would be no basis for the next solve to start
        from. Returns which of the rows behind the first ``keep`` stay.
        """
        basis = self._solver.getBasis()
        status = list(basis.row_status)
        known = basis.valid and len(status) == len(self.rows)
        idle = [
            i
            for i in range(keep, len(duals))
            if duals[i] == 0 and not (known and status[i] != highspy.HighsBasisStatus.kBasic)
        ]
        gone = set(idle)
        if idle:
            self._solver.deleteRows(len(idle), np.array(idle, dtype=np.int32))
            if known:  # deleting has made it invalid
                basis.row_status = [kept for i, kept in enumerate(status) if i not in gone]
                self._solver.setBasis(basis)
        stay = [i for i in range(keep, len(self.rows)) if i not in gone]
        self.rows = [*self.rows[:keep], *(self.rows[i] for i in stay)]
        return [i - keep for i in stay]

    def narrow(self, ends: dict[int, tuple[float, float]]) -> None:
        """Narrow some columns' bounds until the next call; all others get their own back."""
        for column in self._narrowed - ends.keys():
            self.lo[column], self.hi[column] = self._own[0][column], self._own[1][column]
            self._solver.changeColBounds(column, self.lo[column], self.hi[column])
        for column, (low, high) in ends.items():
            self.lo[column], self.hi[column] = low, high
            self._solver.changeColBounds(column, low, high)
        self._narrowed = set(ends)

    def solve(self, seconds: float, enough: float = math.inf) -> tuple[Array, Array] | None:
        """A primal and a dual solution, neither to be trusted; None if the solver has none to offer.

        The dual simplex method works its way up to the value, so it can stop where ``enough`` is reached: the
        point means nothing then, and :meth:`lower_bound` of the duals is at least ``enough``.
        """
        until = self._solver.getRunTime() + max(0.0, seconds)
        self.late = False
        self._run(until, enough)
        if self._solver.getModelStatus() == highspy.HighsModelStatus.kObjectiveBound:
            reached = self._solution()
            if reached is not None and self.lower_bound(reached[1]) >= enough:
                self.ray = None
                return reached
            self._run(until, math.inf)
        self.ray = self._dual_ray()
        status = self._solver.getModelStatus()
        self.late = status == highspy.HighsModelStatus.kTimeLimit
        return self._solution() if status == highspy.HighsModelStatus.kOptimal else None

    def lower_bound(self, duals: Array) -> float:
        """A number that the program's value is not below, for **any** duals; NaN if they lead nowhere.

        ``cost . v = (cost - y A) . v + y A v``: the first part is smallest at an end of each column, the
        second at an end of each row. Duals of the wrong sign for a one-sided row are set to 0.
        """
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows ends as NaN
            return self._lagrangian(self.cost, self.offset, duals)

    def infeasible(self, ray: Array | None = None) -> bool:
        """Whether a ray (the solver's, if none is given) proves that no point satisfies all rows: then 0
        would have a bound above 0.
        """
        ray = self.ray if ray is None else ray
        with np.errstate(over="ignore", invalid="ignore"):
            return ray is not None and self._lagrangian(0 * self.cost, 0.0, ray) > 0

    def downstream(self, duals: Array) -> Array:
        """How much the value would gain per unit of each column, its own neuron's rows left aside."""
        with np.errstate(over="ignore", invalid="ignore"):
            index, weights, owners = self._products(np.where(np.isfinite(duals), duals, 0.0))
            others = index != owners
            return self.cost - np.bincount(index[others], weights[others], len(self.cost))

    def _run(self, until: float, enough: float) -> None:
        """Let the solver solve, until its clock says so.

        The first solve goes through the interior, which is quicker from nowhere; later ones start from the
        last basis, and go through the interior where that leads nowhere.
        """
        self._solver.setOptionValue("objective_bound", enough - self.offset + _BEYOND)
        ways = ("simplex", "ipm") if self._solver.getBasis().valid else ("ipm", "simplex")
        for way in ways:
            self._solver.setOptionValue("solver", way)
            self._solver.setOptionValue("time_limit", until)
            run(self._solver)
            status = self._solver.getModelStatus()
            if status in _CLEAR and not (way == "ipm" and status == highspy.HighsModelStatus.kInfeasible):
                break  # what the interior finds empty it has no ray for
            self._solver.clearSolver()

    def _solution(self) -> tuple[Array, Array] | None:
        """What the solver has, if it is of the right size."""
        solution = self._solver.getSolution()
        point, duals = np.array(solution.col_value), np.array(solution.row_dual)
        fits = point.shape == self.lo.shape and duals.shape == (len(self.rows),)
        return (point, duals) if fits else None

    def _lagrangian(self, cost: Array, offset: float, duals: Array) -> float:
        used = np.flatnonzero(duals)
        return lagrangian(cost, offset, (self.lo, self.hi), [self.rows[i] for i in used], duals[used])

    def _products(self, duals: Array) -> tuple[Index, Array, Index]:
        used = np.flatnonzero(duals)
        return _products([self.rows[i] for i in used], duals[used])

    def _dual_ray(self) -> Array | None:
        if self._solver.getModelStatus() != highspy.HighsModelStatus.kInfeasible:
            return None
        _, found, ray = self._solver.getDualRay()
        ray = np.array(ray) if found else np.zeros(0)
        return ray if ray.shape == (len(self.rows),) else None


def lagrangian(
    cost: Array, offset: float, ends: tuple[Array, Array], rows: Sequence[Row], duals: Array
) -> float:
    """A number that ``cost . v + offset`` is not below where all rows hold and ``v`` is between its ends, for
    any duals of the rows; NaN if they lead nowhere. Rounding is in it.
    """
    lo, hi = ends
    lower, upper = (np.array([getattr(row, end) for row in rows]) for end in ("lower", "upper"))
    sides = np.where(duals > 0, lower, upper)
    duals = np.where(np.isfinite(duals) & np.isfinite(sides), duals, 0.0)
    used = np.flatnonzero(duals)
    index, weights, _ = _products([rows[int(i)] for i in used], duals[used])
    count = len(lo)
    reduced = cost - np.bincount(index, weights, count)
    sizes = np.abs(cost) + np.bincount(index, np.abs(weights), count)
    most = int(np.bincount(index, minlength=count).max(initial=0)) + 2
    reach = np.maximum(np.abs(lo), np.abs(hi))
    paid = duals[used] * sides[used]
    total = float(reduced @ np.where(reduced > 0, lo, hi)) + float(paid.sum()) + offset
    size = float(np.abs(reduced) @ reach) + float(np.abs(paid).sum()) + abs(offset)
    terms = count + len(used) + 4
    radius = gamma(most) * float(sizes @ reach) + gamma(terms) * size
    radius += (most + terms) * ETA * (2 + float(reach.sum()))
    bound = float(np.nextafter(total - radius, -np.inf))
    return bound if np.isfinite(bound) else float("nan")


def _products(rows: Sequence[Row], duals: Array) -> tuple[Index, Array, Index]:
    """Columns, ``dual * coefficient`` and owners of all entries of these rows."""
    if not rows:
        return np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int64)
    counts = [len(row.columns) for row in rows]
    return (
        np.concatenate([row.columns for row in rows]),
        np.concatenate([row.values for row in rows]) * np.repeat(duals, counts),
        np.repeat([row.owner for row in rows], counts),
    )


def _solver() -> highspy.Highs:
    solver = quiet_solver()
    solver.setOptionValue("simplex_dual_edge_weight_strategy", 1)  # Devex: steepest edge can stall here
    solver.setOptionValue("simplex_iteration_limit", _ITERATIONS)
    return solver
