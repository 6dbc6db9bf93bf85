"""Relevance: which verdicts could still make a compressed network smaller.

A channel goes as a whole. Once one of its units has been seen active, no proof that another one is inactive
removes it, unless a linear node or an output sees its units one by one; once one has been seen inactive, the
channel is not linear. Of dense layers every verdict is of use: neurons go one by one, active ones are carried
by others, and what is left is known to need no binary in a program.

What is said here decides where time goes, never what is true.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from relutrim.graph.graph import Network, Node
from relutrim.graph.operators import AveragePool, Convolution, Linear, MaxPool, Mean
from relutrim.prove.useful import States, Useful
from relutrim.rewrite.channels import Labels


@dataclass(frozen=True, eq=False)
class Smaller:
    """What makes ``network`` smaller."""

    network: Network

    def useful(self, name: str, states: States) -> Useful:
        """Of a ReLU's neurons those for which a proof could change the result."""
        active, inactive = ~states.seen_inactive, ~states.seen_active
        shape = self.network.shapes[name]
        if len(shape) < 2:
            return Useful(active, inactive)
        axis = self._labels.slices[name].axis
        others = tuple(a for a in range(len(shape)) if a != axis)
        alive, off = (
            np.broadcast_to(seen.reshape(shape).any(axis=others, keepdims=True), shape).reshape(-1)
            for seen in (states.seen_active, states.seen_inactive)
        )
        active = active & ~off
        if name in self._seconds:
            return Useful(active, np.zeros_like(inactive), axis)
        if self._seen_one_by_one(name):
            return Useful(active, inactive)
        return Useful(active, inactive & ~alive, axis)

    @cached_property
    def _labels(self) -> Labels:
        return Labels(self.network)

    @cached_property
    def _seconds(self) -> set[str]:
        """The ReLUs behind the first one of a node such as a clip: without them it is the same channel."""
        first: dict[tuple[str, ...], str] = {}
        known = [(relu.name, relu.origin.nodes) for relu in self.network.relus if relu.origin is not None]
        return {name for name, nodes in known if first.setdefault(nodes, name) != name}

    def _seen_one_by_one(self, name: str) -> bool:
        """Whether a linear node or an output sees the units of a value apart from each other."""
        waiting, known = [name], {name}
        while waiting:
            current = waiting.pop()
            if self.network.is_output(current):
                return True
            for reader in self.network.readers(current):
                if isinstance(reader.operator, Linear):
                    return True
                if not self._mixes(reader) and reader.name not in known:
                    known.add(reader.name)
                    waiting.append(reader.name)
        return False

    def _mixes(self, node: Node) -> bool:
        """Whether what reads a node sees no unit of what the node reads by itself."""
        pools = isinstance(node.operator, AveragePool | MaxPool)
        whole = pools and math.prod(self.network.shapes[node.name][1:]) == 1
        return whole or isinstance(node.operator, Convolution | Mean)
