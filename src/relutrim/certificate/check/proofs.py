"""A certificate's proofs for single units: streams of integers, numbers and bytes, read once, in order.

A proof is ``layer unit sign``, a count of levels and the levels (``layer count width`` each, so many units,
and for each unit a width of places), and a tree, which begins with what it is:

* 0, ``layer unit``: the unit is off in the first of the two trees that follow, and on in the second;
* 1, ``input`` and a number: the input is at most that in the first tree, and at least that in the second;
* 2: a part of the domain, for linear bounds on its box;
* 3: multipliers for the levels (:mod:`hull`), in bytes. For each level one for every unit, four times one
  for every unit, a float32 for every unit, and a width of shares for each unit whose last of those four is
  not 0.

So a tree always covers everything, and there is nothing to be checked about that: a proof without one of its
leaves ends too early, or goes on with the next leaf in its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from relutrim.certificate.check.hull import HEAD, Bytes, Packed
from relutrim.certificate.check.levels import Place, States
from relutrim.certificate.check.ranges import Layer, Ranges
from relutrim.certificate.check.rounding import Array, Index
from relutrim.errors import CheckFailed, InputError

UNIT, INPUT, PART, PACKED = range(4)
_PARTS = 64
"""So many are bounded at once."""
_DEEPEST = 2**16
"""So many splits may be above a leaf."""
_MOST = 2**25
"""Levels of a proof times symbols: no more."""
Case: TypeAlias = tuple[Array, Array, States, int]
"""The ends of a box, states of units, and what kind of leaf it is, which is to be read then."""


class Proofs:
    """The streams, and how far they were read."""

    def __init__(self, words: Index, numbers: Array, raw: Bytes) -> None:
        self._words, self._numbers, self._bytes = words, numbers, raw

    def words(self, count: int) -> Index:
        """The next integers, of which there may be too many to widen all."""
        if not 0 <= count <= len(self._words):
            raise InputError(f"the proofs end too early, or count {count} of something")
        found, self._words = self._words[:count], self._words[count:]
        return found.astype(np.int64)

    def numbers(self, count: int) -> Array:
        """The next numbers."""
        if count > len(self._numbers):
            raise InputError("the proofs have too few numbers")
        found, self._numbers = self._numbers[:count], self._numbers[count:]
        return found

    def bytes(self, count: int) -> Bytes:
        """The next bytes."""
        if count > len(self._bytes):
            raise InputError("the proofs have too few bytes")
        found, self._bytes = self._bytes[:count], self._bytes[count:]
        return found

    def layer(self) -> int:
        """The layer of the next proof; -1 if there is none."""
        return int(self._words[0]) if len(self._words) else -1

    def use(self, ranges: Ranges, layer: Layer) -> None:
        """Read the next proof, and keep what it proves of a unit of the layer."""
        _, entry, sign = self.words(3).tolist()
        if not 0 <= entry < len(layer.lo) or abs(sign) != 1:
            raise InputError("a proof is about a unit that MODEL does not have")
        levels = Packed(ranges, self.levels(self._few(ranges)))
        target, least, parts = layer.inputs.take(np.array([entry])), np.inf, list[tuple[Array, Array]]()
        packed = list[tuple[States, list[tuple[Bytes, Bytes]]]]()
        for lo, hi, states, kind in self.cases(ranges):
            ranges.in_time()
            if kind == PART:
                parts.append((lo, hi))
                if len(parts) == _PARTS:
                    least = np.minimum(least, _on(ranges, layer, entry, sign, parts))  # NaN stays
                continue
            packed.append((states, [self.packed(*shape) for shape in levels.shapes]))
            if len(packed) == levels.most:
                least, packed = np.minimum(least, levels.least(target, float(sign), packed)), []
        least = np.minimum(least, _on(ranges, layer, entry, sign, parts))
        if packed:
            least = np.minimum(least, levels.least(target, float(sign), packed))
        if least < np.inf:
            layer.meet(np.array([entry]), float(sign), np.array([least]))

    def levels(self, count: int) -> list[tuple[int, Index, Index]]:
        """The next levels: layers, units and places."""
        found = []
        for _ in range(count):
            number, size, width = self.words(3).tolist()
            units = self.words(size)
            found.append((number, units, self.words(size * width).reshape(size, width)))
        return found

    def packed(self, count: int, width: int) -> tuple[Bytes, Bytes]:
        """What a leaf says of a level next: the units' bytes, and shares."""
        head = self.bytes(HEAD * count)
        return head, self.bytes(width * int(np.count_nonzero(head[4 * count : 5 * count])))

    def _few(self, ranges: Ranges) -> int:
        """The next integer, a count that a proof can have."""
        count = int(self.words(1)[0])
        if not 0 <= count <= _MOST // max(64, len(ranges.symbols.lo)):
            raise CheckFailed(f"not checked: a proof with {count} levels")
        return count

    def cases(self, ranges: Ranges) -> Iterator[Case]:
        """The leaves of the tree that comes next, in its order."""
        path, more = _Path(ranges.domain.lo, ranges.domain.hi), True
        while more:
            kind = self._descend(path, ranges)
            if kind not in (PART, PACKED):
                raise InputError(f"a proof has a leaf of kind {kind}")
            yield path.lo.copy(), path.hi.copy(), dict(path.states), kind
            more = path.advance()

    def _descend(self, path: _Path, ranges: Ranges) -> int:
        """Follow the splits down to the next leaf; its kind."""
        while True:
            ranges.in_time()
            kind = int(self.words(1)[0])
            if kind == UNIT:
                layer, unit = self.words(2).tolist()
                path.unit((layer, unit))
            elif kind == INPUT:
                path.input(range(len(path.lo))[int(self.words(1)[0])], float(self.numbers(1)[0]))
            else:
                return kind


