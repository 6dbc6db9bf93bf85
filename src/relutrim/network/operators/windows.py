"""Which entries the windows of a convolution or a pooling lie over. Numpy only: no values, only places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from relutrim.errors import NetworkError
from relutrim.network.operators.base import Mask, Shape

Padding: TypeAlias = tuple[tuple[int, int], ...]
"""How many entries are put before and behind each spatial axis."""
Places: TypeAlias = npt.NDArray[np.int64]


def window_space(
    space: Shape, kernel: Shape, stride: Sequence[int], padding: Padding, dilation: Sequence[int]
) -> Shape:
    """How many windows fit along each axis."""
    found = []
    for size, k, step, (before, behind), d in zip(space, kernel, stride, padding, dilation, strict=True):
        if k < 1 or step < 1 or d < 1 or before < 0 or behind < 0:
            raise NetworkError(
                f"a window of {k} with stride {step}, dilation {d} and padding {before, behind} is none"
            )
        room = size + before + behind - d * (k - 1) - 1
        if room < 0:
            raise NetworkError(
                f"a window of {k} does not fit into {size} entries with padding {before, behind}"
            )
        found.append(room // step + 1)
    return tuple(found)


def taps(
    space: Shape, kernel: Shape, stride: Sequence[int], padding: Padding, dilation: Sequence[int]
) -> list[Places]:
    """Per axis (windows, entries of a window): the place of each entry, -1 where it is padding."""
    counts = window_space(space, kernel, stride, padding, dilation)
    found = []
    for size, k, step, (before, _), d, count in zip(
        space, kernel, stride, padding, dilation, counts, strict=True
    ):
        places = np.arange(count)[:, None] * step + np.arange(k)[None, :] * d - before
        found.append(np.where((places >= 0) & (places < size), places, -1))
    return found


def table(axes: Sequence[Places], space: Shape) -> Places:
    """(windows, entries of a window): flat places in a channel, -1 where an entry is padding."""
    flat = np.zeros((1, 1), dtype=np.int64)
    for size, places in zip(space, axes, strict=True):
        wide = flat[:, None, :, None] * size + places[None, :, None, :]
        outside = (flat[:, None, :, None] < 0) | (places[None, :, None, :] < 0)
        flat = np.where(outside, -1, wide).reshape(len(flat) * len(places), -1)
    return flat


def require_entries(axes: Sequence[Places], what: str) -> None:
    """Refuse windows that lie over nothing but padding: their mean or maximum is no number."""
    if any((places < 0).all(1).any() for places in axes):
        raise NetworkError(f"a window of the {what} holds nothing but padding")


def covered(wanted: Mask, axes: Sequence[Places], shape: Shape) -> Mask:
    """The entries that the windows ``wanted`` lie over, channel by channel."""
    found = np.zeros(shape, dtype=bool)
    for offset in np.ndindex(*(places.shape[1] for places in axes)):
        _or(found, wanted, [places[:, t] for places, t in zip(axes, offset, strict=True)])
    return found


def read_through(wanted: Mask, kernel: Mask, axes: Sequence[Places], shape: Shape, groups: int) -> Mask:
    """The entries that ``wanted`` outputs of a convolution read with weights other than 0."""
    found = np.zeros(shape, dtype=bool)
    inputs, outputs = shape[0] // groups, kernel.shape[0] // groups
    flat = wanted.reshape(groups, outputs, -1).astype(np.float64)
    for offset in np.ndindex(*kernel.shape[2:]):
        used = kernel[(..., *offset)].reshape(groups, outputs, inputs).astype(np.float64)
        read = (used.transpose(0, 2, 1) @ flat > 0).reshape(shape[0], *wanted.shape[1:])
        _or(found, read, [places[:, t] for places, t in zip(axes, offset, strict=True)])
    return found


def _or(found: Mask, read: Mask, places: Sequence[Places]) -> None:
    """Mark what is read at one offset of the windows; no two windows meet there."""
    inside = [axis >= 0 for axis in places]
    channels = np.arange(found.shape[0])
    target = np.ix_(channels, *(axis[keep] for axis, keep in zip(places, inside, strict=True)))
    found[target] |= read[np.ix_(channels, *(np.flatnonzero(keep) for keep in inside))]
