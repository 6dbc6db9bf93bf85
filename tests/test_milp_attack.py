"""What once broke the mixed-integer methods, or would have: each test is one attack."""

from __future__ import annotations

import math
from contextlib import suppress

import numpy as np
import pytest
import torch

import oracle
from relutrim.analysis import analyze_network
from relutrim.domain import Box
from relutrim.graph import Add, Linear, Network, Node, Output, Port, Relu
from relutrim.milp import highs
from relutrim.milp.formulation import Formulation, State
from relutrim.milp.isa import Hunt, unseen
from relutrim.milp.methods import Milps
from relutrim.milp.single import TOLERANCE, Reach
from relutrim.milp.solver import SOLVERS, TOLERANCES, Status, solver
from relutrim.prove.cascade import Cascade
from relutrim.prove.deadline import Deadline
from relutrim.prove.stability import LayerStability
from relutrim.prove.verdict import Evidence, Verdict

PLAIN = {"data": None, "device": "cpu", "seed": 0, "progress": None, "jobs": 1, "time_limit": 30.0}
METHODS = ("isa", "layer", "neuron")


@pytest.fixture
def no_prover(monkeypatch):
    monkeypatch.setattr(Milps, "_prove", lambda self, states: self._left(states))


def linear(weight, bias) -> Linear:
    return Linear(np.array(weight, dtype=float), np.array(bias, dtype=float))


def chain(*layers: Linear) -> Network:
    nodes, last = [], "x"
    for i, layer in enumerate(layers):
        nodes += [Node(f"linear{i}", layer, (last,)), Node(f"relu{i}", Relu(), (f"linear{i}",))]
        last = f"relu{i}"
    return Network(Port("x", (layers[0].weight.shape[1],)), tuple(nodes), (Output("y", last),))


def twice(layer: Linear) -> Network:
    """Two ReLUs that read the same value."""
    nodes = (Node("y", layer, ("x",)), Node("one", Relu(), ("y",)), Node("other", Relu(), ("y",)))
    return Network(Port("x", layer.weight.shape[1:]), nodes, (Output("a", "one"), Output("b", "other")))


def words(stability) -> list[list[str]]:
    return [[Verdict(v).word for v in layer.verdict] for layer in stability.layers]


# --- what a program without whole numbers is worth ----------------------------------------------------------


@pytest.mark.parametrize("until", ["sign", "optimal"])
@pytest.mark.parametrize("inject", ["relaxation", "off"])
@pytest.mark.parametrize("name", SOLVERS)
def test_a_program_without_binaries_has_the_bound_of_its_relaxation(no_prover, name, inject, until):
    """What the first ReLU is said to be leaves the second no binary. HiGHS' bound of a mixed-integer program
    is 0 then, and the second ReLU was called inactive where it is active: no input of this domain is known to
    lie in it, so nothing could contradict.
    """
    domain = Box(0, 1).constrain([[1.0, 1.0]], [1.3], [1.3])
    found = analyze_network(
        twice(linear([[1, 1], [-1, -1]], [-1, 1])),
        domain,
        method="neuron",
        solver=name,
        inject=inject,
        until=until,
        big_m="interval",
        **PLAIN,
    )
    assert words(found) == [["active", "inactive"]] * 2


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", SOLVERS)
def test_scip_is_not_stopped_where_it_does_not_listen(no_prover, capfd, name, method):
    """A solution before the first node: SCIP cannot be interrupted there, and said so through a callback."""
    domain = Box(0, 1).constrain([[1.0, 1.0]], [-math.inf], [0.5])
    found = analyze_network(
        twice(linear([[1, 1]], [-1])), domain, method=method, solver=name, big_m="interval", **PLAIN
    )
    assert words(found) == [["inactive"]] * 2
    assert not found.remarks
    assert "ERROR" not in capfd.readouterr().err


# --- what a relaxation is worth -----------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_what_a_relaxation_decides_on_highs_is_not_lost(no_prover, method):
    """The root relaxation is enough for the first neuron; its bound was dropped, and nothing decided."""
    network = chain(linear([[1], [-1]], [-0.5, 0.5]), linear([[1, 1], [-1, -1]], [-0.6, -0.1]))
    options = {"method": method, "solver": "highs", "big_m": "interval", **PLAIN}
    for inject in ("relaxation", "random", "off"):
        assert words(analyze_network(network, Box(0, 1), inject=inject, **options))[1] == ["inactive"] * 2


