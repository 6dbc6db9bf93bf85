"""What is not read, and what its message says; what is read is in test_onnx_read.py."""

from __future__ import annotations

import gzip
import io
import pickle
import re
import zipfile

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from onnx_models import model, numbers, op, opaque
from relutrim.errors import InputError, NetworkError, UnsupportedError
from relutrim.io.onnx import read_onnx
from relutrim.io.onnx.conversion import handles

W34, B4, C3 = numbers(3, 4), numbers(4), numbers(3)
SHAPE = np.array


D = np.float64
OPAQUE = UnsupportedError
BAD_GRAPHS = {
    "log softmax in the middle": (
        [op("LogSoftmax", ["x"], "p"), op("Relu", ["p"])], {}, OPAQUE,
        "logsoftmax_p.*very end",
    ),
    "softmax of the batch": (
        [op("Softmax", ["x"], "p", axis=0), op("Relu", ["p"])], {}, OPAQUE,
        "'softmax_p'.*batch",
    ),
    "exponential": ([op("Exp", ["x"])], {}, OPAQUE, "'exp_y' .Exp.*does not know the operator Exp"),
    "gelu by sums": ([op("Gelu", ["x"], approximate="sums")], {}, OPAQUE, "'gelu_y'.*'sums'"),
    "elu that falls": ([op("Elu", ["x"], alpha=-1.0)], {}, OPAQUE, "'elu_y'.*alpha"),
    "celu that falls": ([op("Celu", ["x"], alpha=-1.0)], {}, OPAQUE, "'celu_y'.*alpha"),
    "unknown operator": ([op("Frobnicate", ["x"])], {}, OPAQUE, "the operator Frobnicate"),
    "attention": ([op("MatMul", ["x", "x"])], {}, OPAQUE, "two computed values"),
    "product of values": ([op("Mul", ["x", "x"])], {}, OPAQUE, "two computed values"),
    "custom domain": (
        [helper.make_node("Gemm", ["x", "w"], ["y"], domain="com.microsoft")], {"w": W34},
        OPAQUE, "does not know the operator Gemm",
    ),
    "recurrent": ([op("LSTM", ["x", "w", "w"])], {"w": W34}, OPAQUE, "LSTM"),
    "cast": ([op("Cast", ["x"], to=TensorProto.FLOAT16)], {}, OPAQUE, "float16, which rounds"),
    "training dropout": (
        [op("Dropout", ["x", "", "on"])], {"on": np.array(True)}, OPAQUE, "training_mode",
    ),
    "used dropout mask": (
        [helper.make_node("Dropout", ["x"], ["h", "mask"]), op("Add", ["h", "mask"])], {},
        OPAQUE, "'mask' is used",
    ),
    "training batch norm": (
        [op("BatchNormalization", ["x", "c", "c", "c", "c"], training_mode=1)], {"c": C3},
        OPAQUE, "training mode",
    ),
    "batch norm of another size": (
        [op("BatchNormalization", ["x", "c", "c", "c", "b"])], {"c": C3, "b": B4},
        NetworkError, "'b'.*3 channels",
    ),
    "batch norm of negative variance": (
        [op("BatchNormalization", ["x", "c", "c", "c", "v"])], {"c": C3, "v": -abs(C3)},
        OPAQUE, "variance",
    ),
    "mixed rows": ([op("MatMul", ["w", "x"])], {"w": W34}, OPAQUE, "along the batch axis"),
    "dropped batch": ([op("Reshape", ["x", "s"])], {"s": SHAPE([3])}, OPAQUE, "batch axis"),
    "flat batch": ([op("Flatten", ["x"], axis=0)], {}, OPAQUE, "batch into one row"),
    "moved batch": ([op("Transpose", ["x"])], {}, OPAQUE, "moves the batch axis"),
    "new front axis": ([op("Unsqueeze", ["x", "s"])], {"s": SHAPE([0])}, OPAQUE, "front of"),
    "constant per row": ([op("Add", ["x", "c"])], {"c": numbers(2, 3)}, OPAQUE, "rows of a batch"),
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
        OPAQUE, "batch of one meets another axis",
    ),
    "constant arithmetic": (
        [op("Mul", ["c", "c"], "d"), op("Add", ["x", "d"])], {"c": C3}, OPAQUE, "would round",
    ),
    "string constant": (
        [helper.make_node("Constant", [], ["c"], value_string="a"), op("Add", ["x", "c"])], {},
        OPAQUE, "value_string",
    ),
    "float16 weights": ([op("Add", ["x", "c"])], {"c": C3.astype(np.float16)}, OPAQUE, "is float16"),
    "int8 weights": ([op("Add", ["x", "c"])], {"c": C3.astype(np.int8)}, OPAQUE, "is int8"),
    "complex weights": ([op("Add", ["x", "c"])], {"c": C3.astype(np.complex64)}, OPAQUE, "is complex64"),
    "mixed types": ([op("Add", ["x", "c"])], {"c": C3.astype(D)}, OPAQUE, "float64 in a float32 model"),
    "NaN": (
        [op("Gemm", ["x", "w"])], {"w": np.full((3, 4), np.nan, np.float32)}, OPAQUE,
        r"'gemm_y' \(Gemm\).*'w' holds",
    ),
    "infinity": ([op("Add", ["x", "c"])], {"c": np.full(3, -np.inf, np.float32)}, OPAQUE, "c' holds"),
    "division by zero": ([op("Div", ["x", "c"])], {"c": 0 * C3}, OPAQUE, "zero"),
    "NaN attribute": ([op("Gemm", ["x", "w"], alpha=float("nan"))], {"w": W34}, OPAQUE, "is nan"),
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
def test_what_is_damaged_is_refused_and_what_is_not_known_is_opaque(case, tmp_path):
    nodes, weights, kind, text = BAD_GRAPHS[case]
    proto, path = model(nodes, ["n", 3], weights), tmp_path / "bad.onnx"
    if kind is OPAQUE:
        assert re.search(text, opaque(proto))
        return
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(kind, match=text) as caught:
        read_onnx(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert caught.value.exit_code == (3 if kind is UnsupportedError else 2)


def changed(change) -> onnx.ModelProto:
    proto = model([op("Add", ["x", "c"])], ["n", 3], {"c": C3})
    change(proto)
    return proto


def _external(proto):
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret")


def _dims(*dims):
    def change(proto):
        del proto.graph.initializer[0].dims[:]
        proto.graph.initializer[0].dims.extend(dims)

    return change


def _attribute_twice(proto):
    proto.graph.node[0].attribute.extend(helper.make_attribute("alpha", number) for number in (1.0, 5.0))


def _input_twice(proto):
    entry = helper.make_tensor_value_info("c", TensorProto.FLOAT, [3])
    proto.graph.input.extend([entry, entry])


def _metadata_twice(proto):
    for value in ("1", "2"):
        proto.metadata_props.add(key="k", value=value)


BAD_FRAMES = {
    "data elsewhere": (_external, InputError, "not in the model's folder"),
    "no input": (lambda p: p.graph.input.pop(), NetworkError, "'x', which nothing makes"),
    "no output": (lambda p: p.graph.output.pop(), InputError, "no output"),
    "empty graph": (lambda p: p.graph.Clear(), InputError, "graph is empty"),
    "no opset": (lambda p: p.opset_import.pop(), InputError, "names none"),
    "huge shape": (_dims(2**40, 2**20), InputError, "'c'.*needs"),
    "huge empty shape": (_dims(2**40, 0), InputError, "holds no numbers"),
    "negative shape": (_dims(-1, -3), InputError, "not one a tensor"),
    "many axes": (_dims(3, *[1] * 100), InputError, "not one a tensor"),
    "other shape": (_dims(4), InputError, "needs 4 numbers and 3"),
    "same name": (lambda p: p.graph.initializer.append(p.graph.initializer[0]), NetworkError, "two tensors"),
    "same attribute": (_attribute_twice, InputError, "'add_y'.*attribute 'alpha' twice"),
    "same input": (_input_twice, InputError, "two inputs are called 'c'"),
    "same metadata": (_metadata_twice, InputError, "two entries 'k'"),
    "no data": (lambda p: p.graph.initializer[0].ClearField("raw_data"), InputError, "needs 3 numbers and 0"),
    "two kinds of data": (lambda p: p.graph.initializer[0].float_data.append(1), InputError, "stored twice"),
    "no tensor made": (lambda p: p.graph.node[0].output.pop(), InputError, "makes no tensor"),
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
