"""Convolutions in groups: which slices stay with others, so that all groups stay of one size.

Every group of a convolution reads and makes as many channels as any other one. So of channels that may go,
the same number goes of every group, or all that a group reads and makes does. Which of a group's channels go
does not matter to the convolution, but it may to others that hold the same channels: those stay first that
are missing elsewhere too.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from relutrim.graph.operators import Convolution
from relutrim.rewrite.channels import Index, Labels


def evened(labels: Labels, staying: set[int]) -> set[int]:
    """``staying``, and what has to stay besides: then in every group of a convolution that keeps anything, as
    many slices stay as in any other one, and at least one on either side.
    """
    if not labels.grouped:
        return staying
    found = _Groups(labels, staying)
    changed = True
    while changed:
        changed = any(found.fill(side) for side in range(len(found.sides)))
    return found.staying


class _Groups:
    """``sides`` are the roots of what each group reads, and of what it makes, convolution by convolution;
    ``counts`` says how many of them stay.
    """

    def __init__(self, labels: Labels, staying: set[int]) -> None:
        self.staying = set(staying)
        self.sides: list[Index] = []
        for node in labels.grouped:
            assert isinstance(node.operator, Convolution)
            for name in (node.inputs[0], node.name):
                self.sides.append(labels.roots(name).reshape(node.operator.groups, -1))
        self.counts = [np.isin(side, list(staying)).sum(axis=1) for side in self.sides]
        self.places: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for number, side in enumerate(self.sides):
            for group, roots in enumerate(side.tolist()):
                for root in roots:
                    self.places[root].append((number, group))

    def fill(self, side: int) -> bool:
        """Let slices stay until as many do in each group that keeps any; whether there were too few."""
        changed = False
        while (group := self._short(side)) is not None:
            self._keep(self._best(self.sides[side][group].tolist()))
            changed = True
        return changed

    def _short(self, side: int) -> int | None:
        """A group that keeps too few slices."""
        used = (self.counts[side] > 0) | (self.counts[side ^ 1] > 0)
        short = np.flatnonzero(used & (self.counts[side] < self._level(side)))
        return int(short[0]) if len(short) else None

    def _level(self, side: int) -> int:
        """How many slices stay in each group that keeps any."""
        return max(1, int(self.counts[side].max()))

    def _best(self, roots: list[int]) -> int:
        """Of those that do not stay, the first that is of use in most places."""
        free = [root for root in roots if root not in self.staying]
        levels: dict[int, int] = {}

        def missing(side: int, group: int) -> bool:
            level = levels.setdefault(side, self._level(side))
            count, other = (int(self.counts[one][group]) for one in (side, side ^ 1))
            return count < level and bool(count or other)

        best, most = free[0], -len(self.sides)
        for root in free:
            wanted = [missing(*place) for place in self.places[root]]
            if all(wanted):
                return root
            if sum(wanted) - wanted.count(False) > most:
                best, most = root, sum(wanted) - wanted.count(False)
        return best

    def _keep(self, root: int) -> None:
        self.staying.add(root)
        for side, group in self.places[root]:
            self.counts[side][group] += 1
