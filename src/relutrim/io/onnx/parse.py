"""From bytes to a model whose frame is sound: it is ONNX, and it is whole.

What the graph computes is not looked at here; see :mod:`relutrim.io.onnx.read`.
"""

from __future__ import annotations

import onnx

from relutrim.errors import InputError
from relutrim.io.archives import hides_zip

OLDEST_OPSET = 7
"""Before opset 7, Add and its like broadcast by an ``axis`` attribute, and Dropout had a training switch."""

NEWEST_OPSET = 28
"""Up to here the definition of every operator that is read was compared with what its handler does."""

BATCH_MARK, NO_BATCH = "relutrim.batch_axis", "none"
"""Metadata of files written from a network without a batch axis, whose first axis looks like one."""

STANDARD_DOMAINS = ("", "ai.onnx")

_BEGINNINGS = (
    (b"PK\x03\x04", "a zip archive, such as torch.save and torch.export write (.pt, .pt2)"),
    (b"\x80\x02", "a Python pickle, such as torch.save wrote before torch 1.6"),
    (b"\x80\x03", "a Python pickle"),
    (b"\x80\x04", "a Python pickle"),
    (b"\x80\x05", "a Python pickle"),
    (b"\x1f\x8b", "a gzip file; if there is ONNX inside, name it .onnx.gz"),
    (b"\x89HDF", "an HDF5 file, such as Keras writes"),
    (b"\x93NUMPY", "a numpy array"),
    (b"version https://git-lfs", "a Git LFS pointer; fetch the file that it stands for with git lfs pull"),
)


def parse(content: bytes) -> onnx.ModelProto:
    """The model in ``content``, or an :class:`InputError` that says what the bytes seem to be instead."""
    if not content:
        raise InputError("the file is empty, not an ONNX model")
    look = _guess(content)
    if look is not None:
        raise InputError(f"this is not an ONNX model; it looks like {look}")
    if hides_zip(content):
        raise InputError(
            "there is a zip archive in this ONNX model, which other tools would take for the model; "
            "export it again"
        )
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except Exception as error:  # protobuf's exceptions differ between its implementations
        raise InputError(
            f"this is not an ONNX model, or it is cut short ({len(content)} bytes do not parse: {error}); "
            "export or download it again"
        ) from None
    if not model.HasField("graph"):
        raise InputError("this is not an ONNX model: it holds no graph; export or download it again")
    return model


def opset_of(model: onnx.ModelProto) -> int:
    """The version of the standard operators the model is written in; 0 if it uses none."""
    versions = {int(entry.version) for entry in model.opset_import if entry.domain in STANDARD_DOMAINS}
    if not versions and model.ir_version < 3:
        return 1
    if len(versions) > 1 or (not versions and any(n.domain in STANDARD_DOMAINS for n in model.graph.node)):
        said = f"several ({sorted(versions)})" if versions else "none"
        raise InputError(
            f"the model must name one version of the standard operator set and names {said}; "
            "the file is cut short or was not written by an ONNX exporter"
        )
    return max(versions, default=0)


def check_frame(model: onnx.ModelProto) -> None:
    """Refuse a graph that computes nothing."""
    if not model.graph.node and not model.graph.output:
        raise InputError("the graph is empty: no node and no output; export the model again")


def _guess(content: bytes) -> str | None:
    """What the bytes are, if they are clearly not protobuf."""
    for beginning, name in _BEGINNINGS:
        if content.startswith(beginning):
            return name
    if content[4:8] == b"TFL3":
        return "a TensorFlow Lite model"
    if len(content) > 9 and content[8:9] == b"{" and int.from_bytes(content[:8], "little") < len(content):
        return "a safetensors file"
    # An ONNX file begins with the IR version, a control character; text has none.
    start = content[:512]
    if all(byte >= 32 or byte in b"\t\n\r\f" for byte in start):
        try:
            start.decode("utf-8")
        except UnicodeDecodeError as error:
            if error.start < len(start) - 4:  # not merely a character cut in two
                return None
        return "a text file"
    return None


def constant_inputs(model: onnx.ModelProto) -> list[str]:
    """The inputs that have stored values. A runtime may be given others; what is proved holds for these."""
    stored = {tensor.name for tensor in model.graph.initializer}
    return [entry.name for entry in model.graph.input if entry.name in stored]
