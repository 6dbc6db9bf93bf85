"""ATen's convolutions and poolings. All of them make new tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from relutrim.graph.operators import Array, AveragePool, Convolution, MaxPool, Mean, Scale
from relutrim.graph.operators.convolution import Padding
from relutrim.io.torch.build import Builder, Handler, Opaque, Operand, Value
from relutrim.io.transposed import spread_out
from relutrim.io.windows import ceil_padding, check_windows

Numbers: TypeAlias = int | Sequence[int]


def each(numbers: Numbers, axes: int) -> tuple[int, ...]:
    """One number for all axes, or one for each."""
    found = (numbers,) * axes if isinstance(numbers, int) else tuple(numbers)
    if not all(isinstance(number, int) for number in found):
        raise Opaque(f"it is told {list(found)}, which are not whole numbers")
    return found * axes if len(found) == 1 else found


def _convolution(b: Builder, *, transposed: bool = False, output_padding: Numbers = 0, **given: Any) -> Value:
    return _transposed(b, output_padding=output_padding, **given) if transposed else _conv(b, **given)


def _conv(
    b: Builder,
    input: Operand,
    weight: Operand,
    bias: Operand | None = None,
    stride: Numbers = 1,
    padding: Numbers | str = 0,
    dilation: Numbers = 1,
    groups: int = 1,
) -> Value:
    """A convolution with zero padding."""
    x, kernel, offset = _parameters(b, input, weight, bias)
    axes = kernel.ndim - 2
    dilations, steps = each(dilation, axes), each(stride, axes)
    if padding == "same":
        totals = [d * (k - 1) for k, d in zip(kernel.shape[2:], dilations, strict=True)]
        around: Padding = tuple((total // 2, total - total // 2) for total in totals)
    else:
        around = _symmetric(0 if isinstance(padding, str) else padding, axes)
    check_windows(x.shape, kernel.shape[2:], steps, around, dilations)
    offset = np.zeros(len(kernel)) if offset is None else offset
    operator = Convolution(kernel, offset, steps, around, dilations, groups)
    return b.emit(operator, x, weight=b.stored("weight", weight), bias=b.stored("bias", bias))


def _transposed(
    b: Builder,
    input: Operand,
    weight: Operand,
    bias: Operand | None = None,
    stride: Numbers = 1,
    padding: Numbers = 0,
    output_padding: Numbers = 0,
    groups: int = 1,
    dilation: Numbers = 1,
) -> Value:
    """A transposed convolution, as one over a value with zeros between its entries."""
    x, kernel, offset = _parameters(b, input, weight, bias)
    axes = kernel.ndim - 2
    *before, last = spread_out(
        x.shape,
        kernel,
        lambda outputs: np.zeros(outputs) if offset is None else offset,
        stride=each(stride, axes),
        padding=_symmetric(padding, axes),
        dilation=each(dilation, axes),
        output_padding=each(output_padding, axes),
        groups=groups,
    )
    for operator in before:
        x = b.emit(operator, x)
    # Its kernel is the stored one read backwards.
    turned = b.stored("weight", weight, (1, 0, *range(2, axes + 2)), sign=0.0) if groups == 1 else None
    return b.emit(last, x, weight=turned, bias=b.stored("bias", bias))


def _max_pool(axes: int) -> Handler:
    def call(
        b: Builder,
        input: Operand,
        kernel_size: Numbers,
        stride: Numbers = (),
        padding: Numbers = 0,
        dilation: Numbers = 1,
        ceil_mode: bool = False,
    ) -> Value:
        x = _image(b, input, axes)
        kernels, steps, around = _windows(kernel_size, stride, padding, axes)
        dilations = each(dilation, axes)
        check_windows(x.shape, kernels, steps, around, dilations)
        if ceil_mode:
            around = ceil_padding(x.shape[1:], kernels, steps, around, dilations)
        return b.emit(MaxPool(kernels, steps, around, dilations), x)

    return call


def _avg_pool(axes: int) -> Handler:
    def call(
        b: Builder,
        input: Operand,
        kernel_size: Numbers,
        stride: Numbers = (),
        padding: Numbers = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Value:
        """The mean of each window, or its sum divided by a number."""
        x = _image(b, input, axes)
        kernels, steps, given = _windows(kernel_size, stride, padding, axes)
        ones = (1,) * axes
        check_windows(x.shape, kernels, steps, given, ones)
        around = ceil_padding(x.shape[1:], kernels, steps, given, ones) if ceil_mode else given
        divided = divisor_override is not None
        counts = divided or (count_include_pad and any(before for before, _ in given))
        if around != given and counts:
            raise Opaque("its last window reaches beyond the padding, which torch counts in part")
        mean = b.emit(AveragePool(kernels, steps, around, counts), x)
        if divisor_override is None:
            return mean
        total = b.emit(Scale.exactly(float(math.prod(kernels))), mean)
        return b.emit(Scale.divide(np.asarray(float(divisor_override))), total)

    return call


def _adaptive(axes: int, *, largest: bool) -> Handler:
    def call(b: Builder, input: Operand, output_size: Numbers) -> Value:
        """Windows of equal size; a single one is the mean or maximum of everything."""
        x = _image(b, input, axes)
        wanted = each(output_size, axes)
        if any(count < 1 or size % count for size, count in zip(x.shape[1:], wanted, strict=True)):
            raise Opaque("it pools into windows that are not of equal size")
        kernel = tuple(size // count for size, count in zip(x.shape[1:], wanted, strict=True))
        nothing: Padding = ((0, 0),) * axes
        if largest:
            return b.emit(MaxPool(kernel, kernel, nothing, (1,) * axes), x)
        if set(wanted) == {1}:
            return b.emit(Mean(tuple(range(1, axes + 1)), keep=True), x)
        return b.emit(AveragePool(kernel, kernel, nothing), x)

    return call


def _parameters(
    b: Builder, input: Operand, weight: Operand, bias: Operand | None
) -> tuple[Value, Array, Array | None]:
    kernel = b.numbers(weight)
    if kernel.ndim not in (3, 4):
        raise Opaque(f"a convolution along {kernel.ndim - 2} axes")
    return _image(b, input, kernel.ndim - 2), kernel, None if bias is None else b.numbers(bias)


def _image(b: Builder, input: Operand, axes: int) -> Value:
    x = b.value(input)
    if len(x.shape) != axes + 1:
        raise Opaque(f"it reads channels and {axes} spatial axes, and meets a value of shape {x.shape}")
    return x


def _windows(
    kernel: Numbers, stride: Numbers, padding: Numbers, axes: int
) -> tuple[tuple[int, ...], tuple[int, ...], Padding]:
    kernels = each(kernel, axes)
    return kernels, each(stride, axes) or kernels, _symmetric(padding, axes)


def _symmetric(padding: Numbers, axes: int) -> Padding:
    return tuple((number, number) for number in each(padding, axes))


WINDOWS: dict[str, Handler] = {
    "convolution": _convolution,
    "conv1d": _conv,
    "conv2d": _conv,
    "conv_transpose1d": _transposed,
    "conv_transpose2d": _transposed,
    "max_pool1d": _max_pool(1),
    "max_pool2d": _max_pool(2),
    "max_pool1d_with_indices": _max_pool(1),
    "max_pool2d_with_indices": _max_pool(2),
    "avg_pool1d": _avg_pool(1),
    "avg_pool2d": _avg_pool(2),
    "adaptive_avg_pool1d": _adaptive(1, largest=False),
    "adaptive_avg_pool2d": _adaptive(2, largest=False),
    "_adaptive_avg_pool2d": _adaptive(2, largest=False),
    "adaptive_max_pool1d": _adaptive(1, largest=True),
    "adaptive_max_pool2d": _adaptive(2, largest=True),
}
