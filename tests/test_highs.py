"""The solver's workers: whoever else uses HiGHS in the same process, ours go on solving."""

from __future__ import annotations

import highspy
import numpy as np
import pytest

from relutrim.domain import Box, Domain
from relutrim.graph import Linear, Network, Node, Output, Port, Relu
from relutrim.highs import quiet_solver, run
from relutrim.prove.cascade import Cascade
from relutrim.prove.deadline import Deadline
from relutrim.prove.hull.tree import Tree


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


def _tent() -> Network:
    """The last neuron is |a| + |b| - |a + b| + 0.01, which linear bounds do not see."""
    signs = np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1], [1, 1], [-1, -1]])
    nodes = (
        Node("linear0", Linear(signs, np.zeros(6)), ("x",)),
        Node("relu0", Relu(), ("linear0",)),
        Node("linear1", Linear(np.array([[1.0, 1, 1, 1, -1, -1]]), np.array([0.01])), ("relu0",)),
        Node("relu1", Relu(), ("linear1",)),
    )
    return Network(Port("x", (2,)), nodes, (Output("y", "relu1"),))


def _grown(domain: Domain) -> Tree:
    """Where the last neuron has its smallest value, by linear programs."""
    cascade = Cascade(domain.fit(_tent()), Deadline())
    cascade.bound(search=False)
    tree = Tree(cascade.backward, "linear1", 0, 1.0)
    tree.grow(64, Deadline(20))
    return tree


def test_trees_grow_all_the_same(taken):
    assert _grown(Box(-1, 1)).closed


def test_a_domain_with_constraints_leaves_the_workers_as_others_need_them():
    """Whether it is empty takes a program of its own, which must not be in the way of those that follow."""
    highspy.Highs.resetGlobalScheduler(True)
    domain = Box(-1, 1).constrain(np.array([[1.0, 1.0], [1.0, -1.0]]), [-1.5, -1.5], [1.5, 1.5])
    assert _grown(domain).closed
    assert _small(quiet_solver()).run() == highspy.HighsStatus.kOk