def test_relaxations_are_solved_to_the_tolerance_of_the_program():
    cascade = Cascade(Box(0, 1).fit(chain(linear([[1]], [-0.5]))), Deadline())
    reach = Reach(cascade, Formulation(cascade.backward, cascade.values, ["relu0"]), State("relu0", 0, True))
    run = highs._Run(reach.model, reach, Deadline(), TOLERANCE, 0)
    for whole in (True, False):
        for option in ("primal_feasibility_tolerance", "dual_feasibility_tolerance"):
            assert run._solver(whole=whole).getOptionValue(option)[1] == TOLERANCE


# --- several ReLUs of one value -----------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", SOLVERS)
def test_relus_of_one_value_each_have_their_binaries(no_prover, name, method):
    network = Network(
        Port("x", (1,)),
        (
            Node("first", linear([[1], [-1]], [-0.5, 0.5]), ("x",)),
            Node("a", Relu(), ("first",)),
            Node("b", Relu(), ("first",)),
            Node("sum", Add(2), ("a", "b")),
            Node("last", linear([[-1, -1], [1, 1]], [0.01, -1.2]), ("sum",)),
            Node("c", Relu(), ("last",)),
            Node("d", Relu(), ("last",)),
        ),
        (Output("y", "c"), Output("z", "d")),
    )
    found = analyze_network(network, Box(0, 1), method=method, solver=name, big_m="interval", **PLAIN)
    assert not found.remarks
    assert words(found) == [["unstable"] * 2] * 2 + [["unstable", "inactive"]] * 2


# --- constraints of the domain ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("scale", [1e-12, 1e-8, 1.0, 1e12])
def test_the_scale_of_a_constraint_does_not_matter(no_prover, name, scale):
    """With entries of 1e-8, what solvers take for nothing moved the bound by a hundredth; with smaller ones
    the constraint was gone.
    """
    domain = Box(0, 1).constrain(np.array([[1.0, 0.3]]) * scale, [0.4 * scale], [0.8 * scale])
    network = chain(linear([[1, 0.3], [-1, -0.3]], [-0.9, 0.3]))
    found = analyze_network(network, domain, method="neuron", solver=name, big_m="interval", **PLAIN)
    assert words(found) == [["inactive"] * 2]
    assert (found.layers[0].margin <= 0.1 + 1e-9).all()


@pytest.mark.parametrize("name", SOLVERS)
def test_small_entries_of_a_constraint_are_not_dropped_without_a_word(no_prover, name):
    """Without its second entry, which solvers ignore, the constraint says x <= 0.5; it says x <= 1."""
    rows, lo, hi = np.array([[1.0, 1e-10]]), [0.0, -1e10], [1.0, 0.0]
    domain = Box(np.array(lo), np.array(hi)).constrain(rows, [-math.inf], [0.5])
    exact = oracle.Polytope.of(lo, hi, rows, [-math.inf], [0.5])
    network = chain(linear([[1, 0]], [-0.75]), linear([[1.0]], [-0.125]))
    found = analyze_network(network, domain, method="neuron", solver=name, big_m="interval", **PLAIN)
    for layer in found.layers:
        ((low, high),) = oracle.exact_ranges(network, exact)[layer.name]
        assert low < 0 < high
        assert Verdict(layer.verdict[0]) in (Verdict.UNKNOWN, Verdict.UNSTABLE)


def test_the_rows_of_a_domain_hold_wherever_it_does():
    """Scaled and widened, they still admit every input that satisfies the constraints."""
    random = np.random.default_rng(5)
    for _ in range(200):
        n, m = int(random.integers(1, 5)), int(random.integers(1, 3))
        lo = random.normal(size=n) * 10.0 ** random.integers(-3, 8)
        x, hi = lo + random.uniform(size=n), lo + 2
        rows = random.normal(size=(m, n)) * 10.0 ** random.integers(-300, 300, size=(m, 1))
        rows = rows * 10.0 ** random.integers(-8, 1, size=(m, n))
        ends = np.abs(rows) @ np.abs(x) * 1e-6
        domain = Box(lo, hi).constrain(rows, rows @ x - ends, rows @ x + ends)
        network = chain(linear(np.ones((1, n)), [-lo.sum() - n]))
        cascade = Cascade(domain.fit(network), Deadline())
        model = Formulation(cascade.backward, cascade.values, ["relu0"]).neuron(State("relu0", 0, True))
        for row in range(m):
            entries = slice(model.start[row], model.start[row + 1])
            value = float(model.value[entries] @ x[model.index[entries]])
            assert model.row_lo[row] <= value <= model.row_hi[row]


