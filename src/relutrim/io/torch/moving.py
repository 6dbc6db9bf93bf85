"""ATen's operators that move numbers. Their results may share memory with what they read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from relutrim.graph import Reshape, Scale, Transpose
from relutrim.graph.operators.moving import Index
from relutrim.io.picks import blank, gathered, padded, sliced, take
from relutrim.io.torch.affine import own_axis
from relutrim.io.torch.build import Builder, Handler, Opaque, Operand, Value
from relutrim.io.torch.record import Constant

_MODES = {"replicate": "edge", "circular": "wrap"}


def _reshaped(b: Builder, input: Operand, **_: object) -> Value:
    """The same numbers in the recorded shape: both have a row for each input, in the same order."""
    x, (shape, *_rest) = b.value(input), b.recorded
    if shape is None:
        raise Opaque("it does not keep the batch as the first axis")
    return b.emit(Reshape(x.shape, shape), x)


def _same(b: Builder, input: Operand, **_: object) -> Value:
    """The value as it is, in the same type."""
    if b.recorded[0] is None:
        raise Opaque("it converts to another type")
    if isinstance(input, Value) and input.tail:
        return input
    x = b.value(input)
    return b.emit(Reshape(x.shape, x.shape), x)


def _dropout(b: Builder, input: Operand, p: float = 0.5, train: bool | None = True, **_: object) -> Value:
    if train is not False and p > 0:
        raise Opaque("dropout that is on is random")
    return _same(b, input)


def _pick(b: Builder, x: Value, picks: Mapping[int, Index]) -> Value:
    """Entries along some axes, counted without the batch."""
    operator = take(x.shape, picks)
    return b.emit(Reshape(x.shape, x.shape) if operator is None else operator, x)


def _slice(
    b: Builder, input: Operand, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> Value:
    x = b.value(input)
    if dim % (len(x.shape) + 1) == 0:
        # A slice of the batch that is as long as the batch is all of it.
        return _same(b, x) if b.recorded[0] == x.shape else _unknown("it takes a part of the batch")
    axis = own_axis(x, dim)
    numbers = [
        one if isinstance(one, int) or one is None else _unknown("its ends are computed")
        for one in (start, end, step)
    ]
    return _pick(b, x, {axis: sliced(x.shape[axis], *numbers)})


def _unknown(reason: str) -> Any:
    raise Opaque(reason)


def _narrow(b: Builder, input: Operand, dim: int, start: int, length: int) -> Value:
    x = b.value(input)
    begin = start + x.shape[own_axis(x, dim)] if start < 0 else start
    return _slice(b, x, dim, begin, begin + length)


def _select(b: Builder, input: Operand, dim: int, index: int) -> Value:
    x = b.value(input)
    axis = own_axis(x, dim)
    made = _pick(b, x, {axis: gathered(x.shape[axis], np.array([index]))})
    return b.emit(Reshape(made.shape, (*x.shape[:axis], *x.shape[axis + 1 :])), made)


def _parts(b: Builder, input: Operand, sizes: Sequence[int], dim: int) -> tuple[Value, ...]:
    x = b.value(input)
    axis = own_axis(x, dim)
    ends = np.cumsum(sizes)
    return tuple(
        _pick(b, x, {axis: np.arange(end - size, end)}) for size, end in zip(sizes, ends, strict=True)
    )


def _split(b: Builder, input: Operand, split_size: Any, dim: int = 0) -> tuple[Value, ...]:
    if not isinstance(split_size, int):
        return _parts(b, input, split_size, dim)
    x = b.value(input)
    size = x.shape[own_axis(x, dim)]
    return _parts(b, x, [min(split_size, size - start) for start in range(0, size, max(1, split_size))], dim)


def _split_with_sizes(
    b: Builder, input: Operand, split_sizes: Sequence[int], dim: int = 0
) -> tuple[Value, ...]:
    return _parts(b, input, split_sizes, dim)


def _chunk(b: Builder, input: Operand, chunks: int, dim: int = 0) -> tuple[Value, ...]:
    x = b.value(input)
    return _split(b, x, -(-x.shape[own_axis(x, dim)] // chunks), dim)


def _unbind(b: Builder, input: Operand, dim: int = 0) -> tuple[Value, ...]:
    x = b.value(input)
    axis = own_axis(x, dim)
    rest = (*x.shape[:axis], *x.shape[axis + 1 :])
    parts = _parts(b, x, [1] * x.shape[axis], dim)
    return tuple(b.emit(Reshape(part.shape, rest), part) for part in parts)


def _index_select(b: Builder, input: Operand, dim: int, index: Operand) -> Value:
    x = b.value(input)
    if not isinstance(index, Constant) or index.array.dtype.kind != "i" or index.array.ndim > 1:
        raise Opaque("it picks by something else than a constant list of whole numbers")
    axis = own_axis(x, dim)
    return _pick(b, x, {axis: gathered(x.shape[axis], index.array.reshape(-1))})


def _index(b: Builder, input: Operand, indices: Sequence[Operand | None]) -> Value:
    """``x[:, i]`` with one list of whole numbers."""
    given = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    if len(given) != 1 or not isinstance(given[0][1], Constant) or given[0][1].array.ndim != 1:
        raise Opaque("it picks by something else than one list of whole numbers")
    return _index_select(b, input, *given[0])


def _flip(b: Builder, input: Operand, dims: Sequence[int]) -> Value:
    x = b.value(input)
    return _pick(b, x, {axis: np.arange(x.shape[axis])[::-1] for axis in (own_axis(x, dim) for dim in dims)})


def _expand(b: Builder, input: Operand, **_: object) -> Value:
    x, shape = b.value(input), b.recorded[0]
    if shape is None or len(shape) != len(x.shape):
        raise Opaque("it moves the batch axis")
    return _same(b, x) if shape == x.shape else b.expanded(x, shape)


def _pad(
    b: Builder, input: Operand, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Value:
    """Pads in pairs from the last axis on; a border of a constant or of the value itself."""
    x = b.value(input)
    if len(pad) % 2 or len(pad) > 2 * len(x.shape) or not all(isinstance(n, int) for n in pad):
        raise Opaque(f"pads {list(pad)} for a value of shape {x.shape}")
    last = len(x.shape) - 1
    around = {last - k: (int(pad[2 * k]), int(pad[2 * k + 1])) for k in range(len(pad) // 2)}
    operator = take(x.shape, padded(x.shape, around, _MODES.get(mode, mode)))
    if operator is None:
        return _same(b, x)
    border = 0.0 if value is None else float(b.numbers(value))
    made = b.emit(operator, x)
    if mode != "constant" or border == 0:
        return made
    b.room.take(made.shape, "its border is an array")
    shift = np.where(blank(operator.picks, made.shape), border, 0.0)
    return b.emit(Scale.exactly(shift=shift), made)


def _border(mode: str) -> Handler:
    return lambda b, input, padding: _pad(b, input, padding, mode)


def _permute(b: Builder, input: Operand, dims: Sequence[int]) -> Value:
    x = b.value(input)
    rank = len(x.shape) + 1
    order = [dim % rank for dim in dims]
    if order[0] != 0:
        raise Opaque("it moves the batch axis")
    return b.emit(Transpose(tuple(axis - 1 for axis in order[1:])), x)


def _transpose(b: Builder, input: Operand, dim0: int, dim1: int) -> Value:
    order = list(range(len(b.value(input).shape) + 1))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return _permute(b, input, order)


def _pixel_shuffle(b: Builder, input: Operand, upscale_factor: int) -> Value:
    """``(c r r, h, w)`` to ``(c, h r, w r)``."""
    x, r = b.value(input), upscale_factor
    if len(x.shape) != 3:
        raise Opaque(f"it shuffles a value of shape {x.shape}")
    channels, height, width = x.shape[0] // (r * r), x.shape[1], x.shape[2]
    split = b.emit(Reshape(x.shape, (channels, r, r, height, width)), x)
    turned = b.emit(Transpose((0, 3, 1, 4, 2)), split)
    return b.emit(Reshape(turned.shape, (channels, height * r, width * r)), turned)


def _channel_shuffle(b: Builder, input: Operand, groups: int) -> Value:
    x = b.value(input)
    split = (groups, x.shape[0] // groups, *x.shape[1:])
    turned = b.emit(Transpose((1, 0, *range(2, len(split)))), b.emit(Reshape(x.shape, split), x))
    return b.emit(Reshape(turned.shape, x.shape), turned)


_RESHAPED = (
    "view",
    "reshape",
    "_unsafe_view",
    "_reshape_alias",
    "flatten",
    "unflatten",
    "squeeze",
    "unsqueeze",
)
SAME = ("contiguous", "clone", "detach", "alias", "lift_fresh_copy", "to", "_to_copy", "type_as")
DROPOUT = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "native_dropout")

MOVING: dict[str, Handler] = {
    **dict.fromkeys(_RESHAPED, _reshaped),
    **dict.fromkeys(SAME, _same),
    **dict.fromkeys(DROPOUT, _dropout),
    "slice": _slice,
    "narrow": _narrow,
    "select": _select,
    "split": _split,
    "split_with_sizes": _split_with_sizes,
    "chunk": _chunk,
    "unbind": _unbind,
    "index_select": _index_select,
    "index": _index,
    "flip": _flip,
    "expand": _expand,
    "expand_as": _expand,
    "pad": _pad,
    "constant_pad_nd": _pad,
    "reflection_pad1d": _border("reflect"),
    "reflection_pad2d": _border("reflect"),
    "replication_pad1d": _border("edge"),
    "replication_pad2d": _border("edge"),
    "permute": _permute,
    "transpose": _transpose,
    "pixel_shuffle": _pixel_shuffle,
    "channel_shuffle": _channel_shuffle,
    "native_channel_shuffle": _channel_shuffle,
}
