"""What calls of ATen's operators say of sizes, when the values that they read and make lose slices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relutrim.graph.operators import Convolution, Shape
from relutrim.io.resizing import Resizing, even, limits, picks_of
from relutrim.io.torch.functions import LINES
from relutrim.io.torch.record import Call, Ref

Arguments = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class CallResizing(Resizing):
    """A call that stays; ``names`` are the values that its results are, None where they are none."""

    call: Call
    names: Sequence[str | None]

    @property
    def given(self) -> Shape:
        """The shape of what is read."""
        return self.network.shapes[self.nodes[0].inputs[0]]


def resized(resizing: CallResizing) -> Arguments | None:
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


def _convolution(resizing: CallResizing) -> Arguments | None:
    """Other groups, and other windows where two convolutions have become one."""
    node, arguments = resizing.only(Convolution), resizing.call.arguments
    if node is None:
        return None
    assert isinstance(node.operator, Convolution)
    groups = {} if node.operator.groups == arguments.get("groups", 1) else {"groups": node.operator.groups}
    if not resizing.moves_windows(node.operator):
        return groups
    _, stride, padding, dilation = node.operator.windows
    if arguments.get("transposed", False) or any(front != behind for front, behind in padding):
        return None
    padded = [front for front, _ in padding]
    return {**groups, "stride": list(stride), "padding": padded, "dilation": list(dilation)}


def _sized(argument: str) -> Callable[[CallResizing], Arguments | None]:
    """A shape, of which the batch may be computed."""

    def rule(resizing: CallResizing) -> Arguments | None:
        said = resizing.call.arguments.get(argument)
        first, *others = said if isinstance(said, list) and said else [None]
        if not all(isinstance(size, int) for size in others):
            return None
        rows = first if isinstance(first, int) else resizing.shape(resizing.nodes[0].inputs[0])[0]
        found = resizing.reshaped([rows, *others], free=not isinstance(first, int))
        if found is None:
            return None
        return {} if found[1:] == others else {argument: [first, *found[1:]]}

    return rule


def _expand(resizing: CallResizing) -> Arguments | None:
    said, made = resizing.call.arguments.get("size"), resizing.network.shapes.get(resizing.names[0] or "")
    if made is None or not isinstance(said, list) or len(said) != len(made) + 1:
        return None
    kept = [old if old == -1 else new for old, new in zip(said[1:], made, strict=True)]
    return {} if kept == said[1:] else {"size": [said[0], *kept]}


def _axis(resizing: CallResizing) -> int:
    dim = resizing.call.arguments.get("dim", 0)
    return int(dim) % (len(resizing.given) + 1) - 1


def _split(resizing: CallResizing) -> Arguments | None:
    """Parts that follow each other, as long as before or of other lengths where these are listed."""
    axis = _axis(resizing)
    sizes = None if axis < 0 else resizing.parts(resizing.names, axis)
    if sizes is None:
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
    return {} if count == len(sizes) and even(sizes) == sizes else None


def _slice(resizing: CallResizing) -> Arguments | None:
    axis = _axis(resizing)
    if axis < 0:
        return {}
    picks = picks_of(resizing.nodes[0]) if len(resizing.nodes) == 1 else None
    if picks is None or any(pick is not None for at, pick in enumerate(picks) if at != axis):
        return None
    said = [resizing.call.arguments.get(name) for name in ("start", "end", "step")]
    if any(isinstance(one, Ref) for one in said):
        return None
    now = (said[0], said[1], said[2])
    found = limits(resizing.given[axis], picks[axis], now)
    if found is None or found is now:
        return None if found is None else {}
    start, end, step = found
    if step is None or step < 1:
        return None
    return {"start": start, "end": end, **({"step": step} if step != 1 else {})}


def _same(resizing: CallResizing) -> Arguments | None:
    """Nothing that it says may have changed."""
    return {} if all(node.operator.kind != "Take" for node in resizing.nodes) else None


_RULES: dict[str, Callable[[CallResizing], Arguments | None]] = {
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
