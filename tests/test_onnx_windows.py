"""Convolutions, poolings and means: what onnxruntime computes, and what is refused."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from command_line import call
from onnx_models import assert_reads, model, numbers, op, opaque
from relutrim.errors import CheckFailed, InputError, NetworkError, UnsupportedError
from relutrim.graph import Network, Node, Output, Port
from relutrim.graph.operators import AveragePool, Convolution, Linear, MaxPool, Mean, Scale
from relutrim.io import load, save
from relutrim.io.onnx import network_from_proto, network_to_proto, verify_written

SAME = ("SAME_UPPER", "SAME_LOWER")


def kinds(network) -> list[type]:
    return [type(node.operator) for node in network]


def conv(shape, weight, bias=True, *, batch="n", kind="Conv", opset=17, **attributes):
    """A model of one convolution of ``weight``, a shape, over a value of ``shape``."""
    weights = {"w": numbers(*weight)}
    if bias:
        weights["b"] = numbers(weight[0] if kind == "Conv" else weight[1] * attributes.get("group", 1))
    return model([op(kind, ["x", *weights], **attributes)], [batch, *shape], weights, opset=opset)


def pool(kind, shape, *, batch="n", opset=17, **attributes):
    return model([op(kind, ["x"], **attributes)], [batch, *shape], opset=opset)


CONVOLUTIONS = {
    "plain": ((3, 7, 6), (4, 3, 3, 2), {}),
    "strides": ((3, 7, 6), (4, 3, 3, 2), {"strides": [2, 3]}),
    "padding on one side": ((3, 7, 6), (4, 3, 3, 2), {"pads": [2, 0, 1, 3]}),
    "dilation": ((2, 9, 9), (2, 2, 3, 2), {"dilations": [2, 4], "pads": [1, 1, 1, 1]}),
    "groups": ((4, 5, 5), (6, 2, 3, 3), {"group": 2}),
    "depthwise": ((4, 5, 5), (4, 1, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}),
    "one axis": ((3, 11), (2, 3, 4), {"strides": [2], "pads": [1, 2], "dilations": [2]}),
    "kernel shape said": ((1, 5, 5), (2, 1, 3, 3), {"kernel_shape": [3, 3]}),
    "padding wider than the kernel": ((1, 3, 3), (1, 1, 2, 2), {"pads": [5, 4, 3, 6]}),
    **{
        f"{way} by {step}": ((2, 7, 8), (3, 2, 4, 3), {"auto_pad": way, "strides": [step, step]})
        for way, step in itertools.product((*SAME, "VALID"), (1, 2, 3))
    },
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolutions(case, bias):
    shape, weight, attributes = CONVOLUTIONS[case]
    network = assert_reads(conv(shape, weight, bias, **attributes))
    assert kinds(network) == [Convolution]
    assert network.nodes[0].operator.bias.any() == bias


@given(st.data())
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
def test_convolutions_with_any_windows(data):
    axes = data.draw(st.integers(1, 2))
    small = st.lists(st.integers(1, 3), min_size=axes, max_size=axes)
    kernel, stride, dilation = data.draw(small), data.draw(small), data.draw(small)
    space = data.draw(st.lists(st.integers(1, 9), min_size=axes, max_size=axes))
    groups, per_group, outputs = (data.draw(st.integers(1, 3)) for _ in range(3))
    way = data.draw(st.sampled_from(["NOTSET", "VALID", *SAME]))
    attributes = {"strides": stride, "dilations": dilation, "group": groups, "auto_pad": way}
    pads = data.draw(st.lists(st.integers(0, 4), min_size=2 * axes, max_size=2 * axes))
    if way == "NOTSET":
        attributes["pads"] = pads
    # onnxruntime does not pad as the standard says where SAME meets dilation.
    assume(way not in SAME or max(dilation) == 1)
    proto = conv((groups * per_group, *space), (groups * outputs, per_group, *kernel), **attributes)
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    room = pads if way == "NOTSET" else [0] * (2 * axes)
    fits = all(s + room[a] + room[a + axes] >= spans[a] for a, s in enumerate(space))
    if fits or way in SAME:
        assert_reads(proto)
    else:
        with pytest.raises(NetworkError, match=r"'conv_y' .Conv.*does not fit"):
            network_from_proto(proto)


TRANSPOSED = {
    "plain": ((3, 4, 5), (3, 2, 3, 2), {}),
    "strides": ((3, 4, 5), (3, 2, 3, 2), {"strides": [2, 3]}),
    "pads": ((3, 4, 5), (3, 2, 3, 3), {"strides": [2, 2], "pads": [1, 0, 2, 1]}),
    "pads that cut off": ((3, 4, 5), (3, 2, 2, 2), {"strides": [3, 3], "pads": [2, 1, 2, 3]}),
    "output padding": ((3, 4, 5), (3, 2, 3, 3), {"strides": [2, 2], "output_padding": [1, 1]}),
    "groups": ((4, 4, 5), (4, 3, 3, 2), {"group": 2, "strides": [2, 1]}),
    "dilation": ((2, 4, 5), (2, 3, 3, 2), {"dilations": [2, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "one axis": ((2, 6), (2, 3, 4), {"strides": [2], "pads": [1, 1]}),
}


@pytest.mark.parametrize("case", TRANSPOSED)
def test_transposed_convolutions(case):
    shape, weight, attributes = TRANSPOSED[case]
    assert_reads(conv(shape, weight, kind="ConvTranspose", **attributes))


def test_a_bias_that_is_added_behind_joins_the_convolution():
    for shape in ((4, 1, 1), (1, 4, 1, 1), (1,), ()):
        nodes = [op("Conv", ["x", "w"], "h"), op("Add", ["b", "h"])]
        network = assert_reads(model(nodes, ["n", 2, 5, 5], {"w": numbers(4, 2, 2, 2), "b": numbers(*shape)}))
        assert kinds(network) == [Convolution]
    nodes = [op("Conv", ["x", "w"], "h"), op("Add", ["b", "h"])]
    network = assert_reads(model(nodes, ["n", 2, 5, 5], {"w": numbers(4, 2, 2, 2), "b": numbers(4)}))
    assert kinds(network) == [Convolution, Scale]  # along the last axis, not the channels


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 17, 21])
def test_convolution_batch_norm_and_pooling_in_every_opset(opset):
    nodes = [
        op("Conv", ["x", "w"], "c", pads=[1, 1, 1, 1]),
        op("BatchNormalization", ["c", "s", "s", "m", "v"], "n"),
        op("Relu", ["n"], "r"),
        op("MaxPool", ["r"], "p", kernel_shape=[2, 2], strides=[2, 2]),
        op("AveragePool", ["p"], "q", kernel_shape=[2, 2], pads=[1, 1, 1, 1]),
        op("Flatten", ["q"]),
    ]
    weights = {"w": numbers(4, 3, 3, 3), "s": numbers(4), "m": numbers(4), "v": abs(numbers(4))}
    assert_reads(model(nodes, ["n", 3, 8, 8], weights, opset=opset))


POOLS = {
    "plain": ((3, 8, 7), {"kernel_shape": [2, 3]}),
    "strides": ((3, 8, 7), {"kernel_shape": [2, 3], "strides": [2, 3]}),
    "padding": ((3, 8, 7), {"kernel_shape": [3, 3], "pads": [1, 2, 0, 1], "strides": [2, 1]}),
    "one axis": ((3, 9), {"kernel_shape": [3], "pads": [1, 1], "strides": [2]}),
    **{
        f"{way} by {step}": ((2, 7, 8), {"kernel_shape": [3, 4], "auto_pad": way, "strides": [step, step]})
        for way, step in itertools.product((*SAME, "VALID"), (1, 2, 3))
    },
    "ceil": ((2, 8, 7), {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1}),
    "ceil with padding": (
        (2, 8, 7),
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 0, 0], "ceil_mode": 1},
    ),
    "ceil that changes nothing": ((2, 8, 8), {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
}


@pytest.mark.parametrize("case", POOLS)
@pytest.mark.parametrize("kind", [MaxPool, AveragePool])
def test_pooling(case, kind):
    shape, attributes = POOLS[case]
    network = assert_reads(pool(kind.kind, shape, **attributes))
    assert kinds(network) == [kind]


@pytest.mark.parametrize("case", [case for case in POOLS if "ceil" not in case])
def test_average_pooling_that_counts_the_padding(case):
    shape, attributes = POOLS[case]
    network = assert_reads(pool("AveragePool", shape, count_include_pad=1, **attributes))
    assert network.nodes[0].operator.count_padding


def test_max_pooling_with_dilation():
    assert_reads(pool("MaxPool", (2, 9, 9), kernel_shape=[3, 2], dilations=[2, 3], pads=[1, 1, 1, 1]))


@pytest.mark.parametrize("kind", ["GlobalAveragePool", "GlobalMaxPool"])
@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 5)])
def test_global_pooling(kind, shape):
    network = assert_reads(pool(kind, shape))
    assert kinds(network) == [Mean if kind == "GlobalAveragePool" else MaxPool]


def test_float64_convolutions_are_read_and_written(tmp_path):
    """onnxruntime has no convolution in float64, so what is written is read again."""
    weights = {"w": numbers(3, 2, 3, 3, dtype=np.float64)}
    nodes = [
        op("Conv", ["x", "w"], "h", pads=[1, 0, 1, 2], strides=[2, 1]),
        op("AveragePool", ["h"], "p", kernel_shape=[2, 2], pads=[1, 0, 0, 1]),
        op("MaxPool", ["p"], "q", kernel_shape=[2, 2], pads=[0, 1, 1, 0]),
        op("GlobalAveragePool", ["q"]),
    ]
    network = network_from_proto(model(nodes, ["n", 2, 5, 5], weights, dtype=np.float64))
    save(network, tmp_path / "again.onnx")
    again = load(tmp_path / "again.onnx")
    assert (again.nodes[0].operator.weight == weights["w"]).all()
    assert again.dtype == "float64"


def test_a_model_without_batch_axis():
    """The first axis is moved, so it is no batch: the whole tensor is the input."""
    nodes = [
        op("Conv", ["x", "w"], "c"),
        op("Relu", ["c"], "r"),
        op("MaxPool", ["r"], "p", kernel_shape=[2, 2]),
        op("Transpose", ["p"], perm=[1, 0, 2, 3]),
    ]
    network = assert_reads(model(nodes, [1, 2, 6, 6], {"w": numbers(3, 2, 3, 3)}))
    assert network.input.batch is None


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("axes", [[1], [-1], [2, 3], [1, 3], [-3, -1, -2]])
@pytest.mark.parametrize("kind", ["ReduceMean", "ReduceSum"])
def test_reductions(kind, axes, keep):
    listed = kind == "ReduceSum"  # since opset 13
    attributes = {} if listed else {"axes": axes}
    node = op(kind, ["x", *(["a"] if listed else [])], keepdims=keep, **attributes)
    weights = {"a": np.array(axes)} if listed else {}
    network = assert_reads(model([node], ["n", 3, 4, 5], weights))
    assert kinds(network)[0] is Mean
    if not listed:
        node = op(kind, ["x", "a"], keepdims=keep)
        assert_reads(model([node], ["n", 3, 4, 5], {"a": np.array(axes)}, opset=18))


def test_reductions_without_axes():
    assert_reads(model([op("ReduceMean", ["x"])], [1, 3, 4]))
    assert_reads(model([op("ReduceMean", ["x"], noop_with_empty_axes=1)], ["n", 3, 4], opset=18))


def test_a_transpose_to_channels_first_and_back():
    """As TensorFlow's exporter writes it."""
    nodes = [
        op("Transpose", ["x"], "t", perm=[0, 3, 1, 2]),
        op("Conv", ["t", "w"], "c", auto_pad="SAME_UPPER", strides=[2, 2]),
        op("Add", ["c", "b"], "d"),
        op("Relu", ["d"], "r"),
        op("MaxPool", ["r"], "p", kernel_shape=[2, 2], strides=[2, 2], auto_pad="VALID"),
        op("Transpose", ["p"], "q", perm=[0, 2, 3, 1]),
        op("Reshape", ["q", "s"], "f"),
        op("MatMul", ["f", "v"]),
    ]
    weights = {
        "w": numbers(4, 3, 3, 3), "b": numbers(1, 4, 1, 1), "s": np.array([-1, 16]), "v": numbers(16, 2),
    }  # fmt: skip
    network = assert_reads(model(nodes, ["n", 8, 8, 3], weights, opset=13))
    assert kinds(network)[-1] is Linear


