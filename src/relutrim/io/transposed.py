"""Transposed convolutions as what they are: a convolution over a value with zeros put between its entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from relutrim.errors import NetworkError
from relutrim.graph.operators import Array, Convolution, Operator, Shape
from relutrim.graph.operators.convolution import Padding
from relutrim.io.picks import take
from relutrim.io.sizes import check_size


def spread_out(
    shape: Shape,
    weight: Array,
    bias: Callable[[int], Array],
    *,
    stride: Sequence[int],
    padding: Padding,
    dilation: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
) -> list[Operator]:
    """Operators for a value of ``shape`` (channels, *space), ``weight`` being (inputs, outputs / groups,
    *kernel).

    Along each axis there are ``stride - 1`` zeros between the entries, ``dilation * (kernel - 1) - padding``
    before and behind them (a negative number cuts off), and the kernel is read backwards.
    """
    axes = weight.ndim - 2
    lengths = {len(stride), len(padding), len(dilation), len(output_padding), len(shape) - 1}
    least = min(*stride, *dilation, *weight.shape[2:], 1 + min(map(min, padding), default=0))
    if lengths != {axes} or least < 1:
        raise NetworkError(
            f"strides {tuple(stride)}, dilations {tuple(dilation)} and padding {padding} do not go with a "
            f"kernel of shape {weight.shape} and a value of shape {shape}"
        )
    if any(not 0 <= extra < max(s, d) for extra, s, d in zip(output_padding, stride, dilation, strict=True)):
        raise NetworkError(f"an output padding of {tuple(output_padding)} does not go with strides {stride}")
    if groups < 1 or weight.shape[0] != shape[0] or shape[0] % groups:
        raise NetworkError(
            f"a kernel of shape {weight.shape} in {groups} group(s) meets a value of shape {shape}"
        )
    check_size([shape[0], *(size * s for size, s in zip(shape[1:], stride, strict=True))])
    picks = {}
    settings = zip(shape[1:], weight.shape[2:], stride, padding, dilation, output_padding, strict=True)
    for axis, (size, k, s, (before, behind), d, extra) in enumerate(settings, start=1):
        front, back = d * (k - 1) - before, d * (k - 1) - behind + extra
        spread = np.full(max(0, (size - 1) * s + 1), -1, np.int64)
        spread[::s] = np.arange(size)
        check_size([max(0, front), max(0, back)])
        spread = np.pad(spread, (max(0, front), max(0, back)), constant_values=-1)
        picks[axis] = spread[max(0, -front) : len(spread) - max(0, -back)]
        if len(picks[axis]) < d * (k - 1) + 1:
            raise NetworkError(f"its padding {padding} leaves nothing of a value of shape {shape}")
    taken = take(shape, picks)
    per_group = weight.shape[1]
    backwards = np.flip(weight, tuple(range(2, weight.ndim)))
    grouped = backwards.reshape(groups, shape[0] // groups, per_group, *weight.shape[2:]).swapaxes(1, 2)
    kernel = grouped.reshape(groups * per_group, shape[0] // groups, *weight.shape[2:])
    ones: tuple[int, ...] = (1,) * axes
    plain = Convolution(kernel, bias(len(kernel)), ones, ((0, 0),) * axes, tuple(dilation), groups)
    return [plain] if taken is None else [taken, plain]
