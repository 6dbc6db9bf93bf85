"""Edits of a graph, applied to the ONNX model that it was read from.

The model stays what it is but for what the edits name: nodes, their order and names, operator sets, IR
version, metadata, functions, tensors in their layout, whatever protobuf keeps of fields that are not known.

1. It is edited as every source is (:mod:`relutrim.io.editing`). New nodes are written as the writer does, in
   the model's operator set.
2. The model is read again, and has to be the graph that was meant.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import onnx
from onnx import TensorProto

from relutrim.errors import CheckFailed, RelutrimError, UnsupportedError
from relutrim.graph.comparing import check_equal, reading_back
from relutrim.graph.edits import Edit, Resize, difference, settled
from relutrim.graph.graph import Network, Node
from relutrim.graph.operators import Shape
from relutrim.graph.sharing import Slot
from relutrim.graph.slicing import Kept
from relutrim.io.editing import Array, Editor
from relutrim.io.onnx.conversion import key_of as key
from relutrim.io.onnx.emission import Content, Emission, content, emit
from relutrim.io.onnx.external import tensors, with_external
from relutrim.io.onnx.held import Tensors, captured, names
from relutrim.io.onnx.parse import opset_of
from relutrim.io.onnx.read import network_from_proto
from relutrim.io.onnx.resize import NodeResizing, resized
from relutrim.io.onnx.tensors import FLOATS

_MOST = 2**31 - 1
"""How many bytes one protobuf message may have."""


def edited(
    model: onnx.ModelProto,
    before: Network,
    after: Network,
    kept: Mapping[str, Kept] | None = None,
    *,
    folder: Path | None = None,
    metadata: Mapping[str, str] | None = None,
) -> onnx.ModelProto:
    """A copy of ``model``, which was read as ``before``, such that it reads as ``after``; ``folder`` is where
    the files lie that it refers to: what changes of their data is inside of the copy. ``metadata`` are
    entries to add, or to change.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    editor = _Editor(copy, before, settled(before, _renamed(copy.graph, before, after)), folder)
    editor.apply(difference(before, editor.after, kept))
    for name, text in (metadata or {}).items():
        entries = [entry for entry in copy.metadata_props if entry.key == name]
        (entries[0] if entries else copy.metadata_props.add(key=name)).value = text
    if before.shared and after.parameters <= before.parameters and _numbers(copy) > _numbers(model):
        raise UnsupportedError(
            "layers that read one tensor would need different ones, and the file would get larger"
        )
    whole = _whole(copy, folder)
    _check_valid(whole, model)
    with reading_back():
        check_equal(network_from_proto(whole), editor.after)
    return copy


def _numbers(model: onnx.ModelProto) -> int:
    """How many floats its initializers and Constant nodes hold."""
    tensors = [*model.graph.initializer]
    tensors += [one.t for node in model.graph.node if node.op_type == "Constant" for one in node.attribute]
    return sum(math.prod(tensor.dims) for tensor in tensors if tensor.data_type in FLOATS)


def _whole(model: onnx.ModelProto, folder: Path | None) -> onnx.ModelProto:
    """The model with what it refers to, itself if that is nothing."""
    if folder is None or all(tensor.data_location != TensorProto.EXTERNAL for tensor in tensors(model)):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return with_external(copy, folder)


def _check_valid(model: onnx.ModelProto, source: onnx.ModelProto) -> None:
    """Raise :class:`CheckFailed` unless ``onnx.checker`` accepts the model as it accepts its source."""
    reason = _fault(model)
    if reason is not None and _fault(source) is None:
        raise CheckFailed(
            f"the model that was written is no valid ONNX ({reason}); this is a bug in relutrim"
        )


def _fault(model: onnx.ModelProto) -> str | None:
    """Why ``onnx.checker`` refuses a model, if it does; one that is too large for it is not shown to it."""
    try:
        if model.ByteSize() <= _MOST:
            onnx.checker.check_model(model, full_check=True)
    except Exception as error:
        return str(error)
    return None


def _renamed(graph: onnx.GraphProto, before: Network, after: Network) -> Network:
    """``after`` with other names for new values that are called like a tensor of the model."""
    taken = {*names(graph)} | {*before.shapes} | {*after.shapes}
    new: dict[str, str] = {}
    for node in after.nodes:
        if node.name not in before and node.name in {*names(graph)}:
            name = node.name
            while name in taken:
                name += "_"
            taken.add(name)
            new[node.name] = name
    if not new:
        return after
    nodes = (
        replace(node, name=new.get(node.name, node.name), inputs=tuple(new.get(n, n) for n in node.inputs))
        for node in after.nodes
    )
    return replace(after, nodes=tuple(nodes))


