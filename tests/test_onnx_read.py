from __future__ import annotations

import gzip
import itertools
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from onnx_models import assert_reads, assert_same, model, numbers, op, opaque, run, sample, values_at
from oracle import outputs
from relutrim.errors import InputError
from relutrim.graph import Add, Linear, Relu, Reshape, Scale
from relutrim.io.onnx import network_from_proto, read_onnx
from relutrim.io.onnx.read import reading

W34, B4, C3 = numbers(3, 4), numbers(4), numbers(3)
SHAPE = np.array


def kinds(network) -> list[type]:
    return [type(node.operator) for node in network]


# What is read, and read right.


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.3, -1.7), (2.0, 0.0), (0.0, 1.0)])
@pytest.mark.parametrize("summand", [None, (), (1,), (4,), (1, 4), (1, 1)])
def test_gemm_with_every_attribute_and_summand(flip, alpha, beta, summand):
    weights = {"w": W34.T.copy() if flip else W34}
    if summand is not None:
        weights["c"] = numbers(*summand)
    node = op(
        "Gemm", ["x", "w", *(["c"] if summand is not None else [])], alpha=alpha, beta=beta, transB=int(flip)
    )
    network = assert_reads(model([node], ["n", 3], weights))
    assert kinds(network) == [Linear]
    assert [node.name for node in network] == ["y"]


@pytest.mark.parametrize(("flip_a", "flip_b"), list(itertools.product([0, 1], repeat=2)))
@pytest.mark.parametrize("summand", [(), (5, 1), (5, 4), (1, 4)])
def test_gemm_that_mixes_rows_has_no_batch_axis(flip_a, flip_b, summand):
    """A summand with one number per row, or a transposed input: the matrix as a whole is the input."""
    shape = [1, 3] if flip_a else [5, 3]
    w = numbers(1, 4) if flip_a else W34
    rows = 3 if flip_a else 5
    summand = tuple(rows if size == 5 else size for size in summand)
    node = op("Gemm", ["x", "w", "c"], transA=flip_a, transB=flip_b, alpha=0.7, beta=1.3)
    weights = {"w": w.T.copy() if flip_b else w, "c": numbers(*summand)}
    network = assert_reads(model([node], shape, weights))
    per_row = len(summand) == 2 and summand[0] > 1
    assert (network.input.batch is None) == bool(flip_a or per_row)


@pytest.mark.parametrize("flip", [0, 1])
def test_gemm_with_the_constant_on_the_left(flip):
    node = op("Gemm", ["w", "x", "c"], transB=flip, transA=1)
    shape = [1, 3] if flip else [3, 1]
    assert_reads(model([node], shape, {"w": W34, "c": numbers(4, 1)}))


def test_gemm_with_a_computed_summand():
    nodes = [op("Relu", ["x"], "h"), op("Gemm", ["x", "w", "h"], beta=0.5)]
    assert_reads(model(nodes, ["n", 3], {"w": numbers(3, 3)}))


@given(
    st.floats(-4, 4, width=32),
    st.floats(-4, 4, width=32),
    st.lists(st.floats(-9, 9, width=32), min_size=4, max_size=4),
)
@settings(max_examples=60, deadline=None)
def test_gemm_rounds_nothing(alpha, beta, entries):
    """In exact arithmetic, the network is alpha * x W + beta * c with the numbers of the file."""
    numbers = np.array(entries, np.float32)
    weights = {"w": numbers[:2, None], "c": numbers[2:3]}
    proto = model([op("Gemm", ["x", "w", "c"], alpha=alpha, beta=beta)], ["n", 2], weights)
    a, b = Fraction(alpha), Fraction(beta)
    x = [Fraction(1, 3), Fraction(7)]
    truth = a * sum(v * Fraction(w) for v, w in zip(x, entries, strict=False)) + b * Fraction(entries[2])
    assert outputs(network_from_proto(proto), x) == [truth]