@pytest.mark.parametrize("name", SOLVERS)
def test_a_constraint_without_ends_and_one_without_entries_are_none(no_prover, name):
    domain = Box(0, 1).constrain([[1.0, 1.0], [0.0, 0.0]], [-math.inf, -1.0], [math.inf, 1.0])
    network = chain(linear([[1, 1]], [-1]), linear([[-1], [1]], [0.5, -2]))
    found = analyze_network(network, domain, method="isa", solver=name, big_m="interval", **PLAIN)
    assert words(found) == [["unstable"], ["unstable", "inactive"]]
    assert not found.remarks


# --- numbers that solvers do not go well with ------------------------------------------------------------


def bound_of(network, state, name, most) -> None:
    """The solver's bound, with what its tolerances explain, is one."""
    cascade = Cascade(Box(-1, 1).fit(network), Deadline())
    formulation = Formulation(cascade.backward, cascade.values, [state.relu])
    reach = Reach(cascade, formulation, state, "optimal", False, TOLERANCES[name])
    with suppress(Exception):  # a solver that breaks decides nothing
        outcome = solver(name).maximize(reach.model, reach, Deadline(30.0), TOLERANCE, 0)
        if outcome.status is not Status.FINISHED:
            return
        bound = outcome.bound + reach.explained
        if not bound >= most:
            pytest.fail(f"{bound} is below {most}")  # no Exception


@pytest.mark.parametrize("name", SOLVERS)
def test_a_solver_is_not_asked_for_more_precision_than_it_has(name):
    """With its tolerance at 1e-9, HiGHS found 0.73 for what gets to 1.82."""
    network = chain(
        linear([[0.001, 0], [0.002, 0], [-0.003, 0.002]], [0, 0, 0]),
        linear(
            [[-450, 200, 34.375], [-300, 762.5, -362.5], [-146.875, 90.625, -1525]],
            [-0.01428226, -0.00474556, 0.01393937],
        ),
    )
    low, _ = oracle.exact_ranges(network, oracle.Polytope.of([-1, -1], [1, 1]))["relu1"][1]
    bound_of(network, State("relu1", 1, False), name, -low)


@pytest.mark.parametrize("name", SOLVERS)
def test_tiny_neurons_behind_huge_weights_leave_no_word(name):
    """SCIP and Gurobi took neurons of 1e-6 for 0, and weights of 1e11 made a million of that."""
    network = chain(
        linear([[-1.25e-6, -1.68e-6], [1.44e-6, 1.56e-7], [3.6e-7, -8.2e-7]], [-8.7e-8, -1e-7, -1.7e-7]),
        linear(np.array([[1, 1, 3], [2, 1, 1], [-2, -2, -3]]) * 1e11, [-86603.0, 117388.0, 97797.0]),
        linear([[9.8, 0.46, -8.7], [-6.8, 3.0, -6.2], [6.2, -3.0, 3.7]], [0, 0, 0]),
    )
    exact = oracle.exact_ranges(network, oracle.Polytope.of([-1, -1], [1, 1]))["relu2"]
    for neuron, (low, high) in enumerate(exact):
        bound_of(network, State("relu2", neuron, True), name, high)
        bound_of(network, State("relu2", neuron, False), name, -low)


# --- far from 0 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SOLVERS)
def test_far_from_0_a_bound_is_worth_no_more_than_a_solvers_roundings(name):
    """The size of numbers counts, not the width of their ranges."""
    at = 1e12
    network = chain(linear([[1, -1], [1, 1]], [0, -2 * at]), linear([[1, -1]], [0]))
    domain = Box(np.array([at, at]), np.array([at + 1, at + 1]))
    cascade = Cascade(domain.fit(network), Deadline())
    formulation = Formulation(cascade.backward, cascade.values, ["relu1"])
    exact = oracle.exact_ranges(network, oracle.Polytope.of([at, at], [at + 1, at + 1]))["relu1"][0]
    for on, most in ((True, exact[1]), (False, -exact[0])):
        reach = Reach(cascade, formulation, State("relu1", 0, on), "optimal")
        outcome = solver(name).maximize(reach.model, reach, Deadline(30.0), TOLERANCE, 0)
        assert reach.explained > at * 2.0**-52
        assert outcome.status is not Status.FINISHED or outcome.bound + reach.explained >= most


