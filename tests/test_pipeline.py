"""All rewrites together: the paper's Algorithm 2 as it is meant, and what must never happen."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch

from relutrim.analysis import analyze_network, with_output_relu
from relutrim.domain import Box
from relutrim.graph import Add, Linear, Network, Node, Output, Port, Relu, Reshape, Scale
from relutrim.graph.origin import Frame
from relutrim.rewrite.pipeline import rewrite
from rewriting import QUICK, assert_holds, compressed, dense, gap, graph, linear, names

BOTH = pytest.mark.parametrize("rewrites", ["leo++", "all"])

# Algorithm 2 by its intent, on the unit square: x + y + 1 is active, its negative inactive, x - y unstable.
ACTIVE, INACTIVE, UNSTABLE = ([1.0, 1.0], 1.0), ([-1.0, -1.0], -1.0), ([1.0, -1.0], 0.0)


def layer(*neurons):
    rows, biases = zip(*neurons, strict=True)
    return linear(rows, biases)


@BOTH
def test_inactive_neurons_go_although_the_active_rows_have_full_rank(rewrites):
    network = dense(layer(ACTIVE, INACTIVE, UNSTABLE), linear([[1, 2, 3]]))
    result = compressed(network, 0, 1, rewrites=rewrites)
    assert names(result) == ["drop-inactive"]
    assert result.network.widths == [2, 2, 1]
    assert gap(network, result.stored, 0, 1) == 0


@BOTH
def test_a_layer_is_merged_and_then_loses_its_inactive_neurons(rewrites):
    network = dense(
        layer(ACTIVE, INACTIVE, UNSTABLE, ACTIVE, ([2, 2], 0.5), INACTIVE), linear([[1, 2, 3, 4, 5, 6]])
    )
    result = compressed(network, 0, 1, rewrites=rewrites)
    assert names(result) == ["merge-active", "drop-inactive"]
    assert [step.neurons for step in result.steps] == [2, 2]
    assert result.network.widths == [2, 2, 1]
    assert_holds(network, result, 0, 1)


@BOTH
def test_the_last_hidden_layer_is_treated_like_any_other(rewrites):
    first = layer(UNSTABLE, ([-1.0, 1.0], 0.0))
    network = dense(first, layer(ACTIVE, ACTIVE, INACTIVE, UNSTABLE), linear([[1, 2, 3, 4]]))
    result = compressed(network, 0, 1, rewrites=rewrites)
    assert result.network.widths == [2, 2, 2, 1]
    assert_holds(network, result, 0, 1)


@BOTH
def test_stable_layers_fold_into_one_another(rewrites):
    network = dense(
        layer(ACTIVE, INACTIVE), layer(ACTIVE, INACTIVE), layer(ACTIVE, INACTIVE), linear([[1, 2]])
    )
    result = compressed(network, 0, 1, rewrites=rewrites)
    assert names(result) == ["fold-stable"] * 3
    assert result.network.widths == [2, 1]
    assert_holds(network, result, 0, 1)


@BOTH
def test_a_stable_layer_between_others_folds_and_they_stay(rewrites):
    network = dense(
        layer(UNSTABLE, ([-1.0, 1.0], 0.0)),
        layer(ACTIVE, ([1.0, 0.0], 0.5)),
        layer(UNSTABLE, ([-1.0, 1.0], 0.3)),
        linear([[1, 2]]),
    )
    result = compressed(network, 0, 1, rewrites=rewrites)
    assert result.network.widths[1] == (2 if rewrites == "leo++" else 1)  # opposites are one and a line
    assert "fold-stable" in names(result)
    assert_holds(network, result, 0, 1)


def test_the_paper_folds_whatever_it_costs_and_the_others_never_grow():
    network = dense(linear(np.ones((1, 6)), [1]), linear(np.ones((8, 1))), linear(np.ones((1, 8)), [1]))
    paper = compressed(network, 0, 1, rewrites="leo++")
    assert paper.network.neurons == 0
    wide = dense(linear(np.ones((1, 6)), [1]), linear(np.ones((8, 1))))
    paper, ours = (compressed(wide, 0, 1, rewrites=r) for r in ("leo++", "all"))
    assert paper.network.parameters > wide.parameters
    assert ours.network.parameters <= wide.parameters


def test_collapse_goes_before_everything_else():
    network = dense(layer(ACTIVE, ACTIVE, UNSTABLE), linear(-np.ones((2, 3)), [-1, 0]), linear([[1, 1]], [5]))
    result = compressed(network, 0, 1)
    assert names(result) == ["collapse"]
    assert result.network(torch.zeros(1, 2)).item() == 5.0


def test_a_network_that_is_stable_with_its_output_relu_is_one_affine_map():
    bare = dense(layer(ACTIVE, INACTIVE, ([1.0, 0.0], 0.0)), linear([[1, 2, 3], [1, 1, 1]], [1, 2]))
    network = with_output_relu(bare)
    result = compressed(network, 0, 1)
    assert [node.operator.kind for node in result.network] == ["Linear"]
    assert_holds(network, result, 0, 1)


# Whatever comes: correct, or unchanged.


def hilbert(size: int) -> np.ndarray:
    return 1.0 / (1 + np.arange(size)[:, None] + np.arange(size))


def spread_over(orders: int, seed: int) -> Network:
    random = np.random.default_rng(seed)
    sizes = [2, 4, 3, 2]
    layers = []
    for inputs, outputs in pairwise(sizes):
        weight = random.normal(size=(outputs, inputs)) * 10.0 ** random.integers(
            -orders // 2, orders // 2 + 1, size=(outputs, inputs)
        )
        weight[-1] = weight[0] * 3
        layers.append(linear(weight, np.abs(weight).sum(1) * random.choice([2.0, -2.0, 0.1], size=outputs)))
    return dense(*layers)


def margin(size: float) -> Network:
    """Active and inactive by ``size`` alone, twice, so that merging rests on it."""
    return dense(
        linear([[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]], [size, -size, 0.0]),
        linear(
            [[1.0, 0.0, 0.0], [3.0, 0.0, 0.0], [-1.0, 0.0, 1.0], [-1.0, 0.0, 0.0]], [-size, -size, 0, size]
        ),
        linear([[1.0, 2.0, 3.0, 4.0]]),
    )


CORPUS = {
    "hilbert rows": dense(
        linear(np.vstack([hilbert(4)[:, :3], [1, -1, 0]]), [1, 1, 1, 1, 0]), linear(np.ones((1, 5)))
    ),
    "nearly dependent rows": dense(
        linear([[1, 1], [1, 1 + 2.0**-40], [1, 1 + 2.0**-52], [1, -1]], [1, 1, 1, 0]),
        linear([[1e6, -1e6, 1e6, 1]]),
    ),
    **{f"20 orders of magnitude {seed}": spread_over(20, seed) for seed in range(6)},
    **{f"600 orders of magnitude {seed}": spread_over(600, seed) for seed in range(4)},
    **{f"margin {size}": margin(size) for size in (1e-12, -1e-12, 2.0**-52, 5e-324, 0.0)},
    "copies with ties": dense(
        linear([[1, -1], [1, -1], [1, -1], [-1, 1]], [1, 1, 0, 0]), linear(np.ones((2, 4)))
    ),
    "always 0": dense(linear([[0, 0], [0, 0], [1, -1]], [0, 0, 0]), linear([[1, 1, 1]])),
    "one neuron each": dense(linear([[1, 1]], [-1]), linear([[2]], [1]), linear([[-3]], [1]), linear([[1]])),
    "one inactive neuron": dense(linear([[-1, -1]], [0]), linear([[2]], [1])),
    "width 0": dense(Linear(np.zeros((0, 2)), np.zeros(0)), linear(np.zeros((1, 0)), [1.0]), linear([[2]])),
    "no output entries": dense(linear([[1, -1]]), linear(np.zeros((0, 1)))),
    "no nodes": Network(Port("x", (2,)), (), (Output("y", "x"),)),
    "identity": graph(2, [("i", Reshape((2,), (2,)), "x")], "i"),
    "no relus": graph(2, [("a", linear([[1, 2]]), "x"), ("y", linear([[3]], [1 / 3]), "a")], "y"),
    "a relu on the input": graph(2, [("r", Relu(), "x"), ("y", linear([[3, 1]]), "r")], "y"),
    "one source, two outputs": Network(
        Port("x", (2,)),
        (Node("a", linear([[1, 1], [2, 2]], [1, 1]), ("x",)), Node("r", Relu(), ("a",)),
         Node("y", linear([[1, 1]]), ("r",))),
        (Output("one", "y"), Output("two", "y")),
    ),
    "a hidden layer is an output": graph(
        2, [("a", linear([[1, 1], [2, 2]], [1, 1]), "x"), ("r", Relu(), "a"), ("y", linear([[1, 1]]), "r")],
        "y", "r", "a",
    ),
    "residual": graph(
        2,
        [
            ("a", linear([[1, 1], [2, 2]], [1, 1]), "x"),
            ("r", Relu(), "a"),
            ("b", linear([[1, 1], [-1, -1]]), "r"),
            ("j", Add(3), ("b", "x", "r")),
            ("s", Relu(), "j"),
            ("k", Add(2), ("s", "s")),
            ("y", linear([[1, -1]]), "k"),
        ],
        "y",
    ),
    "scales everywhere": graph(
        2,
        [
            ("n", Scale.exactly(0.1, 0.3), "x"),
            ("a", linear([[1, 1], [2, 2], [1, -1]], [1, 1, 0]), "n"),
            ("s", Scale.exactly(np.array([0.7, -3, 1e5]), 0.1), "a"),
            ("r", Relu(), "s"),
            ("t", Scale.exactly(np.array([0.7, 0, 1 / 3]), -0.1), "r"),
            ("y", linear([[1, 1, 1]]), "t"),
        ],
        "y",
    ),
    "higher rank": Network(
        Port("x", (3, 2)),
        (Node("a", linear([[1, 1], [1, 1], [-1, -1]], [1, 1, -1]), ("x",)), Node("r", Relu(), ("a",)),
         Node("y", linear([[0.1, 0.2, 0.3]]), ("r",))),
        (Output("y", "y"),),
    ),
}  # fmt: skip


@BOTH
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", CORPUS)
def test_every_result_is_correct_or_the_network_is_unchanged(name, dtype, rewrites):
    network = CORPUS[name].edit(dtype=dtype)
    before = fingerprint(network)
    result = compressed(network, 0, 1, rewrites=rewrites)
    assert fingerprint(network) == before
    assert result.original is network
    assert [o.name for o in result.stored.outputs] == [o.name for o in network.outputs]
    if rewrites == "all":
        assert result.network.parameters <= network.parameters
        assert result.stored.parameters <= network.parameters
    float64, stored = result.deviation.proven_float64, result.deviation.proven
    assert float64 is not None
    assert gap(network, result.network, 0, 1) <= Fraction(float64)
    if stored is None:
        assert dtype == "float32"
        assert result.network is network
    else:
        assert math.isfinite(stored)
        assert gap(network, result.stored, 0, 1) <= Fraction(stored)


def fingerprint(network: Network) -> list:
    """Everything that a rewrite could have changed in place."""
    found = []
    for node in network:
        arrays = [value for value in vars(node.operator).values() if isinstance(value, np.ndarray)]
        found.append((node.name, node.inputs, [array.tobytes() for array in arrays]))
    return found


def test_what_its_source_cannot_say_anyway_is_rewritten_freely():
    """A round of rewriting has left the frame; the next one need not be worth that again."""
    network = dense(linear([[1, 0], [1, 1]], [-3, 1]), linear([[1, 1], [1, -1]]))
    stability = analyze_network(network, Box(0, 1), data=None, **QUICK)
    for share, known in ((0.0, None), (0.9, frozenset())):
        frame = Frame(frozenset(), known, share)
        assert rewrite(network, stability, frame=frame).stored.widths[1:-1] != network.widths[1:-1]
    kept = Frame(frozenset(relu.name for relu in network.relus), frozenset(network.shapes), 0.9)
    assert rewrite(network, stability, frame=kept).stored.neurons > 0
