"""Linear programs over neurons' hulls: every row is true, every bound holds, whatever the solver says."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import product

import highspy
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import oracle
import relutrim
import strategies
from relutrim.analysis import analyze_network
from relutrim.domain import Box
from relutrim.graph import Linear, Network, Node, Output, Port, Relu
from relutrim.prove import splitting
from relutrim.prove.cascade import Cascade
from relutrim.prove.deadline import Deadline
from relutrim.prove.hull.model import Goal, Model
from relutrim.prove.hull.program import Program, Row
from relutrim.prove.hull.proof import Proof, covers
from relutrim.prove.hull.tree import Tree
from relutrim.prove.verdict import Verdict
from rewriting import dense, linear
from test_soundness import QUICK, as_domain

slow = settings(suppress_health_check=list(HealthCheck), max_examples=60)


def bounded(problem) -> Cascade:
    """A cascade with interval and linear bounds only: enough is left open for the programs."""
    network, random = problem
    cascade = Cascade(as_domain(random).fit(network), Deadline())
    cascade.bound(search=False)
    return cascade


def open_neurons(cascade: Cascade) -> list[tuple[Node, int]]:
    return [
        (relu, neuron)
        for relu in cascade.network.relus
        for neuron in cascade.undecided(relu).nonzero()[:, 0].tolist()
    ]


def true_point(model: Model, network: Network, x: list[Fraction]) -> list[Fraction]:
    """What the program's columns really are for an input."""
    values = oracle.evaluate(network, x)
    point = [Fraction(0)] * len(model.program.lo)
    for name, columns in model.columns.items():
        for entry in np.flatnonzero(columns >= 0).tolist():
            point[columns[entry]] = values[name][entry]
    for neuron in model.neurons:
        if neuron.state >= 0:
            point[neuron.state] = Fraction(int(point[neuron.column] > 0))
            point[neuron.total] = values[network[neuron.relu].inputs[0]][neuron.entry]
    return point


def grown(cascade: Cascade, relu: Node, neuron: int, sign: float, depth: int, seconds: float = 5) -> Tree:
    tree = Tree(cascade.backward, relu.inputs[0], neuron, sign, depth)
    tree.grow(64, Deadline(seconds))
    return tree


@slow
@given(strategies.problems(max_layers=3), st.sampled_from([1, 2, 99]))
def test_rows_and_cuts_are_true_of_every_input(problem, depth):
    network, random = problem
    cascade = bounded(problem)
    for relu, neuron in open_neurons(cascade)[:4]:
        model = Model(cascade.backward, Goal.of(cascade.backward, relu.inputs[0], neuron, 1.0, depth))
        for _ in range(4):
            solved = model.program.solve(5.0)
            if solved is None or not model.separate(solved[0]):
                break
        for x in oracle.random_points(random.polytope, 4):
            point = true_point(model, network, x)
            for low, value, high in zip(model.program.lo, point, model.program.hi, strict=True):
                assert Fraction(float(low)) <= value <= Fraction(float(high))
            for row in model.program.rows:
                pairs = zip(row.values, row.columns, strict=True)
                value = sum((Fraction(float(a)) * point[int(j)] for a, j in pairs), Fraction(0))
                assert math.isinf(row.lower) or Fraction(row.lower) <= value
                assert math.isinf(row.upper) or value <= Fraction(row.upper)


def open_ends(cascade: Cascade, polytope: oracle.Polytope) -> Iterator[tuple[Node, int, float, Fraction]]:
    """Both directions of a few open neurons: the sign, and the exact minimum of ``sign * y``."""
    exact = oracle.exact_ranges(cascade.network, polytope)
    for relu, neuron in open_neurons(cascade)[:4]:
        low, high = exact[relu.name][neuron]
        yield relu, neuron, 1.0, low
        yield relu, neuron, -1.0, -high


def true_bound(bound: float, least: Fraction) -> bool:
    """No bound at all, or one that the exact minimum keeps. Infinity says that there are no inputs: false."""
    return math.isnan(bound) or bound == -math.inf or (bound < math.inf and Fraction(bound) <= least)


@slow
@given(strategies.problems(max_layers=3), st.sampled_from([1, 2, 99]))
def test_bounds_never_exceed_the_exact_minimum(problem, depth):
    cascade = bounded(problem)
    for relu, neuron, sign, least in open_ends(cascade, problem[1].polytope):
        assert true_bound(grown(cascade, relu, neuron, sign, depth).lower, least)


