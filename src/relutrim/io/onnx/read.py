"""From an ONNX model to a network.

The function that is read is the one over the real numbers: weights are taken as they are stored, and nothing
is rounded on the way without a radius that says so. A node that cannot be represented like that is opaque:
what it reads must stay as it is, and what it makes comes from nowhere.

1. The network's input is the first input that is a float tensor of known sizes; all others come from nowhere.
   Initializers that are inputs, too, count as constants.
2. The first axis of the input is the batch, unless the input has only one axis. If some node does not treat
   it so and the axis has a fixed length, the whole tensor may be one input: the reading with fewer opaque
   nodes counts.
3. Nodes that no output depends on are left out.
4. A value is known by the name of its ONNX tensor. An Identity that only names an output is no node.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path

import numpy as np
import onnx
from onnx import defs

from relutrim.errors import InputError, NetworkError, RelutrimError, UnsupportedError
from relutrim.graph import Network, Node, Output, Port, Reshape
from relutrim.graph.sharing import Slot
from relutrim.io.files import read_bytes
from relutrim.io.onnx import handlers as _handlers  # noqa: F401  (fills the registry)
from relutrim.io.onnx.conversion import (
    HANDLERS,
    BatchAxisError,
    Call,
    Conversion,
    Tensor,
    Unknown,
    Value,
    describe,
    key_of,
)
from relutrim.io.onnx.external import with_external
from relutrim.io.onnx.folding import folded, picks_first
from relutrim.io.onnx.parse import (
    BATCH_MARK,
    NEWEST_OPSET,
    NO_BATCH,
    OLDEST_OPSET,
    STANDARD_DOMAINS,
    check_frame,
    opset_of,
    parse,
)
from relutrim.io.onnx.tensors import FLOATS, Constant
from relutrim.io.onnx.types import Type, Types, declared
from relutrim.io.order import ordered
from relutrim.io.sizes import Room, TooLarge, check_graph
from relutrim.io.tails import TAILS

_STEPS = (*TAILS, "Dropout")


def read_onnx(path: Path) -> Network:
    """The network in an ``.onnx`` or ``.onnx.gz`` file."""
    return reading_of(path).network


def reading_of(path: Path) -> Reading:
    """What an ``.onnx`` or ``.onnx.gz`` file is read as."""
    content = read_bytes(path)
    try:
        return reading(with_external(parse(content), path.parent))
    except RelutrimError as error:
        raise error.at(str(path)) from error.__cause__
    except Exception as error:  # a damaged file must end in a message, whatever it broke
        raise InputError(
            f"the model cannot be read ({type(error).__name__}: {error}); check it with "
            "onnx.checker.check_model",
            where=str(path),
        ) from error


@dataclass(frozen=True, eq=False)
class Reading:
    """A network, and why nodes are opaque in it; whether some would not be without the batch axis."""

    network: Network
    opaque: Mapping[str, str]
    mixes_batch: bool


def network_from_proto(model: onnx.ModelProto) -> Network:
    """The network that an ONNX model stands for."""
    return reading(model).network


def reading(model: onnx.ModelProto) -> Reading:
    """What an ONNX model is read as."""
    check_frame(model)
    graph, opset = model.graph, opset_of(model)
    constants = _constants(graph)
    inputs = [entry for entry in graph.input if entry.name not in constants]
    _check_inputs(graph)
    nodes = _live(_sorted(graph, constants), graph)
    twice = _repeated(entry.key for entry in model.metadata_props)
    if twice is not None:
        raise InputError(f"its metadata have two entries {twice!r}; the file is damaged")
    metadata = {str(entry.key): str(entry.value) for entry in model.metadata_props}
    port, dtype = _input(inputs, {*constants, *(name for node in nodes for name in node.output)})
    named = (
        port.name if any(entry.name == port.name for entry in inputs) else inputs[0].name if inputs else ""
    )
    types = Types(model, named, port.batch)
    local = frozenset(one.name for one in model.functions if one.domain in STANDARD_DOMAINS)
    source = _Source(graph, nodes, constants, types, dtype, opset, local, metadata)
    whole = Port(port.name, (port.batch, *port.shape), None) if isinstance(port.batch, int) else port
    if metadata.pop(BATCH_MARK, "") == NO_BATCH:
        port = whole
    found = _convert(source, port)
    if found.mixes_batch and port is not whole:
        found = min(found, _convert(source, whole), key=lambda one: len(one.opaque))
    check_graph(found.network, source.size, partial(_described, nodes))
    return found


@dataclass(frozen=True, eq=False)
class _Source:
    """What is read."""

    graph: onnx.GraphProto
    nodes: Sequence[onnx.NodeProto]
    constants: Mapping[str, Tensor]
    types: Types
    dtype: str
    opset: int
    functions: frozenset[str]
    metadata: Mapping[str, str]

    @cached_property
    def size(self) -> int:
        """How many bytes the model takes, nearly."""
        graph = self.graph
        parts = (graph.node, graph.initializer, graph.input, graph.output, graph.value_info)
        return sum(int(one.ByteSize()) for part in parts for one in part)

    def knows(self, node: onnx.NodeProto) -> bool:
        """Whether a handler reads such nodes, as the model's operator set defines them."""
        standard = node.domain in STANDARD_DOMAINS and node.op_type not in self.functions
        return standard and node.op_type in HANDLERS and _as_handled(node.op_type, self.opset)


