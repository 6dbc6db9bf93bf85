"""Attacks on trees: spoilt proofs, stale ranges, margins of next to nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

import oracle
from relutrim.analysis import analyze_network
from relutrim.domain import Box, Domain
from relutrim.graph import Network
from relutrim.prove.cascade import Cascade
from relutrim.prove.deadline import Deadline
from relutrim.prove.hull.proof import Proof, fits
from relutrim.prove.hull.tree import Tree
from relutrim.prove.recheck import recheck
from relutrim.prove.verdict import Evidence, Verdict
from test_cascade import layers, random_network
from test_hull import CPU
from test_soundness import QUICK

UNIT = Box(0, 1)
PLANE = Box(0, 1).sum_between(0, 99)
"""The unit box with a constraint that cuts nothing off: its inputs are not split, so trees have to do."""
SIGNED = Box(-1, 1).sum_between(-99, 99)


def bounded(network: Network, domain: Domain = UNIT) -> Cascade:
    cascade = Cascade(domain.fit(network), Deadline())
    cascade.bound(search=False)
    return cascade


def last_tree(cascade: Cascade, sign: float = 1.0) -> Tree:
    return Tree(cascade.backward, cascade.network.relus[-1].inputs[0], 0, sign)


def exact(network: Network) -> dict[str, list[oracle.Range]]:
    size = network.input.size
    return oracle.exact_ranges(network, oracle.Polytope.of([0] * size, [1] * size))


def split_case(weight: float) -> Network:
    """relu(d) + relu(-d) + weight * relu(d) + 0.05 with d = x0 - x1: a case distinction decides."""
    first = [[1.0, -1.0], [-1.0, 1.0], [1.0, -1.0]]
    return layers((first, [0.0, 0.0, 0.0]), ([[1.0, 1.0, weight]], [0.05]))


def test_a_constraint_without_weights_changes_nothing():
    domain = UNIT.constrain(np.zeros((1, 2)), [0.0], [0.0])
    tree = last_tree(bounded(split_case(-1.0), domain))
    tree.grow(64, Deadline(20), CPU)
    assert 0 <= tree.lower <= 0.05


# Proofs that are not what they say.


def active_beside_unstable() -> tuple[Cascade, Tree]:
    """``x0 + 1`` is active, ``x0 - 0.5`` is not stable; the target is negative for small ``x0``."""
    network = layers(([[1.0, 0.0], [1.0, 0.0]], [-0.5, 1.0]), ([[0.01, 1.0]], [-1.2]))
    cascade = bounded(network)
    tree = last_tree(cascade)
    tree.grow(1, Deadline(5), CPU)
    assert [neuron.both for neuron in tree.model.neurons] == [False, True]
    return cascade, tree


def test_the_states_of_an_active_neuron_prove_nothing():
    """Where it is on, or off, pushes may take any part of it away."""
    cascade, tree = active_beside_unstable()
    model = tree.model
    leaf = tree.proof.leaves[0]
    parts = [replace(part, push=np.full_like(part.push, 9.0)) for part in leaf.packed.parts]
    pushed = replace(leaf, packed=replace(leaf.packed, parts=tuple(parts)), bound=9.0)
    cases = [replace(pushed, states={0: on}) for on in (True, False)]
    assert not fits(model, cases)
    assert math.isnan(Proof(model.goal, 9.0, model.ranges, tuple(cases)).check(cascade.backward))


def test_a_recheck_with_false_proofs_confirms_no_false_verdict():
    cascade, tree = active_beside_unstable()
    stability = analyze_network(cascade.network, UNIT, data=None, **QUICK)
    leaf = tree.proof.leaves[0]
    every = [
        replace(tree.proof, leaves=(replace(leaf, states={0: True}), replace(leaf, states={0: False}))),
        replace(tree.proof, leaves=(replace(leaf, bound=math.inf),)),
        replace(tree.proof, goal=replace(tree.proof.goal, sign=1e-9)),
        replace(tree.proof, goal=replace(tree.proof.goal, neuron=9)),
        replace(tree.proof, ranges={}),
        replace(tree.proof, ranges={k: replace(v, lo=v.hi) for k, v in tree.proof.ranges.items()}),
    ]
    claimed = replace(
        stability.layers[1],
        verdict=np.full(1, Verdict.ACTIVE, np.int8),
        evidence=np.full(1, Evidence.PROOF, np.int8),
    )
    for proof in every:
        again = recheck(replace(stability, layers=(stability.layers[0], claimed), proofs=(proof,)))
        assert ("relu2", 0) in again.lost
    unstable = replace(claimed, verdict=np.full(1, Verdict.UNSTABLE, np.int8))
    assert recheck(replace(stability, layers=(stability.layers[0], unstable))).lost == (("relu2", 0),)


@pytest.mark.parametrize("changes", [{"sign": 0.01}, {"sign": 2.0}, {"sign": math.nan}, {"neuron": 5}])
def test_a_goal_of_another_kind_proves_nothing(changes):
    cascade, tree = active_beside_unstable()
    goal = replace(tree.proof.goal, **changes)
    assert math.isnan(replace(tree.proof, goal=goal).check(cascade.backward))


def test_a_proof_holds_the_ranges_that_its_program_was_built_from():
    network = layers(([[1.0, 0.0], [1.0, -1.0]], [-0.5, 0.0]), ([[1.0, 1.0]], [-0.1]))
    cascade = bounded(network)
    tree = last_tree(cascade)
    before = dict(cascade.values)
    # What is known gets tighter in between (here by assumption): a neuron drops out of the program.
    cascade._improve("linear1", torch.tensor([0]), -1.0, torch.tensor([0.0], dtype=torch.float64))
    tree.grow(64, Deadline(5), CPU)
    assert tree.proof is not None
    assert tree.proof.ranges == before
    assert tree.proof.check(cascade.backward) >= tree.lower


# The same outcome again.


@pytest.mark.parametrize("seed", [10, 12])
def test_the_outcome_does_not_depend_on_jobs_and_is_proved_again(seed):
    network = random_network([3, 8, 8, 8, 8], seed=seed)
    one, three = (analyze_network(network, SIGNED, data=None, **QUICK, jobs=jobs) for jobs in (1, 3))
    assert one.nodes == three.nodes > 0
    for name, ends in one.ranges.items():
        assert torch.equal(ends.lo, three.ranges[name].lo)
        assert torch.equal(ends.hi, three.ranges[name].hi)
    for a, b in zip(one.proofs, three.proofs, strict=True):
        assert (a.target, a.neuron, a.sign, a.bound) == (b.target, b.neuron, b.sign, b.bound)
    for stability in (one, three):
        assert recheck(stability).lost == ()


# Margins of next to nothing.

MARGINS = (0.0, 1e-15, -1e-15, 1e-12, -1e-12, 1e-3, -1e-3)


def nearly_tied(first: np.ndarray, second: np.ndarray) -> Network:
    """A network whose third layer's neurons come within each of MARGINS of 0, from above and from below.

    Every row of ``second`` stands in the third layer once for each margin and side, with the bias that moves
    its exact extreme there, rounded to float64.
    """
    start = layers((first, np.zeros(len(first))), (second, np.zeros(len(second))))
    rows, biases = [], []
    for row, (low, high) in zip(second, exact(start)["relu2"], strict=True):
        for margin in MARGINS:
            rows += [row, row]
            biases += [float(Fraction(margin) - low), float(Fraction(-margin) - high)]
    # A layer in between that moves the cases one layer back: relu of what is not negative is itself.
    between = (np.eye(len(first)), np.zeros(len(first)))
    return layers((first, np.zeros(len(first))), between, (rows, biases))


NETWORKS = {
    "thirds": (
        np.array([[1 / 3, -1 / 3], [-1 / 3, 1 / 3], [1 / 3, -1 / 3]]),
        np.array([[1.0, 1.0, -1.0], [0.1, 0.7, -0.1], [-0.3, -0.7, 0.3]]),
    ),
    "tenths": (
        np.array([[0.1, -0.2, 0.1], [-0.1, 0.2, -0.1], [0.7, -0.7, 0.0], [-0.7, 0.7, 0.0]]),
        np.array([[0.3, 0.9, -0.3, 0.1], [1.1, -0.7, 0.1, 0.3]]),
    ),
    "large and small": (
        np.array([[1e8, -1e8], [-1e8, 1e8], [1e-8, -1e-8], [-1e-8, 1e-8]]),
        np.array([[1e-8, 0.1, -1e-9, 3e7], [1.0, 1.0, 0.0, -1e15]]),
    ),
    "integers": (
        np.array([[1.0, -1.0], [-1.0, 1.0], [2.0, -2.0]]),
        np.array([[2.0, 2.0, -1.0], [-2.0, 1.0, 1.0]]),
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_margins_of_next_to_nothing_make_no_false_verdict(name):
    network = nearly_tied(*NETWORKS[name])
    truth = exact(network)
    assert any(low == 0 or high == 0 for low, high in truth["relu3"]) or name != "integers"
    stability = analyze_network(network, PLANE, data=None, **{**QUICK, "time_limit": 30.0}, jobs=1)
    assert stability.nodes or name == "large and small"
    assert stability.proofs or name == "large and small"
    for layer in stability.layers:
        for neuron, (low, high) in enumerate(truth[layer.name]):
            verdict = layer.verdict[neuron]
            assert verdict != Verdict.ACTIVE or low >= 0
            assert verdict != Verdict.INACTIVE or high <= 0
            assert verdict != Verdict.UNSTABLE or low < 0 < high
            if name == "thirds" and layer.name == "relu3" and (low > 1e-4 or high < -1e-4):
                assert layer.evidence[neuron] == Evidence.PROOF  # a clear margin beside the ties
            for bound, value in ((layer.lower[neuron], low), (-layer.upper[neuron], -high)):
                assert not math.isfinite(bound) or Fraction(float(bound)) <= value
    again = recheck(stability)
    every = replace(stability.layers[2], evidence=np.full(stability.layers[2].size, Evidence.PROOF, np.int8))
    for verdict in (Verdict.ACTIVE, Verdict.INACTIVE):
        claimed = replace(every, verdict=np.full(every.size, verdict, np.int8))
        lost = recheck(replace(stability, layers=(claimed,))).lost
        for neuron, (low, high) in enumerate(truth["relu3"]):
            assert ("relu3", neuron) in lost or (low >= 0 if verdict == Verdict.ACTIVE else high <= 0)
    assert again.confirmed > 0
