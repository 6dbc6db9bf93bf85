"""Carriers in place of active neurons, and what makes linear parts: collinear neurons, lifting."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import oracle
import relutrim
import strategies
from relutrim.analysis import analyze_network
from relutrim.domain import Box
from relutrim.graph import Relu
from relutrim.prove.verdict import Evidence
from relutrim.rewrite.carry_linear import carry_linear
from relutrim.rewrite.collinear import merge_multiples, split_opposites
from relutrim.rewrite.draft import Draft
from relutrim.rewrite.drop_unread import drop_unread
from relutrim.rewrite.layers import dense_layers
from relutrim.rewrite.lift import lift
from rewriting import (
    QUICK,
    assert_holds,
    assert_true,
    compressed,
    dense,
    graph,
    layer_of,
    linear,
    names,
    start,
)

slow = settings(suppress_health_check=list(HealthCheck))
UNSTABLE = [1.0, -1.0], 0.0


def applied(rewrite, network, relu="relu1", lo=0, hi=1):
    draft = start(network, lo, hi)
    return draft, rewrite(draft, layer_of(draft, relu))


# Each rewrite alone, on everything that can go wrong.


@pytest.mark.parametrize("rewrite", [carry_linear, merge_multiples, split_opposites, drop_unread, lift])
@settings(slow, max_examples=60)
@given(problem=strategies.problems())
def test_what_is_proven_of_a_rewrite_is_true(rewrite, problem):
    network, random = problem
    box = Box(random.lo, random.hi)
    if len(random.matrix):
        box = box.constrain(random.matrix, random.lower, random.upper)
    draft = Draft.start(network, analyze_network(network, box, data=None, **QUICK), Evidence.PROOF)
    for layer in dense_layers(network):
        with np.errstate(over="ignore", invalid="ignore"):  # as the pipeline has it
            after = rewrite(draft, layer)
        if after is draft:
            continue
        assert after.network.parameters <= network.parameters
        for final in (after.realise(), after.stored().realise()):
            if math.isfinite(final.proven):
                largest = oracle.largest_deviations(network, final.network, random.polytope)
                assert all(gap <= Fraction(final.proven) for gap in largest)


# Carriers.


def test_as_many_carriers_as_readers_can_tell_apart():
    rows = np.random.default_rng(0).integers(-4, 5, size=(6, 5)).astype(float)
    network = dense(
        linear(np.vstack([rows, [1, -1, 0, 0, 0]]), [*np.abs(rows).sum(1), 0.0]),
        linear(np.random.default_rng(1).integers(-4, 5, size=(2, 7))),
    )
    _, after = applied(carry_linear, network)
    assert after.network.widths == [5, 3, 2]
    assert assert_true(network, after, 0, 1) < 1e-11


def test_readers_that_say_the_same_share_a_carrier():
    rows = np.random.default_rng(0).integers(-4, 5, size=(4, 4)).astype(float)
    outward = np.array([[1.0, 2, -1, 3, 1], [-2, -4, 2, -6, 5], [0, 0, 0, 0, 1]])
    network = dense(linear(np.vstack([rows, [1, -1, 0, 0]]), [*np.abs(rows).sum(1), 0.0]), linear(outward))
    _, after = applied(carry_linear, network)
    assert after.network.widths == [4, 2, 3]
    assert_true(network, after, 0, 1)


def test_carriers_stay_positive_where_the_linear_part_is_negative():
    network = dense(
        linear([[1.0, 0.0], [0.0, 1.0], UNSTABLE[0]], [3.0, 2.0, 0.0]), linear([[-5.0, -7.0, 1.0]])
    )
    _, after = applied(carry_linear, network)
    assert after.network.widths == [2, 2, 1]
    assert float(after.ranges["linear1"].lo[0, -1]) > 0
    assert_true(network, after, 0, 1)


def test_constant_neurons_become_bias():
    network = dense(linear([[0.0, 0.0], UNSTABLE[0]], [4.0, 0.0]), linear([[3.0, 1.0]], [1.0]))
    _, after = applied(carry_linear, network)
    assert after.network.widths == [2, 1, 1]
    np.testing.assert_array_equal(after.network["output"].operator.bias, [13.0])
    assert assert_true(network, after, 0, 1) < 1e-13


def test_a_layer_of_constants_alone_keeps_one_neuron():
    network = dense(linear([[0.0], [0.0]], [4.0, 1.0]), linear([[3.0, 1.0]], [1.0]))
    _, after = applied(carry_linear, network)
    assert after.network.widths == [1, 1, 1]
    assert_true(network, after, 0, 1)


def test_where_readers_are_many_nothing_is_carried():
    network = dense(linear([[1.0, 0.0], [0.0, 1.0], UNSTABLE[0]], [1, 1, 0]), linear(np.eye(3)))
    draft, after = applied(carry_linear, network)
    assert after is draft


def test_a_rank_that_is_only_nearly_deficient_is_kept():
    network = dense(linear([[1.0, 0.0], [1.0, 1e-7], UNSTABLE[0]], [1, 1, 0]), linear([[1, 1, 1], [1, 2, 1]]))
    draft, after = applied(carry_linear, network)
    assert after is draft


def test_several_readers_share_the_carriers():
    rows = np.random.default_rng(2).integers(-4, 5, size=(5, 3)).astype(float)
    network = graph(
        3,
        [
            ("a", linear(np.vstack([rows, [1, -1, 0]]), [*np.abs(rows).sum(1), 0.0]), "x"),
            ("r", Relu(), "a"),
            ("p", linear(np.arange(6.0)[None]), "r"),
            ("q", linear(np.arange(6.0)[None] ** 2, [1.0]), "r"),
        ],
        "p",
        "q",
    )
    _, after = applied(carry_linear, network, "r")
    assert after.network.size("r") == 3
    assert_true(network, after, 0, 1)


# Collinear neurons.


def test_positive_multiples_are_one_neuron():
    network = dense(
        linear([[1.0, -1.0], [2.0, -2.0], [0.5, -0.5]], [0.25, 0.5, 0.125]), linear([[1.0, 10.0, 100.0]])
    )
    draft, after = applied(merge_multiples, network)
    np.testing.assert_array_equal(after.network["output"].operator.weight, [[71.0]])
    assert assert_true(network, after, 0, 1) < 1e-12
    assert after.network.parameters < draft.network.parameters


def test_multiples_with_other_biases_are_no_multiples():
    network = dense(linear([[1.0, -1.0], [2.0, -2.0]], [0.25, 0.25]), linear([[1.0, 1.0]]))
    draft, after = applied(merge_multiples, network)
    assert after is draft


def test_opposites_become_one_neuron_and_a_line():
    network = dense(linear([[1.0, -1.0], [-3.0, 3.0]], [0.25, -0.75]), linear([[1.0, 2.0], [5.0, 0.0]]))
    _, after = applied(split_opposites, network)
    assert after.identity["relu1"].tolist() == [False, True]
    assert_true(network, after, 0, 1)


def test_opposites_that_cancel_leave_a_line_alone():
    network = dense(
        linear([[1.0, -1.0], [-1.0, 1.0], [1.0, 1.0]], [0.25, -0.25, -1.0]), linear([[2.0, -2.0, 1.0]])
    )
    result = compressed(network, 0, 1)
    assert result.network.widths == [2, 2, 1]
    assert "merge-collinear" in names(result)
    assert_holds(network, result, 0, 1)


def test_a_neuron_that_nobody_reads_goes():
    network = dense(linear([[1.0, -1.0], [1.0, -2.0]], [0, 0]), linear([[0.0, 1.0]]))
    _, after = applied(drop_unread, network)
    assert after.network.widths == [2, 1, 1]
    assert assert_true(network, after, 0, 1) == 0


# Lifting.


def test_a_split_layer_is_put_together_again():
    """Two neurons as relu(u - t) - relu(t - u) + t, one as it is, and a ReLU behind: what a splitter does."""
    weight, bias = np.array([[1.0, -2.0], [3.0, 1.0], [-1.0, 1.0]]), np.array([0.25, -1.0, 0.125])
    shift = np.array([0.5, 0.25])
    split = linear(
        np.vstack([weight[:2], -weight[:2], weight[2:]]),
        np.concatenate([bias[:2] - shift, shift - bias[:2], bias[2:]]),
    )
    merging = linear([[1, 0, -1, 0, 0], [0, 1, 0, -1, 0], [0, 0, 0, 0, 1]], [*shift, 0.0])
    network = dense(split, merging, linear([[1.0, 2.0, 3.0], [1.0, -1.0, 1.0]]))
    result = compressed(network, -1, 1)
    assert result.network.widths == [2, 3, 2]
    assert {"merge-collinear", "drop-unread", "lift-relu", "fold-stable"} <= set(names(result))
    assert_holds(network, result, -1, 1)


def test_a_carrier_that_others_read_too_is_not_lifted_into():
    network = dense(
        linear([[1.0, 1.0], [1.0, -1.0]], [1.0, 0.0]),
        linear([[1.0, 0.0], [1.0, 1.0]], [-2.0, 0.0]),
        linear([[1.0, 1.0]]),
    )
    draft, after = applied(lift, network)
    assert after is draft


# The whole.


def test_connections_of_the_papers_networks_that_go_exactly(shared):
    for name, least in (
        ("mnist_2x400_l1_0.0002_s0", 0.77),
        ("mnist_2x200_l1_0.0002_s0", 0.39),
        ("cifar10_2x400_l1_0.000175_s0", 0.775),
    ):
        network = relutrim.load(shared / "networks" / "paper" / f"{name}.onnx")
        result = relutrim.compress(network, Box(0, 1), time_limit=20)
        assert 1 - result.network.connections / network.connections >= least - 0.005
        assert result.deviation.proven_float64 < 1e-10
        assert result.deviation.observed_float32 <= 2 * result.deviation.original_float32_error


def test_a_network_split_on_purpose_gets_its_layer_back(shared):
    path = shared / "networks" / "public" / "relusplitter" / "mnist-net_256x4_split.onnx"
    result = relutrim.compress(relutrim.load(path), Box(0, 1), method="bounds")
    assert result.network.widths == [784, 256, 256, 256, 256, 10]