@cache
def _as_handled(kind: str, opset: int) -> bool:
    """Whether an operator means in ``opset`` what it means in some set that handlers were made for."""
    if OLDEST_OPSET <= opset <= NEWEST_OPSET:
        return True
    if opset > defs.onnx_opset_version():
        return False
    try:
        since = defs.get_schema(kind, opset, "").since_version
        near = defs.get_schema(kind, min(max(opset, OLDEST_OPSET), NEWEST_OPSET), "").since_version
    except defs.SchemaError:
        return False
    return bool(since == near)


def _constants(graph: onnx.GraphProto) -> dict[str, Tensor]:
    """The initializers. What sparse ones hold is not looked at."""
    constants: dict[str, Tensor] = {}
    for tensor in graph.initializer:
        if tensor.name in constants:
            raise NetworkError(f"two tensors are called {tensor.name!r}")
        constants[tensor.name] = Constant.stored(tensor.name, tensor)
    for sparse in graph.sparse_initializer:
        constants.setdefault(sparse.values.name, Unknown(sparse.values.name))
    return constants


def _check_inputs(graph: onnx.GraphProto) -> None:
    twice = _repeated(entry.name for entry in graph.input)
    if twice is not None:
        raise InputError(f"two inputs are called {twice!r}; the file is damaged")
    if not all(entry.name for entry in graph.input):
        raise InputError("an input has no name; the file is damaged")


def _input(inputs: Sequence[onnx.ValueInfoProto], taken: Collection[str]) -> tuple[Port, str]:
    """The network's input and its type. A model without one has a stand-in that nothing reads, with the batch
    axis of its first input.
    """
    for entry in inputs:
        found = declared(entry)
        if found is not None and found.kind in FLOATS:
            sizes = found.sizes if len(found.sizes) < 2 else (1, *found.sizes[1:])
            shape = tuple(size for size in sizes if isinstance(size, int) and size > 0)
            if len(shape) == len(found.sizes):
                batch = None if len(shape) < 2 else _batch(found)
                return Port(entry.name, shape[batch is not None :], batch), FLOATS[found.kind]
    first = declared(inputs[0]) if inputs else None
    batch = _batch(first) if first is not None and first.sizes else None
    name = "no input"
    while name in taken or any(entry.name == name for entry in inputs):
        name += "_"
    return Port(name, (), batch), "float32"


