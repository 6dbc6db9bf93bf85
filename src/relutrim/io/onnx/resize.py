"""What nodes of an ONNX graph say of sizes, when the values that they read and make lose slices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper

from relutrim.graph import Node
from relutrim.graph.operators import Convolution, Reshape, Take
from relutrim.graph.operators.moving import Index
from relutrim.io.onnx.functions import FUNCTIONS
from relutrim.io.onnx.held import Tensors
from relutrim.io.resizing import Limits, Resizing, even, limits, picks_of, resolved


@dataclass(frozen=True, eq=False)
class NodeResizing(Resizing):
    """A node of the model that stays. ``contents`` are what inputs of it are to hold, by their places."""

    node: onnx.NodeProto
    tensors: Tensors
    opset: int
    contents: dict[int, Index] = field(default_factory=dict)

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute of the node."""
        found = (one for one in self.node.attribute if one.name == name)
        return next((helper.get_attribute_value(one) for one in found), default)

    def set_attribute(self, name: str, value: Any) -> None:
        """Give an attribute a value; None takes it away."""
        for at in reversed(range(len(self.node.attribute))):
            if self.node.attribute[at].name == name:
                if value is not None:
                    doc = self.node.attribute[at].doc_string
                    self.node.attribute[at].CopyFrom(helper.make_attribute(name, value, doc or None))
                    return
                del self.node.attribute[at]
        if value is not None:
            self.node.attribute.append(helper.make_attribute(name, value))

    def integers(self, place: int) -> Index | None:
        """What an input holds; None if it is absent or computed."""
        if place >= len(self.node.input) or not self.node.input[place]:
            return None
        found = self.tensors.array(self.node.input[place])
        return None if found is None or found.dtype.kind != "i" else found

    def hold(self, place: int, numbers: Sequence[int] | Index, like: Index) -> None:
        """Let an input hold other integers."""
        if not np.array_equal(like.reshape(-1), np.reshape(numbers, -1)) or like.shape != np.shape(numbers):
            self.contents[place] = np.asarray(numbers, like.dtype)

    def said(self, place: int, name: str, since: int) -> Index | None:
        """What an input holds, or an attribute in operator sets before ``since``; None if that is unknown."""
        if self.opset >= since:
            return self.integers(place)
        found = self.attribute(name)
        return None if found is None else np.array(found, np.int64)

    def say(self, place: int, name: str, since: int, numbers: Sequence[int] | Index) -> None:
        """Let it hold other integers, if it holds any."""
        said = self.said(place, name, since)
        if said is not None and self.opset >= since:
            self.hold(place, numbers, said)
        elif said is not None:
            self.set_attribute(name, [int(number) for number in numbers])


def resized(resizing: NodeResizing) -> bool:
    """Let the node say what the values are now; False if it cannot, and then nothing is changed."""
    find = _RULES.get(resizing.node.op_type)
    return resizing.node.op_type in _FOLLOWS if find is None else find(resizing)


_FOLLOWS = {
    *("Identity", "Dropout", "Cast", "Flatten", "Unsqueeze", "Transpose", "Concat", "MatMul", "Gemm"),
    *("Add", "Sub", "Mul", "Div", "Sum", "Max", "Min", "Clip", "PRelu", *FUNCTIONS),
    *("BatchNormalization", "GlobalAveragePool", "ReduceMean", "AveragePool", "MaxPool"),
}
"""Nodes that say nothing of the sizes that may change."""


def _convolution(resizing: NodeResizing) -> bool:
    """Other groups, and other windows where two convolutions have become one."""
    node = resizing.only(Convolution)
    if node is None:
        return False
    assert isinstance(node.operator, Convolution)
    if resizing.moves_windows(node.operator):
        if resizing.node.op_type != "Conv":
            return False
        _say_windows(resizing, node.operator)
    if node.operator.groups != resizing.attribute("group", 1):
        resizing.set_attribute("group", node.operator.groups)
    return True


def _say_windows(resizing: NodeResizing, operator: Convolution) -> None:
    kernel, stride, padding, dilation = operator.windows
    ones = (1,) * len(kernel)
    pads = [before for before, _ in padding] + [behind for _, behind in padding]
    resizing.set_attribute("auto_pad", None)
    for name, numbers, default in (
        ("kernel_shape", kernel, kernel),
        ("strides", stride, ones),
        ("dilations", dilation, ones),
        ("pads", pads, (0, 0) * len(kernel)),
    ):
        if list(resizing.attribute(name, default)) != list(numbers):
            resizing.set_attribute(name, list(numbers))


def _reshape(resizing: NodeResizing) -> bool:
    target, made = resizing.integers(1), resizing.only(Reshape)
    if target is None:
        return made is not None and _computed_shape(resizing, made)
    found = resizing.reshaped(target.reshape(-1).tolist(), copies=not resizing.attribute("allowzero", 0))
    if found is not None:
        resizing.hold(1, np.array(found).reshape(target.shape), target)
    return found is not None


def _computed_shape(resizing: NodeResizing, made: Node) -> bool:
    """Whether a shape of the batch size, which is computed, and numbers behind it says the same as before."""
    maker = resizing.tensors.maker(resizing.node.input[1])
    if not resizing.batched or maker is None or maker.op_type != "Concat" or len(maker.input) < 2:
        return False
    rest = [resizing.tensors.array(name) for name in maker.input[1:]]
    sizes = [number for array in rest if array is not None for number in array.reshape(-1).tolist()]
    given, wanted = resizing.shape(made.inputs[0]), resizing.shape(made.name)
    known = all(array is not None for array in rest) and resizing.tensors.array(maker.input[0]) is None
    copies = not resizing.attribute("allowzero", 0)
    return known and (0 not in sizes or copies) and resolved(given, [given[0], *sizes], copies) == wanted