MATMULS = {
    "row": (["n", 3], ["x", "w"], (3, 4)),
    "rows": (["n", 2, 3], ["x", "w"], (3, 4)),
    "vector": ([3], ["x", "w"], (3, 4)),
    "to one number": (["n", 3], ["x", "w"], (3,)),
    "stack of one": (["n", 2, 3], ["x", "w"], (1, 3, 4)),
    "column": (["n", 3, 1], ["w", "x"], (4, 3)),
    "column without batch": ([3, 1], ["w", "x"], (4, 3)),
    "vector from the left": ([3], ["w", "x"], (4, 3)),
    "column to one number": (["n", 3, 1], ["w", "x"], (3,)),
    "vector to one number": ([3], ["w", "x"], (3,)),
}


@pytest.mark.parametrize("case", MATMULS)
@pytest.mark.parametrize("order", [None, ["h", "b"], ["b", "h"]])
def test_matmul_and_add_either_way_round(case, order):
    shape, factors, size = MATMULS[case]
    nodes = [op("MatMul", factors, "y" if order is None else "h")]
    if order is not None:
        nodes.append(op("Add", order))
    out = 4 if len(size) > 1 else 1
    bias = (
        numbers(out) if "column" not in case else numbers(out, 1) if "one number" not in case else numbers(1)
    )
    network = assert_reads(model(nodes, shape, {"w": numbers(*size), "b": bias}))
    if case in ("row", "rows", "vector"):
        assert kinds(network) == [Linear]


def test_a_matmul_that_is_read_twice_keeps_its_value():
    nodes = [op("MatMul", ["x", "w"], "h"), op("Add", ["h", "b"], "s"), op("Add", ["h", "s"])]
    network = assert_reads(model(nodes, ["n", 3], {"w": W34, "b": B4}))
    assert "h" in network


CONSTANT_ARITHMETIC = list(
    itertools.product(
        ["Add", "Sub", "Mul", "Div"], [True, False], [(), (1,), (3,), (2, 1), (1, 2, 3), (2, 3)]
    )
)


@pytest.mark.parametrize(("kind", "swapped", "size"), CONSTANT_ARITHMETIC)
def test_arithmetic_with_a_constant(kind, swapped, size):
    proto = model([op(kind, ["c", "x"] if swapped else ["x", "c"])], ["n", 2, 3], {"c": numbers(*size)})
    if kind == "Div" and swapped:
        assert "divides by a computed value" in opaque(proto)
        return
    network = assert_reads(proto)
    assert kinds(network) == [Scale]
    assert network["y"].operator.exact == (kind != "Div")


def test_division_by_powers_of_two_is_exact():
    proto = model([op("Div", ["x", "c"])], ["n", 3], {"c": np.array([4, -0.5, 1], np.float32)})
    assert assert_reads(proto)["y"].operator.exact


@pytest.mark.parametrize("kind", ["Add", "Sub"])
@pytest.mark.parametrize("inputs", [["h", "x"], ["x", "h"], ["x", "x"], ["h", "h"]])
def test_arithmetic_between_values(kind, inputs):
    assert_reads(model([op("Relu", ["x"], "h"), op(kind, inputs)], ["n", 3]))


def test_sum_of_values_and_constants():
    network = assert_reads(
        model([op("Relu", ["x"], "h"), op("Sum", ["x", "c", "h", "x"])], ["n", 3], {"c": C3})
    )
    assert Add in kinds(network)


@pytest.mark.parametrize("shape", [["n", 3], ["n", 3, 2], ["n", 3, 2, 2], [1, 3]])
@pytest.mark.parametrize("opset", [7, 8, 9, 13, 14, 15, 17])
def test_batch_normalisation_along_axis_one(shape, opset):
    weights = {"s": C3, "b": numbers(3), "m": numbers(3), "v": abs(numbers(3))}
    node = op("BatchNormalization", ["x", *weights], epsilon=1e-3, momentum=0.5)
    network = assert_reads(model([node], shape, weights, opset=opset, ir=8))
    assert not network["y"].operator.exact


