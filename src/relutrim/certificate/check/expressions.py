"""Values as affine expressions over symbols, with what rounding may have done to them.

A symbol stands for a number that is not computed further: an input, the output of a ReLU or of a maximum, an
error. An expression says ``value = sum_j a_j u_j + c + e`` with ``|e| <= r`` whenever every symbol ``u_j``
lies in its range. The floats ``a`` and ``c`` are taken as given numbers; all rounding is in ``r``.

Pushing an expression through ``W x + b`` computes ``W a`` and ``W c + b`` in floats. That these are not exact
costs at most ``gamma_n |W| (|a| m + |c|)``, where ``m`` bounds the symbols' magnitudes. A symbol that occurs
in one entry only, with coefficient 1, is multiplied by one weight and added to zeros, so it costs nothing: a
layer that reads mere symbols is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from relutrim.certificate.check.maps import Affine
from relutrim.certificate.check.rounding import ETA, ROOM, Array, Index, U, centred, gamma
from relutrim.errors import CheckFailed

MOST_NUMBERS = 2**26
"""No expression may hold more coefficients: half a gigabyte."""


@dataclass
class Symbols:
    """The ranges of all symbols so far."""

    lo: Array = field(default_factory=lambda: np.zeros(0))
    hi: Array = field(default_factory=lambda: np.zeros(0))

    def add(self, lo: Array, hi: Array) -> Index:
        """New symbols with these ranges; their numbers."""
        start = len(self.lo)
        self.lo, self.hi = np.concatenate([self.lo, lo]), np.concatenate([self.hi, hi])
        return np.arange(start, len(self.lo))

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

    def take(self, entries: Index) -> Expression:
        """Some entries."""
        return Expression(self.ids, self.a[:, entries], self.c[entries], self.r[entries])

    def over(self, ids: Index) -> Array:
        """The coefficients of these symbols, among which must be its own."""
        return _spread(self.a, self.ids, ids)

    def magnitude(self, symbols: Symbols) -> Array:
        """A bound of the sum of all terms' magnitudes, without ``r``."""
        if self.identity:
            return symbols.reach[self.ids]
        return (symbols.reach[self.ids] @ np.abs(self.a) + np.abs(self.c)) * ROOM + len(self.ids) * ETA

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

    def minus(self, other: Expression, scale: Array, symbols: Symbols) -> Expression:
        """``self - scale * other``, entry by entry."""
        ids = np.union1d(self.ids, other.ids)
        mine, theirs = self.over(ids), other.over(ids)
        product = theirs * scale
        made, constant = mine - product, self.c - other.c * scale
        # The product rounds unless it is by 1 or -1, the difference unless one of both is 0 or they are
        # equal.
        size = np.where(np.abs(scale) == 1, 0.0, np.abs(product)) + np.abs(made) * (
            (mine != 0) & (product != 0)
        )
        shift = other.c * scale
        wide = np.where(np.abs(scale) == 1, 0.0, np.abs(shift)) + np.abs(constant) * (
            (self.c != 0) & (shift != 0)
        )
        reach = symbols.reach[ids]
        off = 4 * U * (reach @ size + wide)
        whole = (np.abs(scale) == 1) & ~size.any(0) & (wide == 0)
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
            f"not checked: an expression of {entries} entries over {symbols} symbols is beyond "
            f"{MOST_NUMBERS} numbers"
        )


def push(operation: Affine, inputs: Sequence[Expression], symbols: Symbols) -> Expression:
    """The expression of an affine node."""
    ids = inputs[0].ids
    for other in inputs[1:]:
        ids = np.union1d(ids, other.ids)
    reach = symbols.reach
    rounds = 0.0 if operation.moves else gamma(operation.terms)
    a: Array | float = 0.0
    c: Array | float = 0.0 if operation.bias is None else operation.bias
    r: Array | float = 0.0
    weight: Array | float = 0.0
    plain = True
    for part, before in zip(operation.maps, inputs, strict=True):
        _bounded(len(before.ids), part.size)
        moved = part.columns(len(before.ids)) if before.identity else part.forward(before.a)
        a = a + (_spread(moved, before.ids, ids))
        c = c + part.forward(before.c[None])[0]
        # A symbol with one coefficient, which is 1, is not rounded.
        alone = np.zeros(len(before.ids), bool)
        if len(inputs) == 1 and before.identity:
            alone[:] = True
        elif len(inputs) == 1:
            alone = (np.count_nonzero(before.a, axis=1) == 1) & (before.a.max(1, initial=0.0) == 1)
        others = np.abs(before.a[~alone])
        size = reach[before.ids[~alone]] @ others
        # What underflow takes from the radius here is multiplied by the weights, so it is added before.
        tiny = np.where(others.any(0) & (rounds > 0), (len(others) + 4) * ETA, 0.0)
        spread = part.forward((before.r + rounds * size + tiny)[None], absolute=True)[0]
        r = r + spread + part.doubt((before.magnitude(symbols) + before.r)[None])[0]
        weight = weight + part.forward(np.abs(before.c)[None], absolute=True)[0]
        plain = plain and bool(alone.all()) and not before.c.any() and not before.r.any()
    # Adding constants rounds where there are at least two.
    bias = np.abs(operation.bias) if operation.bias is not None else np.zeros(1)
    r = r + np.where(weight > 0, gamma(operation.terms + 2) * (weight + bias), 0.0)
    if not plain:  # what underflow may have lost
        r = r + (operation.terms + 2) * ETA * (4 + float(reach[ids].sum()))
    a = np.asarray(a)
    made = Expression(ids, a, c + np.zeros(a.shape[1]), np.asarray(r) * ROOM)
    keep = made.a.any(1)
    return made if keep.all() else Expression(made.ids[keep], made.a[keep], made.c, made.r)
