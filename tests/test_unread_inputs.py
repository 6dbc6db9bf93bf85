"""Inputs that no output depends on: only certain ones are named, and the network still takes them."""

from __future__ import annotations

from fractions import Fraction

import jsonschema
import numpy as np
from hypothesis import HealthCheck, given, settings

import oracle
import relutrim
import strategies
from command_line import call
from relutrim.domain import Box
from relutrim.graph import Add, Network, Node, Output, Port, Relu, Reshape, Scale
from relutrim.graph.operators import Operator
from relutrim.report.json import schema
from rewriting import compressed, dense, graph, linear


@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(strategies.problems(rows=0))
def test_no_output_depends_on_an_input_that_is_named(problem):
    network, random = problem
    x = [Fraction(v) for v in random.point]
    moved = list(x)
    for index in network.unread_inputs:
        moved[index] += 7
    assert oracle.outputs(network, moved) == oracle.outputs(network, x)


def test_columns_of_zeros_are_not_read():
    network = dense(linear([[1.0, 0.0, 2.0], [-1.0, 0.0, 0.0]]), linear([[1.0, 1.0]]))
    assert network.unread_inputs == [1]


def test_one_reader_is_enough():
    nodes = [
        ("one", linear([[1.0, 0.0, 0.0]]), "x"),
        ("two", linear([[0.0, 1.0, 0.0]]), "x"),
        ("sum", Add(2), ("one", "two")),
    ]
    assert graph(3, nodes, "sum").unread_inputs == [2]
    assert graph(3, nodes, "sum", "x").unread_inputs == []


def test_neurons_that_nobody_reads_read_nothing():
    network = dense(linear([[1.0, 0.0], [0.0, 1.0]]), linear([[1.0, 0.0]]))
    assert network.unread_inputs == [1]


def test_shapes_and_scales_are_seen_through():
    nodes = (
        Node("scaled", Scale.exactly(np.array([[1.0, 2.0], [0.0, 1.0]]), 1.0), ("x",)),
        Node("flat", Reshape((2, 2), (4,)), ("scaled",)),
        Node("linear", linear([[1.0, 0.0, 1.0, 1.0]]), ("flat",)),
    )
    network = Network(Port("x", (2, 2)), nodes, (Output("y", "linear"),))
    assert network.unread_inputs == [1, 2]


def test_a_factor_that_is_only_about_0_is_read():
    scale = Scale(np.zeros(()), np.zeros(()), np.full((), 1e-300), np.zeros(()))
    assert graph(1, [("scaled", scale, "x")], "scaled").unread_inputs == []


def test_rows_of_a_matrix_are_told_apart():
    nodes = (
        Node("linear", linear([[1.0, 0.0, 2.0]]), ("x",)),
        Node("flat", Reshape((2, 1), (2,)), ("linear",)),
        Node("last", linear([[0.0, 1.0]]), ("flat",)),
    )
    network = Network(Port("x", (2, 3)), nodes, (Output("y", "last"),))
    assert network.unread_inputs == [0, 1, 2, 4]


class Strange(Relu):
    """An operator that says nothing about what it reads."""

    reads = Operator.reads


def test_an_operator_that_says_nothing_reads_everything():
    network = graph(2, [("odd", Strange(), "x"), ("last", linear([[1.0, 0.0]]), "odd")], "last")
    assert network.unread_inputs == []
    ignored = graph(2, [("odd", Strange(), "x"), ("last", linear([[0.0, 0.0]]), "odd")], "last")
    assert ignored.unread_inputs == [0, 1]


def test_the_report_names_them_and_the_interface_keeps_them(tmp_path, capsys):
    # The second neuron, the only reader of the second input, is inactive; the third input was never read.
    network = dense(
        linear([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [-0.5, -2.0]), linear([[1.0, 1.0]]), dtype="float32"
    )
    result = compressed(network, 0, 1)
    assert result.report["unread_inputs"] == {"original": [2], "compressed": [1, 2]}
    jsonschema.validate(result.report, schema("compression"))
    assert result.stored.input == network.input
    relutrim.save(network, tmp_path / "m.onnx")
    done = call(capsys, "compress", tmp_path / "m.onnx", tmp_path / "out.onnx", "--box", "0", "1")
    assert "2 of 3 inputs are not read (1 before); the network still takes them" in done.out
    assert relutrim.load(tmp_path / "out.onnx").input.shape == (3,)
    assert (
        "not read"
        not in call(
            capsys,
            "compress",
            relutrim.demo_model(),
            tmp_path / "out.onnx",
            "--box",
            "0",
            "1",
            "--method",
            "bounds",
        ).out
    )


def test_unread_inputs_of_a_compression_change_nothing():
    network = relutrim.load(relutrim.demo_model())
    result = relutrim.compress(network, Box(0, 1), tolerance=1e-2, method="bounds")
    assert result.stored.unread_inputs
    x = np.random.default_rng(0).random(784)
    y = x.copy()
    y[result.stored.unread_inputs] = 5.0
    exact = [[Fraction(v) for v in values] for values in (x, y)]
    assert oracle.outputs(result.stored, exact[0]) == oracle.outputs(result.stored, exact[1])