class _Editor(Editor[onnx.NodeProto]):
    def __init__(self, model: onnx.ModelProto, before: Network, after: Network, folder: Path | None) -> None:
        self.model, self.graph, self.opset = model, model.graph, opset_of(model)
        self.tensors = Tensors(model, folder)
        self.tensors.taken |= {*after.shapes}
        nodes, values = {key(node): node for node in self.graph.node}, {name: name for name in before.shapes}
        super().__init__(before, after, nodes, values, [output.name for output in self.graph.output])
        self.stocks: dict[Sequence[str], dict[Content, str]] = {}

    def apply(self, edits: Sequence[Edit]) -> list[str]:
        keys = super().apply(edits)
        if keys != [key(node) for node in self.graph.node] or self.gone:
            nodes = []
            for one in keys:
                nodes.append(onnx.NodeProto())
                nodes[-1].CopyFrom(self.nodes[one])
            del self.graph.node[:]
            self.graph.node.extend(nodes)
        unread = self.read_before - self.read(keys)
        self.tensors.drop({name for name in self.tensors.initializers if name in unread})
        self._declare(self.touched, self.made(keys))
        return keys

    def slots(self, node: onnx.NodeProto) -> Iterator[tuple[int, str]]:
        yield from ((place, name) for place, name in enumerate(node.input) if name)
        yield from ((-1, name) for name in sorted(captured(node)))

    def makes(self, node: onnx.NodeProto) -> set[str]:
        return {*node.output} - {""}

    def held(self) -> set[str]:
        made = {entry.name for entry in self.graph.input} | {*self.tensors.initializers}
        return made | {tensor.values.name for tensor in self.graph.sparse_initializer}

    def root(self, tensor: str) -> str:
        return self.tensors.root(tensor)

    def array(self, tensor: str) -> Array | None:
        return self.tensors.array(tensor)

    def resize(self, edit: Resize) -> bool:
        resizing = NodeResizing(
            self.after, edit.instead.new, edit.before, self.nodes[edit.node], self.tensors, self.opset
        )
        found = resized(resizing)
        if found:
            self.contents |= {(edit.node, place): array for place, array in resizing.contents.items()}
        return found

    def rewire(self, key: str, values: Mapping[str, str]) -> None:
        for place, old in enumerate(self.nodes[key].input):
            self.nodes[key].input[place] = values.get(old, old)

    def write(self, node: Node, old: Sequence[str]) -> Mapping[str, onnx.NodeProto]:
        """As the writer has it, with the tensors that the old nodes read where these will do."""
        tensors = {name: name for name in self.after.shapes}
        emission = Emission(self.after, tensors, self.opset, self.tensors.fresh, self._stock(old))
        try:
            emit(emission, node)
        except RelutrimError as error:
            raise error.at(f"node {node.name!r}") from None
        for tensor in emission.initializers:
            self.tensors.insert(tensor)
        return {key(made): made for made in emission.nodes}

    def _stock(self, keys: Sequence[str]) -> dict[Content, str]:
        """The tensors that nodes read, by what they hold."""
        if keys not in self.stocks:
            names = (name for one in keys for name in self.nodes[one].input)
            held = ((str(name), self.tensors.array(name)) for name in names)
            self.stocks[keys] = {content(array): name for name, array in held if array is not None}
        return self.stocks[keys]

    def hold(self, tensor: str, array: Array) -> None:
        self.tensors.hold(tensor, array)

    def own(self, slots: Sequence[Slot], array: Array) -> None:
        one, place = slots[0]
        name = self.tensors.add(self.nodes[one].input[place], array)
        for one, place in slots:
            self.nodes[one].input[place] = name

    def repaired(self, node: onnx.NodeProto, made: set[str]) -> onnx.NodeProto:
        """A Shape of a value that rewrites went around is that of what is read instead."""
        if node.op_type == "Shape" and node.input[0] not in made and node.input[0] in self.before:
            for reader in self.before.readers(node.input[0]):
                new = self.after.get(reader.name)
                if new is not None and len(new.inputs) == len(reader.inputs):
                    other = new.inputs[reader.inputs.index(node.input[0])]
                    if self.after.shapes[other] == self.before.shapes[node.input[0]] and other in made:
                        node.input[0] = other
                        break
        return node

    def _declare(self, touched: set[str], made: set[str]) -> None:
        """Value infos say the shapes that values have now, or nothing."""
        batched = self.before.input.batch is not None
        inner = {entry.name for entry in self.graph.value_info} & touched & made - {*self.after.shapes}
        inferred = self._inferred(inner, touched)
        for at in reversed(range(len(self.graph.value_info))):
            entry = self.graph.value_info[at]
            if entry.name not in touched:
                if entry.name in self.read_before and entry.name not in made:
                    del self.graph.value_info[at]
                continue
            shape, dims = self.after.shapes.get(entry.name), entry.type.tensor_type.shape.dim
            shape = inferred.get(entry.name) if shape is None else shape
            if entry.name not in made or shape is None or len(dims) != len(shape) + batched:
                del self.graph.value_info[at]
                continue
            for dim, size in zip(list(dims)[batched:], shape, strict=True):
                if dim.dim_value != size:
                    dim.dim_value = size

    def _inferred(self, tensors: set[str], touched: set[str]) -> dict[str, Shape]:
        """The shapes, as onnx infers them, of tensors that are no values of the graph, as far as it can; what
        is declared of those that are ``touched`` is not true any more.
        """
        if not tensors:
            return {}
        copy = onnx.ModelProto()
        copy.CopyFrom(self.model)
        del copy.graph.value_info[:]
        copy.graph.value_info.extend(one for one in self.graph.value_info if one.name not in touched)
        try:
            infos = onnx.shape_inference.infer_shapes(copy).graph.value_info
        except Exception:  # what it says of models that it cannot follow differs
            return {}
        batched = self.before.input.batch is not None
        sizes = {
            one.name: [dim.dim_value for dim in one.type.tensor_type.shape.dim][batched:] for one in infos
        }
        return {name: tuple(sizes[name]) for name in tensors & {*sizes} if all(sizes[name])}
