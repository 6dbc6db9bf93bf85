"""Convolutions, poolings and means as torch means them, on a :class:`~relutrim.formats.building.Builder`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from relutrim.errors import NetworkError, UnsupportedError
from relutrim.formats.building import Builder, Operand, Value
from relutrim.formats.building_moving import own_axis
from relutrim.formats.transposed import spread_out
from relutrim.formats.windows import ceil_padding, check_windows
from relutrim.network.operators import Array, AveragePool, Convolution, MaxPool, Mean, Scale
from relutrim.network.operators.convolution import Padding

Numbers: TypeAlias = int | Sequence[int]


def each(numbers: Numbers, axes: int) -> tuple[int, ...]:
    """One number for all axes, or one for each."""
    found = (numbers,) * axes if isinstance(numbers, int) else tuple(numbers)
    if not all(isinstance(number, int) for number in found):
        raise UnsupportedError(f"it is told {list(found)}, which are not whole numbers")
    return found * axes if len(found) == 1 else found


def convolve(
    b: Builder,
    name: str,
    x: Operand,
    weight: Operand,
    bias: Operand | None = None,
    stride: Numbers = 1,
    padding: Numbers | str = 0,
    dilation: Numbers = 1,
    groups: int = 1,
) -> Value:
    """A convolution with zero padding."""
    value, kernel, offset = _parameters(b, x, weight, bias)
    axes = kernel.ndim - 2
    dilations = each(dilation, axes)
    if padding == "same":
        totals = [d * (k - 1) for k, d in zip(kernel.shape[2:], dilations, strict=True)]
        around: Padding = tuple((total // 2, total - total // 2) for total in totals)
    else:
        around = _symmetric(0 if isinstance(padding, str) else padding, axes)
    if not 1 <= groups <= kernel.shape[0] or kernel.shape[0] % groups:
        raise NetworkError(f"{kernel.shape[0]} output channels cannot be split into {groups} groups")
    check_windows(value.shape, kernel.shape[2:], each(stride, axes), around, dilations)
    offset = np.zeros(len(kernel)) if offset is None else offset
    return b.append(name, Convolution(kernel, offset, each(stride, axes), around, dilations, groups), value)


def convolve_transposed(
    b: Builder,
    name: str,
    x: Operand,
    weight: Operand,
    bias: Operand | None = None,
    stride: Numbers = 1,
    padding: Numbers = 0,
    output_padding: Numbers = 0,
    groups: int = 1,
    dilation: Numbers = 1,
) -> Value:
    """A transposed convolution."""
    value, kernel, offset = _parameters(b, x, weight, bias)
    axes = kernel.ndim - 2
    *before, last = spread_out(
        value.shape,
        kernel,
        lambda outputs: np.zeros(outputs) if offset is None else offset,
        stride=each(stride, axes),
        padding=_symmetric(padding, axes),
        dilation=each(dilation, axes),
        output_padding=each(output_padding, axes),
        groups=groups,
    )
    for operator in before:
        value = b.append(f"{name}_spread", operator, value)
    return b.append(name, last, value)


def max_pool(
    b: Builder,
    name: str,
    x: Operand,
    kernel: Numbers,
    stride: Numbers | None,
    padding: Numbers,
    dilation: Numbers,
    ceil: bool,
    axes: int,
) -> Value:
    """The largest entry of each window."""
    value = _image(b, x, axes)
    kernels, steps, around = _windows(kernel, stride, padding, axes)
    dilations = each(dilation, axes)
    check_windows(value.shape, kernels, steps, around, dilations)
    if ceil:
        around = ceil_padding(value.shape[1:], kernels, steps, around, dilations)
    return b.append(name, MaxPool(kernels, steps, around, dilations), value)


def average_pool(
    b: Builder,
    name: str,
    x: Operand,
    kernel: Numbers,
    stride: Numbers | None,
    padding: Numbers,
    ceil: bool,
    count_padding: bool,
    divisor: int | None,
    axes: int,
) -> Value:
    """The mean of each window, or its sum divided by ``divisor``."""
    value = _image(b, x, axes)
    kernels, steps, given = _windows(kernel, stride, padding, axes)
    check_windows(value.shape, kernels, steps, given, (1,) * axes)
    around = ceil_padding(value.shape[1:], kernels, steps, given, (1,) * axes) if ceil else given
    counts = count_padding and any(before for before, _ in given)
    if around != given and (counts or divisor is not None):
        raise UnsupportedError(
            "its last window reaches beyond the padding (ceil_mode), which torch counts in part; use "
            "ceil_mode=False or count_include_pad=False"
        )
    operator = AveragePool(kernels, steps, around, bool(counts or divisor is not None))
    if divisor is None:
        return b.append(name, operator, value)
    mean = b.append(f"{name}_mean", operator, value)
    total = b.append(f"{name}_sum", Scale.exactly(float(math.prod(kernels))), mean)
    return b.append(name, Scale.divide(np.asarray(float(divisor))), total)


def adaptive_pool(
    b: Builder,
    name: str,
    x: Operand,
    output_size: int | Sequence[int | None] | None,
    axes: int,
    *,
    largest: bool,
) -> Value:
    """Windows of equal size, ``output_size`` of them; a single one is the mean or maximum of everything."""
    value = _image(b, x, axes)
    space = value.shape[1:]
    given = (output_size,) * axes if output_size is None or isinstance(output_size, int) else output_size
    wanted = tuple(size if count is None else count for size, count in zip(space, given, strict=True))
    if any(count < 1 or size % count for size, count in zip(space, wanted, strict=True)):
        raise UnsupportedError(
            f"it pools {space} entries into {wanted} windows, which are not of equal size; use a number that "
            "divides the input"
        )
    kernel = tuple(size // count for size, count in zip(space, wanted, strict=True))
    nothing: Padding = ((0, 0),) * axes
    if largest:
        return b.append(name, MaxPool(kernel, kernel, nothing, (1,) * axes), value)
    if set(wanted) == {1}:
        return b.append(name, Mean(tuple(range(1, axes + 1)), keep=True), value)
    return b.append(name, AveragePool(kernel, kernel, nothing), value)


def mean(
    b: Builder, name: str, x: Operand, dims: int | Sequence[int] | None, keep: bool, *, total: bool
) -> Value:
    """The mean over some axes, or their sum; ``dims`` counts the batch axis."""
    value = b.read(x)
    if dims is None or dims == [] or dims == ():
        raise UnsupportedError("it runs over all axes, the batch among them; name the axes, as in x.mean(1)")
    axes = tuple(sorted({own_axis(value, dim) for dim in ([dims] if isinstance(dims, int) else dims)}))
    count = math.prod(value.shape[axis] for axis in axes)
    if not count:
        raise NetworkError(f"it runs over axes of a value of shape {value.shape} that have no entries")
    if not total:
        return b.append(name, Mean(axes, keep), value)
    return b.append(name, Scale.exactly(float(count)), b.append(f"{name}_mean", Mean(axes, keep), value))


def _parameters(
    b: Builder, x: Operand, weight: Operand, bias: Operand | None
) -> tuple[Value, Array, Array | None]:
    if isinstance(weight, Value) or isinstance(bias, Value):
        raise UnsupportedError("its weights depend on the input, so it is not affine")
    kernel = b.stored(weight)
    if kernel.ndim not in (3, 4):
        raise UnsupportedError(
            f"its kernel has the shape {kernel.shape}; convolutions along 1 or 2 axes are represented"
        )
    return _image(b, x, kernel.ndim - 2), kernel, None if bias is None else b.stored(bias)


def _image(b: Builder, x: Operand, axes: int) -> Value:
    value = b.read(x)
    if len(value.shape) != axes + 1:
        raise NetworkError(
            f"it reads values of (channels, {axes} spatial axes) without the batch axis, and meets one of "
            f"shape {value.shape}"
        )
    return value


def _windows(
    kernel: Numbers, stride: Numbers | None, padding: Numbers, axes: int
) -> tuple[tuple[int, ...], tuple[int, ...], Padding]:
    kernels = each(kernel, axes)
    steps = kernels if stride is None or stride == [] or stride == () else each(stride, axes)
    return kernels, steps, _symmetric(padding, axes)


def _symmetric(padding: Numbers, axes: int) -> Padding:
    return tuple((number, number) for number in each(padding, axes))