def test_defaults_of_attributes_are_the_float32_numbers_of_the_schema():
    """A variance that takes all but the last digits from epsilon shows them."""
    epsilon = np.float32(1e-5)
    ones, zeros = np.ones(1, np.float32), np.zeros(1, np.float32)
    variance = -np.nextafter(epsilon, np.float32(0))[None]
    weights = {"s": ones, "b": zeros, "m": zeros, "v": variance}
    network = assert_reads(model([op("BatchNormalization", ["x", *weights])], ["n", 1], weights))
    gap = float(epsilon) + float(variance[0])
    assert network["y"].operator.scale == pytest.approx(1 / np.sqrt(gap), rel=1e-14)
    for kind, default in (("LeakyRelu", 0.01), ("HardSigmoid", 0.2)):
        steep = network_from_proto(model([op(kind, ["x"])], ["n", 1]))
        factors = [abs(node.operator.scale) for node in steep if isinstance(node.operator, Scale)]
        assert float(np.float32(default)) in factors


SHAPINGS = {
    "flatten": (["n", 2, 3], op("Flatten", ["x"]), None),
    "flatten 1": (["n", 2, 3], op("Flatten", ["x"], axis=1), None),
    "flatten -2": (["n", 2, 3], op("Flatten", ["x"], axis=-2), None),
    "flatten 2 beside 1": (["n", 1, 3], op("Flatten", ["x"], axis=2), None),
    "flatten 0 of one": ([1, 2, 3], op("Flatten", ["x"], axis=0), None),
    "flatten all of a fixed batch": ([4, 2, 3], op("Flatten", ["x"], axis=0), None),
    "flatten into rows": ([2, 2, 3], op("Flatten", ["x"], axis=2), None),
    "reshape 0": (["n", 2, 3], op("Reshape", ["x", "s"]), [0, -1]),
    "reshape -1": (["n", 2, 3], op("Reshape", ["x", "s"]), [-1, 6]),
    "reshape 0 0": (["n", 2, 3], op("Reshape", ["x", "s"]), [0, 0, 1, 3]),
    "reshape -1 0": (["n", 2, 3], op("Reshape", ["x", "s"]), [-1, 0, 3, 1]),
    "reshape 1": ([1, 6], op("Reshape", ["x", "s"]), [1, 3, 2]),
    "reshape 1 -1": ([1, 2, 3], op("Reshape", ["x", "s"]), [1, -1]),
    "reshape without batch": ([1, 6], op("Reshape", ["x", "s"]), [6]),
    "reshape of a vector": ([6], op("Reshape", ["x", "s"]), [3, -1]),
    "reshape to a batch": ([4, 6], op("Reshape", ["x", "s"]), [4, 3, 2]),
    "reshape joins rows": ([4, 6], op("Reshape", ["x", "s"]), [-1, 3]),
    "reshape to one number": ([1, 1], op("Reshape", ["x", "s"]), []),
    "identity": (["n", 3], op("Identity", ["x"]), None),
    "cast": (["n", 3], op("Cast", ["x"], to=TensorProto.FLOAT), None),
    "transpose": (["n", 1, 3], op("Transpose", ["x"], perm=[0, 2, 1]), None),
    "transpose row": ([1, 3], op("Transpose", ["x"]), None),
}


@pytest.mark.parametrize("case", SHAPINGS)
def test_operators_that_only_move_numbers(case):
    shape, node, target = SHAPINGS[case]
    weights = {} if target is None else {"s": SHAPE(target, np.int64)}
    nodes = [op("Relu", ["x"], "h"), node, op("Relu", ["y"], "z")]
    node.input[0] = "h"
    network = assert_reads(model(nodes, shape, weights, outputs=["z"]))
    assert kinds(network) == [Relu, Reshape, Relu]


