"""Files beside an ONNX model that hold data of its tensors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import onnx
from onnx.external_data_helper import load_external_data_for_tensor

from relutrim.errors import InputError
from relutrim.io.onnx.parse import parse


def external_files(content: bytes) -> list[str]:
    """The names of the files that a model's tensors refer to, relative to the model's folder."""
    found: dict[str, None] = {}
    for tensor in _tensors(parse(content).graph):
        for entry in tensor.external_data:
            if entry.key == "location":
                found[_inside(str(entry.value), tensor.name)] = None
    return list(found)


def with_external(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    """The model with the data of its tensors that lies in ``folder``, changed in place."""
    outside = [
        tensor for tensor in _tensors(model.graph) if tensor.data_location == onnx.TensorProto.EXTERNAL
    ]
    for tensor in outside:
        places = [str(entry.value) for entry in tensor.external_data if entry.key == "location"]
        _inside(places[0] if places else "", tensor.name)
        try:
            load_external_data_for_tensor(tensor, str(folder))
        except Exception as error:  # a missing file, one that is too short, a link
            raise InputError(
                f"its data lies in {places[0]!r} beside the model and cannot be read ({error})",
                where=f"tensor {tensor.name!r}",
            ) from error
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]
    return model


def _inside(name: str, tensor: str) -> str:
    """A name that stays in the model's folder."""
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\\" in name:
        raise InputError(
            f"its data is said to lie in {name!r}, which is not in the model's folder",
            where=f"tensor {tensor!r}",
        )
    return name


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """All tensors of a graph and of those within it."""
    waiting = [graph]
    while waiting:
        current = waiting.pop()
        yield from current.initializer
        for node in current.node:
            for attribute in node.attribute:
                yield from (attribute.t, *attribute.tensors)
                waiting += [inner for inner in (attribute.g, *attribute.graphs) if inner.node]
