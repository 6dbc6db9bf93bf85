"""Pairs of models that a runtime tells apart: the checker reads neither as the other."""

from __future__ import annotations

import gzip

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from attacks.forging import accepted, forged, onnx_of
from relutrim.certificate.check import read_front
from relutrim.errors import RelutrimError, UnsupportedError

node = helper.make_node


def passes(model: bytes, out: bytes, size: int, bound: float = 1e-5, **hints) -> bool:
    """Whether a certificate of the two on [-1, 1] can be made and is accepted."""
    try:
        content = forged(model, out, [-1.0] * size, [1.0] * size, bound=bound, **hints)
    except RelutrimError:
        return False
    return accepted(model, out, content)


def linear(weights, shape, opset=11) -> bytes:
    return onnx_of([node("MatMul", ["x", "w"], ["y"])], shape, {"w": np.array(weights)}, opset=opset)


@pytest.mark.parametrize("axes", [[2, 0], [-2, -4]])
def test_axes_out_of_order_are_those_of_the_outcome(axes):
    nodes = [
        node("Unsqueeze", ["x"], ["u"], axes=axes),
        node("Mul", ["u", "c"], ["v"]),
        node("ReduceSum", ["v"], ["y"], axes=[2, 3], keepdims=0),
    ]
    model = onnx_of(nodes, [1, 2], {"c": np.array([[1.0], [3.0]])}, opset=11)
    assert not passes(model, linear([[1.0], [3.0]], [1, 2]), 2)


def test_a_slice_that_goes_back_from_before_the_first_entry_has_that_entry():
    nodes = [
        node("Slice", ["x", "s", "e", "a", "d"], ["u"]),
        node("Concat", ["x", "u"], ["v"], axis=1),
        node("ReduceSum", ["v"], ["y"], axes=[1], keepdims=1),
    ]
    where = {"s": np.array([-10]), "e": np.array([-20]), "a": np.array([1]), "d": np.array([-1])}
    model = onnx_of(nodes, [1, 3], where, opset=11)
    assert not passes(model, linear([[1.0], [1.0], [1.0]], [1, 3]), 3)


@pytest.mark.parametrize("shape", [(1, 2), (2,)])
def test_a_batch_normalisation_has_one_number_per_channel(shape):
    nodes = [
        node("BatchNormalization", ["x", "g", "z", "z", "o"], ["u"], spatial=0, epsilon=0.0),
        node("Slice", ["u"], ["y"], starts=[0], ends=[1], axes=[1]),
    ]
    numbers = {"g": np.array([1.0, 3.0]), "z": np.zeros(2), "o": np.ones(2)}
    model = onnx_of(nodes, [1, 1, 2], {k: v.reshape(shape) for k, v in numbers.items()}, opset=7)
    out = onnx_of([node("Mul", ["x", "g"], ["y"])], [1, 1, 2], {"g": np.ones(1)}, opset=7)
    assert not passes(model, out, 2)


def test_an_attribute_twice_is_refused():
    twice = node("Gemm", ["x", "w"], ["y"], alpha=1.0)
    twice.attribute.append(helper.make_attribute("alpha", 5.0))
    weight = np.array([[1.0], [3.0]])
    assert not passes(onnx_of([twice], [1, 2], {"w": weight}), linear(weight, [1, 2]), 2)


@pytest.mark.parametrize("size", [2, 4])
def test_rows_of_a_fixed_batch_are_not_read_one_by_one(size):
    """Reversed rows are no identity, and the length of the batch is what the file says."""
    back = {"s": np.array([-1]), "e": np.array([-9]), "a": np.array([0]), "d": np.array([-1])}
    model = onnx_of([node("Slice", ["x", "s", "e", "a", "d"], ["y"])], [2, 2], back, opset=11)
    assert not passes(model, onnx_of([node("Identity", ["x"], ["y"])], [2, 2], {}, opset=11), size)


@pytest.mark.parametrize("size", [3, 6])
def test_the_length_of_a_fixed_batch_is_what_the_file_says(size):
    nodes = [
        node("Shape", ["x"], ["h"]),
        node("Gather", ["h", "i"], ["e"], axis=0),
        node("Slice", ["x", "s", "e", "a"], ["u"]),
        node("ReduceSum", ["u"], ["y"], axes=[1], keepdims=1),
    ]
    model = onnx_of(nodes, [2, 3], {"i": np.array([0]), "s": np.array([0]), "a": np.array([1])}, opset=11)
    assert not passes(model, linear([[1.0], [0.0], [0.0]], [2, 3]), size)


def test_an_input_without_a_shape_is_refused():
    def shapeless(only):
        model = onnx.ModelProto.FromString(onnx_of([only], [1], {}, opset=11))
        model.graph.input[0].type.tensor_type.ClearField("shape")
        return model.SerializeToString()

    model = shapeless(node("ReduceSum", ["x"], ["y"], keepdims=0))
    assert not passes(model, shapeless(node("Identity", ["x"], ["y"])), 1)


def test_a_packed_file_is_one_file():
    """Every other reader takes the second member for a part of the model too."""
    model = onnx_of([node("Relu", ["x"], ["y"])], [1, 1], {})
    more = onnx.ModelProto()
    more.graph.node.append(node("Neg", ["y"], ["z"]))
    more.graph.output.append(helper.make_tensor_value_info("z", 1, None))
    content = forged(model, model, [-1.0], [1.0], bound=1e-9)
    assert accepted(model, gzip.compress(model), content)
    assert not accepted(model, gzip.compress(model) + gzip.compress(more.SerializeToString()), content)


def runs(content: bytes, x: np.ndarray) -> np.ndarray:
    """The first output of a model in a runtime."""
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def whole(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


ODD = {
    "squeeze along an empty list": (
        [
            node("Squeeze", ["x", "e"], ["u"]),
            node("Unsqueeze", ["u", "z"], ["v"]),
            node("MatMul", ["v", "w"], ["y"]),
        ],
        [1, 2, 1, 2],
        {"e": whole(), "z": whole(0), "w": np.ones((2, 2), np.float32)},
    ),
    "go back to behind the last": (
        [
            node("Slice", ["x", "s", "e", "a", "d"], ["u"]),
            node("Concat", ["x", "u"], ["v"], axis=1),
            node("ReduceSum", ["v", "a"], ["y"], keepdims=1),
        ],
        [1, 3],
        {"s": whole(2), "e": whole(2**63 - 1), "a": whole(1), "d": whole(-1)},
    ),
    "split into more than there is": (
        [
            node("Split", ["x"], ["u"], axis=1, num_outputs=2),
            node("ReduceSum", ["u", "a"], ["y"], keepdims=1),
        ],
        [1, 4],
        {"a": whole(1)},
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_what_a_runtime_reads_otherwise_is_refused(name):
    """A runtime takes the model, so the checker must see the same in it, or refuse it."""
    nodes, shape, constants = ODD[name]
    content = onnx_of(nodes, shape, constants, double=False, opset=18)
    assert runs(content, np.ones(shape, np.float32)).size
    with pytest.raises(UnsupportedError):
        read_front(content, "model")
