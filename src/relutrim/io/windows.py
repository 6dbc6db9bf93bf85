"""Where the windows of a convolution or a pooling lie: what formats say by words becomes plain padding.

Along each spatial axis, windows start at ``-before, -before + stride, ...`` and take every ``dilation``-th
entry, ``kernel`` of them; ``(before, behind)`` is the padding.
"""

from __future__ import annotations

from collections.abc import Sequence

from relutrim.errors import NetworkError, UnsupportedError
from relutrim.graph.operators.base import Shape
from relutrim.graph.operators.convolution import Padding
from relutrim.io.sizes import check_size


def check_windows(
    shape: Shape, kernel: Shape, stride: Sequence[int], padding: Padding, dilation: Sequence[int]
) -> None:
    """Refuse windows that ask for too much or do not fit; ``shape`` is (channels, *space)."""
    axes = len(shape) - 1
    check_steps(axes, kernel, stride, dilation)
    if len(padding) != axes or any(number < 0 for pair in padding for number in pair):
        raise NetworkError(
            f"its padding {padding} should be {axes} pair(s) of non-negative numbers; correct the model"
        )
    padded = [size + sum(pair) for size, pair in zip(shape[1:], padding, strict=True)]
    check_size((shape[0], *padded), "with its padding it reads a value")
    for size, k, d, whole in zip(shape[1:], kernel, dilation, padded, strict=True):
        if d * (k - 1) + 1 > whole:
            raise NetworkError(
                f"a window of {d * (k - 1) + 1} does not fit into {size} entries with padding {padding}"
            )
        check_size((whole - d * (k - 1), k), "its windows together are a value")


def check_steps(axes: int, kernel: Shape, stride: Sequence[int], dilation: Sequence[int]) -> None:
    """Refuse numbers that say nothing, and windows along more axes than are represented."""
    if axes not in (1, 2):
        raise UnsupportedError(f"it has {axes} spatial axes; relutrim represents windows along 1 or 2")
    for name, numbers in (("kernel", kernel), ("strides", stride), ("dilations", dilation)):
        if len(numbers) != axes or any(number < 1 for number in numbers):
            raise NetworkError(
                f"its {name} {tuple(numbers)} should be {axes} positive number(s); correct the model"
            )


def same_padding(
    space: Shape, kernel: Shape, stride: Sequence[int], dilation: Sequence[int], *, upper: bool
) -> Padding:
    """Padding that makes ``ceil(size / stride)`` windows; an odd number of zeros has one more behind if
    ``upper``.
    """
    found = []
    for size, k, step, d in zip(space, kernel, stride, dilation, strict=True):
        total = max(0, (-(-size // step) - 1) * step + d * (k - 1) + 1 - size)
        less, more = total // 2, total - total // 2
        found.append((less, more) if upper else (more, less))
    return tuple(found)


def ceil_padding(
    space: Shape, kernel: Shape, stride: Sequence[int], padding: Padding, dilation: Sequence[int]
) -> Padding:
    """Padding for ceil_mode: as many windows as begin within the value or the padding before it."""
    found = []
    for size, k, step, (before, behind), d in zip(space, kernel, stride, padding, dilation, strict=True):
        span = d * (k - 1) + 1
        room = max(0, size + before + behind - span)
        count = -(-room // step) + 1
        if (count - 1) * step >= size + before:
            count -= 1
        found.append((before, max(behind, (count - 1) * step + span - size - before)))
    return tuple(found)
