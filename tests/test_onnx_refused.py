"""What is not read, and what its message says; what is read is in test_onnx_read.py."""

from __future__ import annotations

import gzip
import io
import pickle
import zipfile

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from onnx_models import model, numbers, op
from relutrim.errors import InputError, NetworkError, UnsupportedError
from relutrim.formats.onnx import network_from_proto, read_onnx
from relutrim.formats.onnx.conversion import handles

W34, B4, C3 = numbers(3, 4), numbers(4), numbers(3)
SHAPE = np.array


D = np.float64
BAD_GRAPHS = {
    "log softmax in the middle": (
        [op("LogSoftmax", ["x"], "p"), op("Relu", ["p"])], {}, UnsupportedError,
        "relu_y.*logsoftmax_p.*very end.*cut the model",
    ),
    "softmax of the batch": (
        [op("Softmax", ["x"], "p", axis=0), op("Relu", ["p"])], {}, UnsupportedError,
        "'relu_y'.*'softmax_p'.*batch",
    ),
    "exponential": ([op("Exp", ["x"])], {}, UnsupportedError, "'exp_y' .Exp.*range.*cut the model"),
    "gelu by tanh": ([op("Gelu", ["x"], approximate="tanh")], {}, UnsupportedError, "'gelu_y'.*'none'"),
    "elu that falls": ([op("Elu", ["x"], alpha=-1.0)], {}, NetworkError, "'elu_y'.*alpha"),
    "celu that falls": ([op("Celu", ["x"], alpha=-1.0)], {}, UnsupportedError, "'celu_y'.*alpha"),
    "unknown operator": ([op("Frobnicate", ["x"])], {}, UnsupportedError, "Frobnicate is not one"),
    "attention": ([op("MatMul", ["x", "x"])], {}, UnsupportedError, "two computed values"),
    "product of values": ([op("Mul", ["x", "x"])], {}, UnsupportedError, "two computed values"),
    "custom domain": (
        [helper.make_node("Gemm", ["x", "w"], ["y"], domain="com.microsoft")], {"w": W34},
        UnsupportedError, "com.microsoft",
    ),
    "recurrent": ([op("LSTM", ["x", "w", "w"])], {"w": W34}, UnsupportedError, "recurrent"),
    "cast": ([op("Cast", ["x"], to=TensorProto.FLOAT16)], {}, UnsupportedError, "float16, which rounds"),
    "training dropout": (
        [op("Dropout", ["x", "", "on"])], {"on": np.array(True)}, UnsupportedError, "model.eval",
    ),
    "used dropout mask": (
        [helper.make_node("Dropout", ["x"], ["h", "mask"]), op("Add", ["h", "mask"])], {},
        UnsupportedError, "'mask' is used",
    ),
    "training batch norm": (
        [op("BatchNormalization", ["x", "c", "c", "c", "c"], training_mode=1)], {"c": C3},
        UnsupportedError, "model.eval",
    ),
    "batch norm of another size": (
        [op("BatchNormalization", ["x", "c", "c", "c", "b"])], {"c": C3, "b": B4},
        NetworkError, "'b'.*3 channels",
    ),
    "batch norm of negative variance": (
        [op("BatchNormalization", ["x", "c", "c", "c", "v"])], {"c": C3, "v": -abs(C3)},
        NetworkError, "variance",
    ),
    "mixed rows": ([op("MatMul", ["w", "x"])], {"w": W34}, UnsupportedError, "along the batch axis"),
    "dropped batch": ([op("Reshape", ["x", "s"])], {"s": SHAPE([3])}, UnsupportedError, "batch axis"),
    "flat batch": ([op("Flatten", ["x"], axis=0)], {}, UnsupportedError, "batch into one row"),
    "moved batch": ([op("Transpose", ["x"])], {}, UnsupportedError, "moves the batch axis"),
    "new front axis": ([op("Unsqueeze", ["x", "s"])], {"s": SHAPE([0])}, UnsupportedError, "front of"),
    "constant per row": ([op("Add", ["x", "c"])], {"c": numbers(2, 3)}, UnsupportedError, "rows of a batch"),
    "constant that does not broadcast": (
        [op("Add", ["x", "c"])], {"c": numbers(2)}, NetworkError, "does not broadcast",
    ),
    "values that do not broadcast": (
        [op("MatMul", ["x", "v"], "h"), op("Add", ["h", "x"])], {"v": numbers(3, 2)},
        NetworkError, "'add_y'.*do not broadcast",
    ),
    "summand larger than the product": (
        [op("Gemm", ["x", "v", "c"])], {"v": numbers(3, 1), "c": C3}, NetworkError, "does not fit",
    ),
    "batch against another axis": (
        [op("Unsqueeze", ["x", "s"], "h"), op("Add", ["h", "x"])], {"s": SHAPE([1])},
        UnsupportedError, "batch of one meets another axis",
    ),
    "computed shape": (
        [op("Shape", ["x"], "s"), op("Reshape", ["x", "s"])], {}, UnsupportedError, "onnxsim",
    ),
    "constant arithmetic": (
        [op("Mul", ["c", "c"], "d"), op("Add", ["x", "d"])], {"c": C3}, UnsupportedError, "fold constants",
    ),
    "constant output": ([op("Identity", ["c"])], {"c": C3}, UnsupportedError, "output 'y'.*constant"),
    "string constant": (
        [helper.make_node("Constant", [], ["c"], value_string="a"), op("Add", ["x", "c"])], {},
        UnsupportedError, "value_string",
    ),
    "float16 weights": ([op("Add", ["x", "c"])], {"c": C3.astype(np.float16)}, InputError, "'c' is float16"),
    "int8 weights": ([op("Add", ["x", "c"])], {"c": C3.astype(np.int8)}, InputError, "'c' is int8"),
    "complex weights": ([op("Add", ["x", "c"])], {"c": C3.astype(np.complex64)}, InputError, "is complex64"),
    "mixed types": ([op("Add", ["x", "c"])], {"c": C3.astype(D)}, InputError, "float64 in a float32 model"),
    "NaN": (
        [op("Gemm", ["x", "w"])], {"w": np.full((3, 4), np.nan, np.float32)}, NetworkError,
        r"'gemm_y' \(Gemm\).*'w' holds 12",
    ),
    "infinity": ([op("Add", ["x", "c"])], {"c": np.full(3, -np.inf, np.float32)}, NetworkError, "c' holds"),
    "division by zero": ([op("Div", ["x", "c"])], {"c": 0 * C3}, NetworkError, "zero"),
    "NaN attribute": ([op("Gemm", ["x", "w"], alpha=float("nan"))], {"w": W34}, NetworkError, "is nan"),
    "wrong shapes": ([op("Gemm", ["x", "w"])], {"w": W34.T.copy()}, NetworkError, "'gemm_y'.*for 4 inputs"),
    "impossible reshape": ([op("Reshape", ["x", "s"])], {"s": SHAPE([0, 7])}, NetworkError, "cannot be"),
    "negative shape": ([op("Reshape", ["x", "s"])], {"s": SHAPE([0, -7])}, InputError, "not one a tensor"),
    "float shape": ([op("Reshape", ["x", "s"])], {"s": C3}, InputError, "list of integers"),
    "cycle": ([op("Add", ["x", "y"], "h"), op("Relu", ["h"])], {}, NetworkError, "cycle"),
    "missing producer": ([op("Add", ["x", "nowhere"])], {}, NetworkError, "'nowhere', which nothing makes"),
    "made twice": ([op("Relu", ["x"]), op("Relu", ["x"])], {}, NetworkError, "'y' is made twice"),
    "made and stored": ([op("Relu", ["x"])], {"y": C3}, NetworkError, "'y' is made twice"),
    "missing output": ([op("Relu", ["x"], "h")], {}, NetworkError, "output 'y'.*nothing makes"),
    "missing input": ([op("Gemm", ["x"])], {}, InputError, "1 input"),
    "strange attribute": ([op("Relu", ["x"], consumed_inputs=[0])], {}, InputError, "consumed_inputs"),
    "attribute of another type": ([op("Flatten", ["x"], axis=1.5)], {}, InputError, "wrong type"),
    "axis out of range": ([op("Flatten", ["x"], axis=9)], {}, NetworkError, "does not exist"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_GRAPHS)
def test_graphs_that_cannot_be_read_say_where_and_why(case, tmp_path):
    nodes, weights, kind, text = BAD_GRAPHS[case]
    path = tmp_path / "bad.onnx"
    path.write_bytes(model(nodes, ["n", 3], weights).SerializeToString())
    with pytest.raises(kind, match=text) as caught:
        read_onnx(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert caught.value.exit_code == (3 if kind is UnsupportedError else 2)


def test_control_flow_is_refused():
    graph = helper.make_graph(
        [op("Relu", ["x"], "z")], "branch", [], [helper.make_tensor_value_info("z", 1, None)]
    )
    node = helper.make_node("If", ["flag"], ["y"], then_branch=graph, else_branch=graph)
    with pytest.raises(UnsupportedError, match="control flow"):
        network_from_proto(model([node], ["n", 3], {"flag": np.array(True)}))


RELU = [op("Relu", ["x"])]


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        (["n", "m"], "leaves more than the batch"),
        (["n", 0], "leaves more"),
        (["n"], "leaves more"),
        (["n", -3], "leaves"),
    ],
)
def test_open_input_shapes_are_refused(shape, text):
    with pytest.raises(InputError, match=text):
        network_from_proto(model(RELU, shape))


