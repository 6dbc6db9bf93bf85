"""From ONNX bytes to the checker's own graph, for one input at a time.

An open batch axis stands there with length 1. One of a fixed length above 1 is read as it is: its rows could
be mixed, and then no row by itself says what the model computes. An operator that has no handler is refused
by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto

from relutrim.certificate.check import operators, windows
from relutrim.certificate.check.call import Call, Draft, Tensor, decoded, size_of
from relutrim.certificate.check.domain import Domain
from relutrim.certificate.check.fields import count_fields
from relutrim.certificate.check.kinds import is_archive
from relutrim.certificate.check.maps import Graph, Value
from relutrim.certificate.check.opaque import Unknown, captured
from relutrim.certificate.check.rounding import quotient
from relutrim.errors import InputError, RelutrimError, UnsupportedError

_HANDLERS = {**operators.HANDLERS, **windows.HANDLERS}
_PLAIN = {getattr(AttributeProto, kind) for kind in ("INT", "INTS", "FLOAT", "FLOATS", "STRING", "TENSOR")}


def read(
    content: bytes,
    deadline: float = float("inf"),
    domain: Domain | None = None,
    *,
    output_relu: bool = False,
    opaque: bool = False,
) -> Graph:
    """The graph of an ONNX file, behind the normalisation of a domain, and before a ReLU at each output that
    has none; ``opaque`` allows for what is not known.
    """
    if is_archive(content):
        raise InputError("there is a zip archive in it, which another reader could take for the model")
    count_fields(content, onnx.ModelProto.DESCRIPTOR)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except Exception as error:  # protobuf's exceptions differ between its implementations
        raise InputError(f"this is not an ONNX model ({error})") from None
    for tensor in _tensors(model):
        if tensor.data_location == TensorProto.EXTERNAL or tensor.external_data:
            raise UnsupportedError(f"the data of the tensor {tensor.name!r} lies in another file")
    if model.graph.sparse_initializer or not model.graph.output:
        raise UnsupportedError("sparse weights and graphs without outputs are not read")
    if model.functions and not opaque:
        raise UnsupportedError("functions are not read")
    opsets = list({entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")})
    if len(opsets) != 1 or not 7 <= opsets[0] <= 28:
        raise UnsupportedError(f"operator sets {opsets}; one from 7 to 28 is read")
    listed = {
        "input": [entry.name for entry in model.graph.input],
        "entry of the metadata": [entry.key for entry in model.metadata_props],
    }
    for what, every in listed.items():
        if len(set(every)) != len(every):
            raise InputError(f"an {what} is there twice")
    stored = {tensor.name for tensor in model.graph.initializer}
    inputs = [entry for entry in model.graph.input if entry.name not in stored]
    first = next((entry for entry in inputs if _real(entry)), None) if opaque else None
    if not opaque and len(inputs) == 1 and _real(inputs[0]):
        first = inputs[0]
    if first is None:
        raise UnsupportedError("models with one float32 or float64 input, of a shape that is known, are read")
    made = [name for node in model.graph.node for name in node.output if name]
    every = [entry.name for entry in inputs]
    names = Counter([*made, *every, *(tensor.name for tensor in model.graph.initializer)])
    if max(names.values()) > 1:
        raise InputError(f"the tensor {names.most_common(1)[0][0]!r} is made twice")
    sizes = [int(axis.dim_value) for axis in first.type.tensor_type.shape.dim]
    marked = {entry.key: entry.value for entry in model.metadata_props}.get("relutrim.batch_axis") == "none"
    single = len(sizes) > 1 and not marked and sizes[0] < 1
    draft = Draft(opsets[0], deadline)
    shape = [1, *sizes[1:]] if single else sizes
    unknown = Unknown(model, first, single) if opaque else None
    others = [entry for entry in inputs if entry is not first]
    return _graph(model.graph, first.name, shape, draft, domain, output_relu, unknown, others)


def _tensors(message: Any) -> Iterator[TensorProto]:
    """All tensors, wherever they are: what is not known is compared by its bytes, which say nothing of data
    in another file.
    """
    for field, value in message.ListFields():
        if field.message_type is not None:
            for one in [value] if hasattr(value, "ListFields") else value:
                if isinstance(one, TensorProto):
                    yield one
                else:
                    yield from _tensors(one)


def _real(entry: onnx.ValueInfoProto) -> bool:
    """Whether an input is a tensor of real numbers whose shape is said."""
    kind = entry.type.tensor_type
    sizes = [int(axis.dim_value) for axis in kind.shape.dim]
    known = kind.HasField("shape") and all(size > 0 for size in sizes[1:])
    return known and kind.elem_type in (TensorProto.FLOAT, TensorProto.DOUBLE)


def _graph(
    proto: onnx.GraphProto,
    name: str,
    shape: Sequence[int],
    draft: Draft,
    domain: Domain | None,
    output_relu: bool,
    unknown: Unknown | None,
    others: Sequence[onnx.ValueInfoProto],
) -> Graph:
    if any(size < 1 for size in shape):
        raise InputError(f"the input's shape {list(shape)} leaves more than the batch open")
    draft.sizes.append(size_of(shape))
    tensors: dict[str, Tensor] = {}
    for tensor in proto.initializer:
        tensors[tensor.name] = decoded(tensor) if unknown is None else unknown.stored(draft, tensor)
    start = tensors[name] = Value(0, tuple(shape))
    for entry in others:
        assert unknown is not None
        tensors[entry.name] = unknown.given(draft, entry)
    if domain is not None and domain.std is not None:
        before = Call(draft, onnx.helper.make_node("Div", [], [name]), [])
        factor, radius = quotient(domain.std.reshape(shape))
        shifted = before.sum((1.0, start), plus=-domain.mean.reshape(shape))
        tensors[name] = before.sum((factor, shifted), radius=radius)
    for node in _needed(proto):
        known = len(draft.nodes)
        try:
            tensors |= _made(node, tensors, draft)
        except UnsupportedError as error:
            if unknown is None:
                raise error.at(f"node {node.name or node.output[0]!r} ({node.op_type})") from None
            draft.back_to(known)
            tensors |= unknown.made(draft, node, tensors)
        except RelutrimError as error:
            raise error.at(f"node {node.name or node.output[0]!r} ({node.op_type})") from None
    outputs = {entry.name: tensors.get(entry.name) for entry in proto.output}
    values = {name: value for name, value in outputs.items() if isinstance(value, Value)}
    if len(values) != len(proto.output):
        raise UnsupportedError("there are outputs that do not depend on the input, or one twice")
    if output_relu:
        values = _behind_relus(values, draft)
    around = b"" if unknown is None else unknown.around(draft.nodes)
    return Graph(tuple(shape), tuple(draft.nodes), tuple(draft.sizes), values, name, around)


def _behind_relus(values: dict[str, Value], draft: Draft) -> dict[str, Value]:
    """Outputs with a ReLU behind each that is none, one for all that are the same value."""
    made: dict[Value, Value] = {}
    for name, value in values.items():
        if value.steps:
            raise UnsupportedError(f"output {name!r} cannot go through a ReLU behind a softmax or its like")
        if value not in made:
            last = draft.nodes[value.number - 1] if value.number > 0 else None
            relu = last is not None and last.operation is None and last.opaque is None
            call = Call(draft, onnx.helper.make_node("Relu", [], [name]), [])
            made[value] = value if relu else call.relu(value)
    return {name: made[value] for name, value in values.items()}


def _needed(proto: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes that an output depends on, in the file's order."""
    wanted, found = {entry.name for entry in proto.output}, []
    for node in reversed(proto.node):
        if wanted & {name for name in node.output if name}:
            wanted |= {*node.input, *captured(node)}
            found.append(node)
    return found[::-1]


