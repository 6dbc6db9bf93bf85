"""Which entries the windows of a convolution or a pooling lie over. Numpy only: no values, only places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from relutrim.errors import NetworkError
from relutrim.graph.operators.base import Shape

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
