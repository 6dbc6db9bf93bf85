"""Where a node of a graph comes from: the nodes of its source that it stands for, and where these keep its
numbers.

A source (an ONNX file, an exported program) has nodes and tensors of its own. A node of the graph is one of
them, a part of one (a clip is two ReLUs and a sum), or several in one (a product and the sum behind it are
one linear layer). Every field of its operator that is read from a tensor, moved but not computed, knows the
tensor and how its axes run, so that what an edit makes of the field can be put back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from relutrim.graph.graph import Network, Node

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Stored:
    """Where the numbers of one field of an operator are kept: input ``place`` of the source's node ``node``,
    which is the tensor ``tensor``.

    ``axes`` says per axis of the field which axis of the tensor it is, None for one of length 1 that is put
    there; ``rank`` is the number of the tensor's axes, and those that ``axes`` leaves out have length 1. The
    field is the tensor times ``sign``, 1 or -1; or, with 0, it is computed from the tensor entry by entry, so
    that entries can be cut from both, but no number put back.
    """

    tensor: str
    node: str
    place: int
    axes: tuple[int | None, ...]
    rank: int
    sign: float = 1.0

    def back(self, numbers: Numbers) -> Numbers | None:
        """What the tensor holds if the field is ``numbers``; None if it cannot say that."""
        if not self.sign or numbers.ndim != len(self.axes):
            return None
        if any(axis is None and numbers.shape[at] != 1 for at, axis in enumerate(self.axes)):
            return None
        named = [(axis, at) for at, axis in enumerate(self.axes) if axis is not None]
        order = [at for _, at in sorted(named)]
        shape = [1] * self.rank
        for axis, at in named:
            shape[axis] = numbers.shape[at]
        squeezed = numbers.transpose(*order, *(at for at, axis in enumerate(self.axes) if axis is None))
        return np.asarray(self.sign * squeezed).reshape(shape)


@dataclass(frozen=True)
class Origin:
    """The nodes of the source that a node stands for, each by the name of the first tensor that it makes, and
    where the fields of its operator are kept.
    """

    nodes: tuple[str, ...]
    fields: Mapping[str, Stored] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Frame:
    """What a source can say only as something else than it is: ``fixed`` nodes stay in it, and it has no
    others than those ``known`` (None: it may have new ones). It becomes something else for what costs less by
    at least this ``share``.
    """

    fixed: frozenset[str]
    known: frozenset[str] | None = None
    share: float = 0.0
    unbiased: frozenset[str] = frozenset()
    """Linear layers and convolutions to which it cannot add a bias."""
    tied: bool = False
    """Whether all that read one tensor of it go on doing so."""
    refused: list[str] = field(default_factory=list)
    """What did not fit, a name each."""

    def holds(self, network: Network) -> bool:
        """Whether the source can say this network."""
        named = {node.name: node for node in network.nodes}
        names = named.keys()
        others = {*(self.fixed - names), *(set() if self.known is None else names - self.known)}
        others |= {name for name in self.unbiased & names if _has_bias(named[name])}
        if self.tied and network.parted is not None:
            others.add(network.parted)
        self.refused.extend(others)
        return not others

    def worth(self, before: tuple[int, ...], after: tuple[int, ...]) -> bool:
        """Whether the second cost is so much less than the first."""
        return after < before and after[0] <= (1 - self.share) * before[0]


def _has_bias(node: Node) -> bool:
    bias = getattr(node.operator, "bias", None)
    return bias is not None and bool(np.any(bias))


def parts(nodes: Iterable[Node]) -> frozenset[str]:
    """The nodes that are a node of the source together with others."""
    known = [(node.name, node.origin.nodes) for node in nodes if node.origin is not None]
    times = Counter(key for _, keys in known for key in keys)
    return frozenset(name for name, keys in known if any(times[key] > 1 for key in keys))
