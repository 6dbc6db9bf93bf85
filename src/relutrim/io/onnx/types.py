"""What a model says of its tensors' types and sizes, itself or through onnx's shape inference."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import onnx
from onnx import helper

_SMALL = 1024
"""Larger initializers are no shapes; inference is told their types alone."""
_LONGEST = 2**20
"""Inference that follows the numbers in lists takes memory for the longest one, whatever it knows of it."""

_DEEPEST = 64
_EXPANDED = 2**16
"""Inference follows functions as if they were written out; so many nodes in all are few."""

Size = int | str | None


@dataclass(frozen=True)
class Type:
    """An element type and the sizes of the axes: numbers, names, None for what nobody knows."""

    kind: int
    sizes: tuple[Size, ...]


def declared(entry: onnx.ValueInfoProto) -> Type | None:
    """The type in a declaration; None if it is not a tensor with so many axes."""
    tensor = entry.type.tensor_type
    if entry.type.WhichOneof("value") != "tensor_type" or not tensor.HasField("shape"):
        return None
    sizes = [
        int(axis.dim_value) if axis.HasField("dim_value") else str(axis.dim_param) or None
        for axis in tensor.shape.dim
    ]
    return Type(int(tensor.elem_type), tuple(sizes))


@dataclass(frozen=True, eq=False)
class Types:
    """The types of a model's tensors. ``port`` is the input whose first axis counts as an axis of the size
    ``batch``, whatever the model calls it.

    Inference runs when somebody asks. It is shown functions only where they have few nodes written out: those
    may call each other in ways that take forever.
    """

    model: onnx.ModelProto
    port: str
    batch: Size

    def of(self, name: str) -> Type | None:
        """The type of a tensor, as far as it is known."""
        return self._declared.get(name) or self._inferred.get(name)

    @cached_property
    def _declared(self) -> dict[str, Type]:
        return _named(self._inputs())

    def _inputs(self) -> list[onnx.ValueInfoProto]:
        made = []
        for entry in self.model.graph.input:
            if entry.name == self.port and isinstance(self.batch, str):
                named = onnx.ValueInfoProto()
                named.CopyFrom(entry)
                named.type.tensor_type.shape.dim[0].dim_param = self.batch
                entry = named
            made.append(entry)
        return made

    @cached_property
    def _inferred(self) -> dict[str, Type]:
        graph = self.model.graph
        light = onnx.ModelProto(ir_version=self.model.ir_version, opset_import=self.model.opset_import)
        light.graph.node.extend(graph.node)
        light.graph.output.extend(graph.output)
        light.graph.value_info.extend(graph.value_info)
        light.graph.input.extend(self._inputs())
        listed = {entry.name for entry in graph.input}
        for tensor in graph.initializer:
            if math.prod(tensor.dims) <= _SMALL:
                light.graph.initializer.append(tensor)
            elif tensor.name not in listed:
                light.graph.input.append(
                    helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
                )
        if _expanded(self.model) <= _EXPANDED:
            light.functions.extend(self.model.functions)
        try:
            found = onnx.shape_inference.infer_shapes(light).graph
            if not any(_is_long(one) for one in (*found.input, *found.value_info, *found.output)):
                found = onnx.shape_inference.infer_shapes(light, data_prop=True).graph
        except Exception:  # what it raises on a node that it cannot follow is not documented
            found = light.graph
        return _named([*found.value_info, *found.output])


def _expanded(model: onnx.ModelProto) -> float:
    """How many nodes a model has with all of its functions written out; infinite if one calls itself."""
    functions = {(one.domain, one.name): one for one in model.functions}
    known: dict[tuple[str, str], float] = {}

    def count(nodes: Iterable[onnx.NodeProto], depth: int) -> float:
        total = 0.0
        for node in nodes:
            total += 1
            for attribute in node.attribute:
                for graph in (attribute.g, *attribute.graphs):
                    total += count(graph.node, depth + 1)
            key = node.domain, node.op_type
            if key in functions:
                if key not in known:
                    known[key] = math.inf  # until it is known: nothing may call itself
                    known[key] = count(functions[key].node, depth + 1) if depth < _DEEPEST else math.inf
                total += known[key]
        return total

    return count(model.graph.node, 0)


def _is_long(entry: onnx.ValueInfoProto) -> bool:
    axes = entry.type.tensor_type.shape.dim
    return len(axes) == 1 and axes[0].dim_value > _LONGEST


def _named(entries: Iterable[onnx.ValueInfoProto]) -> dict[str, Type]:
    types = {entry.name: declared(entry) for entry in entries}
    return {name: one for name, one in types.items() if one is not None}
