"""ReLUs that are the identity go where their layer stays."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import onnx
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import nn

import oracle
import relutrim
import strategies
from relutrim.analysis import analyze_network
from relutrim.domain import Box
from relutrim.graph import Add, Linear, Relu, Reshape, Scale
from relutrim.io import load, save
from relutrim.prove.verdict import Evidence
from relutrim.rewrite.draft import Draft
from relutrim.rewrite.straighten import straighten
from rewriting import QUICK, assert_holds, assert_true, compressed, dense, gap, graph, linear, names, start

slow = settings(suppress_health_check=list(HealthCheck))


def bottleneck(outer=12, inner=2, *, seed=0, dtype="float64"):
    """Wide, narrow and active, wide again."""
    random = np.random.default_rng(seed)
    first = random.normal(size=(inner, 3 if outer < 3 else outer)).astype(np.float32)
    return dense(
        linear(first, np.ceil(np.abs(first).sum(1)) + 1),
        linear(*(random.normal(size=size).astype(np.float32) for size in ((outer, inner), outer))),
        dtype=dtype,
    )


def kinds(network):
    return [node.operator.kind for node in network]


@settings(slow, max_examples=60)
@given(strategies.problems())
def test_nothing_moves_but_what_was_charged_before(problem):
    network, random = problem
    box = Box(random.lo, random.hi)
    if len(random.matrix):
        box = box.constrain(random.matrix, random.lower, random.upper)
    draft = Draft.start(network, analyze_network(network, box, data=None, **QUICK), Evidence.PROOF)
    after = straighten(draft)
    assert all((deviation == 0).all() for deviation in after.deviation.values())
    assert not any(oracle.largest_deviations(network, after.network, random.polytope))
    for final in (after.realise(), after.stored().realise()):
        if math.isfinite(final.proven):
            largest = oracle.largest_deviations(network, final.network, random.polytope)
            assert all(distance <= Fraction(final.proven) for distance in largest)


@pytest.mark.parametrize("cost", ["parameters", "multiply-adds"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_bottleneck_keeps_its_factors_and_loses_its_relu(dtype, cost):
    network = bottleneck(dtype=dtype)
    result = compressed(network, 0, 1, cost=cost)
    assert names(result) == ["straighten"]
    assert kinds(result.network) == ["Linear", "Linear"]
    assert result.network.parameters == network.parameters
    assert result.network.neurons == 0
    assert result.deviation.proven_float64 == 0
    # As many inputs are too many for the oracle; the float64 networks compute the very same sums.
    x = torch.rand(100, 12, dtype=torch.float64)
    assert (network(x) - result.network(x)).abs().max() == 0


def test_the_papers_algorithm_still_folds_it():
    network = bottleneck()
    result = compressed(network, 0, 1, rewrites="leo++")
    assert names(result) == ["fold-stable"]
    assert kinds(result.network) == ["Linear"]


def test_a_wide_layer_still_folds():
    network = bottleneck(3, 3)
    result = compressed(network, 0, 1)
    assert names(result) == ["fold-stable"]
    assert_holds(network, result, 0, 1)


def test_the_range_of_what_is_read_instead_is_that_of_the_neurons():
    """Just above 0 as proved, just below as bounded: the ReLU's readers knew the better end."""
    network = bottleneck(4, 1)
    draft = start(network, 0, 1)
    known = draft.ranges["linear1"]
    known.lo[0, 0] = -1.0
    draft.ranges["relu1"].lo[0, 0] = 0.0
    after = straighten(draft)
    assert after.ranges["linear1"].lo.item() == 0.0
    assert "relu1" not in after.network
    assert "relu1" not in after.identity


@pytest.mark.parametrize("output", ["r", "y"])
def test_relus_that_sums_read_go_and_outputs_stay(output):
    network = graph(
        2,
        [
            ("a", linear([[1.0, 2], [0.5, 1]], [0.1, 1]), "x"),
            ("r", Relu(), "a"),
            ("j", Add(3), ("r", "x", "r")),
            ("y", linear([[1.0, -1]]), "j"),
        ],
        *dict.fromkeys(["y", output]),
    )
    draft = start(network, 0, 1)
    after = straighten(draft)
    assert ("r" in after.network) == (output == "r")
    assert assert_true(network, after, 0, 1) == 0
    assert_holds(network, compressed(network, 0, 1), 0, 1)