def _squeeze(resizing: NodeResizing) -> bool:
    """Without axes it drops all of length 1: one that has become so would go."""
    if resizing.attribute("axes") is not None or len(resizing.node.input) > 1:
        return True
    (node,) = resizing.nodes
    return tuple(s for s in resizing.shape(node.inputs[0]) if s != 1) == resizing.shape(node.name)


def _split(resizing: NodeResizing) -> bool:
    shape = resizing.shape(resizing.nodes[0].inputs[0])
    axis = resizing.attribute("axis", 0) % len(shape)
    parts = resizing.parts(resizing.node.output, axis - resizing.batched)
    return parts is not None and _say_parts(resizing, parts, shape[axis])


def _say_parts(resizing: NodeResizing, parts: list[int], size: int) -> bool:
    said = resizing.integers(1)
    if said is not None:
        resizing.hold(1, parts, said)
        return True
    if len(resizing.node.input) > 1 and resizing.node.input[1]:
        return False
    if resizing.attribute("split") is not None:
        resizing.set_attribute("split", parts)
    elif even(parts) != parts or (size % len(parts) and resizing.opset < 18):
        if resizing.opset < 13:
            resizing.set_attribute("split", parts)
        else:
            resizing.set_attribute("num_outputs", None)
            own = resizing.tensors.add(f"{resizing.node.output[0]}.split", np.array(parts, np.int64))
            del resizing.node.input[1:]
            resizing.node.input.append(own)
    return True


def _slice(resizing: NodeResizing) -> bool:
    """Limits that take what is to be taken, as they are where that is so already."""
    taken = picks_of(resizing.nodes[0]) if len(resizing.nodes) == 1 else None
    if taken is None:
        return False
    shape = resizing.shape(resizing.nodes[0].inputs[0])
    starts, ends, axes, steps = (resizing.said(place, name, 10) for place, name in _LIMITS.items())
    given = [place for place in (3, 4) if any(resizing.node.input[place : place + 1])]
    if starts is None or ends is None or any((axes, steps)[place - 3] is None for place in given):
        return False
    picks, found = dict(enumerate(taken, start=resizing.batched)), list[Limits]()
    for at, axis in enumerate(range(len(starts)) if axes is None else axes % len(shape)):
        now = (int(starts[at]), int(ends[at]), 1 if steps is None else int(steps[at]))
        pick = picks.pop(int(axis), None)
        new = now if axis < resizing.batched else limits(shape[axis], pick, now)
        if new is None or (steps is None and new[2] != 1):
            return False
        found.append(new)
    if any(pick is not None for pick in picks.values()):
        return False
    for place, numbers in zip((1, 2, 4), np.array(found, np.int64).reshape(-1, 3).T, strict=True):
        resizing.say(place, _LIMITS[place], 10, numbers)
    return True


_LIMITS = {1: "starts", 2: "ends", 3: "axes", 4: "steps"}
"""What a Slice says, by the inputs in which it does."""


def _all(pick: Index | None, size: int) -> Index:
    return np.arange(size) if pick is None else pick


def _gather(resizing: NodeResizing) -> bool:
    indices = resizing.integers(1)
    found = [(node, picks) for node in resizing.nodes if (picks := picks_of(node)) is not None]
    if indices is None or len(found) != 1 or indices.ndim > 1:
        return False
    ((node, picks),) = found
    shape = resizing.shape(node.inputs[0])
    own = resizing.attribute("axis", 0) % len(shape) - resizing.batched
    pick = _all(picks.pop(own), shape[own + resizing.batched])
    if any(p is not None for p in picks) or (pick < 0).any() or (not indices.ndim and len(pick) != 1):
        return False
    same = np.array_equal(np.where(indices < 0, indices + shape[own + resizing.batched], indices), pick)
    if not same:
        resizing.hold(1, pick if indices.ndim else pick.reshape(()), indices)
    return True


def _pad(resizing: NodeResizing) -> bool:
    """Zeros around a value, along all axes or those that are listed."""
    mode = resizing.attribute("mode", b"constant")
    if len(resizing.nodes) != 1 or mode != b"constant":
        return False
    (node,) = resizing.nodes
    if not isinstance(node.operator, Take):
        return False
    shape = resizing.shape(node.inputs[0])
    said = resizing.said(1, "pads", 11)
    axes = resizing.integers(3) if len(resizing.node.input) > 3 and resizing.node.input[3] else None
    if said is None or (axes is None and len(said) != 2 * len(shape)):
        return False
    pads = np.zeros((2, len(shape)), np.int64)
    for own, pick in enumerate(node.operator.picks):
        axis = own + resizing.batched
        if pick is None:
            continue
        real = np.flatnonzero(pick >= 0)
        if not real.size or not np.array_equal(pick[real[0] : real[-1] + 1], np.arange(shape[axis])):
            return False
        pads[:, axis] = real[0], len(pick) - 1 - real[-1]
    listed = np.arange(len(shape)) if axes is None else np.array(axes) % len(shape)
    if np.delete(pads, listed, 1).any():
        return False
    resizing.say(1, "pads", 11, pads[:, listed].reshape(-1))
    return True


_RULES: dict[str, Callable[[NodeResizing], bool]] = {
    "Conv": _convolution,
    "ConvTranspose": _convolution,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "Pad": _pad,
}
