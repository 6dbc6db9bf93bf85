"""From an ONNX model to a network.

The function that is read is the one over the real numbers: weights are taken as they are stored, and nothing
is rounded on the way without a radius that says so. What cannot be represented like that is refused.

1. The first axis of the input is the batch, unless the input has only one axis. If some node does not treat
   it so and the axis has a fixed length, the file has no batch axis and the whole tensor is one input.
2. Nodes that no output depends on are left out.
3. A value is known by the name of its ONNX tensor. An Identity that only names an output is no node.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from relutrim.errors import InputError, NetworkError, RelutrimError, UnsupportedError
from relutrim.formats.files import read_bytes
from relutrim.formats.onnx import handlers as _handlers  # noqa: F401  (fills the registry)
from relutrim.formats.onnx.conversion import (
    HANDLERS,
    BatchAxisError,
    Call,
    Conversion,
    Operand,
    Tail,
    Value,
    describe,
)
from relutrim.formats.onnx.handlers.barriers import within
from relutrim.formats.onnx.parse import BATCH_MARK, NO_BATCH, STANDARD_DOMAINS, check_frame, opset_of, parse
from relutrim.formats.onnx.tensors import FLOATS, Constant, type_name
from relutrim.network import Network, Node, Output, Port, Reshape

_REASONS = {
    **dict.fromkeys(("If", "Loop", "Scan"), "control flow; trace the model so that it becomes a plain graph"),
    **dict.fromkeys(("RNN", "LSTM", "GRU"), "recurrent; relutrim reads feed-forward ReLU networks"),
    **dict.fromkeys(
        ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinearMatMul", "MatMulInteger"),
        "quantised arithmetic; give relutrim the float model",
    ),
    **dict.fromkeys(
        ("Size", "ConstantOfShape", "Range", "NonZero", "Where"),
        "not read; if it only computes shapes, simplify the model with onnxsim or export it with a fixed "
        "input shape",
    ),
    **dict.fromkeys(
        ("Exp", "Log", "Sqrt", "Pow", "Softsign", "ThresholdedRelu", "LayerNormalization"),
        "neither piecewise linear nor a function whose range and slopes are known beforehand, as those of a "
        "Sigmoid are; cut the model in two around it",
    ),
}


def read_onnx(path: Path) -> Network:
    """The network in an ``.onnx`` or ``.onnx.gz`` file."""
    content = read_bytes(path)
    try:
        return network_from_proto(parse(content))
    except RelutrimError as error:
        raise error.at(str(path)) from error.__cause__
    except Exception as error:  # a damaged file must end in a message, whatever it broke
        raise InputError(
            f"the model cannot be read ({type(error).__name__}: {error}); check it with "
            "onnx.checker.check_model",
            where=str(path),
        ) from error


def network_from_proto(model: onnx.ModelProto) -> Network:
    """The network that an ONNX model stands for."""
    opset = opset_of(model)
    check_frame(model)
    constants = _constants(model.graph)
    port, dtype = _input(model.graph, constants)
    nodes = _live(_sorted(model.graph, port.name, constants), model.graph)
    metadata = {str(entry.key): str(entry.value) for entry in model.metadata_props}
    whole = Port(port.name, (port.batch, *port.shape), None) if isinstance(port.batch, int) else port
    if metadata.pop(BATCH_MARK, "") == NO_BATCH:
        port = whole
    try:
        return _convert(model.graph, nodes, constants, port, dtype, opset, metadata)
    except BatchAxisError:
        if port is whole:
            raise
        return _convert(model.graph, nodes, constants, whole, dtype, opset, metadata)


def _constants(graph: onnx.GraphProto) -> dict[str, Constant]:
    constants: dict[str, Constant] = {}
    for tensor in graph.initializer:
        if tensor.name in constants:
            raise NetworkError(f"two tensors are called {tensor.name!r}")
        constants[tensor.name] = Constant.stored(tensor.name, tensor)
    return constants


def _input(graph: onnx.GraphProto, constants: Mapping[str, Constant]) -> tuple[Port, str]:
    """The input and its type. Models before IR 4 list their weights among the inputs."""
    inputs = [entry for entry in graph.input if entry.name not in constants]
    if len(inputs) != 1:
        found = ", ".join(repr(entry.name) for entry in inputs[:5]) or "none"
        raise InputError(
            f"relutrim reads models with one input, and this one has {len(inputs)} ({found}); "
            "fix the others to constants, or join them before exporting"
        )
    (entry,) = inputs
    where = f"input {entry.name!r}"
    if not entry.name:
        raise InputError("the input has no name; the file is damaged")
    if entry.type.WhichOneof("value") != "tensor_type" or not entry.type.tensor_type.HasField("shape"):
        raise InputError(
            "it is not declared as a tensor with a shape; export the model again with one", where=where
        )
    kind = entry.type.tensor_type.elem_type
    if kind not in FLOATS:
        raise InputError(
            f"it is {type_name(kind)}; relutrim reads models in float32 and float64", where=where
        )
    sizes = [
        int(axis.dim_value) if axis.HasField("dim_value") else str(axis.dim_param)
        for axis in entry.type.tensor_type.shape.dim
    ]
    own = sizes if len(sizes) < 2 else sizes[1:]
    shape = tuple(size for size in own if isinstance(size, int) and size > 0)
    if len(shape) != len(own):
        raise InputError(
            f"its shape {sizes} leaves more than the batch axis open; export the model with a fixed input "
            "shape",
            where=where,
        )
    if len(sizes) < 2:
        return Port(entry.name, shape, None), FLOATS[kind]
    batch = sizes[0]
    if isinstance(batch, int) and batch < 1:  # some exporters write an open axis as 0 or -1
        batch = ""
    return Port(entry.name, shape, batch or "batch"), FLOATS[kind]


def _sorted(graph: onnx.GraphProto, port: str, constants: Mapping[str, Constant]) -> list[onnx.NodeProto]:
    """The nodes in topological order, in that of the file where it is one."""
    maker: dict[str, int] = {}
    for index, node in enumerate(graph.node):
        for name in filter(None, node.output):
            if name in maker or name in constants or name == port:
                raise NetworkError(f"the tensor {name!r} is made twice", where=describe(node))
            maker[name] = index
    waits: list[int] = []
    readers: dict[int, list[int]] = {}
    for index, node in enumerate(graph.node):
        for name in filter(None, node.input):
            if name not in maker and name not in constants and name != port:
                raise NetworkError(f"it reads {name!r}, which nothing makes", where=describe(node))
        needed = {maker[name] for name in node.input if name in maker}
        waits.append(len(needed))
        for other in needed:
            readers.setdefault(other, []).append(index)
    ready = [index for index, count in enumerate(waits) if not count]
    order: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for reader in readers.get(index, []):
            waits[reader] -= 1
            if not waits[reader]:
                heapq.heappush(ready, reader)
    if len(order) != len(graph.node):
        stuck = next(node for index, node in enumerate(graph.node) if waits[index])
        raise NetworkError(
            "the graph has a cycle; recurrent networks must be unrolled first", where=describe(stuck)
        )
    return [graph.node[index] for index in order]


def _live(nodes: Sequence[onnx.NodeProto], graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes that some output depends on."""
    wanted = {entry.name for entry in graph.output}
    kept = []
    for node in reversed(nodes):
        if any(name in wanted for name in node.output if name):
            kept.append(node)
            wanted.update(node.input)
    return kept[::-1]


