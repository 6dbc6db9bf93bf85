"""Convolutions, poolings and means: windows of entries."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from relutrim.certificate.check.call import Call, places, size_of
from relutrim.certificate.check.maps import Map, Value
from relutrim.certificate.check.rounding import Index, quotient
from relutrim.errors import InputError, UnsupportedError


def _windows(call: Call, kernel: Sequence[int]) -> tuple[Index, list[int]]:
    """The windows (channels, windows, entries) of a value, -1 in the padding, and how many there are along
    each axis.
    """
    shape, axes = call.value().shape, len(kernel)
    strides, steps = (call.attribute(name) or [1] * axes for name in ("strides", "dilations"))
    pads = call.attribute("pads") or [0] * 2 * axes
    if call.attribute("auto_pad", "NOTSET") != "NOTSET" or call.attribute("ceil_mode", 0):
        raise UnsupportedError("auto_pad and ceil_mode, which runtimes take in different ways")
    if list(call.attribute("kernel_shape") or kernel) != list(kernel) or shape[0] != 1:
        raise UnsupportedError(f"windows of {list(kernel)} over a tensor of shape {shape}")
    if min([*kernel, *strides, *steps]) < 1 or min(pads) < 0:
        raise InputError(f"windows of {list(kernel)}, strides {strides}, dilations {steps}, pads {pads}")
    around = [(0, 0), *zip(pads[:axes], pads[axes:], strict=True)]
    size_of([n + before + behind for n, (before, behind) in zip(shape[1:], around, strict=True)])
    padded = np.pad(places(shape)[0], around, constant_values=-1)
    reach = [step * (k - 1) + 1 for step, k in zip(steps, kernel, strict=True)]
    every = np.lib.stride_tricks.sliding_window_view(padded, reach, tuple(range(1, axes + 1)))
    jumps = (slice(None, None, n) for n in (1, *strides, *steps))
    every = every[tuple(jumps)]
    size_of(every.shape)
    counts = list(every.shape[1 : axes + 1])
    return every.reshape(shape[1], math.prod(counts), math.prod(kernel)), counts


def _conv(call: Call) -> Value:
    """A convolution with zero padding: the windows of a group's channels times its weight."""
    weight, groups = call.array(1), call.attribute("group", 1)
    every, counts = _windows(call, weight.shape[2:])
    (outputs, own), (channels, count, width) = weight.shape[:2], every.shape
    if outputs % groups or channels != groups * own:
        raise InputError(f"a kernel of shape {weight.shape}, {groups} groups, meets {call.value().shape}")
    index = every.reshape(groups, own, count, width).swapaxes(1, 2).reshape(groups, count, own * width)
    bias = 0.0 if call.given(2) is None else np.repeat(call.array(2).reshape(outputs), count)
    maps = [Map(index, weight.reshape(groups, outputs // groups, own * width))]
    return call.emit(maps, [call.value()], [1, outputs, *counts], bias)


def _max_pool(call: Call) -> Value:
    """The largest of each window."""
    value = call.value()
    windows, counts = _windows(call, call.attribute("kernel_shape"))
    if not (windows >= 0).any(2).all() or any(call.node.output[1:]):
        raise UnsupportedError("a maximum over nothing, or its place")
    # Padding behind all entries: windows of the same entries are the same then, wherever theirs was.
    windows = np.take_along_axis(windows, np.argsort(windows < 0, axis=2, kind="stable"), 2)
    return call.maximum(value, windows.reshape(-1, windows.shape[2]), [*value.shape[:2], *counts])


def _average_pool(call: Call) -> Value:
    """The mean of each window."""
    windows, counts = _windows(call, call.attribute("kernel_shape"))
    own = np.full(windows.shape[:2], windows.shape[2])
    number = own if call.attribute("count_include_pad", 0) else (windows >= 0).sum(2)
    return _mean(call, windows, number, [*call.value().shape[:2], *counts])


def _mean(call: Call, windows: Index, count: Index, shape: Sequence[int]) -> Value:
    """Sums of windows, each divided by how many entries count."""
    if not (count > 0).all():
        raise InputError("a mean over no entries")
    rows = windows.reshape(1, -1, windows.shape[-1])
    total = call.emit([Map(rows, np.ones((1, 1, rows.shape[2])))], [call.value()], shape)
    factor, radius = quotient(count.reshape(shape).astype(float))
    return call.sum((factor, total), radius=radius)


def _reduced(call: Call) -> Value:
    """A mean or a sum over axes."""
    shape, kind = call.value().shape, call.node.op_type
    every = list(range(2, len(shape))) if kind == "GlobalAveragePool" else call.numbers(1, "axes")
    if not every:
        raise UnsupportedError("it does not say over which axes")
    axes = sorted({range(len(shape))[axis] for axis in every})
    rest = [axis for axis in range(len(shape)) if axis not in axes]
    count = math.prod(shape[axis] for axis in axes)
    windows = places(shape).transpose(rest + axes).reshape(-1, count)
    keep = kind == "GlobalAveragePool" or call.attribute("keepdims", 1)
    made = [1 if a in axes else n for a, n in enumerate(shape) if keep or a not in axes]
    return _mean(call, windows, np.full(len(windows), 1 if kind == "ReduceSum" else count), made)


HANDLERS: dict[str, Callable[[Call], Any]] = {
    "Conv": _conv,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    **dict.fromkeys(("GlobalAveragePool", "ReduceMean", "ReduceSum"), _reduced),
}
"""What each of these operators makes."""