@slow
@given(strategies.problems(max_layers=3), st.sampled_from([1, 2, 99]), st.randoms(use_true_random=False))
def test_a_proof_proves_again_and_a_spoilt_one_never_too_much(problem, depth, random):
    cascade = bounded(problem)
    for relu, neuron, sign, least in open_ends(cascade, problem[1].polytope):
        tree = grown(cascade, relu, neuron, sign, depth)
        if tree.proof is not None:
            assert tree.proof.check(cascade.backward) >= tree.lower
            assert true_bound(spoilt(tree.proof, random).check(cascade.backward), least)


def spoilt(proof: Proof, random) -> Proof:
    """A proof with a leaf lost, a state flipped, or multipliers changed."""
    leaves = list(proof.leaves)
    at = random.randrange(len(leaves))
    leaf = leaves[at]
    match random.randrange(3):
        case 0:
            del leaves[at]
        case 1:
            leaves[at] = replace(
                leaf, states={k: v ^ (random.random() < 0.5) for k, v in leaf.states.items()}
            )
        case 2:
            rows = {row: dual * random.choice([-1.0, 0.5, 1e3]) for row, dual in leaf.rows.items()}
            cuts = [(cut, dual * random.choice([-1.0, 0.5, 1e3])) for cut, dual in leaf.cuts]
            leaves[at] = replace(leaf, rows=rows, cuts=cuts, bound=0.0)
    return replace(proof, leaves=tuple(leaves))


@given(st.lists(st.dictionaries(st.integers(0, 3), st.booleans(), max_size=4), max_size=8))
def test_cases_cover_exactly_if_every_assignment_agrees_with_one(cases):
    every = (dict(enumerate(states)) for states in product([False, True], repeat=4))
    truth = all(any(case.items() <= states.items() for case in cases) for states in every)
    assert covers(cases) == truth


@slow
@given(strategies.problems(max_layers=3, extreme=False))
def test_branching_proves_what_has_a_margin(problem):
    cascade = bounded(problem)
    for relu, neuron, sign, least in open_ends(cascade, problem[1].polytope):
        if least > Fraction(1, 1000):
            assert grown(cascade, relu, neuron, sign, depth=99, seconds=20).lower >= 0


@slow
@given(strategies.problems(extreme=False), st.integers(1, 3))
def test_every_relaxation_in_use_can_be_branched_on_the_dearest_first(problem, depth):
    cascade = bounded(problem)
    for relu, neuron in open_neurons(cascade)[:3]:
        model = Model(cascade.backward, Goal.of(cascade.backward, relu.inputs[0], neuron, 1.0, depth))
        solved = model.program.solve(10.0)
        if solved is None:
            continue
        point, duals = solved
        used = {
            number
            for number, n in enumerate(model.neurons)
            if n.state >= 0 and point[n.column] != max(0.0, point[n.total])
        }
        ranked = model.to_branch(point, duals)
        assert set(ranked) == used
        weights = np.abs(model.program.downstream(duals))
        costs = [
            abs(point[n.column] - max(0.0, point[n.total])) * weights[n.column]
            for n in map(model.neurons.__getitem__, ranked)
        ]
        assert costs == sorted(costs, reverse=True)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=3, max_size=3))
def test_any_duals_give_a_true_bound(duals):
    rows = [
        Row(np.array([0, 1]), np.array([1.0, 1.0]), 1.0, np.inf),
        Row(np.array([0, 1]), np.array([1.0, -1.0]), -0.5, 0.5),
        Row(np.array([1]), np.array([3.0]), -np.inf, 2.0),
    ]
    program = Program(np.zeros(2), np.ones(2), np.array([1.0, 2.0]), 0.25, rows)
    bound = program.lower_bound(np.array(duals))
    assert math.isnan(bound) or bound <= 0.75 + 2 * 0.25 + 0.25  # the minimum is at (0.75, 0.25)


def test_the_solvers_own_duals_give_the_minimum():
    rows = [
        Row(np.array([0, 1]), np.array([1.0, 1.0]), 1.0, np.inf),
        Row(np.array([0, 1]), np.array([1.0, -1.0]), -0.5, 0.5),
    ]
    program = Program(np.zeros(2), np.ones(2), np.array([1.0, 2.0]), 0.25, rows)
    _, duals = program.solve(5.0)
    assert program.lower_bound(duals) == pytest.approx(1.5, abs=1e-12)


def test_an_empty_program_is_proved_empty_by_its_ray():
    program = Program(
        np.zeros(2), np.ones(2), np.ones(2), 0.0, [Row(np.array([0, 1]), np.array([1.0, 1.0]), 3.0, np.inf)]
    )
    assert program.solve(5.0) is None
    assert program.infeasible()
    program.ray = -program.ray
    assert not program.infeasible()