def _convert(
    graph: onnx.GraphProto,
    nodes: Sequence[onnx.NodeProto],
    constants: Mapping[str, Constant],
    port: Port,
    dtype: str,
    opset: int,
    metadata: Mapping[str, str],
) -> Network:
    """The network, if axis 0 is what ``port`` says it is."""
    tensors: dict[str, Operand] = {**constants, port.name: Value(port.name, port.shape)}
    uses = Counter(name for node in nodes for name in node.input)
    uses.update(entry.name for entry in graph.output)
    taken = {*tensors, *(name for node in graph.node for name in node.output), *uses}
    conversion = Conversion(port, dtype, opset, taken, uses, tensors)
    for node in nodes:
        try:
            # Numbers that overflow become infinite here, and operators refuse those.
            with np.errstate(all="ignore"):
                _convert_node(conversion, node)
        except RelutrimError as error:
            raise error.at(describe(node)) from None
    outputs = tuple(_output(conversion, entry.name) for entry in graph.output)
    return Network(port, _read_nodes(conversion, outputs), outputs, dtype, metadata)


def _read_nodes(conversion: Conversion, outputs: Sequence[Output]) -> tuple[Node, ...]:
    """The nodes without those that handlers made and then went around."""
    wanted = {output.source for output in outputs}
    kept = []
    for node in reversed(conversion.nodes.values()):
        if node.name in wanted:
            kept.append(node)
            wanted.update(node.inputs)
    return tuple(reversed(kept))


def _convert_node(conversion: Conversion, node: onnx.NodeProto) -> None:
    if node.domain not in STANDARD_DOMAINS:
        raise UnsupportedError(
            f"it is an operator of the domain {node.domain!r}; relutrim knows the standard ONNX operators "
            "only, "
            "so export without custom or fused operators"
        )
    entry = HANDLERS.get(node.op_type)
    if entry is None:
        reason = _REASONS.get(
            node.op_type, "not one that relutrim represents exactly; rewrite or cut it off when exporting"
        )
        raise UnsupportedError(f"the operator {node.op_type} is {reason}")
    least, most = entry.inputs
    if not least <= len(node.input) <= most or not all(node.input[:least]):
        raise InputError(
            f"it has {len(node.input)} input(s), which is not what {node.op_type} takes; the file is damaged"
        )
    strange = {attribute.name for attribute in node.attribute} - entry.attributes
    if strange:
        raise InputError(f"it has attributes {sorted(strange)}, which {node.op_type} does not have")
    if not any(node.output):
        raise InputError("it makes no tensor; the file is damaged")
    if not entry.behind_tail:
        for name in filter(None, node.input):
            within(conversion, name)
    call = Call(node, conversion)
    made = entry.handle(call)
    results = [made] if isinstance(made, Constant | Value | Tail) else made
    for extra in node.output[len(results) :]:
        if extra and conversion.uses.get(extra):
            raise UnsupportedError(
                f"its second result {extra!r} is used; relutrim represents the first one only"
            )
    for name, result in zip(node.output, results, strict=False):
        if result is not None:
            conversion.settle(name, result, call.made)


def _output(conversion: Conversion, name: str) -> Output:
    """What a graph output is computed from."""
    where = f"output {name!r}"
    operand = conversion.tensors.get(name)
    if operand is None:
        raise NetworkError("nothing makes it", where=where)
    if isinstance(operand, Constant):
        raise UnsupportedError(
            "it is a constant that does not depend on the input; remove it from the model", where=where
        )
    if isinstance(operand, Tail):
        return Output(name, operand.source.name, operand.steps)
    source = name
    while conversion.uses[source] == 1 and source in conversion.nodes:
        node = conversion.nodes[source]
        if not isinstance(node.operator, Reshape) or node.operator.before != node.operator.after:
            break
        del conversion.nodes[source]
        (source,) = node.inputs
    return Output(name, source)