W = (4, 3, 3, 3)
BAD_WINDOWS = {
    "negative strides": (conv((3, 8, 8), W, strides=[-1, 1]), NetworkError, "strides.*positive"),
    "strides of 0": (conv((3, 8, 8), W, strides=[0, 0]), NetworkError, "strides.*positive"),
    "dilations of 0": (conv((3, 8, 8), W, dilations=[0, 1]), NetworkError, "dilations.*positive"),
    "too many strides": (conv((3, 8, 8), W, strides=[1, 1, 1]), NetworkError, "2 positive"),
    "negative pads": (conv((3, 8, 8), W, pads=[-1, 0, 0, 0]), NetworkError, "non-negative"),
    "too few pads": (conv((3, 8, 8), W, pads=[1, 1]), NetworkError, "4 numbers"),
    "huge pads": (conv((3, 8, 8), W, pads=[2**40] * 4), UnsupportedError, "more than the"),
    "huge pads on both sides of huge windows": (
        pool("AveragePool", (1, 8), kernel_shape=[2**40], pads=[2**39, 2**39]), UnsupportedError,
        "more than the",
    ),
    "huge dilation": (conv((3, 8, 8), W, dilations=[2**60, 1]), NetworkError, "does not fit"),
    "no groups": (conv((3, 8, 8), W, bias=False, group=0), NetworkError, "0 groups"),
    "groups that do not divide": (conv((3, 8, 8), W, group=3), NetworkError, "3 groups"),
    "other channels": (conv((2, 8, 8), W), NetworkError, r"3 channels and meets.*\(2, 8, 8\)"),
    "other kernel shape": (conv((3, 8, 8), W, kernel_shape=[2, 2]), NetworkError, "kernel_shape"),
    "kernel too large": (conv((3, 2, 2), W), NetworkError, "does not fit"),
    "three spatial axes": (conv((3, 8, 8, 8), (4, 3, 3, 3, 3)), UnsupportedError, "along 1 or 2 axes"),
    "no spatial axis": (conv((3,), (4, 3, 3)), UnsupportedError, "0 spatial axes"),
    "bias of another size": (
        model([op("Conv", ["x", "w", "b"])], ["n", 3, 8, 8], {"w": numbers(*W), "b": numbers(3)}),
        NetworkError, "bias of shape",
    ),
    "computed kernel": (
        model([op("Relu", ["x"], "h"), op("Conv", ["x", "h"])], [3, 3, 8, 8]), UnsupportedError,
        "'h' is computed",
    ),
    "unknown auto_pad": (conv((3, 8, 8), W, auto_pad="SOMEHOW"), InputError, "SOMEHOW"),
    "two paddings": (conv((3, 8, 8), W, auto_pad="SAME_UPPER", pads=[1] * 4), InputError, "both"),
    "no window": (pool("MaxPool", (3, 8, 8)), NetworkError, "kernel_shape"),
    "window of 0": (pool("MaxPool", (3, 8, 8), kernel_shape=[0, 2]), NetworkError, "positive"),
    "window in the padding": (
        pool("MaxPool", (3, 8, 8), kernel_shape=[2, 2], pads=[2, 2, 2, 2]), NetworkError,
        "nothing but padding",
    ),
    "average with gaps": (
        pool("AveragePool", (3, 8, 8), kernel_shape=[2, 2], dilations=[2, 2], opset=19), UnsupportedError,
        "gaps",
    ),
    "ceil and counted padding": (
        pool("AveragePool", (3, 8), kernel_shape=[3], strides=[2], ceil_mode=1, count_include_pad=1,
             pads=[1, 1]),
        UnsupportedError, "ceil_mode=0",
    ),
    "last window behind the value": (
        pool("MaxPool", (3, 4), kernel_shape=[2], strides=[4], ceil_mode=1, pads=[0, 1]), UnsupportedError,
        "begin behind the value",
    ),
    "transposed with negative pads": (
        conv((4, 8), (4, 1, 2), kind="ConvTranspose", bias=False, pads=[-(2**31), 2**62]), NetworkError,
        "padding",
    ),
    "transposed with huge strides": (
        conv((4, 8), (4, 1, 2), kind="ConvTranspose", bias=False, strides=[2**40]), UnsupportedError,
        "more than",
    ),
    "transposed to a wanted shape": (
        conv((3, 4, 4), W, kind="ConvTranspose", bias=False, output_shape=[9, 9]), UnsupportedError,
        "output_shape",
    ),
    "mean over the batch": (
        model([op("ReduceMean", ["x"], axes=[0])], ["n", 3]), UnsupportedError, "over the batch",
    ),
    "mean over everything": (model([op("ReduceMean", ["x"])], ["n", 3]), UnsupportedError, "all axes"),
    "mean over no such axis": (
        model([op("ReduceMean", ["x"], axes=[5])], ["n", 3]), NetworkError, "do not exist",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_WINDOWS)
def test_windows_that_cannot_be_read_say_where_and_why(case):
    proto, kind, text = BAD_WINDOWS[case]
    if kind is UnsupportedError and "more than" not in text:
        message = opaque(proto)
    else:
        with pytest.raises(kind) as caught:
            network_from_proto(proto)
        message = str(caught.value)
    assert re.search(text, message)
    assert f"'{proto.graph.node[-1].name}'" in message


def test_who_tells_the_place_of_the_maximum_is_opaque():
    from onnx import helper

    node = helper.make_node("MaxPool", ["x"], ["h", "where"], name="pool", kernel_shape=[2])
    proto = model([node, op("Cast", ["where"], to=1)], ["n", 3, 4])
    assert re.search(r"'pool' .MaxPool.*'where' is used", opaque(proto))


@pytest.mark.parametrize(
    ("nodes", "code", "words"),
    [
        ([op("Conv", ["x", "w"], "c"), op("Exp", ["c"], "s"), op("Conv", ["s", "v"])], 0, ""),
        ([op("Conv", ["x", "w"], strides=[-1, 1])], 2, "conv_y"),
    ],
)
def test_the_command_line_names_damaged_nodes(nodes, code, words, tmp_path, capsys):
    path = tmp_path / "bad.onnx"
    weights = {"w": numbers(2, 3, 1, 1), "v": numbers(2, 2, 1, 1)}
    path.write_bytes(model(nodes, ["n", 3, 4, 4], weights).SerializeToString())
    outcome = call(capsys, "inspect", path)
    assert outcome.code == code
    assert words in outcome.err.replace("\n", "")


UNEVEN = {
    "along one axis": ((6,), ((0, 1),)),
    "along two axes": ((6, 7), ((0, 1), (0, 1))),
    "before and behind": ((6, 6), ((0, 1), (1, 0))),
}


def in_float64(shape, padding):
    """A convolution and a pooling that onnx's own evaluator gets wrong, while onnxruntime lacks the first."""
    axes = len(shape)
    kernel = Convolution(
        numbers(3, 2, *(2,) * axes, dtype=np.float64), numbers(3, dtype=np.float64),
        (1,) * axes, ((0, 0),) * axes, (1,) * axes,
    )  # fmt: skip
    pooling = MaxPool((2,) * axes, (1,) * axes, padding, (1,) * axes)
    nodes = (Node("c", kernel, ("x",)), Node("p", pooling, ("c",)))
    return Network(Port("x", (2, *shape)), nodes, (Output("y", "p"),), "float64")


@pytest.mark.parametrize("case", UNEVEN)
def test_uneven_padding_in_float64_can_be_saved(case, tmp_path):
    network = in_float64(*UNEVEN[case])
    save(network, tmp_path / "m.onnx")
    x = torch.rand(3, *network.input.shape, dtype=torch.float64)
    assert torch.equal(load(tmp_path / "m.onnx").run(x)["p"], network.run(x)["p"])


def test_what_is_only_read_again_is_still_compared(tmp_path):
    network = in_float64((6,), ((0, 1),))
    proto = network_to_proto(network)
    tensor = next(entry for entry in proto.graph.initializer if entry.name.endswith("bias"))
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) + 1, tensor.name))
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(CheckFailed, match="off the network"):
        verify_written(tmp_path / "m.onnx", network)
