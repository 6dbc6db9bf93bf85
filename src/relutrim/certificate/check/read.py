"""From ONNX bytes to the checker's own graph, for one input at a time.

A batch axis, of open or fixed length, stands there with length 1. An operator that has no handler is refused
by name.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto

from relutrim.certificate.check import operators as _operators  # noqa: F401  (fills HANDLERS)
from relutrim.certificate.check.call import HANDLERS, Call, Ended, Tensor, Value, decoded, size_of
from relutrim.certificate.check.maps import Graph, Node, Tail
from relutrim.errors import InputError, RelutrimError, UnsupportedError


def read(content: bytes) -> Graph:
    """The graph of an ONNX file."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except Exception as error:  # protobuf's exceptions differ between its implementations
        raise InputError(f"this is not an ONNX model ({error})") from None
    if model.functions or model.graph.sparse_initializer or not model.graph.output:
        raise UnsupportedError("functions, sparse weights and graphs without outputs are not read")
    opsets = {entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")}
    if len(opsets) != 1 or not 7 <= min(opsets) <= 28:
        raise UnsupportedError(f"operator sets {sorted(opsets)}; one from 7 to 28 is read")
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    inputs = [entry for entry in model.graph.input if entry.name not in constants]
    if len(inputs) != 1 or inputs[0].type.tensor_type.elem_type not in (
        TensorProto.FLOAT,
        TensorProto.DOUBLE,
    ):
        raise UnsupportedError("models with one float32 or float64 input are read")
    sizes = [int(axis.dim_value) for axis in inputs[0].type.tensor_type.shape.dim]
    marked = {entry.key: entry.value for entry in model.metadata_props}.get("relutrim.batch_axis") == "none"
    single = len(sizes) > 1 and not marked and sizes[0] != 1
    try:
        return _Reader(model, opsets.pop(), [1, *sizes[1:]] if single else sizes).graph()
    except RelutrimError:
        if not single or sizes[0] < 1:
            raise
        return _Reader(model, next(iter(opsets), 17), sizes).graph()  # axis 0 may be no batch


class _Reader:
    def __init__(self, model: onnx.ModelProto, opset: int, sizes: Sequence[int]) -> None:
        entry = next(e for e in model.graph.input if e.name not in {t.name for t in model.graph.initializer})
        if any(size < 1 for size in sizes):
            raise InputError(f"the input's shape {list(sizes)} leaves more than the batch open")
        self.proto, self.opset, self.shape = model.graph, opset, tuple(sizes)
        self.name = entry.name
        self.double = entry.type.tensor_type.elem_type == TensorProto.DOUBLE
        self.tensors: dict[str, Tensor] = {t.name: decoded(t) for t in model.graph.initializer}
        self.tensors[entry.name] = Value(0, self.shape)
        self.nodes: list[Node] = []
        self.sizes = [size_of(self.shape)]

    def graph(self) -> Graph:
        waiting = self._needed()
        while waiting:
            ready = [n for n in waiting if all(name in self.tensors for name in n.input if name)]
            if not ready:
                raise InputError("the graph has a cycle or reads what nothing makes")
            for node in ready:
                try:
                    with np.errstate(all="ignore"):
                        self._add(node)
                except RelutrimError as error:
                    raise error.at(f"node {node.name or node.output[0]!r} ({node.op_type})") from None
                except (
                    ValueError,
                    IndexError,
                    TypeError,
                    KeyError,
                    OverflowError,
                    ZeroDivisionError,
                ) as error:
                    raise InputError(f"node {node.name!r} ({node.op_type}) makes no sense: {error}") from None
            done = {id(node) for node in ready}
            waiting = [node for node in waiting if id(node) not in done]
        outputs = []
        for entry in self.proto.output:
            made = self.tensors.get(entry.name)
            if not isinstance(made, Value | Ended):
                raise UnsupportedError(f"output {entry.name!r} does not depend on the input")
            value = made if isinstance(made, Value) else made.value
            steps = () if isinstance(made, Value) else made.steps
            outputs.append(Tail(entry.name, value.number, steps, value.shape))
        return Graph(self.shape, tuple(self.nodes), tuple(self.sizes), tuple(outputs), self.name)

    def _needed(self) -> list[onnx.NodeProto]:
        """The nodes that an output depends on, in the file's order."""
        maker = {name: node for node in self.proto.node for name in node.output if name}
        wanted, seen, found = [entry.name for entry in self.proto.output], set[str](), set[int]()
        while wanted:
            name = wanted.pop()
            if name in maker and name not in seen:
                found.add(id(maker[name]))
                wanted += list(maker[name].input)
            seen.add(name)
        return [node for node in self.proto.node if id(node) in found]

    def _add(self, node: onnx.NodeProto) -> None:
        if node.domain not in ("", "ai.onnx"):
            raise UnsupportedError(f"it is an operator of the domain {node.domain!r}")
        handle = HANDLERS.get(node.op_type)
        if handle is None:
            raise UnsupportedError(f"the checker does not read the operator {node.op_type}")
        made = handle(Call(self, node, [self.tensors[name] if name else None for name in node.input]))
        results = made if isinstance(made, list) else [made]
        for name, result in zip(node.output, results, strict=False):
            if name in self.tensors:
                raise InputError(f"the tensor {name!r} is made twice")
            if name:
                self.tensors[name] = result