@pytest.mark.parametrize("opset", range(7, 22))
@pytest.mark.parametrize(
    ("kind", "axes"), [("Squeeze", [1]), ("Squeeze", [1, 3]), ("Unsqueeze", [1]), ("Unsqueeze", [2, 4])]
)
def test_squeeze_and_unsqueeze(opset, kind, axes):
    legacy = opset < 13
    node = op(kind, ["x"] if legacy else ["x", "a"], **({"axes": axes} if legacy else {}))
    assert_reads(model([node], ["n", 1, 3, 1], {} if legacy else {"a": SHAPE(axes, np.int64)}, opset=opset))


@pytest.mark.parametrize("shape", [[1, 3, 1], [4, 3, 1], [1]])
def test_squeeze_of_all_axes(shape):
    assert_reads(model([op("Squeeze", ["x"], "h"), op("Relu", ["h"])], shape))


@pytest.mark.parametrize("opset", range(7, 22))
def test_a_dense_network_in_every_opset(opset):
    """Gemm, Dropout (attribute, then inputs), Relu, MatMul, Add, Softmax."""
    dropout = ["r"] if opset < 12 else ["r", "", "off"]
    nodes = [
        op("Flatten", ["x"], "f"),
        op("Gemm", ["f", "w", "b"], "h"),
        op("Relu", ["h"], "r"),
        op("Dropout", dropout, "d", **({"ratio": 0.3} if opset < 12 else {})),
        op("MatMul", ["d", "v"], "m"),
        op("Add", ["m", "c"], "logits"),
        op("Softmax", ["logits"], "y"),
    ]
    weights = {"w": W34, "b": B4, "v": numbers(4, 2), "c": numbers(2)}
    if opset >= 12:
        weights["off"] = np.array(False)
    network = assert_reads(model(nodes, ["n", 3, 1], weights, opset=opset, ir=4 if opset < 12 else 8))
    (output,) = network.outputs
    assert (output.source, [step.kind for step in output.tail]) == ("logits", ["Softmax"])
    assert [node.name for node in network] == ["f", "h", "r", "d", "logits"]
    assert [node.name for node in network.relus] == ["r"]


def test_a_model_that_lists_its_weights_among_the_inputs():
    proto = model([op("MatMul", ["x", "w"])], [1, 3], {"w": W34}, opset=8, ir=3, listed=True)
    network = assert_reads(proto)
    assert (network.input.name, network.input.shape, network.input.batch) == ("x", (3,), 1)


def test_float64_models_stay_float64():
    proto = model(
        [op("Gemm", ["x", "w"])], ["n", 3], {"w": numbers(3, 4, dtype=np.float64)}, dtype=np.float64
    )
    network = assert_reads(proto)
    assert network.dtype == "float64"
    assert (
        network["y"].operator.weight.tolist() == numpy_helper.to_array(proto.graph.initializer[0]).T.tolist()
    )


CONSTANTS = {
    "value": numpy_helper.from_array(C3),
    "value_float": 1.5,
    "value_floats": [1.0, -2.0, 0.5],
}


@pytest.mark.parametrize("spelling", CONSTANTS)
def test_constants_in_every_spelling(spelling):
    constant = helper.make_node("Constant", [], ["c"], **{spelling: CONSTANTS[spelling]})
    assert_reads(model([constant, op("Add", ["x", "c"])], ["n", 3]))


@pytest.mark.parametrize(
    "attributes", [{"value_ints": [0, 6]}, {"value": numpy_helper.from_array(SHAPE([-1, 6]))}]
)
def test_constant_shapes(attributes):
    constant = helper.make_node("Constant", [], ["s"], **attributes)
    assert_reads(model([constant, op("Reshape", ["x", "s"])], ["n", 2, 3]))


