"""The tensors of an ONNX graph that are being edited: who reads them, and what they hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from relutrim.errors import InputError, UnsupportedError
from relutrim.io.onnx.emission import free
from relutrim.io.onnx.external import load

_FIELDS = {
    TensorProto.FLOAT: "float_data",
    TensorProto.DOUBLE: "double_data",
    TensorProto.INT64: "int64_data",
    TensorProto.INT32: "int32_data",
}
_FREE_INPUTS = 4
"""From this IR version on, a tensor that is listed among the inputs is one that a caller may replace."""

Array = npt.NDArray[Any]


class Tensors:
    """The initializers of a model and what its Constant nodes hold, with what they are to hold."""

    def __init__(self, model: onnx.ModelProto, folder: Path | None) -> None:
        self.model, self.graph, self.folder = model, model.graph, folder
        self.initializers = {tensor.name: tensor for tensor in self.graph.initializer}
        self.constants = {
            node.output[0]: node
            for node in self.graph.node
            if node.op_type == "Constant" and node.domain in ("", "ai.onnx") and len(node.attribute) == 1
        }
        self.same: dict[str, str] = {}
        """Tensors that are others under another name, by way of Identity nodes."""
        for node in self.graph.node:
            if node.op_type == "Identity" and node.domain in ("", "ai.onnx") and len(node.input) == 1:
                root = self.root(node.input[0])
                if root in self.initializers or root in self.constants:
                    self.same[node.output[0]] = root
        self.taken = {*names(self.graph)}

    def maker(self, name: str) -> onnx.NodeProto | None:
        """The node that makes a tensor."""
        return next((node for node in self.graph.node if name in node.output), None)

    def root(self, name: str) -> str:
        """The tensor that one is."""
        return self.same.get(name, name)

    def fresh(self, stem: str) -> str:
        """A name that nothing in the graph has."""
        return free(stem, self.taken)

    def array(self, name: str) -> Array | None:
        """What a tensor holds; None if it is computed."""
        name = self.root(name)
        if name in self.initializers:
            return self._decoded(self.initializers[name])
        if name not in self.constants:
            return None
        (attribute,) = self.constants[name].attribute
        value = helper.get_attribute_value(attribute)
        if isinstance(value, TensorProto):
            return self._decoded(value)
        if attribute.name in ("value_float", "value_floats"):
            return np.array(value, np.float32)
        return np.array(value, np.int64) if attribute.name in ("value_int", "value_ints") else None

    def _decoded(self, tensor: TensorProto) -> Array:
        if tensor.data_location == TensorProto.EXTERNAL and self.folder is not None:
            copy = TensorProto()
            copy.CopyFrom(tensor)
            load(copy, self.folder)
            tensor = copy
        found: Array = numpy_helper.to_array(tensor)
        return found

    def add(self, stem: str, array: Array) -> str:
        """A new initializer."""
        tensor = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), self.fresh(stem))
        if stem in self.initializers:
            tensor.doc_string = self.initializers[stem].doc_string
        self.insert(tensor)
        return str(tensor.name)

    def insert(self, tensor: TensorProto) -> None:
        """Another initializer; before IR 4 it is listed among the inputs as well."""
        self.graph.initializer.append(tensor)
        self.initializers[tensor.name] = self.graph.initializer[-1]
        if self.model.ir_version < _FREE_INPUTS:
            self.graph.input.append(
                helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )

    def hold(self, name: str, array: Array) -> None:
        """Let a tensor hold something else."""
        for entry in (*self.graph.input, *self.graph.value_info):
            if self.root(entry.name) == name:
                _declare(entry, array.shape)
        if name in self.initializers:
            _fill(self.initializers[name], array)
        elif name in self.constants:
            (attribute,) = self.constants[name].attribute
            if attribute.name == "value":
                _fill(attribute.t, array)
            else:
                tensor = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), "")
                self.constants[name].attribute[0].CopyFrom(helper.make_attribute("value", tensor))
        else:
            raise UnsupportedError("it is computed, so nothing can be stored there", where=f"tensor {name!r}")

    def drop(self, unread: set[str]) -> None:
        """Without these initializers, but for those that a caller may replace."""
        inputs = {entry.name for entry in self.graph.input}
        listed = inputs if self.model.ir_version >= _FREE_INPUTS else set()
        for kind in (self.graph.initializer, self.graph.input):
            for at in reversed(range(len(kind))):
                name = kind[at].name
                if name in unread and name in self.initializers and name not in listed:
                    del kind[at]


def names(graph: onnx.GraphProto) -> Iterator[str]:
    """The names of all tensors of a graph and of those within it."""
    waiting = [graph]
    while waiting:
        current = waiting.pop()
        yield from (entry.name for entry in (*current.input, *current.output, *current.value_info))
        yield from (tensor.name for tensor in current.initializer)
        yield from (tensor.values.name for tensor in current.sparse_initializer)
        for node in current.node:
            yield from (*node.input, *node.output)
            waiting += inner(node)


def inner(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The graphs within a node."""
    found = []
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            found.append(attribute.g)
        elif attribute.type == AttributeProto.GRAPHS:
            found += attribute.graphs
    return found


def captured(node: onnx.NodeProto) -> set[str]:
    """What the graphs within a node read that they do not make. (A name that a graph makes hides that of the
    graph around it.)
    """
    found = set()
    for graph in inner(node):
        reads = {entry.name for entry in graph.output}
        for one in graph.node:
            reads |= {*one.input} | captured(one)
        found |= reads - _made(graph) - {""}
    return found


def _made(graph: onnx.GraphProto) -> set[str]:
    made = {entry.name for entry in graph.input} | {tensor.name for tensor in graph.initializer}
    made |= {tensor.values.name for tensor in graph.sparse_initializer}
    return made | {name for node in graph.node for name in node.output}


def _fill(tensor: TensorProto, array: Array) -> None:
    """Another shape and other numbers, in the layout that the tensor has."""
    field = _FIELDS.get(tensor.data_type)
    typed = field is not None and len(getattr(tensor, field)) > 0
    del tensor.dims[:]
    tensor.dims.extend(array.shape)
    if typed:
        assert field is not None
        del getattr(tensor, field)[:]
        getattr(tensor, field).extend(array.reshape(-1).tolist())
        return
    del tensor.external_data[:]
    tensor.ClearField("data_location")
    for one in _FIELDS.values():
        tensor.ClearField(one)
    tensor.raw_data = numpy_helper.from_array(np.ascontiguousarray(array)).raw_data


def _declare(entry: onnx.ValueInfoProto, shape: Sequence[int]) -> None:
    """Another shape for what is declared of a tensor."""
    if not entry.type.HasField("tensor_type"):
        raise InputError("it is not declared as a tensor", where=f"input {entry.name!r}")
    dims = entry.type.tensor_type.shape.dim
    del dims[:]
    for size in shape:
        dims.add(dim_value=size)