# --- symmetries ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inject", ["relaxation", "off"])
@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("count", [2, 5])
def test_states_that_exclude_each_other_are_all_found_by_the_solver_alone(monkeypatch, count, name, inject):
    """One of ``count`` equal neurons can be on at a time. A solver that breaks the symmetry loses the
    others.
    """
    monkeypatch.setattr(Hunt, "_climb", lambda self, states, values: [])
    network = chain(linear(2 * np.eye(count) - 1, np.full(count, -0.5)))
    cascade = Cascade(Box(0, 1).fit(network), Deadline())
    formulation = Formulation(cascade.backward, cascade.values, ["relu0"])
    hunt = Hunt(cascade, formulation, unseen(cascade, ["relu0"]), inject)
    outcome = solver(name).maximize(hunt.model, hunt, Deadline(30.0), 1e-6, 0)
    assert hunt.settled(outcome)
    assert not hunt.open


# --- the rest -----------------------------------------------------------------------------------------------


def test_a_solver_that_says_both_says_nothing():
    unknown = np.zeros(3, dtype=np.int8)
    none, rows = np.full(3, np.nan), np.full(3, -1, dtype=np.int64)
    layer = LayerStability("r", (3,), unknown, unknown, none, none, rows, rows)
    told = layer.told(inactive=np.array([1.0, 1.0, np.nan]), active=np.array([1.0, np.nan, 1.0]))
    assert told.verdict.tolist() == [Verdict.UNKNOWN, Verdict.INACTIVE, Verdict.ACTIVE]
    assert told.evidence.tolist() == [Evidence.NONE, Evidence.SOLVER, Evidence.SOLVER]


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("seed", [-1, 2**31 - 1, 2**40])
def test_any_seed_is_one_for_every_solver(no_prover, name, seed):
    network = chain(linear([[1], [-1]], [-0.5, 0.5]), linear([[1, 1]], [-0.6]))
    options = {**PLAIN, "seed": seed}
    found = analyze_network(network, Box(0, 1), method="isa", solver=name, big_m="interval", **options)
    assert words(found)[1] == ["inactive"]
    assert not found.remarks


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("where", ["solution", "relaxation", "enough"])
@pytest.mark.parametrize("method", METHODS)
def test_an_interruption_inside_a_solver_leaves_what_is_known(monkeypatch, no_prover, name, where, method):
    def interrupted(self, *_):
        raise KeyboardInterrupt

    for watcher in (Hunt, Reach):
        monkeypatch.setattr(watcher, where, interrupted)
    network = chain(linear([[1], [-1]], [-0.5, 0.5]), linear([[-1, -1]], [0.01]))
    found = analyze_network(network, Box(0, 1), method=method, solver=name, big_m="interval", **PLAIN)
    assert found.interrupted or where == "relaxation"
    assert not {"active", "inactive"} & {word for layer in words(found) for word in layer}


def test_states_at_a_point_are_in_the_order_of_the_columns():
    network = twice(linear([[1, 0], [0, 1]], [-0.5, -0.5]))
    cascade = Cascade(Box(0, 1).fit(network), Deadline())
    formulation = Formulation(cascade.backward, cascade.values, ["one", "other"])
    on = {"y": torch.tensor([[True, False]])}
    assert formulation.binaries(on).tolist() == [1.0, 0.0, 1.0, 0.0]
    assert [formulation.binary(State(r, n, True)) for r in ("one", "other") for n in (0, 1)] == [0, 1, 2, 3]


def test_a_time_out_inside_highs_is_a_limit_and_claims_nothing():
    """What it had for a bound when the time was up must not pass for the end of a search."""
    deadline = Deadline(1000.0)

    class Late:
        relaxations = False

        def solution(self, values):
            return ()

        def enough(self, bound):
            deadline.call_off()
            return False

    generator = np.random.default_rng(0)
    size = 24
    weights = [generator.normal(size=(size, size)) for _ in range(3)]
    network = chain(*(linear(weight, np.zeros(size)) for weight in weights))
    cascade = Cascade(Box(-1, 1).fit(network), Deadline())
    formulation = Formulation(cascade.backward, cascade.values, ["relu2"])
    model = formulation.neuron(State("relu2", 0, True))
    outcome = solver("highs").maximize(model, Late(), deadline, 1e-9, 0)
    assert outcome.status is Status.LIMIT
    assert math.isnan(outcome.bound)
