"""What nodes of an ONNX graph say of sizes, when the values that they read and make lose slices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper

from relutrim.graph import Network, Node
from relutrim.graph.operators import Convolution, Reshape, Shape, Take
from relutrim.graph.operators.moving import Index
from relutrim.io.onnx.functions import FUNCTIONS
from relutrim.io.onnx.held import Tensors
from relutrim.io.picks import slice_of, sliced, takes_range

_STANDIN = 7919
"""The length of an open batch axis, where a shape is worked out: a prime, so that nothing divides it."""


@dataclass(frozen=True, eq=False)
class Resizing:
    """A node of the source that stays, and the nodes of the graph that it stands for, as they are to be;
    ``before`` is how one of them was.

    ``contents`` are what inputs of the node are to hold, by their places.
    """

    node: onnx.NodeProto
    tensors: Tensors
    network: Network
    opset: int
    nodes: Sequence[Node]
    before: Node
    contents: dict[int, Index] = field(default_factory=dict)

    @property
    def batched(self) -> bool:
        """Whether the file's tensors have a batch axis in front."""
        return self.network.input.batch is not None

    def shape(self, name: str) -> Shape:
        """A value's shape as the file counts it."""
        batch = self.network.input.batch
        front = () if batch is None else (batch if isinstance(batch, int) else _STANDIN,)
        return (*front, *self.network.shapes[name])

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


def resized(resizing: Resizing) -> bool:
    """Let the node say what the values are now; False if it cannot, and then nothing is changed."""
    find = _RULES.get(resizing.node.op_type)
    return resizing.node.op_type in _FOLLOWS if find is None else find(resizing)


_FOLLOWS = {
    *("Identity", "Dropout", "Cast", "Flatten", "Unsqueeze", "Transpose", "Concat", "MatMul", "Gemm"),
    *("Add", "Sub", "Mul", "Div", "Sum", "Max", "Min", "Clip", "PRelu", *FUNCTIONS),
    *("BatchNormalization", "GlobalAveragePool", "ReduceMean", "AveragePool", "MaxPool"),
}
"""Nodes that say nothing of the sizes that may change."""


def _convolution(resizing: Resizing) -> bool:
    """Other groups, and other windows where two convolutions have become one."""
    found = [node.operator for node in resizing.nodes if isinstance(node.operator, Convolution)]
    if len(found) != 1:
        return False
    (operator,) = found
    before = resizing.before.operator
    if isinstance(before, Convolution) and before.windows != operator.windows:
        if resizing.node.op_type != "Conv":
            return False
        _say_windows(resizing, operator)
    if operator.groups != resizing.attribute("group", 1):
        resizing.set_attribute("group", operator.groups)
    return True


def _say_windows(resizing: Resizing, operator: Convolution) -> None:
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


def _reshape(resizing: Resizing) -> bool:
    """A shape of which 0 copies an axis and -1 is what is left says the same as before where it can."""
    target, made = resizing.integers(1), [n for n in resizing.nodes if isinstance(n.operator, Reshape)]
    if target is None:
        return len(made) == 1 and _computed_shape(resizing, made[0])
    if len(made) != 1:
        return False
    given, wanted = resizing.shape(made[0].inputs[0]), resizing.shape(made[0].name)
    if len(wanted) != target.size:
        return False
    copies = not resizing.attribute("allowzero", 0)
    said = target.reshape(-1).tolist()
    numbers = [old if old < 1 else new for old, new in zip(said, wanted, strict=True)]
    plain = [*(said[:1] if resizing.batched else ()), *wanted[resizing.batched :]]
    for candidate in (said, numbers, plain):
        if _STANDIN not in candidate and _resolved(given, candidate, copies) == wanted:
            resizing.hold(1, np.array(candidate).reshape(target.shape), target)
            return True
    return False


def _computed_shape(resizing: Resizing, made: Node) -> bool:
    """Whether a shape of the batch size, which is computed, and numbers behind it says the same as before."""
    maker = resizing.tensors.maker(resizing.node.input[1])
    if not resizing.batched or maker is None or maker.op_type != "Concat" or len(maker.input) < 2:
        return False
    rest = [resizing.tensors.array(name) for name in maker.input[1:]]
    sizes = [number for array in rest if array is not None for number in array.reshape(-1).tolist()]
    given, wanted = resizing.shape(made.inputs[0]), resizing.shape(made.name)
    known = all(array is not None for array in rest) and resizing.tensors.array(maker.input[0]) is None
    copies = not resizing.attribute("allowzero", 0)
    return known and (0 not in sizes or copies) and _resolved(given, [given[0], *sizes], copies) == wanted


def _resolved(shape: Shape, target: Sequence[int], copies: bool) -> Shape | None:
    sizes = [
        (shape[axis] if axis < len(shape) else -2) if size == 0 and copies else size
        for axis, size in enumerate(target)
    ]
    known = math.prod(size for size in sizes if size != -1)
    if sizes.count(-1) == 1 and known and math.prod(shape) % known == 0:
        sizes[sizes.index(-1)] = math.prod(shape) // known
    return tuple(sizes) if min(sizes, default=0) >= 0 and math.prod(sizes) == math.prod(shape) else None


def _squeeze(resizing: Resizing) -> bool:
    """Without axes it drops all of length 1: one that has become so would go."""
    if resizing.attribute("axes") is not None or len(resizing.node.input) > 1:
        return True
    (node,) = resizing.nodes
    return tuple(s for s in resizing.shape(node.inputs[0]) if s != 1) == resizing.shape(node.name)