def small_program() -> Program:
    """``min x + 2 y + 0.25`` over the unit square with ``x + y >= 1`` and ``|x - y| <= 0.5``: 1.5."""
    rows = [
        Row(np.array([0, 1]), np.array([1.0, 1.0]), 1.0, np.inf),
        Row(np.array([0, 1]), np.array([1.0, -1.0]), -0.5, 0.5),
    ]
    program = Program(np.zeros(2), np.ones(2), np.array([1.0, 2.0]), 0.25, rows)
    assert program.solve(5.0) is not None  # from here on there is a basis to start from
    return program


@pytest.mark.parametrize("enough", [-1.0, 1.4, 1.5, 1.6, 2.2, 9.0, math.nan])
def test_a_solve_that_stops_early_has_reached_enough(enough):
    program = small_program()
    for ends in ({1: (0.5, 1.0)}, {1: (0.9, 1.0)}, {}):
        program.narrow(ends)
        least = program.lower_bound(program.solve(5.0)[1])
        program.narrow({})
        program.solve(5.0)
        program.narrow(ends)
        bound = program.lower_bound(program.solve(5.0, enough)[1])
        assert bound <= least + 1e-9
        assert bound >= enough or bound == pytest.approx(least, abs=1e-9)
        assert program.lower_bound(program.solve(5.0)[1]) == pytest.approx(least, abs=1e-9)


class Liar:
    """A solver that says it has reached the bound it was given, so many times, with duals of its own."""

    def __init__(self, solver, times: float, duals: float) -> None:
        self._solver, self._times, self._duals = solver, times, duals

    def __getattr__(self, name):
        return getattr(self._solver, name)

    def run(self):
        self.lies = self._times > 0
        self._times -= 1
        return self._solver.run()

    def getModelStatus(self):
        return highspy.HighsModelStatus.kObjectiveBound if self.lies else self._solver.getModelStatus()

    def getSolution(self):
        solution = self._solver.getSolution()
        if self.lies:
            solution.row_dual = [self._duals] * len(solution.row_dual)
        return solution


@pytest.mark.parametrize("duals", [0.0, 1.0, -1e9, math.inf, math.nan])
def test_a_solver_that_stops_too_early_is_not_believed(duals):
    program = small_program()
    program._solver = Liar(program._solver, 1, duals)
    _, found = program.solve(5.0, 1.6)
    assert program.lower_bound(found) == pytest.approx(1.5, abs=1e-9)
    program._solver = Liar(program._solver, math.inf, duals)
    assert program.solve(5.0, 1.6) is None
    assert not program.infeasible()


@pytest.mark.parametrize("cuts", [0, 3])
def test_dropping_idle_rows_keeps_the_basis_and_the_value(cuts):
    program = small_program()
    rows = [Row(np.array([0, 1]), np.array([1.0, i + 1.0]), 1.0 - i, np.inf) for i in range(cuts)]
    program.add([*rows, Row(np.array([1]), np.array([1.0]), 0.4, np.inf)])
    _, duals = program.solve(5.0)
    least = program.lower_bound(duals)
    assert least == pytest.approx(1.65, abs=1e-9)
    kept = program.purge(2, duals)
    assert cuts in kept
    assert len(kept) <= max(1, cuts)
    assert len(program.rows) == 2 + len(kept) == program._solver.getNumRow()
    assert program._solver.getBasis().valid
    assert program.lower_bound(program.solve(5.0)[1]) == pytest.approx(least, abs=1e-9)


def hard() -> Network:
    """relu(d) + relu(-d) - relu(d) + 0.05 with d = x0 - x1: never below 0.05, but that takes a case
    distinction.
    """
    first = Linear(np.array([[1.0, -1.0], [-1.0, 1.0], [1.0, -1.0]]), np.zeros(3))
    second = Linear(np.array([[1.0, 1.0, -1.0]]), np.array([0.05]))
    third = Linear(np.ones((1, 1)), np.zeros(1))
    return Network(
        Port("x", (2,)),
        (
            Node("a", first, ("x",)),
            Node("r", Relu(), ("a",)),
            Node("b", second, ("r",)),
            Node("s", Relu(), ("b",)),
            Node("y", third, ("s",)),
        ),
        (Output("y", "y"),),
    )


