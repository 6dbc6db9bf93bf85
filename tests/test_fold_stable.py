"""Folding layers that are stable as a whole, and ReLUs at the output."""

from __future__ import annotations

import numpy as np
import pytest

from relutrim.graph import Add, Relu
from relutrim.rewrite.fold_stable import fold_stable, straighten_outputs
from rewriting import assert_holds, assert_true, compressed, dense, gap, graph, layer_of, linear, names, start


def test_the_reader_reads_past_the_layer_and_its_bias_uses_its_old_weights():
    # With W, b = [[1, 2], [3, 4]], [5, 6] and reader D, c = [[7, 8]], [9]: D W and D b + c.
    network = dense(linear([[1, 2], [3, 4]], [5, 6]), linear([[7, 8]], [9]))
    draft = start(network, 0, 1)
    folded = fold_stable(draft, layer_of(draft, "relu1"))
    assert [node.name for node in folded.network] == ["output"]
    np.testing.assert_array_equal(folded.network["output"].operator.weight, [[31, 46]])
    np.testing.assert_array_equal(folded.network["output"].operator.bias, [92])
    assert gap(network, folded.network, 0, 1) == 0


def test_inactive_neurons_of_the_layer_add_nothing():
    network = dense(linear([[1, 2], [-3, -4]], [5, -6]), linear([[7, 8]], [9]))
    draft = start(network, 0, 1)
    folded = fold_stable(draft, layer_of(draft, "relu1")).network
    np.testing.assert_array_equal(folded["output"].operator.weight, [[7, 14]])
    np.testing.assert_array_equal(folded["output"].operator.bias, [44])


@pytest.mark.parametrize("seed", range(5))
def test_what_is_proven_of_the_rounding_is_true(seed):
    random = np.random.default_rng(seed)
    network = dense(
        linear(random.normal(size=(4, 2)), [9.0, 9.1, -9.3, 9.7]),
        linear(random.normal(size=(3, 4)), random.normal(size=3)),
        dtype="float32",
    )
    draft = start(network, 0, 1)
    folded = fold_stable(draft, layer_of(draft, "relu1"))
    assert folded.network.neurons == 0
    assert assert_true(network, folded, 0, 1) < 1e-12


@pytest.mark.parametrize("bias", [[1.0, -0.5], [-2.0, -2.0]], ids=["an unstable neuron", "no active neuron"])
def test_other_layers_stay(bias):
    network = dense(linear([[1, 0], [0, 1]], bias), linear([[1, 1]]))
    draft = start(network, 0, 1)
    assert fold_stable(draft, layer_of(draft, "relu1")) is draft


def test_a_layer_that_nobody_reads_stays():
    network = graph(1, [("a", linear([[1]], [1]), "x"), ("r", Relu(), "a"), ("y", linear([[2]]), "x")], "y")
    draft = start(network, 0, 1)
    assert fold_stable(draft, layer_of(draft, "r")) is draft
    assert_holds(network, compressed(network, 0, 1), 0, 1)


def test_folding_a_bottleneck_would_grow_the_network_and_only_the_paper_does_that():
    network = dense(linear(np.ones((1, 4)), [1]), linear(np.ones((5, 1))))
    draft = start(network, 0, 1)
    layer = layer_of(draft, "relu1")
    assert compressed(network, 0, 1).network.parameters == network.parameters
    grown = fold_stable(draft, layer)
    assert grown.network.parameters > network.parameters
    assert grown.network.neurons == 0
    assert gap(network, grown.network, 0, 1) == 0


def test_all_readers_are_folded_together():
    network = graph(
        2,
        [
            ("a", linear([[1, 2], [3, 4]], [5, 6]), "x"),
            ("r", Relu(), "a"),
            ("p", linear([[1, 1]]), "r"),
            ("q", linear([[1, -1]]), "r"),
            ("s", Add(2), ("p", "q")),
        ],
        "s",
        "q",
    )
    result = compressed(network, 0, 1)
    assert result.network.neurons == 0
    assert_holds(network, result, 0, 1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_that_overflow_leave_the_layer_as_it_is(dtype):
    large = 2.0**70 if dtype == "float32" else 2.0**600
    network = dense(linear([[large]]), linear([[large]]), linear([[1.0]]), dtype=dtype)
    for rewrites in ("leo++", "all"):
        result = compressed(network, 0, 1, rewrites=rewrites)
        assert_holds(network, result, 0, 1)
        assert result.network["linear1"].operator.weight.item() == large


def test_the_bound_holds_where_products_underflow():
    # The layer's value, 1.1e-400, is no float; what the reader makes of it, 1.4e-100, is.
    network = dense(linear([[1.1e-200]]), linear([[1.3e300]]))
    draft = start(network, 0, 1e-200)
    folded = fold_stable(draft, layer_of(draft, "relu1"))
    assert folded is not draft
    assert gap(network, folded.network, 0, 1e-200) > 0
    assert_true(network, folded, 0, 1e-200)


# Output ReLUs.


def test_an_output_relu_that_is_stable_goes_and_its_inactive_rows_become_zero():
    network = dense(linear([[1.0, 2], [-3, -4]], [5, -6]), output_relu=True)
    straight = straighten_outputs(start(network, 0, 1))
    assert straight.network.neurons == 0
    assert straight.network.outputs == network.outputs
    np.testing.assert_array_equal(straight.network["relu1"].operator.weight, [[1, 2], [0, 0]])
    np.testing.assert_array_equal(straight.network["relu1"].operator.bias, [5, 0])
    assert assert_true(network, straight, 0, 1) == 0.0


def test_an_output_relu_with_an_unstable_neuron_stays():
    network = dense(linear([[1.0, 2], [-3, 4]], [5, -1]), output_relu=True)
    draft = start(network, 0, 1)
    assert straighten_outputs(draft) is draft


def test_an_output_relu_that_is_read_as_well_stays():
    network = graph(
        1, [("a", linear([[1]], [1]), "x"), ("r", Relu(), "a"), ("y", linear([[2]]), "r")], "r", "y"
    )
    draft = start(network, 0, 1)
    assert straighten_outputs(draft) is draft


def test_an_autoencoder_that_is_stable_to_the_end_is_one_affine_map():
    network = dense(
        linear([[1, 1, 1]], [1]), linear([[1], [2]], [1, -10]), linear(np.ones((3, 2)), [1, 2, 3]),
        output_relu=True,
    )  # fmt: skip
    result = compressed(network, 0, 1, rewrites="leo++")
    assert names(result) == ["fold-stable"] * 3
    assert [node.operator.kind for node in result.network] == ["Linear"]
    assert_holds(network, result, 0, 1)