def test_weights_that_are_transposed_and_reshaped_on_the_way():
    nodes = [
        op("Identity", ["w"], "w1"),
        op("Transpose", ["w1"], "w2"),
        op("Reshape", ["b", "s"], "b1"),
        op("Unsqueeze", ["b1", "zero"], "b2"),
        op("Squeeze", ["b2", "zero"], "b3"),
        op("MatMul", ["x", "w2"], "h"),
        op("Add", ["h", "b3"]),
    ]
    weights = {"w": W34.T.copy(), "b": numbers(2, 2), "s": SHAPE([4]), "zero": SHAPE([0])}
    assert kinds(assert_reads(model(nodes, ["n", 3], weights))) == [Linear]


def test_several_outputs_hidden_ones_and_one_value_twice():
    nodes = [
        op("Gemm", ["x", "w"], "h"),
        op("Relu", ["h"], "r"),
        op("Identity", ["r"], "again"),
        op("Softmax", ["r"], "p"),
        op("Identity", ["p"], "q"),
        op("LogSoftmax", ["r"], "l", axis=1),
    ]
    names = ["h", "r", "again", "q", "p", "l", "x", "r"]
    network = assert_reads(model(nodes, ["n", 3], {"w": W34}, outputs=names))
    assert [output.name for output in network.outputs] == names
    assert network.sources == ("h", "r", "x")
    assert [node.name for node in network] == ["h", "r"]
    assert [[step.kind for step in output.tail] for output in network.outputs[3:6]] == [
        ["Softmax", "Identity"],
        ["Softmax"],
        ["LogSoftmax"],
    ]


@pytest.mark.parametrize("kind", ["Sigmoid", "Tanh"])
def test_squashed_outputs(kind):
    network = assert_reads(model([op("Relu", ["x"], "r"), op(kind, ["r"])], ["n", 3]))
    (output,) = network.outputs
    assert (output.source, [step.kind for step in output.tail]) == ("r", [kind])


def test_a_dropout_behind_a_tail_is_an_identity():
    nodes = [op("Relu", ["x"], "r"), op("Softmax", ["r"], "p", axis=1), op("Dropout", ["p"])]
    (output,) = assert_reads(model(nodes, ["n", 3])).outputs
    assert (output.source, [step.kind for step in output.tail]) == ("r", ["Softmax", "Identity"])


SOFTMAXES = [  # opset, shape, axis, the axis in the sense of opset 13
    (11, ["n", 3], None, 1),
    (13, ["n", 3], None, -1),
    (11, ["n", 3], -1, 1),
    (12, ["n", 3, 1], 1, 1),
    (12, ["n", 1, 3], None, 2),
    (13, ["n", 2, 3], 1, 1),
    (12, ["n", 2, 3], 2, 2),
    (12, [1, 3], 0, 1),
    (12, [3], 0, 0),
]


@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize(("opset", "shape", "axis", "expected"), SOFTMAXES)
def test_softmax_axes_before_and_since_opset_13(kind, opset, shape, axis, expected):
    nodes = [op("Relu", ["x"], "h"), op(kind, ["h"], **({} if axis is None else {"axis": axis}))]
    network = assert_reads(model(nodes, shape, opset=opset))
    assert network.outputs[0].tail[0].attributes == {"axis": expected}


@pytest.mark.parametrize(("shape", "axis"), [(["n", 2, 3], 1), (["n", 3], 0)])
def test_old_softmax_over_several_axes_is_opaque(shape, axis):
    proto = model([op("Softmax", ["x"], axis=axis)], shape, opset=11)
    assert "taken together" in opaque(proto)


@pytest.mark.parametrize("batch", ["n", None, 1, 7, 0, -1])
def test_the_batch_axis_is_kept_as_declared(batch):
    network = network_from_proto(model([op("Gemm", ["x", "w"])], [batch, 3], {"w": W34}))
    assert network.input.batch == (batch if batch in ("n", 1, 7) else "batch")
    assert network.input.shape == (3,)


def test_nodes_in_any_order_and_dead_ones_left_out():
    nodes = [op("Relu", ["h"]), op("Gemm", ["x", "w"], "h"), op("Exp", ["x"], "dead")]
    assert [node.name for node in network_from_proto(model(nodes, ["n", 3], {"w": W34}))] == ["h", "y"]