def _split(resizing: Resizing) -> bool:
    """The parts are as long as what is taken; one that nobody reads is what is left."""
    takes = {node.name: node for node in resizing.nodes}
    source = next(iter(takes.values())).inputs[0]
    axis = resizing.attribute("axis", 0) % len(resizing.shape(source))
    size, own = resizing.shape(source)[axis], axis - resizing.batched
    sizes: list[int | None] = [
        resizing.shape(name)[axis] if name in takes else None for name in resizing.node.output
    ]
    if sizes.count(None) > 1:
        return False
    parts = [size - sum(s for s in sizes if s is not None) if s is None else s for s in sizes]
    start = 0
    for name, part in zip(resizing.node.output, parts, strict=True):
        if name in takes and not takes_range(takes[name].operator, own, start, start + part, size):
            return False
        start += part
    if start != size or min(parts) < 0:
        return False
    return _say_parts(resizing, parts, size)


def _say_parts(resizing: Resizing, parts: list[int], size: int) -> bool:
    said = resizing.integers(1)
    if said is not None:
        resizing.hold(1, parts, said)
        return True
    if len(resizing.node.input) > 1 and resizing.node.input[1]:
        return False
    longest = -(-size // len(parts))
    equal = [*[longest] * (len(parts) - 1), size - longest * (len(parts) - 1)]
    if resizing.attribute("split") is not None:
        resizing.set_attribute("split", parts)
    elif equal != parts or (size % len(parts) and resizing.opset < 18):
        if resizing.opset < 13:
            resizing.set_attribute("split", parts)
        else:
            resizing.set_attribute("num_outputs", None)
            own = resizing.tensors.add(f"{resizing.node.output[0]}.split", np.array(parts, np.int64))
            del resizing.node.input[1:]
            resizing.node.input.append(own)
    return True


def _slice(resizing: Resizing) -> bool:
    """Limits that take what is to be taken, as they are where that is so already."""
    if len(resizing.nodes) != 1:
        return False
    (node,) = resizing.nodes
    shape, taken = resizing.shape(node.inputs[0]), _picks(node)
    if taken is None:
        return False
    inputs = resizing.opset >= 10
    said = [
        resizing.integers(place) if inputs else _listed(resizing.attribute(name))
        for place, name in enumerate(("starts", "ends", "axes", "steps"), start=1)
    ]
    starts, ends, axes, steps = said
    if starts is None or ends is None or (inputs and _computed(resizing, axes, steps)):
        return False
    picks = dict(enumerate(taken, start=resizing.batched))
    listed = [int(axis) % len(shape) for axis in (range(len(starts)) if axes is None else axes)]
    limits = []
    for at, axis in enumerate(listed):
        step = 1 if steps is None else int(steps[at])
        now = (int(starts[at]), int(ends[at]), step)
        pick = picks.pop(axis, None)
        if axis < resizing.batched or np.array_equal(sliced(shape[axis], *now), _all(pick, shape[axis])):
            limits.append(now)
            continue
        found = slice_of(_all(pick, shape[axis]), shape[axis])
        if found is None or (steps is None and found[2] != 1):
            return False
        limits.append(found)
    if any(pick is not None for pick in picks.values()):
        return False
    for place, (name, numbers) in enumerate(
        (("starts", [a for a, _, _ in limits]), ("ends", [b for _, b, _ in limits])), start=1
    ):
        old = said[place - 1]
        assert old is not None
        if inputs:
            resizing.hold(place, numbers, old)
        else:
            resizing.set_attribute(name, numbers)
    if steps is not None:
        resizing.hold(4, [step for _, _, step in limits], steps)
    return True


def _picks(node: Node) -> list[Index | None] | None:
    """What a node takes along each axis, None for all of it; None if it does something else."""
    operator = node.operator
    if isinstance(operator, Take):
        return list(operator.picks)
    if isinstance(operator, Reshape) and operator.before == operator.after:
        return [None] * len(operator.after)
    return None


def _computed(resizing: Resizing, axes: Index | None, steps: Index | None) -> bool:
    """Whether an input that is given is not known."""
    given = [place < len(resizing.node.input) and resizing.node.input[place] for place in (3, 4)]
    return any(one and known is None for one, known in zip(given, (axes, steps), strict=True))


def _listed(value: Any) -> Index | None:
    return None if value is None else np.array(value, np.int64)


def _all(pick: Index | None, size: int) -> Index:
    return np.arange(size) if pick is None else pick


def _gather(resizing: Resizing) -> bool:
    indices = resizing.integers(1)
    found = [(node, picks) for node in resizing.nodes if (picks := _picks(node)) is not None]
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


def _pad(resizing: Resizing) -> bool:
    """Zeros around a value, along all axes or those that are listed."""
    mode = resizing.attribute("mode", b"constant")
    if len(resizing.nodes) != 1 or mode != b"constant":
        return False
    (node,) = resizing.nodes
    if not isinstance(node.operator, Take):
        return False
    shape = resizing.shape(node.inputs[0])
    inputs = resizing.opset >= 11
    said = resizing.integers(1) if inputs else _listed(resizing.attribute("pads"))
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
    numbers = pads[:, listed].reshape(-1)
    if inputs:
        resizing.hold(1, numbers, said)
    else:
        resizing.set_attribute("pads", numbers.tolist())
    return True


_RULES: dict[str, Callable[[Resizing], bool]] = {
    "Conv": _convolution,
    "ConvTranspose": _convolution,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "Pad": _pad,
}
