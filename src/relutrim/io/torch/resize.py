"""What calls of ATen's operators say of sizes, when the values that they read and make lose slices."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relutrim.graph import Network, Node
from relutrim.graph.operators import Convolution, Reshape, Shape, Take
from relutrim.io.picks import takes_range
from relutrim.io.torch.functions import LINES
from relutrim.io.torch.record import Call, Ref

Arguments = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Resizing:
    """A call that stays, and the nodes of the graph that it stands for, as they are to be; ``before`` is how
    one of them was. ``names`` are the values that its results are, None where they are none.
    """

    call: Call
    network: Network
    nodes: Sequence[Node]
    before: Node
    names: Sequence[str | None]

    @property
    def given(self) -> Shape:
        """The shape of what is read."""
        return self.network.shapes[self.nodes[0].inputs[0]]

    @property
    def made(self) -> Shape | None:
        """The shape of what is made."""
        name = self.names[0]
        return None if name is None else self.network.shapes.get(name)


def resized(resizing: Resizing) -> Arguments | None:
    """The arguments that change, so that the call says what the values are now; None if it cannot."""
    kind = resizing.call.kind.removesuffix("_")
    if kind in _FOLLOWS:
        return {}
    rule = _RULES.get(kind)
    return None if rule is None else rule(resizing)


_FOLLOWS = {
    *("alias", "clone", "contiguous", "detach", "dropout", "feature_dropout", "to", "_to_copy", "type_as"),
    *("flatten", "unsqueeze", "permute", "transpose", "cat", "concat", "stack", "flip", "mean", "sum"),
    *("linear", "matmul", "mm", "addmm", "add", "sub", "rsub", "mul", "div", "batch_norm"),
    *("native_batch_norm", "_native_batch_norm_legit_no_training", "prelu", "maximum", "minimum"),
    *("relu6", "clamp", "clamp_min", "clamp_max", "hardtanh"),
    *("max_pool1d", "max_pool2d", "max_pool1d_with_indices", "max_pool2d_with_indices"),
    *("avg_pool1d", "avg_pool2d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "_adaptive_avg_pool2d"),
    *("adaptive_max_pool1d", "adaptive_max_pool2d", "squeeze", "lift_fresh_copy", "pixel_shuffle"),
    *LINES,
    "softmax",
}
"""Calls that say nothing of the sizes that may change. (Whether what they mean is meant is seen later.)"""


def _convolution(resizing: Resizing) -> Arguments | None:
    """Other groups, and other windows where two convolutions have become one."""
    found = [node.operator for node in resizing.nodes if isinstance(node.operator, Convolution)]
    if len(found) != 1:
        return None
    (operator,) = found
    arguments = resizing.call.arguments
    groups = {} if operator.groups == arguments.get("groups", 1) else {"groups": operator.groups}
    before = resizing.before.operator
    if not isinstance(before, Convolution) or before.windows == operator.windows:
        return groups
    if arguments.get("transposed", False) or any(front != behind for front, behind in operator.padding):
        return None
    _, stride, padding, dilation = operator.windows
    padded = [front for front, _ in padding]
    return {**groups, "stride": list(stride), "padding": padded, "dilation": list(dilation)}


def _sized(argument: str) -> Callable[[Resizing], Arguments | None]:
    """A shape, in which -1 is what is left and the batch may be computed."""

    def rule(resizing: Resizing) -> Arguments | None:
        reshapes = [node for node in resizing.nodes if isinstance(node.operator, Reshape)]
        said, made = resizing.call.arguments.get(argument), resizing.made
        if len(reshapes) != 1 or made is None or not isinstance(said, list) or len(said) != len(made) + 1:
            return None
        numbers = said[1:]
        if not all(isinstance(size, int) for size in numbers):
            return None
        kept = [old if old == -1 else new for old, new in zip(numbers, made, strict=True)]
        if -1 in kept and said[0] == -1:
            return None
        known = math.prod(size for size in kept if size != -1)
        if -1 in kept and not known:
            return None
        return {} if kept == numbers else {argument: [said[0], *kept]}

    return rule


def _expand(resizing: Resizing) -> Arguments | None:
    said, made = resizing.call.arguments.get("size"), resizing.made
    if made is None or not isinstance(said, list) or len(said) != len(made) + 1:
        return None
    kept = [old if old == -1 else new for old, new in zip(said[1:], made, strict=True)]
    return {} if kept == said[1:] else {"size": [said[0], *kept]}


def _axis(resizing: Resizing) -> int:
    dim = resizing.call.arguments.get("dim", 0)
    return int(dim) % (len(resizing.given) + 1) - 1


def _split(resizing: Resizing) -> Arguments | None:
    """Parts that follow each other, as long as before or of other lengths where these are listed."""
    axis, sizes = _axis(resizing), list[int]()
    takes = {node.name: node for node in resizing.nodes}
    if axis < 0 or None in resizing.names:
        return None
    start = 0
    for name in resizing.names:
        node = takes.get(name or "")
        if node is None:
            return None
        size = resizing.network.shapes[node.name][axis]
        if not takes_range(node.operator, axis, start, start + size, resizing.given[axis]):
            return None
        sizes.append(size)
        start += size
    if start != resizing.given[axis] or not sizes:
        return None
    for argument in ("split_sizes", "split_size", "sections"):
        said = resizing.call.arguments.get(argument)
        if isinstance(said, list):
            return {} if said == sizes else {argument: sizes}
        if isinstance(said, int):
            longest = sizes[0]
            if any(size != longest for size in sizes[:-1]) or sizes[-1] > longest:
                return None
            return {} if said == longest else {argument: longest}
    count = resizing.call.arguments.get("chunks")
    longest = -(-start // len(sizes))
    equal = [*[longest] * (len(sizes) - 1), start - longest * (len(sizes) - 1)]
    return {} if count == len(sizes) and equal == sizes else None


def _slice(resizing: Resizing) -> Arguments | None:
    axis = _axis(resizing)
    if axis < 0:
        return {}
    (node, *others) = resizing.nodes
    picks = node.operator.picks if isinstance(node.operator, Take) else (None,) * len(resizing.given)
    if others or any(pick is not None for at, pick in enumerate(picks) if at != axis):
        return None
    size, pick = resizing.given[axis], picks[axis]
    wanted = np.arange(size) if pick is None else pick
    said = [resizing.call.arguments.get(name) for name in ("start", "end", "step")]
    if any(isinstance(one, Ref) for one in said):
        return None
    if np.array_equal(np.arange(size)[slice(*said)], wanted):
        return {}
    steps = set(np.diff(wanted).tolist()) or {1}
    if not len(wanted) or len(steps) != 1 or min(steps) < 1:
        return None
    step = steps.pop()
    return {"start": int(wanted[0]), "end": int(wanted[-1]) + 1, **({"step": step} if step != 1 else {})}


def _same(resizing: Resizing) -> Arguments | None:
    """Nothing that it says may have changed."""
    return {} if all(node.operator.kind != "Take" for node in resizing.nodes) else None


_RULES: dict[str, Callable[[Resizing], Arguments | None]] = {
    "conv1d": _convolution,
    "conv2d": _convolution,
    "convolution": _convolution,
    "view": _sized("size"),
    "_unsafe_view": _sized("size"),
    "reshape": _sized("shape"),
    "expand": _expand,
    "split": _split,
    "split_with_sizes": _split,
    "chunk": _split,
    "slice": _slice,
    "pad": _same,
    "constant_pad_nd": _same,
}
