"""Proofs for single units as the streams of :mod:`relutrim.certificate.check.proofs`, and the trees in them.

The prover keeps leaves only: sets of states, or boxes. They came from a tree, and one that has them is found
again: some unit is fixed by all of them, or some cut is crossed by none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from relutrim.certificate.check.proofs import INPUT, PACKED, PART, UNIT, Proofs

Place: TypeAlias = tuple[int, int]
"""The number of a layer, and of a unit in it."""
T = TypeVar("T")


@dataclass
class Leaf:
    """Multipliers for the proof's levels, or (None) a part of the domain by itself."""

    packed: bytes | None = None


@dataclass
class Split:
    """Two cases: of a unit (off, on), or of an input, up to a number and from it."""

    place: Place | int
    first: Tree
    second: Tree
    at: float = 0.0


Tree: TypeAlias = Leaf | Split
Cases: TypeAlias = Sequence[tuple[dict[Place, bool], Leaf]]
Boxes: TypeAlias = tuple[Any, Any, Any, Any]
"""The ends of a box, and those of all boxes in it."""


@dataclass
class UnitProof:
    """A bound of ``sign *`` what a unit reads. A level is a layer, units of it, and for each of those the
    places of values with shares of their own.
    """

    layer: int
    unit: int
    sign: int
    tree: Tree
    levels: list[tuple[int, Sequence[int], npt.NDArray[np.int64]]] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Of how many units, more or less, it speaks."""
        return sum(len(units) for _, units, _ in self.levels)


def of_states(leaves: Cases) -> Tree | None:
    """A tree with these leaves, by the states that they fix; None if they do not cover all cases."""

    def split(case: Cases) -> _Split[Cases] | Leaf | None:
        if not case:
            return None
        for states, leaf in case:
            if not states:
                return leaf
        common = set.intersection(*(set(states) for states, _ in case))
        place = min(common) if common else next(iter(case[0][0]))
        off, on = (
            [({k: v for k, v in s.items() if k != place}, leaf) for s, leaf in case if s.get(place, on) == on]
            for on in (False, True)
        )
        return _Split(place, off, on)

    return _grown(leaves, split)


def of_boxes(lo: Any, hi: Any, lows: Any, highs: Any) -> Tree | None:
    """A tree whose parts lie in these boxes; None if they do not fill the box from ``lo`` to ``hi``, or no
    cuts show it.
    """

    def split(case: Boxes) -> _Split[Boxes] | Leaf | None:
        lo, hi, lows, highs = case
        if ((lows <= lo) & (highs >= hi)).all(1).any():
            return Leaf()
        for axis in range(len(lo)):
            for at in np.unique(lows[:, axis]):
                left, right = highs[:, axis] <= at, lows[:, axis] >= at
                if lo[axis] < at < hi[axis] and (left | right).all():
                    ends = hi.copy(), lo.copy()
                    ends[0][axis] = ends[1][axis] = at
                    first, second = (
                        (lo, ends[0], lows[left], highs[left]),
                        (ends[1], hi, lows[right], highs[right]),
                    )
                    return _Split(axis, first, second, float(at))
        return None

    return _grown((lo, hi, lows, highs), split)


@dataclass
class _Split(Generic[T]):
    """How a case becomes two."""

    place: Place | int
    first: T
    second: T
    at: float = 0.0


def _grown(case: T, split: Callable[[T], _Split[T] | Leaf | None]) -> Tree | None:
    """The tree of a case; None if one of its cases is without a leaf. It may be deeper than Python's stack.

    Cases are looked at from the root on, a first one before the second, and trees are made in the opposite
    order: a split finds those of its two cases on top of all others, the first one uppermost.
    """
    order: list[_Split[T] | Leaf] = []
    waiting = [case]
    while waiting:
        found = split(waiting.pop())
        if found is None:
            return None
        order.append(found)
        if isinstance(found, _Split):
            waiting += [found.second, found.first]
    made: list[Tree] = []
    for one in reversed(order):
        made.append(one if isinstance(one, Leaf) else Split(one.place, made.pop(), made.pop(), one.at))
    return made.pop()


def streams(proofs: Sequence[UnitProof]) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a certificate."""
    words, numbers, raw = list[int](), list[float](), list[bytes]()
    for proof in sorted(proofs, key=lambda one: one.layer):  # in the order of each layer's own
        words += [proof.layer, proof.unit, proof.sign, len(proof.levels)]
        for layer, units, places in proof.levels:
            words += [layer, *places.shape, *units, *places.reshape(-1).tolist()]
        _put(proof.tree, words, numbers, raw)
    return {
        "proof.words": np.array(words, "<i4"),
        "proof.numbers": np.array(numbers, "<f8"),
        "proof.bytes": np.frombuffer(b"".join(raw), "|u1"),
    }


def stream_of(arrays: Mapping[str, npt.NDArray[Any]]) -> Proofs:
    """The arrays as the checker reads them."""
    return Proofs(*(arrays[f"proof.{name}"] for name in ("words", "numbers", "bytes")))


def _put(tree: Tree, words: list[int], numbers: list[float], raw: list[bytes]) -> None:
    """Write a tree, each split before its two cases."""
    waiting = [tree]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Leaf):
            words.append(PART if one.packed is None else PACKED)
            raw.append(one.packed or b"")
            continue
        words += [INPUT, one.place] if isinstance(one.place, int) else [UNIT, *one.place]
        numbers += [one.at] if isinstance(one.place, int) else []
        waiting += [one.second, one.first]
