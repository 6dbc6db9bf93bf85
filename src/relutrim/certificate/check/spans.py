"""Between which ends sums of products lie, end by end, whatever the rounding; ends may be infinite.

A product with an end takes that end's sign into account, and ``0 * inf`` is 0, as in sums that leave out what
a weight of 0 reads. What is 0 on both sides stays exactly 0: a zero costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relutrim.certificate.check.maps import Affine, Map, picked
from relutrim.certificate.check.rounding import ETA, ROOM, Array, Index, down, gamma, up


@dataclass(frozen=True, eq=False)
class Span:
    """Ends of a vector's entries, both included where they are finite."""

    lo: Array
    hi: Array

    @classmethod
    def point(cls, size: int) -> Span:
        """Zeros."""
        return cls(np.zeros(size), np.zeros(size))

    @classmethod
    def anything(cls, size: int) -> Span:
        """All real numbers."""
        return cls(np.full(size, -np.inf), np.full(size, np.inf))

    @property
    def nothing(self) -> bool:
        """Whether every entry is 0."""
        return not (self.lo.any() or self.hi.any())

    @property
    def size(self) -> Array:
        """The largest magnitudes."""
        return np.maximum(np.abs(self.lo), np.abs(self.hi))

    def __neg__(self) -> Span:
        return Span(-self.hi, -self.lo)

    def __add__(self, other: Span) -> Span:
        """Sums; adding 0 does not round."""
        with np.errstate(all="ignore"):
            lo, hi = self.lo + other.lo, self.hi + other.hi
        exact_lo, exact_hi = (self.lo == 0) | (other.lo == 0), (self.hi == 0) | (other.hi == 0)
        return Span(np.where(exact_lo, lo, down(lo)), np.where(exact_hi, hi, up(hi))).sound()

    def take(self, entries: Index) -> Span:
        """Some entries."""
        return Span(self.lo[entries], self.hi[entries])

    def put(self, entries: Index, others: Span) -> Span:
        """The same with some entries replaced."""
        lo, hi = self.lo.copy(), self.hi.copy()
        lo[entries], hi[entries] = others.lo, others.hi
        return Span(lo, hi)

    def sound(self) -> Span:
        """Where an end is no number, nothing is known."""
        bad = np.isnan(self.lo) | np.isnan(self.hi)
        return Span(np.where(bad, -np.inf, self.lo), np.where(bad, np.inf, self.hi)) if bad.any() else self


def through(operation: Affine, inputs: Sequence[Span], deadline: float) -> Span:
    """What an affine node makes of what it reads, without its constant."""
    total = Span.point(len(operation.bias))
    for part, read in zip(operation.maps, inputs, strict=True):
        if not read.nothing:
            total = total + _mapped(part, read, deadline)
    return total


@np.errstate(all="ignore")
def _mapped(part: Map, read: Span, deadline: float) -> Span:
    return _scaled(part, read) if part.weight is None else _summed(part, part.weight, read, deadline)


def _scaled(part: Map, read: Span) -> Span:
    """Entries by their index, each times its factor."""
    lo, hi = picked(np.stack([read.lo, read.hi]), part.index)
    if part.factor is None:
        return Span(lo, hi)
    factor, size = part.factor, np.maximum(np.abs(lo), np.abs(hi))
    made = [np.where((factor == 0) | (end == 0), 0.0, factor * end) for end in (lo, hi)]
    exact = [(factor == 0) | (np.abs(factor) == 1) | (end == 0) for end in (lo, hi)]
    low = np.minimum(*(np.where(e, m, down(m)) for e, m in zip(exact, made, strict=True)))
    high = np.maximum(*(np.where(e, m, up(m)) for e, m in zip(exact, made, strict=True)))
    if part.radius is not None:
        off = np.where((part.radius == 0) | (size == 0), 0.0, up(part.radius * size) + ETA)
        low, high = np.where(off == 0, low, down(low - off)), np.where(off == 0, high, up(high + off))
    return Span(low, high).sound()


def _summed(part: Map, weight: Array, read: Span, deadline: float) -> Span:
    """Windows of entries times a weight: positive weights take one end, negative ones the other."""

    def times(matrix: Any, *rows: Any) -> Array:
        return Map(part.index, matrix).forward(np.stack(rows), deadline=deadline)

    endless = np.isinf(read.lo), np.isinf(read.hi)
    lo, hi = (np.where(gone, 0.0, end) for gone, end in zip(endless, (read.lo, read.hi), strict=True))
    more, less = np.maximum(weight, 0), np.minimum(weight, 0)
    (low, high), (swapped_high, swapped_low) = times(more, lo, hi), times(less, lo, hi)
    low, high = low + swapped_low, high + swapped_high
    size = times(np.abs(weight), np.maximum(np.abs(lo), np.abs(hi)))[0]
    touched = times(1.0 * (weight != 0), 1.0 * ((lo != 0) | (hi != 0)))[0] > 0
    terms = 2 * part.terms + 2
    off = np.where(touched, gamma(terms) * size * ROOM + terms * ETA, 0.0)
    low, high = np.where(touched, down(low - off), 0.0), np.where(touched, up(high + off), 0.0)
    if endless[0].any() or endless[1].any():
        without = [1.0 * gone for gone in endless]
        (up_lo, up_hi), (down_lo, down_hi) = (
            times(1.0 * (weight > 0), *without),
            times(1.0 * (weight < 0), *without),
        )
        low = np.where(up_lo + down_hi > 0, -np.inf, low)
        high = np.where(up_hi + down_lo > 0, np.inf, high)
    return Span(low, high).sound()


def relu(read: Span) -> Span:
    """``max(0, x)``."""
    return Span(np.maximum(read.lo, 0), np.maximum(read.hi, 0))


def relu_moved(read: Span, moved: Span) -> Span:
    """``max(0, x + d) - max(0, x)`` for ``x`` in one span and ``d`` in another: between 0 and ``d``."""
    lo, hi = np.minimum(moved.lo, 0), np.maximum(moved.hi, 0)
    off = (read.hi <= 0) & (up(read.hi + moved.hi) <= 0)
    return Span(np.where(off, 0.0, lo), np.where(off, 0.0, hi))
