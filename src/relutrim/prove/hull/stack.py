"""The multipliers of nodes that wait, the next ones on top."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from relutrim.prove.hull.dual import Multipliers


@dataclass(frozen=True, eq=False)
class Waiting:
    """Multipliers of some nodes, level by level, and their paces."""

    batch: Sequence[Multipliers]
    paces: Tensor

    def __getitem__(self, index: slice | Tensor) -> Waiting:
        return Waiting([own[index] for own in self.batch], self.paces[index])

    @property
    def count(self) -> int:
        """Of how many nodes they are."""
        return len(self.paces)

    def clone(self) -> Waiting:
        """A copy."""
        return Waiting([own.clone() for own in self.batch], self.paces.clone())

    def repeated(self, times: int) -> Waiting:
        """Every node so many times in a row."""
        return Waiting([own.repeated(times) for own in self.batch], self.paces.repeat_interleave(times))


class Stack:
    """At most so many nodes' are held. Of those that wait longest they are let go: such nodes begin with the
    root's again. What is left of a block is copied, or all of it would stay in memory.
    """

    def __init__(self, root: Waiting, most: int) -> None:
        self._root, self._most = root, most
        self._blocks: tuple[Waiting, ...] = ()

    @property
    def count(self) -> int:
        """Of how many nodes there are multipliers."""
        return sum(block.count for block in self._blocks)

    def copy(self) -> Stack:
        """One that takes its own course from here on."""
        other = Stack(self._root, self._most)
        other._blocks = self._blocks
        return other

    def put(self, block: Waiting) -> None:
        """On top."""
        blocks, over = [*self._blocks, block], self.count + block.count - self._most
        while over > 0:
            lowest = blocks.pop(0)
            if over < lowest.count:
                blocks.insert(0, lowest[over:].clone())
            over -= lowest.count
        self._blocks = tuple(blocks)

    def take(self, count: int) -> Waiting:
        """So many from the top, the root's for those that there are none of."""
        blocks, taken = list(self._blocks), list[Waiting]()
        while count and blocks:
            block = blocks.pop()
            if block.count > count:
                blocks.append(block[: block.count - count].clone())
                block = block[block.count - count :]
            taken.insert(0, block)
            count -= block.count
        self._blocks = tuple(blocks)
        if count:
            taken.insert(0, self._root.repeated(count))
        levels = zip(*(block.batch for block in taken), strict=True)
        return Waiting([Multipliers.joined(own) for own in levels], torch.cat([part.paces for part in taken]))
