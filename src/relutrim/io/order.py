"""Nodes of a source in topological order."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from typing import Any


def ordered(needs: Sequence[Collection[int]], places: Sequence[Any]) -> list[int]:
    """The nodes, of which each needs others, in topological order, by their places where that leaves a
    choice; without those on a cycle and behind it.
    """
    readers: dict[int, list[int]] = {}
    for at, others in enumerate(needs):
        for other in others:
            readers.setdefault(other, []).append(at)
    waits = [len(others) for others in needs]
    ready = [(places[at], at) for at, count in enumerate(waits) if not count]
    heapq.heapify(ready)
    found = []
    while ready:
        _, at = heapq.heappop(ready)
        found.append(at)
        for reader in readers.get(at, []):
            waits[reader] -= 1
            if not waits[reader]:
                heapq.heappush(ready, (places[reader], reader))
    return found
