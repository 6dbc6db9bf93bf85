"""What a node that stays is to say of sizes when the values that it reads and makes lose slices, whatever the
source.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from relutrim.graph import Network, Node
from relutrim.graph.operators import Convolution, Operator, Reshape, Shape, Take
from relutrim.graph.operators.moving import Index
from relutrim.io.picks import slice_of, sliced, takes_range

_STANDIN = 7919
"""The length of an open batch axis, where a shape is worked out: a prime, so that nothing divides it."""


@dataclass(frozen=True, eq=False)
class Resizing:
    """The nodes of the graph that a node of the source stands for, as they are to be; ``before`` is how one
    of them was.
    """

    network: Network
    nodes: Sequence[Node]
    before: Node

    @property
    def batched(self) -> bool:
        """Whether the source's tensors have a batch axis in front."""
        return self.network.input.batch is not None

    def shape(self, name: str) -> Shape:
        """A value's shape as the source counts it."""
        batch = self.network.input.batch
        front = () if batch is None else (batch if isinstance(batch, int) else _STANDIN,)
        return (*front, *self.network.shapes[name])

    def only(self, kind: type[Operator]) -> Node | None:
        """The one node with such an operator; None if there is none, or several."""
        found = [node for node in self.nodes if isinstance(node.operator, kind)]
        return found[0] if len(found) == 1 else None

    def moves_windows(self, operator: Convolution) -> bool:
        """Whether two convolutions have become one that has other windows than this one had."""
        before = self.before.operator
        return isinstance(before, Convolution) and before.windows != operator.windows

    def reshaped(self, said: Sequence[int], *, copies: bool = False, free: bool = False) -> list[int] | None:
        """A shape of which 0 copies an axis, perhaps, and -1 is what is left: the same as before where it can
        be. The first size may be ``free``, and stays then.
        """
        made = self.only(Reshape)
        if made is None or len(said) != len(self.shape(made.name)):
            return None
        given, wanted = self.shape(made.inputs[0]), self.shape(made.name)
        numbers = [old if old < 1 else new for old, new in zip(said, wanted, strict=True)]
        plain = [*(said[:1] if self.batched else ()), *wanted[self.batched :]]
        for candidate in ([*said], numbers, plain):
            if _STANDIN not in candidate[free:] and resolved(given, candidate, copies) == wanted:
                return candidate
        return None

    def parts(self, made: Sequence[str | None], axis: int) -> list[int] | None:
        """How long the parts are that follow each other along an axis; one that nobody reads is the rest."""
        shapes, takes = self.network.shapes, {node.name: node for node in self.nodes}
        size = shapes[self.nodes[0].inputs[0]][axis]
        known = [None if name not in takes else shapes[name][axis] for name in made]
        if known.count(None) > 1:
            return None
        rest, start = size - sum(one for one in known if one is not None), 0
        found = [rest if one is None else one for one in known]
        for name, part in zip(made, found, strict=True):
            taken = takes.get(name or "")
            if taken is not None and not takes_range(taken.operator, axis, start, start + part, size):
                return None
            start += part
        return found if found and start == size and min(found) >= 0 else None


def picks_of(node: Node) -> list[Index | None] | None:
    """What a node takes along each axis, None for all of it; None if it does something else."""
    operator = node.operator
    if isinstance(operator, Take):
        return list(operator.picks)
    if isinstance(operator, Reshape) and operator.before == operator.after:
        return [None] * len(operator.after)
    return None


def even(parts: Sequence[int]) -> list[int]:
    """As many parts of the same length, but for the last one."""
    longest = -(-sum(parts) // len(parts))
    return [*[longest] * (len(parts) - 1), sum(parts) - longest * (len(parts) - 1)]


def resolved(shape: Shape, target: Sequence[int], copies: bool) -> Shape | None:
    """The shape that a value gets by such a target; None if it cannot."""
    sizes = [
        (shape[axis] if axis < len(shape) else -2) if size == 0 and copies else size
        for axis, size in enumerate(target)
    ]
    known = math.prod(size for size in sizes if size != -1)
    if sizes.count(-1) == 1 and known and math.prod(shape) % known == 0:
        sizes[sizes.index(-1)] = math.prod(shape) // known
    return tuple(sizes) if min(sizes, default=0) >= 0 and math.prod(sizes) == math.prod(shape) else None


Limits = tuple[int | None, int | None, int | None]


def limits(size: int, pick: Index | None, said: Limits) -> Limits | None:
    """Start, end and step of a slice: those that are ``said`` where they take just this."""
    wanted = np.arange(size) if pick is None else pick
    return said if np.array_equal(sliced(size, *said), wanted) else slice_of(wanted, size)