def changed(change) -> onnx.ModelProto:
    proto = model([op("Add", ["x", "c"])], ["n", 3], {"c": C3})
    change(proto)
    return proto


def _external(proto):
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret")


def _sparse(proto):
    values = helper.make_tensor("s", TensorProto.FLOAT, [1], [1.0])
    indices = helper.make_tensor("i", TensorProto.INT64, [1], [1])
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3]))


def _function(proto):
    ids = [helper.make_opsetid("", 17)]
    proto.functions.append(helper.make_function("f", "Fn", ["a"], ["b"], [op("Relu", ["a"], "b")], ids))


def _dims(*dims):
    def change(proto):
        del proto.graph.initializer[0].dims[:]
        proto.graph.initializer[0].dims.extend(dims)

    return change


def _more_input(proto):
    proto.graph.input.append(helper.make_tensor_value_info("x2", TensorProto.FLOAT, [1]))


def _integer_input(proto):
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64


BAD_FRAMES = {
    "external data": (_external, UnsupportedError, "another file"),
    "sparse": (_sparse, UnsupportedError, "'s' are stored sparse"),
    "functions": (_function, UnsupportedError, "'Fn'.*inline"),
    "two inputs": (_more_input, InputError, "one input.*'x2'"),
    "no input": (lambda p: p.graph.input.pop(), InputError, "has 0"),
    "integers": (_integer_input, InputError, "it is int64"),
    "no shape": (lambda p: p.graph.input[0].type.tensor_type.ClearField("shape"), InputError, "with a shape"),
    "no output": (lambda p: p.graph.output.pop(), InputError, "no output"),
    "empty graph": (lambda p: p.graph.Clear(), InputError, "graph is empty"),
    "no opset": (lambda p: p.opset_import.pop(), InputError, "names none"),
    "old opset": (
        lambda p: setattr(p.opset_import[0], "version", 6),
        UnsupportedError,
        "operator set 6.*convert",
    ),
    "new opset": (lambda p: setattr(p.opset_import[0], "version", 99), UnsupportedError, "operator set 99"),
    "huge shape": (_dims(2**40, 2**20), InputError, "'c'.*needs"),
    "huge empty shape": (_dims(2**40, 0), InputError, "holds no numbers"),
    "negative shape": (_dims(-1, -3), InputError, "not one a tensor"),
    "many axes": (_dims(3, *[1] * 100), InputError, "not one a tensor"),
    "other shape": (_dims(4), InputError, "needs 4 numbers and 3"),
    "same name": (lambda p: p.graph.initializer.append(p.graph.initializer[0]), NetworkError, "two tensors"),
    "no data": (lambda p: p.graph.initializer[0].ClearField("raw_data"), InputError, "needs 3 numbers and 0"),
    "two kinds of data": (lambda p: p.graph.initializer[0].float_data.append(1), InputError, "stored twice"),
    "unknown type": (
        lambda p: setattr(p.graph.initializer[0], "data_type", 77),
        InputError,
        "unknown type 77",
    ),
    "no tensor made": (lambda p: p.graph.node[0].output.pop(), NetworkError, "nothing makes"),
}


