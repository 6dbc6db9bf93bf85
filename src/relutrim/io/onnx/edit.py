"""Edits of a graph, applied to the ONNX model that it was read from.

The model stays what it is but for what the edits name: nodes, their order and names, operator sets, IR
version, metadata, functions, tensors in their layout, whatever protobuf keeps of fields that are not known.

1. What a tensor loses, or is set to, is done in the tensor where all its readers agree, else in one of their
   own. A node that cannot say its new sizes is replaced.
2. Where nodes of the graph take the place of nodes of the model, they are written as the writer does, in the
   model's operator set.
3. What nobody reads any more goes; what nobody has read before stays.
4. The model is read again, and has to be the graph that was meant.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from relutrim.errors import CheckFailed, RelutrimError, UnsupportedError
from relutrim.graph.comparing import check_equal, reading_back
from relutrim.graph.edits import (
    Edit,
    Replace,
    Resize,
    Rewire,
    SetTensor,
    SliceTensor,
    difference,
    settled,
)
from relutrim.graph.graph import Network, Node
from relutrim.graph.operators import Shape
from relutrim.graph.slicing import Kept
from relutrim.io.onnx.conversion import key_of as key
from relutrim.io.onnx.emission import Content, Emission, content, emit
from relutrim.io.onnx.external import tensors, with_external
from relutrim.io.onnx.held import Array, Place, Tensors, captured, names
from relutrim.io.onnx.parse import opset_of
from relutrim.io.onnx.read import network_from_proto
from relutrim.io.onnx.resize import Resizing, resized
from relutrim.io.onnx.tensors import FLOATS
from relutrim.io.order import ordered

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


class _Editor:
    def __init__(self, model: onnx.ModelProto, before: Network, after: Network, folder: Path | None) -> None:
        self.model, self.graph, self.before, self.after = model, model.graph, before, after
        self.opset = opset_of(model)
        self.tensors = Tensors(model, folder)
        self.tensors.taken |= {*after.shapes}
        self.index = {key(node): at for at, node in enumerate(self.graph.node)}
        self.read, self.live = self._read(), self._live()

    def apply(self, edits: Sequence[Edit]) -> None:
        contents: dict[Place, Array] = {}
        replaces = [edit for edit in edits if isinstance(edit, Replace)]
        for edit in edits:
            if isinstance(edit, Resize) and edit.instead not in replaces:
                at = self.index[edit.node]
                resizing = Resizing(
                    self.graph.node[at], self.tensors, self.after, self.opset, edit.instead.new, edit.before
                )
                if resized(resizing):
                    contents |= {(edit.node, place): array for place, array in resizing.contents.items()}
                else:
                    replaces.append(edit.instead)
        gone = {key for edit in replaces for key in edit.old}
        rewired: dict[str, dict[str, str]] = {}
        for edit in edits:
            if isinstance(edit, Rewire) and edit.node not in gone:
                rewired.setdefault(edit.node, {})[edit.old] = edit.new
            elif isinstance(edit, SliceTensor | SetTensor) and edit.node not in gone:
                contents[(edit.node, edit.place)] = self._content(edit)
        for name, new in rewired.items():
            node = self.graph.node[self.index[name]]
            for place, old in enumerate(node.input):
                node.input[place] = new.get(old, old)
        touched = self._touched(gone)
        self._replace(replaces, gone)
        self.tensors.apply({at: array for at, array in contents.items() if at[0] not in gone})
        self._rescue_shapes()
        self._clean(touched)
        self._declare(touched)

    def _content(self, edit: SliceTensor | SetTensor) -> Array:
        if isinstance(edit, SetTensor):
            return self.tensors.like(edit.tensor, edit.numbers)
        found = self.tensors.array(edit.tensor)
        if found is None:
            raise UnsupportedError("it is computed, so nothing can be cut", where=f"tensor {edit.tensor!r}")
        for axis, indices in enumerate(edit.indices):
            if indices is not None:
                found = np.take(found, indices, axis)
        return found

    def _replace(self, replaces: Sequence[Replace], gone: set[str]) -> None:
        """Nodes of the graph in place of nodes of the model, where these were; new ones behind what they
        read.
        """
        order: dict[str, tuple[int, int]] = {}
        placed: list[tuple[tuple[int, int], onnx.NodeProto]] = []
        for at, node in enumerate(self.graph.node):
            if key(node) not in gone:
                placed.append(((at, 0), node))
            order |= dict.fromkeys(node.output, (at, 0))
        for edit in replaces:
            last = max((self.index[one] for one in edit.old), default=None)
            stock = self._stock(edit.old)
            for node in edit.new:
                behind = max((order.get(name, (-1, 0)) for name in node.inputs), default=(-1, 0))
                at = behind[0] if last is None else last
                for made in self._spelt(node, stock):
                    placed.append(((at, len(placed) + 1), made))
                order[node.name] = (at, len(placed))
        if len(placed) == len(self.graph.node) and not any(edit.new for edit in replaces):
            return
        nodes = _sorted(placed)
        del self.graph.node[:]
        self.graph.node.extend(nodes)
        self.tensors.find_constants()

    def _stock(self, keys: Iterable[str]) -> dict[Content, str]:
        """The tensors that nodes read, by what they hold."""
        found = {}
        for name in (name for one in keys for name in self.graph.node[self.index[one]].input):
            array = self.tensors.array(name)
            if array is not None:
                found[content(array)] = str(name)
        return found

    def _spelt(self, node: Node, stock: Mapping[Content, str]) -> list[onnx.NodeProto]:
        """A node of the graph as the writer has it."""
        tensors = {name: name for name in self.after.shapes}
        emission = Emission(self.after, tensors, self.opset, self.tensors.fresh, stock)
        try:
            emit(emission, node)
        except RelutrimError as error:
            raise error.at(f"node {node.name!r}") from None
        for tensor in emission.initializers:
            self.tensors.insert(tensor)
        return emission.nodes

    def _rescue_shapes(self) -> None:
        """A Shape of a value that rewrites went around is that of what is read instead."""
        made = self._made()
        for node in self.graph.node:
            if node.op_type != "Shape" or node.input[0] in made or node.input[0] not in self.before:
                continue
            for reader in self.before.readers(node.input[0]):
                new = self.after.get(reader.name)
                if new is not None and len(new.inputs) == len(reader.inputs):
                    other = new.inputs[reader.inputs.index(node.input[0])]
                    if self.after.shapes[other] == self.before.shapes[node.input[0]] and other in made:
                        node.input[0] = other
                        break

    def _made(self) -> set[str]:
        """Every tensor that there is."""
        made = {name for node in self.graph.node for name in node.output}
        made |= {entry.name for entry in self.graph.input} | {*self.tensors.initializers, ""}
        return made | {tensor.values.name for tensor in self.graph.sparse_initializer}

    def _read(self) -> set[str]:
        """Every tensor that something reads."""
        found = {output.name for output in self.graph.output}
        for node in self.graph.node:
            found |= {*node.input, *captured(node)}
        return found

    def _live(self) -> set[str]:
        """The nodes that an output depends on."""
        wanted, live = {output.name for output in self.graph.output}, set()
        for node in reversed(self.graph.node):
            if any(name in wanted for name in node.output if name):
                live.add(key(node))
                wanted |= {*node.input, *captured(node)}
        return live

    def _clean(self, touched: set[str]) -> None:
        """Without nodes and tensors that something read before and nothing reads now; and without those that
        no output has depended on, where what they read has another shape now, or is no more.
        """
        moved = touched - {*self.before.shapes} | {
            name
            for name in self.before.shapes
            if name in self.after.shapes and self.before.shapes[name] != self.after.shapes[name]
        }
        while True:
            read, made = self._read(), self._made()
            drop = [at for at, node in enumerate(self.graph.node) if self._goes(node, moved, read, made)]
            for at in reversed(drop):
                del self.graph.node[at]
            if not drop:
                break
        reads = (name for node in self.graph.node for name in (*node.input, *sorted(captured(node))))
        missing = next((name for name in reads if name not in made), None)
        if missing is not None:
            raise UnsupportedError(
                "something that relutrim does not follow reads it, and it would go",
                where=f"tensor {missing!r}",
            )
        self.tensors.drop({name for name in self.tensors.initializers if name in self.read - read})

    def _goes(self, node: onnx.NodeProto, moved: set[str], read: set[str], made: set[str]) -> bool:
        if key(node) in self.index and key(node) not in self.live:
            reads = {*node.input} | captured(node)
            return bool(reads & moved) or not reads <= made
        return not read & {*node.output} and bool(self.read & {*node.output})

    def _touched(self, gone: set[str]) -> set[str]:
        """The tensors that are made by nodes which go, or around which shapes change."""
        changed = {name for name, shape in self.before.shapes.items() if self.after.shapes.get(name) != shape}
        keys = set(gone)
        for node in self.before.nodes:
            if node.origin is not None and changed & {node.name, *node.inputs}:
                keys.update(node.origin.nodes)
        return {name for one in keys for name in self.graph.node[self.index[one]].output}

    def _declare(self, touched: set[str]) -> None:
        """Value infos say the shapes that values have now, or nothing."""
        made, batched = self._made(), self.before.input.batch is not None
        inner = {entry.name for entry in self.graph.value_info} & touched & made - {*self.after.shapes}
        inferred = self._inferred(inner, touched)
        for at in reversed(range(len(self.graph.value_info))):
            entry = self.graph.value_info[at]
            if entry.name not in touched:
                if entry.name in self.read and entry.name not in made:
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


def _sorted(placed: Sequence[tuple[tuple[int, int], onnx.NodeProto]]) -> list[onnx.NodeProto]:
    """The nodes in topological order, by their places where that leaves a choice."""
    makers = {name: at for at, (_, node) in enumerate(placed) for name in node.output if name}
    reads = ({*node.input, *captured(node)} for _, node in placed)
    needs = [{makers[name] for name in names if name in makers} for names in reads]
    found = []
    for at in ordered(needs, [place for place, _ in placed]):
        copy = onnx.NodeProto()
        copy.CopyFrom(placed[at][1])
        found.append(copy)
    return found
