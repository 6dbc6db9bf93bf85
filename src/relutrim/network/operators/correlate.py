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

from relutrim.network.operators.windows import Padding, window_space

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
    rows = max(1, _UNFOLDED_BYTES // (8 * weight[0].numel() * max(1, math.prod(space))))
    with plain(x):
        parts = [
            convolve(part, weight, None, stride, tuple(outside), dilation, groups)
            for part in torch.split(x, rows)
        ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def correlate_adjoint(
    forms: Tensor,
    weight: Tensor,
    space: Sequence[int],
    stride: tuple[int, ...],
    padding: Padding,
    dilation: tuple[int, ...],
    groups: int = 1,
) -> Tensor:
    """``a W`` for forms (rows, channels, *windows) over the output; ``space`` is that of the input."""
    channels = weight.shape[1] * groups
    if not forms.numel() or not weight.numel():
        return forms.new_zeros(forms.shape[0], channels, *space)
    padded = [size + before + behind for size, (before, behind) in zip(space, padding, strict=True)]
    covered = [
        (count - 1) * step + d * (k - 1) + 1
        for count, k, step, d in zip(forms.shape[2:], weight.shape[2:], stride, dilation, strict=True)
    ]
    # Entries behind the last window that no window lies over.
    unread = tuple(full - size for full, size in zip(padded, covered, strict=True))
    even = all(before == behind for before, behind in padding)
    inside = tuple(before if even else 0 for before, _ in padding)
    convolve = functional.conv_transpose1d if len(space) == 1 else functional.conv_transpose2d
    with plain(forms):
        found = convolve(forms, weight, None, stride, inside, unread, groups, dilation)
    return found if even else crop(found, padding, space)


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
