"""Files beside an ONNX model that hold data of its tensors.

A tensor's data is read only from an ordinary file in the model's folder, under a relative name without links,
and from a range that lies in it. Everything else is an error.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import BinaryIO

import onnx
from onnx import TensorProto, helper

from relutrim.errors import InputError
from relutrim.io.onnx.parse import parse

_DIGITS = 19
"""How many digits an offset or a length may have."""
_TOGETHER = {"UINT4": 2, "INT4": 2, "FLOAT4E2M1": 2, "UINT2": 4, "INT2": 4}
"""How many numbers share a byte."""


@dataclass(frozen=True, order=True)
class Range:
    """Where the data of a tensor lies: a file beside the model, and bytes in it."""

    name: str
    offset: int
    length: int

    @property
    def end(self) -> int:
        """The byte behind the last one."""
        return self.offset + self.length


def external_files(content: bytes) -> list[str]:
    """The names of the files that a model's tensors refer to, relative to the model's folder."""
    if b"location" not in content:  # without parsing what may be large
        return []
    found: dict[str, None] = {}
    for tensor in tensors(parse(content)):
        for entry in tensor.external_data:
            if entry.key == "location":
                found[_inside(str(entry.value), tensor.name)] = None
    return list(found)


def with_external(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    """The model with the data of its tensors that lies in ``folder``, changed in place."""
    for tensor in tensors(model):
        if tensor.data_location == TensorProto.EXTERNAL:
            load(tensor, folder)
    return model


def load(tensor: TensorProto, folder: Path) -> None:
    """Store the data of a tensor that lies in ``folder`` inside of it."""
    found = range_of(tensor, folder)
    with _opened(folder, found.name, tensor.name) as file:
        file.seek(found.offset)
        tensor.raw_data = file.read(found.length)
    tensor.ClearField("data_location")
    del tensor.external_data[:]


def range_of(tensor: TensorProto, folder: Path) -> Range:
    """Where the data of a tensor lies in ``folder``; the range is one of the file."""
    said = {str(entry.key): str(entry.value) for entry in tensor.external_data}
    if len(said) != len(tensor.external_data):
        raise InputError("it says twice where its data lies", where=f"tensor {tensor.name!r}")
    name = _inside(said.get("location", ""), tensor.name)
    with _opened(folder, name, tensor.name) as file:
        size = os.fstat(file.fileno()).st_size
    offset = _number(said.get("offset", "0"), name, tensor.name)
    if "length" in said:
        length = _number(said["length"], name, tensor.name)
    else:
        length = min(_size(tensor), max(size - offset, 0))
    if offset + length > size:
        raise _unreadable(name, tensor.name, f"bytes {offset} to {offset + length} of {size}")
    return Range(name, offset, length)


def tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    """All tensors of a model, of the graphs within its nodes, and of its functions."""
    graphs = [model.graph]
    for training in model.training_info:
        graphs += [training.initialization, training.algorithm]
    waiting = [node for function in model.functions for node in function.node]
    while graphs or waiting:
        if graphs:
            graph = graphs.pop()
            yield from graph.initializer
            for sparse in graph.sparse_initializer:
                yield from (sparse.values, sparse.indices)
            waiting += graph.node
            continue
        for attribute in waiting.pop().attribute:
            yield from attribute.tensors
            if attribute.HasField("t"):
                yield attribute.t
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                if sparse.HasField("values"):
                    yield from (sparse.values, sparse.indices)
            graphs += [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def _inside(name: str, tensor: str) -> str:
    """A name that stays in the model's folder, in its plain form."""
    path = PurePosixPath(name)
    elsewhere = path.is_absolute() or ".." in path.parts or PureWindowsPath(name).drive
    if not path.parts or elsewhere or "\\" in name or "\0" in name:
        raise InputError(
            f"its data is said to lie in {name!r}, which is not in the model's folder",
            where=f"tensor {tensor!r}",
        )
    return str(path)


def _opened(folder: Path, name: str, tensor: str) -> BinaryIO:
    """An ordinary file of the folder, to which no link leads."""
    path = folder
    try:
        for part in PurePosixPath(name).parts:
            path /= part
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                raise _unreadable(name, tensor, f"{path} is a link; put the file itself there")
        if not stat.S_ISREG(mode):
            raise _unreadable(name, tensor, "it is not an ordinary file")
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise _unreadable(name, tensor, error.strerror or str(error)) from None
    return os.fdopen(handle, "rb")


def _number(text: str, name: str, tensor: str) -> int:
    """An offset or a length."""
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS):
        raise _unreadable(name, tensor, f"{text[:40]!r} is no offset or length")
    return int(text)


def _size(tensor: TensorProto) -> int:
    """How many bytes the numbers of a tensor take."""
    kind = int(tensor.data_type)
    if kind not in TensorProto.DataType.values() or any(size < 0 for size in tensor.dims):
        return 0
    name = str(TensorProto.DataType.Name(kind))
    if name in ("UNDEFINED", "STRING"):
        return 0
    width = int(helper.tensor_dtype_to_np_dtype(kind).itemsize)
    count = math.prod(int(size) for size in tensor.dims)
    return -(-count * width // _TOGETHER.get(name, 1))


def _unreadable(name: str, tensor: str, why: str) -> InputError:
    return InputError(
        f"its data lies in {name!r} beside the model and cannot be read ({why})", where=f"tensor {tensor!r}"
    )