def _made(node: onnx.NodeProto, tensors: dict[str, Tensor], draft: Draft) -> dict[str, Tensor]:
    """The tensors that a node makes, by their names."""
    if node.domain not in ("", "ai.onnx"):
        raise UnsupportedError(f"it is an operator of the domain {node.domain!r}")
    if node.op_type not in _HANDLERS:
        raise UnsupportedError(f"the checker does not read the operator {node.op_type}")
    if len({a.name for a in node.attribute}) != len(node.attribute):
        raise InputError("it has an attribute twice")
    if any(a.type not in _PLAIN or a.ref_attr_name for a in node.attribute):
        raise UnsupportedError("it has attributes that are neither numbers, words nor tensors")
    missing = [name for name in node.input if name and name not in tensors]
    if missing:
        raise InputError(f"it reads {missing[0]!r}, which no node before it makes")
    call = Call(draft, node, [tensors[n] if n else None for n in node.input])
    try:
        with np.errstate(all="ignore"):
            made = _HANDLERS[node.op_type](call)
    except RelutrimError:
        raise
    except Exception as error:  # numpy, onnx: whatever they say of a node that contradicts itself
        raise UnsupportedError(f"it cannot be read: {error}") from None
    results = made if isinstance(made, list) else [made]
    draft.spend(*(one for one in results if isinstance(one, np.ndarray)))
    return {name: result for name, result in zip(node.output, results, strict=False) if name}
