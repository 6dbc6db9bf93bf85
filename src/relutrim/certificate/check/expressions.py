"""Values as affine expressions over symbols, with what rounding may have done to them.

A symbol stands for a number that is not computed further: an input, the output of a maximum, an error. An
expression says ``value = sum_j a_j u_j + c + e`` with ``|e| <= r`` whenever every symbol ``u_j`` lies in its
range. The floats ``a`` and ``c`` are taken as given numbers; all rounding is in ``r``.

Pushing an expression through ``W x + b`` computes ``W a`` and ``W c + b`` in floats. That these are not exact
costs at most ``gamma_n |W| (|a| m + |c|)``, where ``m`` bounds the symbols' magnitudes. A symbol that occurs
in one entry only, with coefficient 1, is multiplied by one weight and added to zeros, so it costs nothing: a
layer that reads mere symbols is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np

from relutrim.certificate.check.maps import Affine, picked
from relutrim.certificate.check.rounding import ETA, ROOM, Array, Index, U, centred, gamma
from relutrim.errors import CheckFailed

MOST_NUMBERS = 2**26
"""No expression may hold more coefficients: half a gigabyte."""


@dataclass
class Symbols:
    """The ranges of all symbols so far."""

    lo: Array = field(default_factory=lambda: np.zeros(0))
    hi: Array = field(default_factory=lambda: np.zeros(0))

    def add(self, lo: Array, hi: Array) -> Expression:
        """New symbols with these ranges, each an entry."""
        ids = np.arange(len(self.lo), len(self.lo) + len(lo))
        self.lo, self.hi = np.concatenate([self.lo, lo]), np.concatenate([self.hi, hi])
        return Expression.of_symbols(ids)

    @property
    def reach(self) -> Array:
        """The largest magnitude of each."""
        return np.maximum(np.abs(self.lo), np.abs(self.hi))


@dataclass(frozen=True, eq=False)
class Expression:
    """``a`` (symbols, entries) for the symbols ``ids`` in increasing order, ``c`` and ``r`` (entries,)."""

    ids: Index
    a: Array
    c: Array
    r: Array
    identity: bool = False
    """Whether each entry is a symbol, in their order: what ``a`` says too, and slower."""

    @classmethod
    def of_symbols(cls, ids: Index) -> Expression:
        """Each entry a symbol."""
        _bounded(len(ids), len(ids))
        return cls(ids, np.eye(len(ids)), np.zeros(len(ids)), np.zeros(len(ids)), True)

    @classmethod
    def joined(cls, count: int, *parts: tuple[Index, Expression]) -> Expression:
        """Expressions at their places among ``count`` entries, of which no entry may get a constant, or one
        symbol, from two: nothing is rounded.
        """
        ids = np.unique(np.concatenate([part.ids[part.a.any(1)] for _, part in parts]))
        _bounded(len(ids), count)
        a, c, r = np.zeros((len(ids), count)), np.zeros(count), np.zeros(count)
        for at, part in parts:
            used = part.a.any(1)
            a[np.ix_(np.searchsorted(ids, part.ids[used]), at)] += part.a[used]
            c[at] += part.c
            r[at] += part.r
        return cls(ids, a, c, r * ROOM)

    def take(self, entries: Index) -> Expression:
        """Some entries."""
        return Expression(self.ids, self.a[:, entries], self.c[entries], self.r[entries])

    def over(self, ids: Index) -> Array:
        """The coefficients of these symbols, among which must be its own."""
        return _spread(self.a, self.ids, ids)

    def magnitude(self, reach: Array) -> Array:
        """A bound of the sum of all terms' magnitudes, without ``r``, for symbols within ``reach``."""
        if self.identity:
            return reach[..., self.ids]
        return (reach[..., self.ids] @ np.abs(self.a) + np.abs(self.c)) * ROOM + (len(self.ids) + 1) * ETA

    def ends(self, symbols: Symbols) -> tuple[Array, Array]:
        """Between which numbers the value lies; NaN if that is not known."""
        middle, radius = centred(symbols.lo[..., self.ids], symbols.hi[..., self.ids])
        size = np.abs(self.a)
        value, spread = middle @ self.a + self.c, radius @ size
        slack = gamma(len(self.ids) + 2) * (np.abs(middle) @ size + np.abs(self.c) + spread)
        spread = spread + ((slack + self.r) * ROOM + 2 * len(self.ids) * ETA)
        spread = np.where(size.any(0) | (self.r != 0), spread, 0.0)
        return (
            np.where(spread == 0, value, np.nextafter(value - spread, -np.inf)),
            np.where(spread == 0, value, np.nextafter(value + spread, np.inf)),
        )

    def largest(self, symbols: Symbols) -> Array:
        """The largest magnitude of each entry."""
        low, high = self.ends(symbols)
        return np.maximum(np.abs(low), np.abs(high))

    def minus(self, other: Expression, scale: Array, symbols: Symbols) -> Expression:
        """``self - scale * other``, entry by entry. The product rounds unless it is by 1 or -1, the
        difference unless one of both is 0 or they are equal.
        """
        ids, unit = np.union1d(self.ids, other.ids), np.abs(scale) == 1

        def less(mine: Array, theirs: Array) -> tuple[Array, Array]:
            product = theirs * scale
            made = mine - product
            rounded = np.abs(made) * ((mine != 0) & (product != 0))
            return made, np.where(unit, 0.0, np.abs(product)) + rounded

        (made, size), (constant, wide) = less(self.over(ids), other.over(ids)), less(self.c, other.c)
        reach = symbols.reach[ids]
        off = 4 * U * (reach @ size + wide)
        whole = unit & ~size.any(0) & (wide == 0)
        tiny = np.where(whole, 0.0, len(ids) * ETA * (2 + reach.sum()) + 4 * ETA)
        return Expression(ids, made, constant, (self.r + np.abs(scale) * other.r + off + tiny) * ROOM)