@dataclass
class _Split:
    """A unit with the state that it had before (None: none), or an input with the ends that it had, and the
    number between them.
    """

    place: Place | int
    before: bool | None = None
    ends: tuple[float, float, float] = (0.0, 0.0, 0.0)
    second: bool = False


class _Path:
    """The case where a tree is being read, and the splits on the way to it: a tree may be deeper than
    Python's stack.
    """

    def __init__(self, lo: Array, hi: Array) -> None:
        self.lo, self.hi, self.states = lo.copy(), hi.copy(), dict[Place, bool]()
        self._splits: list[_Split] = []

    def unit(self, place: Place) -> None:
        """Go to the case where a unit is off."""
        self._enter(_Split(place, self.states.get(place)))

    def input(self, axis: int, at: float) -> None:
        """Go to the case where an input is at most ``at``."""
        low, high = float(self.lo[axis]), float(self.hi[axis])
        self._enter(_Split(axis, ends=(low, float(np.clip(at, low, high)), high)))

    def advance(self) -> bool:
        """Go to the second case of the last split that is in its first; whether there is one."""
        while self._splits:
            split = self._splits.pop()
            if not split.second:
                split.second = True
                self._enter(split)
                return True
            self._leave(split)
        return False

    def _enter(self, split: _Split) -> None:
        if len(self._splits) == _DEEPEST:
            raise CheckFailed(f"not checked: a proof with more than {_DEEPEST} splits in a row")
        self._splits.append(split)
        if isinstance(split.place, int):
            low, at, high = split.ends
            self.lo[split.place], self.hi[split.place] = (at, high) if split.second else (low, at)
        else:
            self.states[split.place] = split.second

    def _leave(self, split: _Split) -> None:
        if isinstance(split.place, int):
            self.lo[split.place], _, self.hi[split.place] = split.ends
        elif split.before is None:
            del self.states[split.place]
        else:
            self.states[split.place] = split.before


def _on(ranges: Ranges, layer: Layer, entry: int, sign: int, parts: list[tuple[Array, Array]]) -> float:
    """The lower bound of ``sign *`` a unit on these parts, which are forgotten then."""
    if not parts:
        return float("inf")
    low, high = ranges.on_parts(layer, *(np.array(ends) for ends in zip(*parts, strict=True)))
    parts.clear()
    return float((low if sign > 0 else -high)[:, entry].min())
