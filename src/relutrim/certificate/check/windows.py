"""Convolutions, poolings and means: windows of entries."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from relutrim.certificate.check.call import MOST, Call, Tensor, places, size_of
from relutrim.certificate.check.maps import Map, Value
from relutrim.certificate.check.rounding import Array, Index, quotient
from relutrim.errors import InputError, UnsupportedError

_WAYS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


def _sizes(call: Call, axes: int) -> Iterator[list[int]]:
    """Strides, dilations and pads before and behind, for each axis."""
    strides, dilations = (call.attribute(name) or [1] * axes for name in ("strides", "dilations"))
    pads = list(call.attribute("pads") or [0] * 2 * axes)
    if min([*strides, *dilations]) < 1 or min(pads) < 0 or len(pads) != 2 * axes:
        raise InputError(f"windows with strides {strides}, dilations {dilations}, pads {pads}")
    yield from map(list, zip(strides, dilations, pads[:axes], pads[axes:], strict=True))


def _crossed(value: Value, tables: Sequence[Index]) -> Index:
    """The windows (channels, windows, entries) of every channel, from those along each axis (windows,
    entries); -1 in the padding.
    """
    if len(value.shape) < 3 or value.shape[0] != 1:
        raise UnsupportedError(f"windows over a tensor of shape {value.shape}")
    table = np.zeros((1, 1), np.int64)
    for size, at in zip(value.shape[2:], tables, strict=True):
        size_of([value.shape[1], len(table) * len(at), table.shape[1] * at.shape[1]])
        both = table[:, None, :, None] * size + at[None, :, None, :]
        none = (table[:, None, :, None] < 0) | (at[None, :, None, :] < 0)
        table = np.where(none, -1, both).reshape(len(table) * len(at), -1)
    starts = np.arange(value.shape[1])[:, None, None] * size_of(value.shape[2:])
    return np.where(table < 0, -1, table + starts)


def _windows_of(call: Call, value: Value, kernel: Sequence[int]) -> tuple[Index, list[int]]:
    """The windows of a convolution or a pooling, and how many there are along each axis."""
    ceil, way, tables = call.attribute("ceil_mode", 0), call.attribute("auto_pad", "NOTSET"), list[Index]()
    if way not in _WAYS or list(call.attribute("kernel_shape") or kernel) != list(kernel):
        raise InputError(f"windows of {list(kernel)}, auto_pad {way}")
    if way != "NOTSET" and any(call.attribute("pads") or ()):
        raise UnsupportedError(f"auto_pad {way} beside pads, which exclude each other")
    if "Pool" in call.node.op_type and way.startswith("SAME") and max(call.attribute("dilations") or [1]) > 1:
        raise UnsupportedError(f"auto_pad {way} with dilations, about which runtimes disagree")
    ways = zip(value.shape[2:], kernel, _sizes(call, len(kernel)), strict=True)
    for size, k, (step, gap, before, behind) in ways:
        reach = gap * (k - 1) + 1
        if way.startswith("SAME"):
            missing = max(0, (-(-size // step) - 1) * step + reach - size)
            before, behind = missing // 2, missing - missing // 2
            before, behind = (behind, before) if way == "SAME_LOWER" else (before, behind)
        room = size + before + behind - reach
        count = (-(-room // step) if ceil else room // step) + 1
        if ceil and room % step and (count - 1) * step >= size + before:
            raise UnsupportedError("its last window begins behind the value (ceil_mode)")
        if ceil and room % step and call.attribute("count_include_pad", 0):
            raise UnsupportedError("ceil_mode with count_include_pad, which runtimes treat differently")
        if k < 1 or room < 0 or count * k > MOST:
            raise InputError(f"windows of {list(kernel)} do not fit {value.shape}")
        at = np.arange(count)[:, None] * step + np.arange(k) * gap - before
        tables.append(np.where((at >= 0) & (at < size), at, -1))
    return _crossed(value, tables), [len(at) for at in tables]


def _convolved(call: Call, every: Index, weight: Array, counts: Sequence[int]) -> Tensor:
    """Windows of all channels times a weight (groups, outputs, inputs, ...)."""
    groups, outputs, own = weight.shape[:3]
    channels, count, width = every.shape
    if channels != groups * own:
        raise InputError(f"a kernel for {groups} groups of {own} channels meets {call.value().shape}")
    index = every.reshape(groups, own, count, width).swapaxes(1, 2).reshape(groups, count, -1)
    bias = 0.0 if call.given(2) is None else np.repeat(call.array(2).reshape(groups * outputs), count)
    maps = [Map(index, weight.reshape(groups, outputs, -1))]
    return call.emit(maps, [call.value()], [1, groups * outputs, *counts], bias)


def _conv(call: Call) -> Tensor:
    """A convolution with zero padding."""
    weight, groups = call.array(1), call.attribute("group", 1)
    every, counts = _windows_of(call, call.value(), weight.shape[2:])
    return _convolved(call, every, weight.reshape(groups, -1, *weight.shape[1:]), counts)


def _conv_transpose(call: Call) -> Tensor:
    """``y[p]`` sums ``W[k] x[i]`` over ``i stride + k dilation = p + pad``."""
    value, weight, groups = call.value(), call.array(1), call.attribute("group", 1)
    axes, tables = weight.ndim - 2, list[Index]()
    if call.attribute("auto_pad", "NOTSET") != "NOTSET" or call.attribute("output_shape") is not None:
        raise UnsupportedError("auto_pad and output_shape, about which runtimes disagree")
    ways = (value.shape[2:], weight.shape[2:], call.attribute("output_padding") or [0] * axes)
    for size, k, extra, (step, gap, before, behind) in zip(*ways, _sizes(call, axes), strict=True):
        count = step * (size - 1) + extra + gap * (k - 1) + 1 - before - behind
        if k < 1 or not 0 <= extra < max(step, gap) or count < 1 or count * k > MOST:
            raise InputError(f"a kernel of {weight.shape[2:]} makes {count} entries of {value.shape}")
        at = np.arange(count)[:, None] + before - np.arange(k) * gap
        tables.append(np.where((at % step == 0) & (at >= 0) & (at < size * step), at // step, -1))
    turned = weight.reshape(groups, -1, *weight.shape[1:]).swapaxes(1, 2)
    return _convolved(call, _crossed(value, tables), turned, [len(at) for at in tables])


def _average_pool(call: Call) -> Tensor:
    """The mean of each window."""
    value, kernel = call.value(), call.attribute("kernel_shape")
    windows, counts = _windows_of(call, value, kernel)
    number = np.full(windows.shape[:2], math.prod(kernel))
    number = number if call.attribute("count_include_pad", 0) else (windows >= 0).sum(2)
    return _mean_of(call, value, windows, number, [*value.shape[:2], *counts])


def _mean_of(call: Call, value: Value, windows: Index, count: Index, shape: Sequence[int]) -> Value:
    """Sums of windows, each divided by how many entries count."""
    if not (count > 0).all():
        raise InputError("a mean over no entries")
    rows = windows.reshape(1, -1, windows.shape[-1])
    total = call.emit([Map(rows, np.ones((1, 1, rows.shape[2])))], [value], shape)
    factor, radius = quotient(count.reshape(shape).astype(float))
    return call.sum((factor, total), radius=radius)


def _max_pool(call: Call) -> Tensor:
    """The largest of each window."""
    value = call.value()
    windows, counts = _windows_of(call, value, call.attribute("kernel_shape"))
    if not (windows >= 0).any(2).all() or any(call.node.output[1:]):
        raise UnsupportedError("a maximum over nothing, or its place")
    # Padding behind all entries: windows of the same entries are the same then, wherever theirs was.
    windows = np.take_along_axis(windows, np.argsort(windows < 0, axis=2, kind="stable"), 2)
    return call.maximum(value, windows.reshape(-1, windows.shape[2]), [*value.shape[:2], *counts])


def _global_max_pool(call: Call) -> Tensor:
    """The largest of each channel."""
    shape = call.value().shape
    windows = places(shape).reshape(size_of(shape[:2]), -1)
    return call.maximum(call.value(), windows, [*shape[:2], *[1] * (len(shape) - 2)])


def _reduced(call: Call) -> Tensor:
    """A mean or a sum over axes."""
    value, kind = call.value(), call.node.op_type
    rank, every = len(value.shape), call.numbers(1, "axes")
    if kind == "GlobalAveragePool":
        every = list(range(2, rank))
    elif not every and call.attribute("noop_with_empty_axes", 0):
        return value
    axes = sorted({axis % rank for axis in every or range(rank)})
    rest = [axis for axis in range(rank) if axis not in axes]
    count = math.prod(value.shape[axis] for axis in axes)
    windows = places(value.shape).transpose(rest + axes).reshape(-1, count)
    keep = kind == "GlobalAveragePool" or call.attribute("keepdims", 1)
    shape = [1 if a in axes else n for a, n in enumerate(value.shape) if keep or a not in axes]
    number = np.full(len(windows), 1 if kind == "ReduceSum" else count)
    return _mean_of(call, value, windows, number, shape)


HANDLERS: dict[str, Callable[[Call], Any]] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "AveragePool": _average_pool,
    "MaxPool": _max_pool,
    "GlobalMaxPool": _global_max_pool,
    **dict.fromkeys(("GlobalAveragePool", "ReduceMean", "ReduceSum"), _reduced),
}
"""What each of these operators makes."""
