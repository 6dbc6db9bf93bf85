"""Nodes that the checker does not know: what they consist of, what they read, and the shapes that they make.

Such a node is known by a hash of all that it does (its operator, its attributes with the graphs within, the
constants that it reads), so two of them do the same to the same values. What it makes may be anything. Its
shape is what ONNX's own inference says of the file without the shapes that the file claims.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from relutrim.certificate.check.call import MOST, Draft, Tensor, decoded
from relutrim.certificate.check.maps import Node, Value
from relutrim.errors import InputError, UnsupportedError

_REAL = (TensorProto.FLOAT, TensorProto.DOUBLE)
_LONGEST = 2**20
"""ONNX's inference, if it follows the numbers in lists, takes memory for the longest one."""
_SHAPELESS = "of a shape that is not known"


def captured(node: onnx.NodeProto) -> list[str]:
    """The names that graphs within a node take from around it."""
    found: set[str] = set()
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            found |= _free(graph)
    return sorted(found)


def _free(graph: onnx.GraphProto) -> set[str]:
    made = {entry.name for entry in graph.input} | {tensor.name for tensor in graph.initializer}
    made |= {tensor.values.name for tensor in graph.sparse_initializer}
    made |= {name for node in graph.node for name in node.output}
    read = {entry.name for entry in graph.output}
    for node in graph.node:
        read |= {*node.input, *captured(node)}
    return read - made - {""}


@dataclass(eq=False)
class Unknown:
    """What is not known of a model whose first real input is ``first``, read with a batch of one if it is
    open.
    """

    model: onnx.ModelProto
    first: onnx.ValueInfoProto
    single: bool
    _shapes: dict[str, tuple[int, ...]] | None = field(default=None, init=False)

    def stored(self, draft: Draft, tensor: onnx.TensorProto) -> Tensor:
        """A stored tensor; one of a type that is not known is a value that nothing is known of."""
        if tensor.data_location == TensorProto.EXTERNAL or tensor.external_data:
            raise UnsupportedError(f"the tensor {tensor.name!r} lies in another file")
        try:
            return decoded(tensor)
        except UnsupportedError:
            content = onnx.TensorProto()
            content.CopyFrom(tensor)
            content.ClearField("name")
            return _added(draft, tensor.name, _hash(b"stored", _bytes(content)), [], None)

    def given(self, draft: Draft, entry: onnx.ValueInfoProto) -> Value:
        """A further input."""
        what = _hash(b"input", entry.name.encode(), _bytes(entry.type))
        return _added(draft, entry.name, what, [], self._shape(entry.name))

    def made(self, draft: Draft, node: onnx.NodeProto, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """What a node makes that is not known."""
        names = [*node.input, *captured(node)]
        lost = [name for name in names if name and name not in tensors]
        if lost:
            raise InputError(f"it reads {lost[0]!r}, which no node before it makes")
        read = [tensors[name] if name else None for name in names]
        parts = [one.encode() for one in (node.op_type, node.domain, node.overload, str(len(node.input)))]
        parts += sorted(_bytes(attribute) for attribute in node.attribute)
        parts += [part for one in read for part in _parts(one)]
        numbers = [one.number for one in read if isinstance(one, Value)]
        return {
            name: _added(draft, name, _hash(*parts, str(at).encode()), numbers, self._shape(name))
            for at, name in enumerate(node.output)
            if name
        }

    def around(self, nodes: Sequence[Node]) -> bytes:
        """What nodes that are not known may depend on, if there are any."""
        if all(node.opaque is None for node in nodes):
            return b""
        parts = sorted(_bytes(entry) for entry in self.model.opset_import)
        return _hash(*parts, b"functions", *sorted(_bytes(one) for one in self.model.functions))

    def _shape(self, name: str) -> tuple[int, ...] | None:
        if self._shapes is None:
            self._shapes = self._inferred()
        return self._shapes.get(name)

    def _inferred(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all tensors of real numbers that follow from those of inputs and weights."""
        plain = onnx.ModelProto()
        plain.CopyFrom(self.model)
        for graph in _graphs(plain):
            del graph.value_info[:]
            for entry in graph.output:
                if entry.type.HasField("tensor_type"):
                    entry.type.tensor_type.ClearField("shape")
        if self.single:
            batch = self.first.type.tensor_type.shape.dim[0].dim_param
            for entry in plain.graph.input:
                axes = entry.type.tensor_type.shape.dim
                for at, axis in enumerate(axes):
                    first = entry.name == self.first.name and at == 0
                    if first or (axis.dim_param and axis.dim_param == batch):
                        axis.dim_value = 1
        try:
            found = onnx.shape_inference.infer_shapes(plain)
            if not any(map(_is_long, _entries(found.graph))):
                found = onnx.shape_inference.infer_shapes(plain, data_prop=True)
        except Exception:  # whatever it does not like, nothing is known then
            return {}
        shapes: dict[str, tuple[int, ...]] = {}
        for entry in _entries(found.graph):
            kind = entry.type.tensor_type
            sizes = tuple(int(axis.dim_value) for axis in kind.shape.dim)
            if kind.elem_type in _REAL and kind.HasField("shape") and all(sizes) and math.prod(sizes) <= MOST:
                shapes[entry.name] = sizes
        return shapes


def _graphs(message: Any) -> Iterator[onnx.GraphProto]:
    """All graphs in a part of a model: its own, those in its nodes, and those in its functions' nodes."""
    if isinstance(message, onnx.GraphProto):
        yield message
    for kind, content in message.ListFields():
        if kind.message_type is not None:
            for one in [content] if hasattr(content, "ListFields") else content:
                yield from _graphs(one)


def _entries(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    return [*graph.input, *graph.value_info, *graph.output]


def _is_long(entry: onnx.ValueInfoProto) -> bool:
    axes = entry.type.tensor_type.shape.dim
    return len(axes) == 1 and axes[0].dim_value > _LONGEST


def _added(
    draft: Draft, name: str, what: bytes, numbers: Sequence[int], shape: tuple[int, ...] | None
) -> Value:
    draft.sizes.append(-1 if shape is None else math.prod(shape))
    draft.nodes.append(Node(None, tuple(numbers), name, opaque=what))
    return Value(len(draft.nodes), shape or (), () if shape is not None else (_SHAPELESS,))


def _parts(one: Tensor | None) -> list[bytes]:
    """What identifies an input of a node: a constant's bits, a value's shape."""
    if one is None:
        return [b"none"]
    if isinstance(one, Value):
        return [b"value", repr((one.shape, one.steps)).encode()]
    return [b"constant", repr((one.dtype.str, one.shape)).encode(), np.ascontiguousarray(one).tobytes()]


def _bytes(
    message: onnx.AttributeProto
    | onnx.TypeProto
    | onnx.TensorProto
    | onnx.FunctionProto
    | onnx.OperatorSetIdProto,
) -> bytes:
    return bytes(message.SerializeToString(deterministic=True))


def _hash(*parts: bytes) -> bytes:
    """Of parts, none of which can be taken for two."""
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "little") + part)
    return found.digest()