def _batch(found: Type) -> int | str:
    """The first axis; some exporters write an open one as 0 or -1."""
    batch = found.sizes[0]
    return "batch" if not batch or (isinstance(batch, int) and batch < 1) else batch


def _repeated(names: Iterable[str]) -> str | None:
    """The first name that is there twice, if there is one."""
    return next((name for name, count in Counter(names).items() if count > 1), None)


def _reads(node: onnx.NodeProto) -> list[str]:
    """The tensors that a node reads, and those that graphs within it may read."""
    found = list(node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            found += [name for inner in graph.node for name in _reads(inner)]
            found += [entry.name for entry in graph.output]
    return list(dict.fromkeys(filter(None, found)))


def _sorted(graph: onnx.GraphProto, constants: Mapping[str, Tensor]) -> list[onnx.NodeProto]:
    """The nodes in topological order, in that of the file where it is one."""
    maker: dict[str, int] = {}
    known = {*constants, *(entry.name for entry in graph.input)}
    for index, node in enumerate(graph.node):
        if not any(node.output):
            raise InputError("it makes no tensor; the file is damaged", where=describe(node))
        for name in filter(None, node.output):
            if name in maker or name in known:
                raise NetworkError(f"the tensor {name!r} is made twice", where=describe(node))
            maker[name] = index
    for node in graph.node:
        for name in filter(None, node.input):
            if name not in maker and name not in known:
                raise NetworkError(f"it reads {name!r}, which nothing makes", where=describe(node))
    needs = [{maker[name] for name in _reads(node) if name in maker} for node in graph.node]
    order = ordered(needs, range(len(needs)))
    if len(order) != len(graph.node):
        stuck = graph.node[min({*range(len(needs))} - {*order})]
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
            wanted.update(_reads(node))
    return kept[::-1]


def _convert(source: _Source, port: Port) -> Reading:
    """The network, if axis 0 is what ``port`` says it is."""
    graph, nodes = source.graph, source.nodes
    tensors: dict[str, Tensor] = {entry.name: Unknown(entry.name) for entry in graph.input}
    tensors |= {**source.constants, port.name: Value(port.name, port.shape)}
    readers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in nodes:
        for name in _reads(node):
            readers[name].append(node)
    for entry in graph.output:
        readers[entry.name].append(onnx.NodeProto())
    kept = {*source.constants, *(node.output[0] for node in nodes if node.op_type == "Constant")}
    conversion = Conversion(
        port,
        source.dtype,
        source.opset,
        Room(source.size),
        source.types,
        tensors=tensors,
        readers=readers,
        kept=kept,
        final=_final(source),
    )
    conversion.taken.update(name for node in graph.node for name in node.output)
    mixes, opaque = False, dict[str, str]()
    for node in nodes:
        call = Call(node, conversion)
        try:
            if not source.knows(node):
                raise UnsupportedError(f"relutrim does not know the operator {node.op_type}")
            # Numbers that overflow become infinite here, and operators refuse those.
            with np.errstate(all="ignore"):
                _convert_node(call)
        except TooLarge as error:
            raise error.at(describe(node)) from None
        except UnsupportedError as error:
            mixes = mixes or isinstance(error, BatchAxisError)
            opaque[call.key] = str(error.at(describe(node)))
            conversion.undo()
            conversion.hide(node, [name for name in _reads(node) if name in tensors])
        except RelutrimError as error:
            raise error.at(describe(node)) from None
    for value, sizes in conversion.measured:
        if not all(picks_first(conversion, node, sizes) for node in readers[sizes]):
            conversion.pin(value)
    outputs, slots = _outputs(conversion), _slots(graph, conversion)
    network = conversion.network(outputs, source.metadata, slots, root=conversion.root)
    return Reading(network, opaque, mixes)


def _final(source: _Source) -> set[str]:
    """The tensors that nothing reads but outputs and steps of tails."""
    found, taken = set[str](), set[str]()
    for node in reversed(source.nodes):
        final = taken.isdisjoint(filter(None, node.output))
        if final:
            found.update(node.output)
        if not final or node.op_type not in _STEPS or not source.knows(node):
            taken.update(_reads(node))
    return found


def _slots(graph: onnx.GraphProto, conversion: Conversion) -> dict[str, set[Slot]]:
    """The inputs of nodes that read each tensor; -1 is what the graphs within a node read, or an output."""
    found: dict[str, set[Slot]] = defaultdict(set)
    for node in graph.node:
        if node.op_type == "Identity" and conversion.root(node.output[0]) != node.output[0]:
            continue  # another name of its input
        for place, name in enumerate(node.input):
            found[conversion.root(name)].add((key_of(node), place))
        for name in {*_reads(node)} - {*node.input}:
            found[conversion.root(name)].add((key_of(node), -1))
    for entry in graph.output:
        found[conversion.root(entry.name)].add((entry.name, -1))
    return found


def _described(nodes: Sequence[onnx.NodeProto], node: Node) -> str:
    """How errors name the node of the file that a node of the network comes from."""
    keys = () if node.origin is None else node.origin.nodes
    return next((describe(one) for one in nodes if key_of(one) in keys), f"node {node.name!r}")


def _convert_node(call: Call) -> None:
    node, conversion = call.node, call.graph
    entry = HANDLERS[node.op_type]
    least, most = entry.inputs
    if not least <= len(node.input) <= most or not all(node.input[:least]):
        raise InputError(
            f"it has {len(node.input)} input(s), which is not what {node.op_type} takes; the file is damaged"
        )
    twice = _repeated(attribute.name for attribute in node.attribute)
    if twice is not None:
        raise InputError(f"it has the attribute {twice!r} twice; the file is damaged")
    strange = {attribute.name for attribute in node.attribute} - entry.attributes
    if strange:
        raise InputError(f"it has attributes {sorted(strange)}, which {node.op_type} does not have")
    made = folded(call) or entry.handle(call)
    results = [made] if isinstance(made, Constant | Value) else made
    for extra in node.output[len(results) :]:
        if extra and conversion.readers.get(extra):
            raise UnsupportedError(f"its result {extra!r} is used; relutrim represents the first one only")
    for name, result in zip(node.output, results, strict=False):
        if result is not None:
            conversion.settle(name, result)


def _outputs(conversion: Conversion) -> tuple[Output, ...]:
    """The outputs that are values of the network. If none is, one that comes from nowhere stands for them."""
    names = [entry.name for entry in conversion.types.model.graph.output]
    found = [output for name in names if (output := _output(conversion, name)) is not None]
    if found or not names:
        return tuple(found)
    tensor = conversion.tensors[names[0]]
    if isinstance(tensor, Value):
        return (Output(names[0], tensor.name),)
    if not isinstance(tensor, Unknown):
        makers = conversion.types.model.graph.node
        tensor = Unknown(names[0], next((key_of(node) for node in makers if names[0] in node.output), None))
    try:
        value = conversion.value_from_nowhere(tensor)
    except UnsupportedError:
        value = conversion.add(tensor, ())
    return (Output(names[0], value.name),)


def _output(conversion: Conversion, name: str) -> Output | None:
    """What a graph output is computed from; None if it comes from nowhere or is a constant."""
    operand = conversion.tensors.get(name)
    if operand is None:
        raise NetworkError("nothing makes it", where=f"output {name!r}")
    if isinstance(operand, Value) and operand.tail:
        return Output(name, operand.name, operand.tail)
    if not isinstance(operand, Value) or conversion.is_fresh(operand.name):
        return None
    source = name
    while conversion.alone(source) and source in conversion.nodes:
        node = conversion.nodes[source]
        if not isinstance(node.operator, Reshape) or node.operator.before != node.operator.after:
            break
        del conversion.nodes[source]
        (source,) = node.inputs
    return Output(name, source)
