"""Joining what stands between linear nodes and ReLUs."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from relutrim.graph import Add, BatchNorm, Relu, Reshape, Scale
from relutrim.rewrite.fuse import fuse
from rewriting import assert_holds, assert_true, compressed, gap, graph, linear, start

A = ("a", linear([[1.0, 2.0], [3.0, -4.0]], [0.0, 0.1]), "x")
END = ("y", linear([[1.0, 1.0]], [0.3]), "r")


def kinds(network):
    return [node.operator.kind for node in network]


def test_an_identity_goes():
    network = graph(2, [A, ("i", Reshape((2,), (2,)), "a"), ("r", Relu(), "i"), END], "y")
    fused = fuse(start(network, 0, 1))
    assert kinds(fused.network) == ["Linear", "Relu", "Linear"]
    assert assert_true(network, fused, 0, 1) == 0.0


def test_an_identity_at_the_output_stays():
    network = graph(2, [A, ("i", Reshape((2,), (2,)), "a")], "i")
    assert fuse(start(network, 0, 1)).network is network


def test_an_identity_takes_no_proof_with_it():
    # Only linear bounds show that |x| and its multiples stay above 1/2 - ..., and they were found at the
    # identity: without them each active neuron would be charged its interval bound.
    network = graph(
        1,
        [
            ("l", linear([[1.0], [-1.0]], [0, 1]), "x"),
            ("q", Relu(), "l"),
            ("m", linear([[1.0, 1.0], [1.0, -1.0], [1.5, 1.5]], [-0.5, 0, -0.5]), "q"),
            ("i", Reshape((3,), (3,)), "m"),
            ("r", Relu(), "i"),
            ("y", linear([[1, 1, 1]]), "r"),
        ],
        "y",
    )
    result = compressed(network, -1, 2)
    assert result.network.widths == [1, 2, 2, 1]
    assert result.deviation.proven < 1e-12
    assert_holds(network, result, -1, 2)


def test_a_reader_of_a_value_and_of_its_identity_reads_the_value_twice():
    network = graph(2, [A, ("i", Reshape((2,), (2,)), "a"), ("y", Add(2), ("a", "i"))], "y")
    fused = fuse(start(network, 0, 1)).network
    assert fused["y"].inputs == ("a", "a")
    assert gap(network, fused, 0, 1) == 0


def test_a_scale_behind_a_linear_node_joins_it():
    scale = Scale.exactly(np.array([2.0, 0.1]), np.array([1.0, 0.7]))
    network = graph(2, [A, ("s", scale, "a"), ("r", Relu(), "s"), END], "y")
    fused = fuse(start(network, 0, 1))
    assert kinds(fused.network) == ["Linear", "Relu", "Linear"]
    assert 0 < assert_true(network, fused, 0, 1) < 1e-13


def test_a_bias_added_on_its_own_is_exact():
    network = graph(
        2,
        [
            ("a", linear([[1.0, 2.0], [3.0, -4.0]]), "x"),
            ("s", Scale.exactly(1.0, np.array([0.1, 0.7])), "a"),
            ("r", Relu(), "s"),
            END,
        ],
        "y",
    )
    fused = fuse(start(network, 0, 1))
    assert kinds(fused.network) == ["Linear", "Relu", "Linear"]
    assert assert_true(network, fused, 0, 1) == 0.0


def test_a_scale_behind_a_relu_moves_into_all_readers():
    scale = Scale.exactly(np.array([2.0, -0.1]), 0.7)
    ends = [("y", linear([[1 / 3, 7]]), "s"), ("z", linear([[1, 1]]), "s")]
    network = graph(2, [A, ("r", Relu(), "a"), ("s", scale, "r"), *ends], "y", "z")
    fused = fuse(start(network, 0, 1))
    assert kinds(fused.network) == ["Linear", "Relu", "Linear", "Linear"]
    assert 0 < assert_true(network, fused, 0, 1) < 1e-13


@pytest.mark.parametrize("seen", ["linear is an output", "linear is read twice", "scale is an output"])
def test_nothing_is_fused_across_what_someone_else_reads(seen):
    scale = Scale.exactly(2.0, 1.0)
    network = {
        "linear is an output": lambda: graph(2, [A, ("s", scale, "a"), ("r", Relu(), "s"), END], "y", "a"),
        "linear is read twice": lambda: graph(
            2, [A, ("s", scale, "a"), ("r", Relu(), "s"), END, ("t", Relu(), "a")], "y", "t"
        ),
        "scale is an output": lambda: graph(
            2, [A, ("r", Relu(), "a"), ("s", scale, "r"), ("y", linear([[1, 1]]), "s")], "y", "s"
        ),
    }[seen]()
    assert fuse(start(network, 0, 1)).network is network


def test_a_scale_at_the_input_stays():
    network = graph(2, [("s", Scale.exactly(2.0, 1.0), "x"), ("a", A[1], "s"), ("r", Relu(), "a"), END], "y")
    assert fuse(start(network, 0, 1)).network is network


def test_an_overflowing_product_is_not_fused():
    large = ("a", linear([[1e200, 0], [0, 1]]), "x")
    network = graph(2, [large, ("s", Scale.exactly(1e200), "a"), ("r", Relu(), "s"), END], "y")
    result = compressed(network, 0, 1)
    assert "s" in result.network
    assert_holds(network, result, 0, 1)


@pytest.mark.parametrize("where", ["before", "behind"])
@pytest.mark.parametrize("signs", [(1, 1), (-1, 1), (1, -1), (-1, -1)])
def test_parameters_known_up_to_a_radius_are_charged_for_it(where, signs):
    size, radius = np.array([2.0, 0.1]), np.array([0.01, 0.001])
    fuzzy = Scale(size, np.array([0.5, -0.2]), radius, np.array([0.02, 0.03]))
    true = Scale.exactly(
        size + signs[0] * radius * 0.999, fuzzy.shift + signs[1] * np.array([0.02, 0.03]) * 0.999
    )

    def network(scale):
        if where == "before":
            return graph(2, [A, ("s", scale, "a"), ("r", Relu(), "s"), END], "y")
        return graph(2, [A, ("r", Relu(), "a"), ("s", scale, "r"), ("y", linear([[3, -7]]), "s")], "y")

    result = compressed(network(fuzzy), 0, 1, tolerance=1.0)
    assert "Scale" not in kinds(result.network)
    assert gap(network(true), result.stored, 0, 1) <= Fraction(result.deviation.proven)
    assert result.deviation.proven < 1


def test_a_frozen_batch_norm_is_folded_where_somebody_asks_for_it_and_costs_rounding():
    random = np.random.default_rng(0)
    norm = BatchNorm.of(*random.uniform(0.5, 2, size=(4, 2)), 1e-5)
    network = graph(2, [A, ("s", norm, "a"), ("r", Relu(), "s"), END], "y")
    assert kinds(compressed(network, 0, 1).network) == ["Linear", "BatchNorm", "Relu", "Linear"]
    result = compressed(network, 0, 1, fold_batch_norm=True)
    assert kinds(result.network) == ["Linear", "Relu", "Linear"]
    assert 0 < result.deviation.proven < 1e-12
