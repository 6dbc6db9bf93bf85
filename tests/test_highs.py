"""The solver's workers: whoever else uses HiGHS in the same process, ours go on solving."""

from __future__ import annotations

import highspy
import numpy as np
import pytest

from relutrim.domain import Box
from relutrim.graph import Network, Output, Port
from relutrim.highs import quiet_solver, run


def _small(solver: highspy.Highs) -> highspy.Highs:
    """At least 0.5, as small as it can be."""
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = 1, 0
    model.col_cost_, model.col_lower_, model.col_upper_ = np.ones(1), np.zeros(1), np.ones(1)
    solver.passModel(model)
    first = np.zeros(1, dtype=np.int32)
    solver.addRows(1, np.array([0.5]), np.array([np.inf]), 1, first, first, np.ones(1))
    return solver


@pytest.fixture
def taken():
    """A process in which somebody has had HiGHS solve with two threads."""
    highspy.Highs.resetGlobalScheduler(True)
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 2)
    assert _small(solver).run() == highspy.HighsStatus.kOk
    yield
    highspy.Highs.resetGlobalScheduler(True)


def test_another_number_of_threads_before_does_not_matter(taken):
    solver = _small(quiet_solver())
    assert solver.run() == highspy.HighsStatus.kError  # what this is about
    assert run(solver) == highspy.HighsStatus.kOk
    assert solver.getInfo().objective_function_value == 0.5


def test_a_solver_that_has_solved_before_goes_on_too(taken):
    """It is refused as well, but has its last solve's status."""
    solver = _small(quiet_solver())
    assert run(solver) == highspy.HighsStatus.kOk
    highspy.Highs.resetGlobalScheduler(True)
    other = highspy.Highs()
    other.setOptionValue("output_flag", False)
    other.setOptionValue("threads", 2)
    assert _small(other).run() == highspy.HighsStatus.kOk
    assert run(solver) == highspy.HighsStatus.kOk


def test_a_domain_with_constraints_leaves_the_workers_as_others_need_them():
    """Whether it is empty takes a program of its own, which must not be in the way of those that follow."""
    highspy.Highs.resetGlobalScheduler(True)
    domain = Box(-1, 1).constrain(np.array([[1.0, 1.0], [1.0, -1.0]]), [-1.5, -1.5], [1.5, 1.5])
    domain.fit(Network(Port("x", (2,)), (), (Output("y", "x"),)))
    assert _small(quiet_solver()).run() == highspy.HighsStatus.kOk
