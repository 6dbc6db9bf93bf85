"""Piecewise linear functions are ReLUs and affine maps, exactly."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from onnx_models import assert_reads, model, numbers, op, opaque, run
from oracle import outputs
from relutrim import Box
from relutrim.analysis import analyze_network
from relutrim.errors import InputError
from relutrim.graph import Relu
from relutrim.io.onnx import network_from_proto, network_to_proto
from relutrim.io.torch.module import read_module

MOST = float(np.finfo(np.float32).max)


BOUNDS = {"method": "bounds", "time_limit": None, "device": "cpu", "seed": 0, "progress": None}


def number(value: float) -> np.ndarray:
    return np.array(value, np.float32)


@pytest.mark.parametrize("limits", [(0, 6), (-1, 1), (0.5, 0.5), (-0.5, None), (None, 0.25), (0, None)])
@pytest.mark.parametrize("opset", [7, 11, 17])
def test_clip(limits, opset):
    low, high = limits
    if opset < 11:
        given = {"min": low, "max": high}
        node, weights = op("Clip", ["x"], **{k: float(v) for k, v in given.items() if v is not None}), {}
    else:
        weights = {k: number(v) for k, v in (("a", low), ("b", high)) if v is not None}
        node = op("Clip", ["x", "a" if low is not None else "", "b" if high is not None else ""])
    network = assert_reads(model([node], ["n", 20], weights, opset=opset))
    assert len(network.relus) == sum(limit is not None for limit in limits)


def test_the_largest_number_is_no_limit():
    network = assert_reads(model([op("Clip", ["x"], min=0.0, max=MOST)], ["n", 20], opset=9))
    assert [type(node.operator) for node in network] == [Relu]
    weights = {"a": number(-np.inf), "b": number(2)}
    assert len(assert_reads(model([op("Clip", ["x", "a", "b"])], ["n", 20], weights)).relus) == 1


@pytest.mark.parametrize("alpha", [None, 0.01, 0.3, 1.5, -0.5, 0.0])
def test_leaky_relu(alpha):
    attributes = {} if alpha is None else {"alpha": alpha}
    network = assert_reads(model([op("LeakyRelu", ["x"], **attributes)], ["n", 20]))
    assert len(network.relus) == 1


@pytest.mark.parametrize("node", [op("LeakyRelu", ["x"], alpha=0.01), op("Abs", ["x"])])
def test_a_leaky_relu_that_is_written_out_rounds_as_the_operator_does(node):
    proto = model([node], ["n", 5])
    written = network_to_proto(network_from_proto(proto))
    x = numbers(2000, 5) * np.float32(10) ** np.arange(-20, 30, 10, dtype=np.float32)
    np.testing.assert_array_equal(run(written, x)[0], run(proto, x)[0])


def test_linear_bounds_relax_a_leaky_relu_once():
    """Less its input, one of slope 1/2 is between 0 and 1/2 on [-1, 1]; two ReLUs, relaxed each on its own,
    would say -1/2, not knowing that one of them is 0.
    """
    nodes = [op("LeakyRelu", ["x"], "h", alpha=0.5), op("Sub", ["h", "x"], "d"), op("Relu", ["d"])]
    stability = analyze_network(
        network_from_proto(model(nodes, ["n", 1])), Box(-1, 1, shape=(1,)), data=None, **BOUNDS
    )
    layer = stability.layers[-1]
    assert layer.lower[0] == pytest.approx(0, abs=1e-12)
    assert layer.upper[0] == pytest.approx(0.5)


@pytest.mark.parametrize("shape", [(3, 1, 1), (1,), (3, 4, 5), ()])
def test_prelu(shape):
    assert_reads(model([op("PRelu", ["x", "s"])], ["n", 3, 4, 5], {"s": numbers(*shape)}))


@pytest.mark.parametrize("attributes", [{}, {"alpha": 0.5, "beta": 0.1}])
def test_hard_sigmoid(attributes):
    assert_reads(model([op("HardSigmoid", ["x"], **attributes)], ["n", 20]))


@pytest.mark.parametrize("size", [0.0, 0.5, 1.25])
def test_soft_shrinking(size):
    network = assert_reads(model([op("Shrink", ["x"], bias=size, lambd=size)], ["n", 20]))
    x = torch.linspace(-3, 3, 60, dtype=torch.float64).reshape(3, 20)
    expected = functional.softshrink(x, size)
    for found in (network, read_module(nn.Sequential(nn.Softshrink(size)), input_shape=(20,))):
        assert len(found.relus) == 2
        torch.testing.assert_close(found.run(x)[found.outputs[0].source], expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("attributes", [{}, {"bias": 0.5, "lambd": 1.0}, {"bias": -0.5, "lambd": -0.5}])
def test_shrinking_that_jumps_is_opaque(attributes):
    assert "'shrink_y'" in opaque(model([op("Shrink", ["x"], **attributes)], ["n", 20]))


@pytest.mark.parametrize("kind", ["Abs", "Neg"])
def test_sign_changes(kind):
    assert_reads(model([op(kind, ["x"])], ["n", 20]))


@pytest.mark.parametrize("kind", ["Max", "Min"])
def test_extremes_of_values_and_constants(kind):
    nodes = [op("Neg", ["x"], "h"), op("Abs", ["x"], "k"), op(kind, ["h", "c", "x", "k", "h"])]
    assert_reads(model(nodes, ["n", 3], {"c": numbers(3)}))
    assert_reads(model([op(kind, ["x"])], ["n", 3]))
    network = assert_reads(model([op(kind, ["x", "c"])], ["n", 3], {"c": number(0)}))
    assert len(network.relus) == 1


@given(
    st.floats(-3, 3, width=32), st.floats(0, 3, width=32), st.fractions(-5, 5, max_denominator=1000),
    st.floats(-1, 1, width=32),
)  # fmt: skip
def test_nothing_is_rounded(low, span, x, slope):
    """In exact arithmetic the network is the function with the numbers of the file."""
    low, high = np.float32(low), np.float32(low) + np.float32(span)
    network = network_from_proto(model([op("Clip", ["x", "a", "b"])], ["n", 1], {"a": low, "b": high}))
    assert outputs(network, [x]) == [min(max(x, Fraction(float(low))), Fraction(float(high)))]
    network = network_from_proto(model([op("LeakyRelu", ["x"], alpha=slope)], ["n", 1]))
    assert outputs(network, [x]) == [x if x > 0 else Fraction(slope) * x]


BAD = {
    "limits that cross": ([op("Clip", ["x", "a", "b"])], {"a": number(2), "b": number(1)}, "above its upper"),
    "limit of NaN": ([op("Clip", ["x", "a"])], {"a": number(np.nan)}, "NaN"),
    "several limits": ([op("Clip", ["x", "a"])], {"a": numbers(3)}, "one number"),
    "computed limit": ([op("Clip", ["x", "x"])], {}, "'x' is computed"),
    "infinite lower limit": ([op("Clip", ["x", "a"])], {"a": number(np.inf)}, "nothing between"),
    "computed slope": ([op("PRelu", ["x", "x"])], {}, "'x' is computed"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_refused_says_where_and_why(case):
    nodes, weights, text = BAD[case]
    proto = model(nodes, ["n", 3], weights)
    if case == "several limits":
        with pytest.raises(InputError) as caught:
            network_from_proto(proto)
        message = str(caught.value)
    else:
        message = opaque(proto)
    assert re.search(text, message)
    assert f"'{nodes[-1].name}'" in message
