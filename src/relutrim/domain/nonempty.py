"""Whether a box cut by linear constraints holds any point at all."""

from __future__ import annotations

import numpy as np

from relutrim.errors import DomainError
from relutrim.network.operators import Array
from relutrim.rounding import gamma


def check_nonempty(lo: Array, hi: Array, rows: Array, lower: Array, upper: Array) -> None:
    """Raise :class:`DomainError` if the constraints leave nothing of the box.

    One constraint is decided by its range over the box. Several are given to an LP; only its clear
    "infeasible" counts, and that is no question of soundness: every statement about an empty domain is true.
    """
    if not len(rows):
        return
    low = np.maximum(rows, 0) @ lo + np.minimum(rows, 0) @ hi
    high = np.maximum(rows, 0) @ hi + np.minimum(rows, 0) @ lo
    slack = gamma(lo.size) * (np.abs(rows) @ np.maximum(np.abs(lo), np.abs(hi)))
    missed = (high + slack < lower) | (low - slack > upper)
    if missed.any():
        j = int(np.flatnonzero(missed)[0])
        raise DomainError(
            f"the domain is empty: over the box, constraint {j} takes values between {low[j]:g} "
            f"and {high[j]:g}, "
            f"and {lower[j]:g} to {upper[j]:g} is asked for"
        )
    if len(rows) > 1 and _infeasible(lo, hi, rows, lower, upper):
        raise DomainError("the domain is empty: no input of the box satisfies all constraints together")


def _infeasible(lo: Array, hi: Array, rows: Array, lower: Array, upper: Array) -> bool:
    import highspy

    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("time_limit", 10.0)
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
    solver.run()
    return bool(solver.getModelStatus() == highspy.HighsModelStatus.kInfeasible)
