"""What is made smaller, and how it is counted."""

from __future__ import annotations

import json

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import strategies
from command_line import call
from relutrim.compression import compress_network
from relutrim.domain import Box
from relutrim.errors import InputError
from relutrim.graph import Add, Network, Node, Output, Port, Relu, Reshape, Scale
from relutrim.io import save
from relutrim.report.json import schema
from relutrim.rewrite.cost import Cost
from rewriting import QUICK, compressed, dense, graph, linear

slow = settings(suppress_health_check=list(HealthCheck))
COSTS = [cost.value for cost in Cost]


def test_multiply_adds_of_every_operator():
    network = graph(
        2,
        [
            ("n", Scale.exactly(0.5, 1.0), "x"),
            ("a", linear(np.ones((3, 2)), [1, 2, 3]), "n"),
            ("t", Scale.exactly(1.0, np.ones(3)), "a"),
            ("r", Relu(), "t"),
            ("j", Add(2), ("r", "r")),
            ("f", Reshape((3,), (3, 1)), "j"),
            ("y", linear([[1.0], [2.0]]), "f"),
        ],
        "y",
    )
    assert network.multiply_adds == 2 + 3 * 2 + 0 + 0 + 0 + 0 + 3 * 2
    assert network.parameters == 2 + 9 + 3 + 4


def images():
    """A layer that is applied at 50 positions, behind which everything is read: few parameters, many
    products.
    """
    return Network(
        Port("x", (50, 2)),
        (
            Node("a", linear([[1, 1], [1, -1]], [1, 2]), ("x",)),
            Node("r", Relu(), ("a",)),
            Node("y", linear([[1, 2]]), ("r",)),
        ),
        (Output("y", "y"),),
    )


def test_positions_count_in_products_and_not_in_parameters():
    assert images().multiply_adds == 50 * (4 + 2)
    assert images().parameters == 4 + 2 + 2 + 1


def test_costs_differ_where_biases_decide():
    """Folding 2-2-2-style layers of equal products is decided by the biases alone."""
    one = dense(linear(np.ones((2, 4)), [1, 1]), linear(np.ones((4, 2))))
    assert Cost.PARAMETERS.of(one) == (22, 16, 2)
    assert Cost.MULTIPLY_ADDS.of(one) == (16, 22, 2)
    for cost in COSTS:
        result = compressed(one, 0, 1, cost=cost)
        assert Cost(cost).of(result.network) < Cost(cost).of(one)


@pytest.mark.parametrize("rewrites", ["all", "leo++"])
def test_the_other_measure_breaks_ties(rewrites):
    """A 2-2-2 bottleneck has as many products folded or not folded; the parameters decide."""
    network = dense(linear([[1.0, 2], [3, 5]], [1, 1]), linear([[1.0, 2], [4, 3]]))
    result = compressed(network, 0, 1, cost="multiply-adds", rewrites=rewrites)
    assert result.network.neurons == 0
    assert len(result.network.nodes) == 1


@settings(slow, max_examples=80)
@given(strategies.problems(), st.sampled_from(COSTS), st.sampled_from(["exact", "rounding", 1e-6, 0.1]))
def test_no_result_costs_more_than_the_network(problem, cost, tolerance):
    network, random = problem
    box = Box(random.lo, random.hi)
    if len(random.matrix):
        box = box.constrain(random.matrix, random.lower, random.upper)
    result = compress_network(network, box, cost=cost, tolerance=tolerance, **QUICK)
    assert result.cost == cost
    for smaller in (result.network, result.stored):
        assert Cost(cost).of(smaller)[0] <= Cost(cost).of(network)[0]
    assert result.at("exact").cost == cost


def test_unknown_costs_are_refused():
    with pytest.raises(InputError, match="there is no cost 'bytes'; choose one of parameters, multiply-adds"):
        compressed(dense(linear([[1.0]])), 0, 1, cost="bytes")


@pytest.mark.parametrize("cost", COSTS)
def test_on_the_command_line(tmp_path, capsys, monkeypatch, cost):
    monkeypatch.chdir(tmp_path)
    save(dense(linear(np.ones((2, 30)), [1, 2]), linear(np.arange(40).reshape(20, 2))), "in.onnx")
    found = call(capsys, "compress", "in.onnx", "out.onnx", "--box", "0", "1", "--cost", cost, "--json")
    assert found.code == 0
    report = json.loads(found.out)
    jsonschema.validate(report, schema("compression"))
    assert report["cost"] == cost
    assert report["original"]["multiply_adds"] == 30 * 2 + 2 * 20
    assert report["compressed"]["multiply_adds"] == 30 + 20
    assert report["compressed"]["neurons"] == 0
    found = call(capsys, "compress", "in.onnx", "out.onnx", "--box", "0", "1", "--cost", cost)
    assert ("multiply-adds" in found.out) == (cost == "multiply-adds")
    assert call(capsys, "compress", "in.onnx", "out.onnx", "--box", "0", "1", "--cost", "bytes").code == 2
