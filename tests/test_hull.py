"""Trees over neurons' hulls: every column is true, every bound holds, whatever the steps come to."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from itertools import product

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
from relutrim.prove.hull.packed import Packed
from relutrim.prove.hull.proof import Proof, covers
from relutrim.prove.hull.tree import Tree
from relutrim.prove.verdict import Verdict
from rewriting import dense, linear
from test_soundness import QUICK, as_domain

CPU = torch.device("cpu")
slow = settings(suppress_health_check=list(HealthCheck), max_examples=60)


def bounded(problem) -> Cascade:
    """A cascade with interval and linear bounds only: enough is left open for trees."""
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


def grown(cascade: Cascade, relu: Node, neuron: int, sign: float, depth: int, seconds: float = 5) -> Tree:
    tree = Tree(cascade.backward, relu.inputs[0], neuron, sign, depth)
    with suppress(RuntimeError):  # what overflows
        tree.grow(256, Deadline(seconds), CPU)
    return tree


@slow
@given(strategies.problems(max_layers=3), st.sampled_from([1, 2, 99]), st.sampled_from([1.0, -1.0]))
def test_columns_and_goals_are_true_of_every_input(problem, depth, sign):
    network, random = problem
    cascade = bounded(problem)
    for relu, neuron in open_neurons(cascade)[:4]:
        model = Model(cascade.backward, Goal.of(cascade.backward, relu.inputs[0], neuron, sign, depth))
        if not all(map(math.isfinite, [*model.cost, model.offset, model.slack])):
            continue
        for x in oracle.random_points(random.polytope, 4):
            values = oracle.evaluate(network, x)
            point = [Fraction(0)] * len(model.cost)
            for name, columns in model.columns.items():
                for entry in np.flatnonzero(columns >= 0).tolist():
                    point[columns[entry]] = values[name][entry]
            for low, value, high in zip(model.ends[0], point, model.ends[1], strict=True):
                assert Fraction(float(low)) <= value <= Fraction(float(high))
            least = sum((Fraction(float(a)) * v for a, v in zip(model.cost, point, strict=True)), Fraction(0))
            goal = int(sign) * values[relu.inputs[0]][neuron]
            assert goal >= least + Fraction(model.offset) - Fraction(model.slack)


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
            states = {k: v ^ (random.random() < 0.5) for k, v in leaf.states.items()}
            leaves[at] = replace(leaf, states=states)
        case 2:
            leaves[at] = replace(leaf, packed=spoilt_multipliers(leaf.packed, random), bound=0.0)
    return replace(proof, leaves=tuple(leaves))


def spoilt_multipliers(leaf: Packed, random) -> Packed:
    """Others of one layer."""
    parts = list(leaf.parts)
    at = random.randrange(len(parts))
    part, bytes_ = parts[at], np.random.default_rng(random.randrange(2**32))
    kind = random.choice(["lean", "mix", "push", "share"])
    old = getattr(part, kind)
    new = (
        old * np.float32(random.choice([0, 0.5, 1e3]))
        if kind == "push"
        else bytes_.integers(0, 256, old.shape)
    )
    parts[at] = replace(part, **{kind: new.astype(old.dtype)})
    return replace(leaf, parts=tuple(parts))


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
            assert grown(cascade, relu, neuron, sign, depth=99, seconds=20).closed


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


def test_a_tree_without_a_neuron_to_split_is_given_up():
    """A first layer's pre-activation ``x - 1``, which is a tie at an end of its range."""
    network = dense(linear([[1.0]], [-1.0]), linear([[1.0]], [0.0]))
    cascade = Cascade(Box(0, 1).fit(network), Deadline())
    cascade.bound(search=False)
    tree = Tree(cascade.backward, network.relus[0].inputs[0], 0, 1.0)
    tree.grow(8, Deadline(60), CPU)
    assert tree.dead
    assert not tree.closed


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


@pytest.mark.parametrize("margin", [0.0, 1e-4])
def test_what_is_0_but_for_rounding_ends_before_time_does(margin, monkeypatch):
    """|x - y| / 3 <= 1/3, where no margin is: no proof, no witness, and nothing that a tree could do."""
    monkeypatch.setattr(splitting, "applies", lambda _: False)
    first = linear([[1 / 3, -1 / 3], [-1 / 3, 1 / 3]])
    third = linear([[-1.0, -1.0]], [1 / 3 + margin])
    network = dense(first, linear([[1, 0], [0, 1]]), third, linear([[1.0]]))
    stability = analyze_network(network, Box(0, 1), data=None, **{**QUICK, "time_limit": 120.0})
    assert stability.layers[2].verdict.tolist() == [Verdict.ACTIVE if margin else Verdict.UNKNOWN]
    assert stability.seconds < 60
    assert stability.nodes < 100


INTERRUPTED = """
import os, signal, threading
from relutrim.cli import main
from relutrim.prove.tree_search import TreeSearch

def run(self, honest=TreeSearch.run):
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    honest(self)

TreeSearch.run = run
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
