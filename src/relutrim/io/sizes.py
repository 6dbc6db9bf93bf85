"""How large a graph may become: a few bytes in a file can ask for more memory than there is.

An analysis holds one or two hundred bytes for each number of each value. So how many there may be goes by
how large the file is: :data:`FREE`, and :data:`PER_BYTE` more for each byte. (ResNet-50 for images of 224 x
224 has less than one for each byte, a super-resolution network of 59,000 parameters 76, and VGG-19 without
its weights, as the onnx package has it to test runtimes with, 3,400.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from relutrim.errors import NetworkError, UnsupportedError
from relutrim.graph.operators import Array, Operator, Take

if TYPE_CHECKING:
    from relutrim.graph import Network, Node


class TooLarge(UnsupportedError):
    """A graph that asks for more memory than it may have."""


LARGEST_VALUE = 2**26
"""Numbers in one value; in float64 that is half a gigabyte."""
LARGEST_GRAPH = 3 * 2**28
"""Numbers in all values of a graph for one input, however large its file is; not all of them are held at
once. (A VGG-16 or ResNet-50 for images of 224 x 224 has some 2**25, a PSPNet for 480 x 480 2**29.)
"""
LARGEST_ARRAYS = 2**28
"""Numbers in all arrays that are made on the way to them: indices, constants, weights that are stored once
and used again.
"""
FREE, PER_BYTE = 2**23, 3000
"""How many numbers all values, and all arrays, may have whatever the size of their file, and for each byte of
it.
"""
_MAKES, _TOGETHER = "it makes a value", "that all values of a graph may have together"


def check_size(shape: Sequence[int], what: str = _MAKES) -> None:
    """Refuse shapes that nothing here could hold, before anything is allocated."""
    # A value without numbers costs nothing, but the lists of its indices do.
    if max(math.prod(shape), *shape, 0) > LARGEST_VALUE:
        raise _too_many(shape, what, LARGEST_VALUE, "that relutrim holds")


def check_graph(
    network: Network, size: int, said: Callable[[Node], str] = lambda node: f"node {node.name!r}"
) -> None:
    """Refuse a network that was read if its file, of so many bytes, is too small for its values; ``said`` is
    how the file calls a node.
    """
    most, total = _most(size), network.input.size
    for node in network:
        total += network.size(node.name)
        if total > most:
            whose = f"{_TOGETHER} where {size} bytes are stored"
            raise _too_many(network.shapes[node.name], _MAKES, most, whose).at(said(node))


class Room:
    """What is left for a graph that is being read from a file of so many bytes."""

    def __init__(self, size: int = 0) -> None:
        self._values = self._arrays = 0
        self._size = size
        self._used: set[Any] = set()

    def check(self, shape: Sequence[int], what: str = _MAKES) -> None:
        """Refuse an array that there is no room for."""
        check_size(shape, what)
        most = min(LARGEST_ARRAYS, _most(self._size))
        if self._arrays + math.prod(shape) > most:
            whose = "that all indices and constants of a graph may have together"
            whose += f" where {self._size} bytes are stored" if most < LARGEST_ARRAYS else ""
            raise _too_many(shape, what, most, whose)

    def take(self, shape: Sequence[int], what: str = _MAKES) -> None:
        """Count an array that is about to be made."""
        self.check(shape, what)
        self._arrays += math.prod(shape)

    def value(self, shape: Sequence[int], what: str = _MAKES) -> None:
        """Count a value, of which nothing but its shape is held as yet."""
        check_size(shape, what)
        self._values += math.prod(shape)
        if self._values > LARGEST_GRAPH:
            raise _too_many(shape, what, LARGEST_GRAPH, _TOGETHER)

    def make(self, operator: Operator, shape: Sequence[int]) -> None:
        """Count the value of this shape that an operator makes, and its indices."""
        if isinstance(operator, Take):
            for pick in operator.picks:
                self.take([0 if pick is None else len(pick)], "it needs a list of indices")
        self.value(shape)

    def use(self, stored: Any, shape: Sequence[int]) -> None:
        """Count a copy of weights that are ``stored`` under some key. The first one costs nothing: a file can
        only be so large.
        """
        if stored in self._used:
            self.take(shape, "it uses weights again, as an array")
        self._used.add(stored)


def stored(numbers: Array, dtype: str) -> npt.NDArray[Any]:
    """Numbers in the type of a file, which must be able to hold them."""
    with np.errstate(over="ignore"):
        found = np.ascontiguousarray(numbers.astype(dtype)).reshape(numbers.shape)
    if not np.isfinite(found).all():
        raise NetworkError(
            f"{float(np.abs(numbers).max()):g} among its weights is too large for {dtype}; write the network "
            "in float64"
        )
    return found


def _most(size: int) -> int:
    return FREE + PER_BYTE * size


def _too_many(shape: Sequence[int], what: str, most: int, whose: str) -> TooLarge:
    shown = " x ".join(str(size) for size in shape)
    return TooLarge(
        f"{what} of {shown} numbers, more than the {most} {whose}; check its attributes, or cut the network "
        "into smaller parts"
    )
