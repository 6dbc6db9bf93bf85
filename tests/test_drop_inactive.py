"""Dropping neurons that are 0 on the whole domain."""

from __future__ import annotations

import numpy as np
import pytest

from relutrim.graph import Add, Relu
from relutrim.rewrite.drop_inactive import drop_inactive
from rewriting import assert_true, compressed, dense, gap, graph, layer_of, linear, names, start


def test_inactive_neurons_go_with_the_readers_columns_and_no_number_changes():
    network = dense(
        linear([[1.0, 0.3], [-1.0, -0.1], [0.7, -1.0]], [0.1, -0.1, 0.2]), linear([[2, 3, 5]], [7])
    )
    draft = start(network, 0, 1)
    after = drop_inactive(draft, layer_of(draft, "relu1")).network
    np.testing.assert_array_equal(after["linear1"].operator.weight, [[1.0, 0.3], [0.7, -1.0]])
    np.testing.assert_array_equal(after["linear1"].operator.bias, [0.1, 0.2])
    np.testing.assert_array_equal(after["output"].operator.weight, [[2, 5]])
    np.testing.assert_array_equal(after["output"].operator.bias, [7])
    assert gap(network, after, 0, 1) == 0


def test_it_is_proven_exact():
    network = dense(linear([[1.0], [-1.0]], [-0.5, 0.0]), linear([[1 / 3, 5]]))
    draft = start(network, 0, 1)
    assert assert_true(network, drop_inactive(draft, layer_of(draft, "relu1")), 0, 1) == 0.0


def test_a_neuron_whose_largest_value_is_exactly_0_is_inactive():
    network = dense(linear([[1.0, 1.0], [1.0, -1.0]], [-2.0, 0.0]), linear([[1, 1]]))
    draft = start(network, 0, 1)
    assert drop_inactive(draft, layer_of(draft, "relu1")).network.widths == [2, 1, 1]


@pytest.mark.parametrize("bias", [0.0, 0.5, -0.5])
def test_a_row_that_sums_to_zero_is_not_an_inactive_one(bias):
    network = dense(linear([[1.0, -1.0], [-1.0, 1.0]], [bias, bias]), linear([[1, 1]]))
    result = compressed(network, 0, 1)
    assert result.network is network


def test_without_inactive_neurons_the_draft_is_left_as_it_is():
    network = dense(linear([[1.0], [-1.0]], [-0.5, 0.5]), linear([[1, 1]]))
    draft = start(network, 0, 1)
    assert drop_inactive(draft, layer_of(draft, "relu1")) is draft


def test_every_reader_loses_its_columns():
    network = graph(
        1,
        [
            ("a", linear([[1.0], [-1.0], [2.0]], [-0.5, 0.0, -1.0]), "x"),
            ("r", Relu(), "a"),
            ("p", linear([[1, 2, 3]]), "r"),
            ("q", linear([[4, 5, 6], [7, 8, 9]]), "r"),
        ],
        "p",
        "q",
    )
    result = compressed(network, 0, 1, rewrites="leo++")
    np.testing.assert_array_equal(result.network["p"].operator.weight, [[1, 3]])
    np.testing.assert_array_equal(result.network["q"].operator.weight, [[4, 6], [7, 9]])
    assert gap(network, result.stored, 0, 1) == 0


def test_one_neuron_stays_if_all_are_inactive_and_something_gets_past_them():
    network = graph(
        1,
        [
            ("a", linear([[-1.0], [-2.0]]), "x"),
            ("r", Relu(), "a"),
            ("p", linear([[1, 2]], [1]), "r"),
            ("q", linear([[4]]), "x"),
            ("s", Add(2), ("p", "q")),
        ],
        "s",
    )
    result = compressed(network, 0, 1, rewrites="leo++")
    assert names(result) == ["drop-inactive"]
    assert result.network.widths == [1, 1, 1]
    assert gap(network, result.network, 0, 1) == 0


@pytest.mark.parametrize(
    ("reader", "stay"),
    [("output", True), ("add", False), ("two relus", False), ("linear is an output", True)],
)
def test_neurons_that_an_output_shows_stay_and_others_go_wherever_they_are_read(reader, stay):
    a, r = ("a", linear([[1.0], [-1.0]], [-0.5, 0.0]), "x"), ("r", Relu(), "a")
    out = ("out", linear([[1, 1]]), "r")
    network = {
        "output": lambda: graph(1, [a, r, out], "out", "r"),
        "add": lambda: graph(1, [a, r, ("s", Add(2), ("r", "r")), ("out", linear([[1, 1]]), "s")], "out"),
        "two relus": lambda: graph(
            1, [a, r, ("t", Relu(), "a"), out, ("p", linear([[1, 2]]), "t")], "out", "p"
        ),
        "linear is an output": lambda: graph(1, [a, r, out], "out", "a"),
    }[reader]()
    result = compressed(network, 0, 1)
    assert (result.network is network) == stay
    assert stay or names(result) == ["drop-channels"]
    assert gap(network, result.network, 0, 1) == 0
    assert result.deviation.proven == 0.0