@pytest.mark.parametrize("case", BAD_FRAMES)
def test_damaged_or_unusual_models_are_refused(case, tmp_path):
    change, kind, text = BAD_FRAMES[case]
    path = tmp_path / "bad.onnx"
    path.write_bytes(changed(change).SerializeToString())
    with pytest.raises(kind, match=text):
        read_onnx(path)


def _zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("data.pkl", "x")
    return file.getvalue()


BAD_FILES = {
    "empty": (b"", "empty"),
    "text": (b"784-100-10\nhello\n", "a text file"),
    "accents": ("é".encode() * 400, "a text file"),
    "pickle": (pickle.dumps({"w": [1.0]}), "pickle"),
    "zip": (_zip(), "torch.save"),
    "gzip": (gzip.compress(b"x"), "onnx.gz"),
    "keras": (b"\x89HDF\r\n\x1a\n" + bytes(64), "Keras"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    "safetensors": ((20).to_bytes(8, "little") + b'{"w":{}}' + bytes(40), "safetensors"),
    "tflite": (b"\x1c\0\0\0TFL3" + bytes(40), "TensorFlow Lite"),
    "noise": (bytes(range(1, 200)), "not an ONNX model"),
    "other protobuf": (b"\x08\x08", "no graph"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_files_that_are_not_onnx_say_what_they_seem_to_be(case, tmp_path):
    content, text = BAD_FILES[case]
    path = tmp_path / "bad.onnx"
    path.write_bytes(content)
    with pytest.raises(InputError, match=text) as caught:
        read_onnx(path)
    assert str(path) in str(caught.value)


GOOD = model(
    [op("Gemm", ["x", "w", "b"], "h"), op("Relu", ["h"], "r"), op("Reshape", ["r", "s"])],
    ["n", 3],
    {"w": W34, "b": B4, "s": SHAPE([0, 2, 2])},
).SerializeToString()


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_damaged_bytes_end_in_a_network_or_a_message(tmp_path_factory, data):
    content = bytearray(GOOD)
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.onnx"
    path.write_bytes(bytes(content[: data.draw(st.just(len(content)) | st.integers(0, len(content)))]))
    message = str(path)
    try:
        read_onnx(path)
    except (InputError, UnsupportedError) as error:
        message = str(error)
    assert message.startswith(str(path))


def test_a_second_handler_for_an_operator_is_refused():
    with pytest.raises(ValueError, match="already is a handler for Gemm"):
        handles("Gemm", inputs=(1, 1))(lambda call: call.value(0))
