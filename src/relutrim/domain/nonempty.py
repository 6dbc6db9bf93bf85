"""Whether a box cut by linear constraints holds any point at all."""

from __future__ import annotations

import numpy as np

from relutrim.errors import DomainError
from relutrim.graph.operators import Array
from relutrim.rounding import ETA, gamma


def check_nonempty(lo: Array, hi: Array, rows: Array, lower: Array, upper: Array) -> None:
    """Raise :class:`DomainError` if the constraints leave nothing of the box.

    One constraint is decided by its range over the box. Several are given to an LP; its "infeasible" counts
    only with multipliers that prove it. A domain that is empty unnoticed is no question of soundness: every
    statement about it is true.
    """
    if not len(rows):
        return
    with np.errstate(over="ignore", invalid="ignore"):
        low, high, slack = _ranges(lo, hi, rows)
        missed = (high + slack < lower) | (low - slack > upper)
    if missed.any():
        j = int(np.flatnonzero(missed)[0])
        raise DomainError(
            f"the domain is empty: over the box, constraint {j} takes values between {low[j]:g} "
            f"and {high[j]:g}, "
            f"and {lower[j]:g} to {upper[j]:g} is asked for"
        )
    if len(rows) > 1:
        ray = _infeasibility(lo, hi, rows, lower, upper)
        if ray is not None and any(_excludes(y, lo, hi, rows, lower, upper) for y in (ray, -ray)):
            raise DomainError("the domain is empty: no input of the box satisfies all constraints together")


def _ranges(lo: Array, hi: Array, rows: Array) -> tuple[Array, Array, Array]:
    """Smallest and largest value of each row over the box, and how far rounding can be off."""
    up, down = np.maximum(rows, 0), np.minimum(rows, 0)
    slack = gamma(lo.size) * (np.abs(rows) @ np.maximum(np.abs(lo), np.abs(hi))) + lo.size * ETA
    return up @ lo + down @ hi, up @ hi + down @ lo, slack


def _excludes(y: Array, lo: Array, hi: Array, rows: Array, lower: Array, upper: Array) -> bool:
    """Whether ``y G x`` must be larger than it ever is on the box: nothing satisfies all constraints."""
    with np.errstate(over="ignore", invalid="ignore"):
        ends = np.where(y > 0, lower, upper)
        y = np.where(np.isfinite(ends), y, 0.0)
        least = y * np.where(np.isfinite(ends), ends, 0.0)
        _, high, slack = _ranges(lo, hi, (y @ rows)[None])
        reach = np.maximum(np.abs(lo), np.abs(hi))
        size = np.abs(y) @ np.abs(rows) @ reach + np.abs(least).sum()
        margin = slack[0] + 2 * gamma(len(rows)) * size + len(rows) * ETA * (2 + reach.sum())
        return bool(high[0] + margin < least.sum())


def _infeasibility(lo: Array, hi: Array, rows: Array, lower: Array, upper: Array) -> Array | None:
    """Multipliers of the rows that an LP solver takes for a proof of infeasibility, if it finds any."""
    import highspy

    from relutrim.highs import quiet_solver, run

    solver = quiet_solver()
    solver.setOptionValue("time_limit", 10.0)
    solver.setOptionValue("presolve", "off")
    solver.setOptionValue("solver", "simplex")
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = lo.size, len(rows)
    model.col_cost_ = np.zeros(lo.size)
    model.col_lower_, model.col_upper_ = lo, hi
    model.row_lower_, model.row_upper_ = lower, upper
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    columns = [np.flatnonzero(row) for row in rows]
    model.a_matrix_.start_ = np.concatenate([[0], np.cumsum([len(c) for c in columns])])
    model.a_matrix_.index_ = np.concatenate(columns)
    model.a_matrix_.value_ = np.concatenate([row[c] for row, c in zip(rows, columns, strict=True)])
    solver.passModel(model)
    run(solver)
    if solver.getModelStatus() != highspy.HighsModelStatus.kInfeasible:
        return None
    _, found, ray = solver.getDualRay()
    return np.asarray(ray, dtype=np.float64) if found else None
