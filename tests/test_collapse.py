"""Networks that are constant because a whole layer is inactive."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import oracle
from relutrim.compression import compress_network
from relutrim.domain import Box
from relutrim.graph import Add, Linear, Network, Node, Output, Port, Relu, Reshape
from relutrim.rewrite.collapse import collapse
from rewriting import QUICK, assert_holds, assert_true, compressed, dense, gap, graph, linear, names, start

INACTIVE = linear([[-1.0, -1.0], [-1.0, 0.0]], [-0.25, 0.0])


def test_the_constant_is_what_the_network_says_everywhere():
    network = dense(INACTIVE, linear([[1, 1], [1, 1]], [3, -1]), linear([[2, 7]], [0.5]))
    draft = start(network, 0, 1)
    after = collapse(draft, network["relu1"])
    (node,) = after.network.nodes
    np.testing.assert_array_equal(node.operator.weight, [[0, 0]])
    assert node.operator.bias[0] == pytest.approx(6.5, rel=1e-14)
    assert node.name == "output"
    assert assert_true(network, after, 0, 1) < 1e-12


def test_a_constant_without_rounding_is_proven_exact():
    network = dense(INACTIVE, linear([[1, 1], [0, 1]], [1 / 3, 0.1]))
    after = collapse(start(network, 0, 1), network["relu1"])
    assert assert_true(network, after, 0, 1) == 0.0


def test_every_neuron_of_the_network_is_gone():
    network = dense(linear(np.eye(2), [-0.5, -0.5]), INACTIVE, linear(np.eye(2), [-1, 1]), linear([[1, 1]]))
    result = compressed(network, 0, 1)
    assert names(result) == ["collapse"]
    assert result.steps[0].neurons == 6
    assert result.network.widths == [2, 1]
    assert_holds(network, result, 0, 1)


def test_an_empty_layer_collapses_too():
    network = dense(Linear(np.zeros((0, 2)), np.zeros(0)), Linear(np.zeros((1, 0)), np.array([3.0])))
    result = compressed(network, 0, 1, rewrites="leo++")
    assert gap(network, result.stored, 0, 1) == 0
    assert result.network.widths == [2, 1]


def test_an_inactive_output_relu_makes_the_network_zero():
    network = dense(linear([[1.0], [-1.0]], [0.5, 0.5]), linear([[-1, -1]], [-1]), output_relu=True)
    result = compressed(network, -1, 1)
    assert names(result) == ["collapse"]
    assert result.network.neurons == 0
    assert gap(network, result.stored, -1, 1) == 0


@pytest.mark.parametrize("around", ["input", "other relu"])
def test_a_branch_around_the_layer_forbids_it(around):
    network = graph(
        2,
        [
            ("l", INACTIVE, "x"),
            ("r", Relu(), "l"),
            ("m", linear(np.eye(2), [-0.5, -0.5]), "x"),
            ("s", Relu(), "m"),
            ("j", Add(2), ("r", "x" if around == "input" else "s")),
            ("y", linear([[1, 1]]), "j"),
        ],
        "y",
    )
    draft = start(network, 0, 1)
    assert collapse(draft, network["r"]) is draft
    assert gap(network, compressed(network, 0, 1).stored, 0, 1) == 0


def test_another_output_that_is_not_constant_forbids_it():
    network = graph(2, [("l", INACTIVE, "x"), ("r", Relu(), "l"), ("y", linear([[1, 1]]), "r")], "y", "x")
    draft = start(network, 0, 1)
    assert collapse(draft, network["r"]) is draft


def test_a_layer_with_an_unstable_neuron_does_not_collapse():
    network = dense(linear([[1, 0], [-1, 0]], [-0.5, 0]), linear([[1, 1]]))
    draft = start(network, 0, 1)
    assert collapse(draft, network["relu1"]) is draft


def test_many_inputs_behind_a_bottleneck_would_make_the_constant_larger():
    network = dense(linear(np.full((3, 30), -1.0), [-1, -1, -1]), linear(np.ones((10, 3)), np.ones(10)))
    paper = compressed(network, 0, 1, rewrites="leo++")
    assert names(paper) == ["collapse"]
    assert paper.network.parameters > network.parameters
    ours = compressed(network, 0, 1, rewrites="all")
    assert names(ours) == ["collapse", "factor"]
    assert ours.network.parameters == 30 + 1 + 10 + 10
    assert ours.network.neurons == 0


@pytest.mark.parametrize("taken", ["x.flat", "y", "y.flat"])
def test_shapes_are_kept_whatever_names_are_taken(taken):
    nodes = (
        Node("f", Reshape((1, 2), (2,)), ("x",)),
        Node("l", linear(-np.ones((4, 2)), -np.ones(4)), ("f",)),
        Node("r", Relu(), ("l",)),
        Node(taken, Reshape((4,), (2, 2)), ("r",)),
        Node("end", linear(np.eye(2), [1, 2]), (taken,)),
    )
    network = Network(Port("x", (1, 2)), nodes, (Output("one", taken), Output("two", "end")))
    result = compress_network(network, Box(0, 1), rewrites="leo++", **QUICK)
    assert names(result) == ["collapse"]
    assert result.stored.shapes["end"] == (2, 2)
    box = oracle.Polytope.of([0, 0], [1, 1])
    assert max(oracle.largest_deviations(network, result.stored, box)) == 0


def test_a_layer_of_higher_rank_collapses():
    network = Network(
        Port("x", (3, 2)),
        (Node("l", INACTIVE, ("x",)), Node("r", Relu(), ("l",)), Node("y", linear([[1, 1]], [2]), ("r",))),
        (Output("y", "y"),),
    )
    result = compressed(network, 0, 1, rewrites="leo++")
    assert names(result) == ["collapse"]
    assert_holds(network, result, 0, 1)


def test_the_largest_floats_there_are():
    network = dense(linear([[-1.0]]), linear([[1.0]], [1.7e308]), linear([[1.0]], [1e308]), linear([[1.0]]))
    assert compressed(network, 0, 1, rewrites="leo++").network is network
    assert names(compressed(network, 0, 1)) == ["straighten"]
    assert_holds(network, compressed(network, 0, 1), 0, 1)
    within = dense(linear([[-1.0]]), linear([[1.0]], [1.7e308]), linear([[1.0]]))
    assert_holds(within, compressed(within, 0, 1), 0, 1)


def test_float32_rounds_the_constant_and_says_so():
    network = dense(INACTIVE, linear([[1, 1]], [1 / 3]), dtype="float32")
    result = compressed(network, 0, 1)
    assert result.deviation.proven_float64 == 0.0
    assert gap(network, result.stored, 0, 1) == abs(Fraction(float(np.float32(1 / 3))) - Fraction(1 / 3))
    assert_holds(network, result, 0, 1)
