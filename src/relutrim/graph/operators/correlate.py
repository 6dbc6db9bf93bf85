"""Sums of products over windows, and the adjoint, as plain sums: no FFT, no Winograd, bounded memory.

On the CPU torch computes float64 convolutions by unfolding windows and multiplying matrices. On CUDA, cuDNN
would choose among algorithms that the rounding model does not cover, so it is left out for float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from relutrim.graph.operators.base import Shape
from relutrim.graph.operators.windows import Padding, window_space

_UNFOLDED_BYTES = 128 * 2**20
"""What the unfolded windows of one call may take; torch unfolds the whole batch at once."""


def correlate(
    x: Tensor,
    weight: Tensor,
    stride: tuple[int, ...],
    padding: Padding,
    dilation: tuple[int, ...],
    groups: int = 1,
) -> Tensor:
    """``W x`` of a convolution without bias, for a batch (rows, channels, *space)."""
    space = window_space(tuple(x.shape[2:]), tuple(weight.shape[2:]), stride, padding, dilation)
    if not x.numel() or not weight.numel():
        return x.new_zeros(x.shape[0], weight.shape[0], *space)
    outside = [before for before, _ in padding]
    if any(before != behind for before, behind in padding):
        x, outside = pad(x, padding), [0] * len(padding)
    convolve = functional.conv1d if len(space) == 1 else functional.conv2d
    with plain(x):
        parts = [
            convolve(part, weight, None, stride, tuple(outside), dilation, groups)
            for part in torch.split(x, _at_once(weight, space))
        ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def correlate_adjoint(
    forms: Tensor,
    weight: Tensor,
    shape: Shape,
    stride: tuple[int, ...],
    padding: Padding,
    dilation: tuple[int, ...],
    groups: int = 1,
) -> Tensor:
    """``a W`` for forms (rows, channels, *windows) over the output; ``shape`` is that of the input."""
    if not forms.numel() or not weight.numel():
        return forms.new_zeros(len(forms), *shape)
    outside, space = [before for before, _ in padding], shape[1:]
    if any(before != behind for before, behind in padding):
        space = tuple(size + sum(ends) for size, ends in zip(space, padding, strict=True))
        outside = [0] * len(padding)
    like = forms.new_zeros(1, shape[0], *space)
    found = []
    with plain(forms):
        for part in torch.split(forms, _at_once(weight, forms.shape[2:])):
            inputs = like.expand(len(part), *like.shape[1:])
            none = [0] * len(space)
            found.append(
                torch.ops.aten.convolution_backward(
                    part, inputs, weight, None, stride, outside, dilation, False, none, groups, _INPUT_ONLY
                )[0]
            )
    whole = found[0] if len(found) == 1 else torch.cat(found)
    return whole if space == shape[1:] else crop(whole, padding, shape[1:])


_INPUT_ONLY = [True, False, False]


def _at_once(weight: Tensor, space: Sequence[int]) -> int:
    """How many rows torch may unfold at once."""
    return max(1, _UNFOLDED_BYTES // (8 * weight[0].numel() * max(1, math.prod(space))))


def pad(x: Tensor, padding: Padding, value: float = 0.0) -> Tensor:
    """``value`` before and behind each spatial axis."""
    if not any(before or behind for before, behind in padding):
        return x
    return functional.pad(x, [width for pair in reversed(padding) for width in pair], value=value)


def crop(x: Tensor, padding: Padding, space: Sequence[int]) -> Tensor:
    """What lies inside of the padding."""
    for axis, ((before, _), size) in enumerate(zip(padding, space, strict=True), start=2):
        x = x.narrow(axis, before, size)
    return x


def plain(x: Tensor) -> AbstractContextManager[Any]:
    """Where float64 convolutions on CUDA are unfolded and multiplied, as on the CPU."""
    if x.is_cuda and x.dtype == torch.float64:
        flags: AbstractContextManager[Any] = torch.backends.cudnn.flags(enabled=False, allow_tf32=False)
        return flags
    return nullcontext()