def test_metadata_is_kept():
    proto = model([op("Relu", ["x"])], ["n", 3])
    helper.set_model_props(proto, {"author": "someone", "epoch": "3"})
    assert network_from_proto(proto).metadata == {"author": "someone", "epoch": "3"}


def test_a_gzipped_file(tmp_path):
    path = tmp_path / "m.onnx.gz"
    path.write_bytes(gzip.compress(model([op("Relu", ["x"])], ["n", 3]).SerializeToString()))
    assert kinds(read_onnx(path)) == [Relu]


def test_reading_does_not_load_torch():
    code = "import sys, relutrim.io.onnx; assert not {'torch', 'onnxruntime'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@st.composite
def small_graphs(draw) -> onnx.ModelProto:
    """A few operators that move, scale or mix numbers, with shapes and axes that may or may not fit."""
    sizes = st.integers(1, 3)
    shape = [draw(st.sampled_from(["n", 1, 2])), *draw(st.lists(sizes, max_size=3))]
    if len(shape) == 1:
        shape = [draw(sizes)]
    nodes, weights = [], {}
    for k in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(
            ["Flatten", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Add", "Sub", "Mul", "MatMul", "Relu"]
        ))  # fmt: skip
        before, after, extra = f"v{k}" if k else "x", f"v{k + 1}", f"c{k}"
        inputs, attributes = [before], {}
        if kind == "Flatten":
            attributes["axis"] = draw(st.integers(-2, 3))
        elif kind == "Transpose":
            attributes["perm"] = draw(st.permutations(range(draw(sizes))))
        elif kind != "Relu":
            inputs = [before, extra]
            if kind in ("Reshape", "Squeeze", "Unsqueeze"):
                entries = st.sampled_from([-1, 0, 1, 2, 3, 4, 6])
                weights[extra] = np.array(draw(st.lists(entries, min_size=1, max_size=3)), np.int64)
            else:
                weights[extra] = numbers(*draw(st.lists(sizes, max_size=3)))
                if draw(st.booleans()):
                    inputs.reverse()
        nodes.append(op(kind, inputs, after, **attributes))
    if draw(st.booleans()):
        nodes.append(op("Softmax", [nodes[-1].output[0]], "p", axis=draw(st.integers(-1, 2))))
    ends = [nodes[-1].output[0]]
    return model(nodes, shape, weights, outputs=ends, opset=draw(st.sampled_from([13, 17])))


@given(small_graphs())
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_is_accepted_is_read_right(proto):
    try:
        found = reading(proto)
    except InputError:
        return
    if not found.opaque:
        assert_reads(proto)
        return
    x = sample(found.network)
    try:
        made = run(proto, x)
    except Exception:  # shapes that do not fit, behind an opaque node
        return
    expected = dict(zip([entry.name for entry in proto.graph.output], made, strict=True))
    for output, value in zip(found.network.outputs, values_at(found.network, x), strict=True):
        if not output.tail and not np.isnan(value).any():
            assert_same(value, expected[output.name])


# Networks of the paper and the verification competition.

PUBLIC = ["acasxu", "mnist_fc", "cora", "nn4sys", "relusplitter", "safenlp", "tllverify", "cersyve"]
FOLDERS = ["paper", *(f"public/{name}" for name in PUBLIC)]


@pytest.mark.parametrize("folder", FOLDERS)
def test_networks_in_the_wild_are_read_right(shared: Path, folder):
    paths = sorted((shared / "networks" / folder).glob("*.onnx*"))
    if not paths:
        pytest.skip(f"no networks in {folder}")
    for path in paths:
        network = read_onnx(path)
        proto = onnx.load_from_string(
            gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        )
        x = sample(network)
        for value, truth in zip(values_at(network, x), run(proto, x), strict=True):
            assert_same(value, truth, 1e-4)
