"""Channels cut out of networks by hand, whatever that does to what they compute; and what that leaves alone
in an ONNX model, or in a module.

Of a model with a channel less: it is valid; its nodes are the same, in the same order; a tensor that no node
around the channel reads is the same to the last byte, and every other one has lost slices and nothing else;
the rest (operator sets, functions, metadata, inputs, outputs) is the same.
Of a module: it is of the same class, and so is its state dict but for what tensors around the channel lose.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from relutrim.graph import Network
from relutrim.graph.slicing import Kept, cut
from relutrim.io.onnx.edit import edited
from relutrim.io.onnx.held import captured
from relutrim.io.torch.source import Remade, TorchSource
from relutrim.rewrite.channels import Labels

Numbers = npt.NDArray[Any]


def free_labels(network: Network) -> list[int]:
    """The labels that can go alone: of channels that are no input's, no output's, in no group, and not all of
    a value.
    """
    labels = Labels(network)
    roots = {name: labels.roots(name) for name in network.shapes}
    alone = {int(found[0]) for found in roots.values() if len(np.unique(found)) == 1}
    every = {int(root) for found in roots.values() for root in found}
    return sorted(every - labels.fixed() - alone)


def without(network: Network, gone: set[int]) -> tuple[Network, Mapping[str, Kept]]:
    """The network without the slices of these labels; and what is kept of its values."""
    labels = Labels(network)
    kept = {}
    for name in network.shapes:
        stays = ~np.isin(labels.roots(name), list(gone))
        if not stays.all():
            kept[name] = Kept(labels.slices[name].axis, np.flatnonzero(stays))
    change = {}
    for node in network.nodes:
        operator = cut(network, node, kept)
        assert operator is not None
        change[node.name] = node if operator is node.operator else replace(node, operator=operator)
    return network.edit(change=change), kept


def touched(model: onnx.ModelProto, network: Network, kept: Mapping[str, Kept]) -> list[bool]:
    """Which nodes of the model a channel that goes runs through."""
    origins = [node.origin for node in network if {node.name, *node.inputs} & {*kept}]
    keys = {key for origin in origins if origin is not None for key in origin.nodes} | {*kept}
    return [not keys.isdisjoint({*node.input, *node.output}) for node in model.graph.node]


def changed_by_nothing(model: onnx.ModelProto, network: Network, folder: Path | None = None) -> bool:
    """Whether a model comes back as other bytes where nothing is removed from it."""
    made = edited(model, network, network, folder=folder)
    return bool(made.SerializeToString() != model.SerializeToString())


def harm(model: onnx.ModelProto, network: Network, gone: int, folder: Path | None = None) -> str | None:
    """What has changed, beside what must, in a model that loses a label; None if nothing has."""
    after, kept = without(network, {gone})
    made = edited(model, network, after, kept, folder=folder)
    onnx.checker.check_model(made, full_check=True)
    around = touched(model, network, kept)
    return (
        _of_nodes(model, made, around)
        or _of_tensors(model, made, around, kept)
        or (None if _rest(model) == _rest(made) else "something beside nodes and tensors is another one")
    )


def module_changed_by_nothing(source: TorchSource) -> bool:
    """Whether a module comes back as another one where nothing is removed from it."""
    network = source.network
    return _of_state(source, source.edited(network, network, {}), (), {}) is not None


def module_harm(source: TorchSource, gone: int) -> str | None:
    """What has changed, beside what must, in a module that loses a label; None if nothing has."""
    after, kept = without(source.network, {gone})
    near = [node for node in source.network if {node.name, *node.inputs} & {*kept}]
    fields = [field for node in near if node.origin is not None for field in node.origin.fields.values()]
    made = source.edited(source.network, after, kept)
    return _of_state(source, made, {field.tensor for field in fields}, kept)


def _of_state(
    source: TorchSource, made: Remade, near: Collection[str], kept: Mapping[str, Kept]
) -> str | None:
    module, found = source.model, made.model
    if type(found) is not type(module):
        return f"it is of another class: {made.remark}"
    before, after = module.state_dict(), found.state_dict()
    if [*before] != [*after]:
        return "its state dict has other keys"
    for name, tensor in before.items():
        old, new = tensor.numpy(), after[name].numpy()
        same = (old.dtype, old.shape, old.tobytes()) == (new.dtype, new.shape, new.tobytes())
        if not same and (name not in near or old.dtype != new.dtype or not _has_lost_slices(old, new, kept)):
            return f"tensor {name!r} is another one"
    return None


def _rest(model: onnx.ModelProto) -> bytes:
    """All but what a channel less can change: nodes, tensors, and the shapes that are noted of them."""
    rest = onnx.ModelProto()
    rest.CopyFrom(model)
    stored = {tensor.name for tensor in rest.graph.initializer}
    inputs = [entry for entry in rest.graph.input if entry.name not in stored]
    for cleared in ("node", "initializer", "value_info", "input"):
        rest.graph.ClearField(cleared)
    rest.graph.input.extend(inputs)
    content: bytes = rest.SerializeToString(deterministic=True)
    return content


def _of_nodes(model: onnx.ModelProto, made: onnx.ModelProto, around: list[bool]) -> str | None:
    if len(made.graph.node) != len(model.graph.node):
        return f"{len(model.graph.node)} nodes have become {len(made.graph.node)}"
    for before, after, near in zip(model.graph.node, made.graph.node, around, strict=True):
        if before != after and not (near and _said(before) == _said(after)):
            return f"node {before.output[0]!r} is another one"
    return None


def _said(node: onnx.NodeProto) -> list[Any]:
    """What stays of a node whose sizes change, and which may get tensors of its own."""
    names = [attribute.name for attribute in node.attribute]
    return [node.op_type, node.domain, node.name, node.output, node.doc_string, len(node.input), names]


def _of_tensors(
    model: onnx.ModelProto, made: onnx.ModelProto, around: list[bool], kept: Mapping[str, Kept]
) -> str | None:
    pairs = zip(model.graph.node, around, strict=True)
    near = {name for node, one in pairs if one for name in (*node.input, *captured(node))}
    content = {tensor.name: tensor for tensor in made.graph.initializer}
    for tensor in model.graph.initializer:
        other = content.get(tensor.name)
        if other is None or tensor == other:
            if other is None and tensor.name not in near:
                return f"tensor {tensor.name!r} is gone"
        elif tensor.name not in near or not _is_part(tensor, other, kept):
            return f"tensor {tensor.name!r} is another one"
    return None


def _is_part(before: onnx.TensorProto, after: onnx.TensorProto, kept: Mapping[str, Kept]) -> bool:
    """Whether a tensor is another one without slices that values lose; one of integers may be any."""
    if (before.data_type, before.name, before.doc_string) != (after.data_type, after.name, after.doc_string):
        return False
    old, new = numpy_helper.to_array(before), numpy_helper.to_array(after)
    return old.dtype.kind == "i" or _has_lost_slices(old, new, kept)


def _has_lost_slices(old: Numbers, new: Numbers, kept: Mapping[str, Kept]) -> bool:
    if old.ndim != new.ndim:
        return False
    choices = [
        [np.arange(size)]
        if size == left
        else [one.indices for one in kept.values() if _fits(one, size, left)]
        for size, left in zip(old.shape, new.shape, strict=True)
    ]
    return any(old[np.ix_(*some)].tobytes() == new.tobytes() for some in product(*choices))


def _fits(kept: Kept, size: int, left: int) -> bool:
    return len(kept.indices) == left and int(kept.indices.max(initial=-1)) < size
