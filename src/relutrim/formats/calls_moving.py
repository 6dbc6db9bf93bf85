"""Torch's operations that move numbers or pool them, by name; see :mod:`relutrim.formats.calls`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from relutrim.errors import UnsupportedError
from relutrim.formats import building_moving as moving
from relutrim.formats import building_windows as windows
from relutrim.formats.building import BATCH, Builder, Constant, Operand, Value
from relutrim.formats.building_windows import Numbers
from relutrim.formats.picks import gathered


def _convolution(
    b: Builder,
    name: str,
    input: Operand,
    weight: Operand,
    bias: Operand | None,
    stride: Numbers,
    padding: Numbers,
    dilation: Numbers,
    transposed: bool,
    output_padding: Numbers,
    groups: int,
) -> Value:
    if transposed:
        rest = (stride, padding, output_padding, groups, dilation)
        return windows.convolve_transposed(b, name, input, weight, bias, *rest)
    return windows.convolve(b, name, input, weight, bias, stride, padding, dilation, groups)


def _conv(
    b: Builder,
    name: str,
    input: Operand,
    weight: Operand,
    bias: Operand | None = None,
    stride: Numbers = 1,
    padding: Numbers | str = 0,
    dilation: Numbers = 1,
    groups: int = 1,
) -> Value:
    return windows.convolve(b, name, input, weight, bias, stride, padding, dilation, groups)


def _conv_transpose(
    b: Builder,
    name: str,
    input: Operand,
    weight: Operand,
    bias: Operand | None = None,
    stride: Numbers = 1,
    padding: Numbers = 0,
    output_padding: Numbers = 0,
    groups: int = 1,
    dilation: Numbers = 1,
) -> Value:
    rest = (stride, padding, output_padding, groups, dilation)
    return windows.convolve_transposed(b, name, input, weight, bias, *rest)


def _max_pool(axes: int) -> Callable[..., Value]:
    def call(
        b: Builder,
        name: str,
        input: Operand,
        kernel_size: Numbers,
        stride: Numbers | None = None,
        padding: Numbers = 0,
        dilation: Numbers = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Value:
        if return_indices:
            raise UnsupportedError("it also returns where the maxima are, which is not piecewise linear")
        return windows.max_pool(b, name, input, kernel_size, stride, padding, dilation, bool(ceil_mode), axes)

    return call


def _avg_pool(axes: int) -> Callable[..., Value]:
    def call(
        b: Builder,
        name: str,
        input: Operand,
        kernel_size: Numbers,
        stride: Numbers | None = None,
        padding: Numbers = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Value:
        rest = (bool(ceil_mode), bool(count_include_pad), divisor_override, axes)
        return windows.average_pool(b, name, input, kernel_size, stride, padding, *rest)

    return call


def _adaptive(axes: int, *, largest: bool) -> Callable[..., Value]:
    def call(b: Builder, name: str, input: Operand, output_size: Any, return_indices: bool = False) -> Value:
        if return_indices:
            raise UnsupportedError("it also returns where the maxima are, which is not piecewise linear")
        return windows.adaptive_pool(b, name, input, output_size, axes, largest=largest)

    return call


def _mean(
    b: Builder, name: str, input: Operand, dim: Any = None, keepdim: bool = False, *, dtype: object = None
) -> Value:
    _same_dtype(dtype)
    return windows.mean(b, name, input, dim, bool(keepdim), total=False)


def _sum(
    b: Builder, name: str, input: Operand, dim: Any = None, keepdim: bool = False, *, dtype: object = None
) -> Value:
    _same_dtype(dtype)
    return windows.mean(b, name, input, dim, bool(keepdim), total=True)


def _same_dtype(dtype: object) -> None:
    if dtype is not None:
        raise UnsupportedError("it converts to another dtype; drop its dtype argument")


def _slice(
    b: Builder, name: str, input: Operand, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> Value:
    return moving.slice_axis(b, name, input, dim, start, end, step)


def _narrow(b: Builder, name: str, input: Operand, dim: int, start: int, length: int) -> Value:
    value = b.read(input)
    begin = start + value.shape[moving.own_axis(value, dim)] if start < 0 else start
    return moving.slice_axis(b, name, value, dim, begin, begin + length)


def _select(b: Builder, name: str, input: Operand, dim: int, index: int) -> Value:
    return moving.select(b, name, input, dim, index)


def _getitem(b: Builder, name: str, input: Operand, index: Any) -> Value:
    return moving.get_item(b, name, input, index)


def _split(b: Builder, name: str, input: Operand, split_size: Any, dim: int = 0) -> tuple[Value, ...]:
    value = b.read(input)
    size = value.shape[moving.own_axis(value, dim)]
    if not isinstance(split_size, int):
        return moving.split(b, name, value, list(split_size), dim)
    if split_size < 1:
        raise UnsupportedError(f"it splits into parts of {split_size}")
    sizes = [min(split_size, size - start) for start in range(0, size, split_size)]
    return moving.split(b, name, value, sizes, dim)


def _split_with_sizes(b: Builder, name: str, input: Operand, split_sizes: Any, dim: int = 0) -> object:
    return moving.split(b, name, input, list(split_sizes), dim)


def _split_method(
    b: Builder, name: str, tensor: Operand, split_size_or_sections: Any, dim: int = 0
) -> object:
    return _split(b, name, tensor, split_size_or_sections, dim)


def _chunk(b: Builder, name: str, input: Operand, chunks: int, dim: int = 0) -> tuple[Value, ...]:
    value = b.read(input)
    return _split(b, name, value, -(-value.shape[moving.own_axis(value, dim)] // chunks), dim)


def _index_select(b: Builder, name: str, input: Operand, dim: int, index: Constant) -> Value:
    value, array = b.read(input), np.asarray(index)
    if isinstance(index, Value) or array.dtype.kind != "i" or array.ndim > 1:
        raise UnsupportedError("it picks by something else than a constant list of whole numbers")
    axis = moving.own_axis(value, dim)
    picks = {axis: gathered(value.shape[axis], array.reshape(-1))}
    return moving.pick(b, name, value, picks, view=False)


def _transpose(b: Builder, name: str, input: Operand, dim0: int, dim1: int) -> Value:
    rank = len(b.read(input).shape) + 1
    order = list(range(rank))
    if not all(-rank <= dim < rank for dim in (dim0, dim1)):
        raise UnsupportedError(f"it swaps the axes {dim0} and {dim1} of a value of {rank} axes")
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return moving.permute(b, name, input, order)


def _permute(b: Builder, name: str, input: Operand, *dims: Any, **named: Any) -> Value:
    given = named.get("dims", dims)
    listed = given[0] if len(given) == 1 and isinstance(given[0], tuple | list) else given
    return moving.permute(b, name, input, list(listed))


def _squeeze(b: Builder, name: str, input: Operand, dim: Any = None) -> Value:
    value = b.read(input)
    if dim is None:
        raise UnsupportedError(
            "it drops all axes of length 1, the batch among them if it is one; name an axis"
        )
    axes = {moving.own_axis(value, axis) for axis in ([dim] if isinstance(dim, int) else dim)}
    kept = [size for axis, size in enumerate(value.shape) if axis not in axes or size != 1]
    return value if tuple(kept) == value.shape else b.reshape(name, value, [BATCH, *kept])


def _unsqueeze(b: Builder, name: str, input: Operand, dim: int) -> Value:
    value = b.read(input)
    rank = len(value.shape) + 2
    if not -rank <= dim < rank or dim % rank == 0:
        raise UnsupportedError(f"it puts an axis at {dim}; the batch axis must stay the first of {rank}")
    at = dim % rank - 1
    return b.reshape(name, value, [BATCH, *value.shape[:at], 1, *value.shape[at:]])


def _cat(b: Builder, name: str, tensors: Sequence[Operand], dim: int = 0, axis: int | None = None) -> Value:
    return moving.concatenate(b, name, tensors, dim if axis is None else axis)


def _pad(
    b: Builder,
    name: str,
    input: Operand,
    pad: Sequence[int],
    mode: str = "constant",
    value: float | None = None,
) -> Value:
    return moving.pad(b, name, input, pad, mode, value)


MOVING: dict[str, Callable[..., object]] = {
    "convolution": _convolution,
    "conv1d": _conv,
    "conv2d": _conv,
    "conv_transpose1d": _conv_transpose,
    "conv_transpose2d": _conv_transpose,
    "max_pool1d": _max_pool(1),
    "max_pool2d": _max_pool(2),
    "avg_pool1d": _avg_pool(1),
    "avg_pool2d": _avg_pool(2),
    "adaptive_avg_pool1d": _adaptive(1, largest=False),
    "adaptive_avg_pool2d": _adaptive(2, largest=False),
    "adaptive_max_pool1d": _adaptive(1, largest=True),
    "adaptive_max_pool2d": _adaptive(2, largest=True),
    "mean": _mean,
    "sum": _sum,
    "getitem": _getitem,
    "narrow": _narrow,
    "select": _select,
    "split": _split_method,
    "chunk": _chunk,
    "index_select": _index_select,
    "transpose": _transpose,
    "permute": _permute,
    "squeeze": _squeeze,
    "unsqueeze": _unsqueeze,
    "cat": _cat,
    "pad": _pad,
}

EXPORTED_MOVING: dict[str, Callable[..., object]] = {
    "slice": _slice,
    "split": _split,
    "split_with_sizes": _split_with_sizes,
    "constant_pad_nd": lambda b, name, input, pad, value=0: moving.pad(
        b, name, input, pad, "constant", value
    ),
    "max_pool2d_with_indices": MOVING["max_pool2d"],
    "_adaptive_avg_pool2d": MOVING["adaptive_avg_pool2d"],
}
"""What exported programs call differently."""
