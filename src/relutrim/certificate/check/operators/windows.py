"""Convolutions, poolings and means: windows of entries."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from relutrim.certificate.check.call import MOST, Call, Tensor, Value, handles, size_of
from relutrim.certificate.check.maps import Map, Matrix, Maximum, Pick, quotient
from relutrim.certificate.check.rounding import Index
from relutrim.errors import InputError, UnsupportedError

_WAYS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


def table_of(call: Call, shape: Sequence[int], kernel: Sequence[int]) -> tuple[Index, Sequence[int], Index]:
    """Entries of one channel that each window holds (windows, entries), -1 in the padding; how many
    windows there are along each axis; and how many entries each has that count for an average.
    """
    axes = len(kernel)
    strides, dilations = (call.attribute(name) or [1] * axes for name in ("strides", "dilations"))
    pads, way = list(call.attribute("pads") or [0] * 2 * axes), call.attribute("auto_pad", "NOTSET")
    ceil, table = call.attribute("ceil_mode", 0), np.zeros((1, 1), np.int64)
    if min([*kernel, *strides, *dilations]) < 1 or min(pads) < 0 or way not in _WAYS or len(pads) != 2 * axes:
        raise InputError(f"windows of {kernel} with strides {strides}, pads {pads}, auto_pad {way}")
    if way != "NOTSET" and any(pads):
        raise UnsupportedError(f"auto_pad {way} beside pads {pads}, which exclude each other")
    counts, real = [], np.ones((1, 1), bool)
    for axis, (size, k, step, gap) in enumerate(zip(shape, kernel, strides, dilations, strict=True)):
        before, behind, reach = pads[axis], pads[axes + axis], gap * (k - 1) + 1
        if way.startswith("SAME"):
            missing = max(0, (-(-size // step) - 1) * step + reach - size)
            before, behind = missing // 2, missing - missing // 2
            before, behind = (behind, before) if way == "SAME_LOWER" else (before, behind)
        room = size + before + behind - reach
        count = (-(-room // step) if ceil else room // step) + 1
        if ceil and room % step:
            if (count - 1) * step >= size + before:
                raise UnsupportedError("its last window begins behind the value (ceil_mode)")
            if call.attribute("count_include_pad", 0):
                raise UnsupportedError("ceil_mode with count_include_pad, which runtimes treat differently")
        if room < 0 or count * k > MOST:
            raise InputError(f"windows of {kernel} do not fit {tuple(shape)}")
        at = np.arange(count)[:, None] * step + np.arange(k) * gap - before
        inside = (at >= 0) & (at < size)
        size_of([len(table) * count, table.shape[1] * k])
        table = (table[:, None, :, None] * size + at[None, :, None, :]).reshape(len(table) * count, -1)
        real = (real[:, None, :, None] & inside[None, :, None, :]).reshape(table.shape)
        counts.append(count)
    return np.where(real, table, -1), counts, real.sum(1)


def channels(call: Call, value: Value, table: Index) -> Index:
    """The windows of every channel of (1, channels, *space)."""
    if len(value.shape) < 3 or value.shape[0] != 1:
        raise UnsupportedError(f"windows over a tensor of shape {value.shape}")
    size_of([value.shape[1], *table.shape])
    starts = np.arange(value.shape[1])[:, None, None] * size_of(value.shape[2:])
    return np.where(table < 0, -1, table + starts)


@handles("Conv")
def conv(call: Call) -> Tensor:
    """A convolution with zero padding: windows times a matrix."""
    value, weight, groups = call.value(), call.array(1), call.attribute("group", 1)
    table, counts, _ = table_of(call, value.shape[2:], weight.shape[2:])
    every = channels(call, value, table)
    if every.shape[0] != weight.shape[1] * groups or weight.shape[0] % groups or weight.ndim < 3:
        raise InputError(f"a kernel of shape {weight.shape} in {groups} groups meets {value.shape}")
    own, outputs = weight.shape[1], weight.shape[0] // groups
    made, order = [], np.arange(outputs * len(table)).reshape(len(table), outputs).T.reshape(-1)
    total = size_of([1, weight.shape[0], *counts])
    maps: list[Map] = []
    for g in range(groups):
        windows = every[g * own : (g + 1) * own].transpose(1, 0, 2).reshape(len(table), -1)
        matrix = weight[g * outputs : (g + 1) * outputs].reshape(outputs, -1)
        part = call.emit([Matrix(matrix, windows)], [value], [len(table) * outputs])
        places = np.full(total, -1)
        places[g * len(order) : (g + 1) * len(order)] = order
        maps.append(Pick(places))
        made.append(part)
    bias = None if call.given(2) is None else np.repeat(call.array(2), len(table))
    return call.emit(maps, made, [1, weight.shape[0], *counts], bias)


@handles("AveragePool")
def average_pool(call: Call) -> Tensor:
    """The mean of each window."""
    value, kernel = call.value(), call.attribute("kernel_shape")
    table, counts, real = table_of(call, value.shape[2:], kernel)
    if call.attribute("count_include_pad", 0):
        real = np.full_like(real, math.prod(kernel))
    return mean_of(call, value, channels(call, value, table), real, [*value.shape[:2], *counts])


def mean_of(call: Call, value: Value, windows: Index, count: Index, shape: Sequence[int]) -> Value:
    """Sums of windows, each divided by how many entries count."""
    if not (count > 0).all():
        raise InputError("a mean over no entries")
    rows = windows.reshape(-1, windows.shape[-1])
    total = call.emit([Matrix(np.ones((1, rows.shape[1])), rows)], [value], shape)
    factor, radius = quotient(np.broadcast_to(count, windows.shape[:-1]).reshape(shape).astype(float))
    return call.scaled(total, factor, radius)


@handles("MaxPool")
def max_pool(call: Call) -> Tensor:
    """The largest of each window."""
    value = call.value()
    table, counts, real = table_of(call, value.shape[2:], call.attribute("kernel_shape"))
    if not (real > 0).all() or any(call.node.output[1:]):
        raise UnsupportedError("a maximum over nothing, or its place")
    windows = channels(call, value, table).reshape(-1, table.shape[1])
    return call.made(Maximum(windows), [value], [*value.shape[:2], *counts])


@handles("GlobalMaxPool")
def global_max_pool(call: Call) -> Tensor:
    """The largest of each channel."""
    value = call.value()
    windows = np.arange(size_of(value.shape)).reshape(size_of(value.shape[:2]), -1)
    return call.made(Maximum(windows), [value], [*value.shape[:2], *[1] * (len(value.shape) - 2)])


@handles("GlobalAveragePool")
def global_average_pool(call: Call) -> Tensor:
    """The mean of each channel."""
    return reduced(call, call.value(), list(range(2, len(call.value().shape))), True, mean=True)


def reduced(call: Call, value: Value, axes: list[int], keep: bool, *, mean: bool) -> Value:
    """A mean or a sum over axes."""
    rank = len(value.shape)
    axes = sorted({axis % rank for axis in axes})
    rest = [axis for axis in range(rank) if axis not in axes]
    count = math.prod(value.shape[axis] for axis in axes)
    places = np.arange(size_of(value.shape)).reshape(value.shape).transpose(rest + axes).reshape(-1, count)
    shape = [1 if a in axes else n for a, n in enumerate(value.shape) if keep or a not in axes]
    number = np.array([count if mean else 1])
    return mean_of(call, value, places, np.broadcast_to(number, (len(places),)), shape)


def over_axes(call: Call, mean: bool) -> Tensor:
    """The same, over the axes that a node names."""
    axes, value = call.numbers(1, "axes"), call.value()
    if not axes and call.attribute("noop_with_empty_axes", 0):
        return value
    every = list(range(len(value.shape)))
    return reduced(call, value, axes or every, bool(call.attribute("keepdims", 1)), mean=mean)


@handles("ReduceMean")
def reduce_mean(call: Call) -> Tensor:
    """A mean over axes."""
    return over_axes(call, True)


@handles("ReduceSum")
def reduce_sum(call: Call) -> Tensor:
    """A sum over axes."""
    return over_axes(call, False)