@pytest.mark.parametrize("garbage", ["nothing", "nan", "noise", "error"])
def test_a_solver_that_lies_never_makes_a_wrong_verdict(monkeypatch, garbage):
    """What is decided all the same is decided by steps that need no solver."""
    noise = np.random.default_rng(0)

    def solve(self, *limits):
        called.append(garbage)
        if garbage == "error":
            raise RuntimeError("the solver broke")
        if garbage == "nothing":
            return None
        size = (len(self.lo), len(self.rows))
        if garbage == "nan":
            return np.full(size[0], np.nan), np.full(size[1], np.nan)
        return noise.normal(size=size[0]), 1e6 * noise.normal(size=size[1])

    truth = oracle.exact_ranges(hard(), oracle.Polytope.of([0, 0], [1, 1]))
    called: list[str] = []
    monkeypatch.setattr(Program, "solve", solve)
    monkeypatch.setattr(splitting, "applies", lambda cascade: False)
    stability = analyze_network(hard(), Box(0, 1), data=None, **{**QUICK, "time_limit": 2.0})
    for layer in stability.layers:
        for verdict, (low, high) in zip(layer.verdict, truth[layer.name], strict=True):
            assert verdict != Verdict.ACTIVE or low >= 0
            assert verdict != Verdict.INACTIVE or high <= 0
    assert called


def test_a_tree_without_a_neuron_to_split_is_given_up():
    """A first layer's pre-activation ``x - 1``, which is a tie at an end of its range."""
    network = dense(linear([[1.0]], [-1.0]), linear([[1.0]], [0.0]))
    cascade = Cascade(Box(0, 1).fit(network), Deadline())
    cascade.bound(search=False)
    tree = Tree(cascade.backward, network.relus[0].inputs[0], 0, 1.0)
    tree.grow(1, Deadline(60))
    tree.spread(8, Deadline(60), torch.device("cpu"))
    assert tree.dead
    assert not tree.closed
    assert tree.lower <= -1


def test_a_case_distinction_is_proved_by_branching(monkeypatch):
    monkeypatch.setattr(splitting, "applies", lambda cascade: False)
    stability = analyze_network(hard(), Box(0, 1), data=None, **QUICK)
    assert stability.layers[1].which(Verdict.ACTIVE) == [0]


def test_a_leftover_of_a_paper_network_is_proved(shared):
    network = relutrim.load(shared / "networks" / "paper" / "mnist_2x200_l1_0.00015_s0.onnx")
    stability = relutrim.analyze(network, Box(0, 1), time_limit=120)
    assert stability.complete
    x = torch.rand(2000, 784, dtype=torch.float64, generator=torch.Generator().manual_seed(5)).round()
    pre = network.run(x)[network.relus[1].inputs[0]]
    assert bool((pre[:, stability.layers[1].verdict == Verdict.ACTIVE] > 0).all())


@pytest.mark.parametrize("margin", [0.0, 1e-6])
def test_only_what_is_0_but_for_rounding_is_not_worth_a_wide_tree(margin, monkeypatch):
    """|x - y| / 3 <= 1/3, where no margin is: no proof, no witness, and nothing that a tree could do."""
    spread = []
    monkeypatch.setattr(Tree, "spread", lambda self, *_: spread.append(self))
    monkeypatch.setattr(splitting, "applies", lambda _: False)
    first = linear([[1 / 3, -1 / 3], [-1 / 3, 1 / 3]])
    third = linear([[-1.0, -1.0]], [1 / 3 + margin])
    network = dense(first, linear([[1, 0], [0, 1]]), third, linear([[1.0]]))
    stability = analyze_network(network, Box(0, 1), data=None, **QUICK)
    assert stability.layers[2].verdict.tolist() == [Verdict.ACTIVE if margin else Verdict.UNKNOWN]
    assert not spread


INTERRUPTED = """
import os, signal, threading
from relutrim.cli import main
from relutrim.prove.programs import Programs

def run(self, honest=Programs.run):
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    honest(self)

Programs.run = run
main()
"""
"""The command line, with Ctrl-C half a second into the last stage."""


def test_ctrl_c_in_the_last_stage_ends_with_its_own_code_and_partial_verdicts(shared, tmp_path):
    model = shared / "networks" / "paper" / "mnist_4x100_l1_0.0001_s0.onnx"
    written = tmp_path / "verdicts.json"
    command = [
        sys.executable,
        "-c",
        INTERRUPTED,
        "analyze",
        str(model),
        "--box",
        "0",
        "1",
        "-o",
        str(written),
    ]
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored in background processes, and inherited
    try:
        run = subprocess.run([*command, "--jobs", "2"], capture_output=True, timeout=300)
    finally:
        signal.signal(signal.SIGINT, before)
    assert run.returncode == 130, run.stderr
    assert not json.loads(written.read_text())["complete"]