def _spread(a: Array, ids: Index, wanted: Index) -> Array:
    """Rows for the symbols ``ids`` as rows for those that are wanted, among which they are."""
    _bounded(len(wanted), a.shape[1])
    if len(wanted) == len(ids):
        return a
    found = np.zeros((len(wanted), a.shape[1]))
    found[np.searchsorted(wanted, ids)] = a
    return found


def _bounded(symbols: int, entries: int) -> None:
    if symbols * entries > MOST_NUMBERS:
        raise CheckFailed(
            f"not checked: an expression of {entries} entries and {symbols} symbols is too large"
        )


def push(operation: Affine, inputs: Sequence[Expression], symbols: Symbols) -> Expression:
    """The expression of an affine node."""
    if operation.moves:
        return _moved(operation, inputs[0])
    ids = np.unique(np.concatenate([before.ids for before in inputs]))
    reach, rounds, parts, plain = symbols.reach, gamma(operation.terms), list[Array](), True
    c = np.zeros(1) if operation.bias is None else operation.bias
    r, weight, bias = np.zeros(1), np.zeros(1), np.abs(c)
    for part, before in zip(operation.maps, inputs, strict=True):
        c = c + part.forward(before.c[None])[0]
        _bounded(len(before.ids), c.size)
        moved = part.columns(len(before.ids)) if before.identity else part.forward(before.a)
        parts.append(_spread(moved, before.ids, ids))
        # A symbol with one coefficient, which is 1, is not rounded.
        alone = np.full(len(before.ids), len(inputs) == 1)
        if len(inputs) == 1 and not before.identity:
            alone = (np.count_nonzero(before.a, axis=1) == 1) & (before.a.max(1, initial=0.0) == 1)
        others = np.abs(before.a[~alone])
        size = reach[before.ids[~alone]] @ others
        # What underflow takes from the radius here is multiplied by the weights, so it is added before.
        tiny = np.where(others.any(0), (len(others) + 4) * ETA, 0.0)
        r = r + part.forward((before.r + rounds * size + tiny)[None], absolute=True)[0]
        r = r + part.doubt(before.magnitude(reach) + before.r)
        weight = weight + part.forward(np.abs(before.c)[None], absolute=True)[0]
        plain = plain and bool(alone.all()) and not before.c.any() and not before.r.any()
    # Adding constants rounds where there are at least two.
    r = r + np.where(weight > 0, gamma(operation.terms + 2) * (weight + bias), 0.0)
    if not plain:  # what underflow may have lost
        r = r + (operation.terms + 2) * ETA * (4 + float(reach[ids].sum()))
    return _trimmed(Expression(ids, reduce(np.add, parts), c, r * ROOM))


def _moved(operation: Affine, before: Expression) -> Expression:
    """Entries moved, and a constant added: of that alone something is rounded."""
    index = operation.maps[0].index
    a, (c, r) = picked(before.a, index), picked(np.stack([before.c, before.r]), index)
    if operation.bias is None:
        return _trimmed(Expression(before.ids, a, c, r))
    total = c + operation.bias
    rounded = np.where((c != 0) & (operation.bias != 0), 2 * U * np.abs(total), 0.0)
    return _trimmed(Expression(before.ids, a, total, (r + rounded) * ROOM))


def _trimmed(made: Expression) -> Expression:
    """Without symbols that do not occur."""
    keep = made.a.any(1)
    return made if keep.all() else Expression(made.ids[keep], made.a[keep], made.c, made.r)