def test_relus_of_any_shape_and_on_the_input_go():
    network = graph(
        2,
        [
            ("r", Relu(), "x"),
            ("f", Reshape((2,), (2, 1)), "r"),
            ("s", Relu(), "f"),
            ("y", Linear(np.array([[-2.0]]), np.array([1 / 3])), "s"),
        ],
        "y",
    )
    after = straighten(start(network, 0, 1))
    assert after.network.neurons == 0
    assert gap(network, after.network, 0, 1) == 0


def test_a_scale_that_stood_behind_the_relu_joins_the_linear_node():
    network = graph(
        2,
        [
            ("a", linear([[1.0, 2], [0.5, 1]], [0.1, 1]), "x"),
            ("r", Relu(), "a"),
            ("t", Scale.exactly(np.array([2.0, 3.0]), 0.5), "r"),
            ("y", Add(2), ("t", "x")),
        ],
        "y",
    )
    result = compressed(network, 0, 1)
    assert kinds(result.network) == ["Linear", "Add"]
    assert_holds(network, result, 0, 1)


def test_relus_that_nobody_reads_or_that_are_empty_stay():
    network = graph(1, [("a", linear([[1]], [1]), "x"), ("r", Relu(), "a"), ("y", linear([[2]]), "x")], "y")
    draft = start(network, 0, 1)
    assert straighten(draft) is draft
    empty = dense(Linear(np.zeros((0, 1)), np.zeros(0)), Linear(np.zeros((1, 0)), np.ones(1)))
    draft = start(empty, 0, 1)
    assert straighten(draft) is draft


@pytest.mark.parametrize("tolerance", ["exact", 1e-3])
@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_linear_nodes_in_a_row_are_written_and_read(tmp_path, suffix, tolerance):
    result = compressed(bottleneck(16, 2, dtype="float32"), 0, 1, tolerance=tolerance)
    assert kinds(result.stored) == ["Linear", "Linear"]
    path = tmp_path / f"out{suffix}"
    save(result.stored, path)
    if suffix == ".onnx":
        assert [node.op_type for node in onnx.load(path).graph.node] == ["Gemm", "Gemm", "Identity"]
    x = torch.rand(7, 16, dtype=torch.float64)
    assert (load(path)(x) - result.stored(x)).abs().max() < 1e-12


def test_a_module_in_and_a_module_out():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 2), nn.ReLU(), nn.Linear(2, 20))
    with torch.no_grad():
        model[0].bias += 10
    result = relutrim.compress(model, relutrim.Box(0, 1, shape=(20,)))
    assert [type(layer) for layer in result.model] == [nn.Linear, nn.Identity, nn.Linear]
    x = torch.rand(50, 20)
    torch.testing.assert_close(result.model(x), model(x))


def test_layers_of_a_module_that_fold_into_the_next_one_are_identities():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2), nn.Softmax(-1)
    )
    with torch.no_grad():
        model[0].bias += 10
    result = relutrim.compress(model, relutrim.Box(0, 1, shape=(3,)))
    assert (result.remark, type(result.model[0])) == (None, nn.Identity)
    assert [type(layer) for layer in result.model[1:]] == [nn.Identity, *map(type, model[2:])]
    assert result.model[2].in_features == 3
    x = torch.rand(50, 3)
    torch.testing.assert_close(result.model(x), model(x))


def test_relus_in_a_row_go_one_by_one():
    network = graph(
        1,
        [
            ("one", Relu(), "x"),
            ("two", Relu(), "one"),
            ("output", linear([[1.0]]), "two"),
        ],
        "output",
    )
    straight = straighten(start(network, 0, 1))
    assert not straight.network.relus
    assert gap(network, straight.network, 0, 1) == 0
