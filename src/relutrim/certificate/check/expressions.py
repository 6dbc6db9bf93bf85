"""Values as affine expressions over symbols, with what rounding may have done to them.

A symbol stands for a number that is not computed further: an input, the output of a ReLU, an error. An
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

import numpy as np

from relutrim.certificate.check.maps import Affine, Graph, Node, picked
from relutrim.certificate.check.rounding import ETA, ROOM, Array, Index, U, centred, gamma
from relutrim.errors import CheckFailed

MOST_NUMBERS = 2**26
"""No expression may hold more coefficients: half a gigabyte."""
MOST_KEPT = 2**28
"""Nor may all expressions that are kept at the same time."""


@dataclass
class Symbols:
    """The ranges of all symbols so far."""

    lo: Array = field(default_factory=lambda: np.zeros(0))
    hi: Array = field(default_factory=lambda: np.zeros(0))
    deadline: float = field(default=float("inf"), kw_only=True)
    """When it has taken too long to compute with them."""

    def add(self, lo: Array, hi: Array) -> Expression:
        """New symbols with these ranges, each an entry."""
        count = len(lo)
        _bounded(count, count)
        ids = np.arange(len(self.lo), len(self.lo) + count)
        self.lo, self.hi = np.concatenate([self.lo, lo]), np.concatenate([self.hi, hi])
        return Expression(ids, np.eye(count), np.zeros(count), np.zeros(count))

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

    @classmethod
    def joined(cls, count: int, *parts: tuple[Index, Expression]) -> Expression:
        """Expressions at their places among ``count`` entries, of which no entry may get a constant, or one
        symbol, from two: nothing is rounded.
        """
        trimmed = [(at, part.trimmed()) for at, part in parts]
        ids = np.unique(np.concatenate([np.zeros(0, np.int64), *(part.ids for _, part in trimmed)]))
        _bounded(len(ids), count)
        a, c, r = np.zeros((len(ids), count)), np.zeros(count), np.zeros(count)
        for at, part in trimmed:
            a[np.ix_(np.searchsorted(ids, part.ids), at)] += part.a
            c[at] += part.c
            r[at] += part.r
        return cls(ids, a, c, r * ROOM)

    def trimmed(self) -> Expression:
        """Without symbols that do not occur."""
        keep = self.a.any(1)
        return self if keep.all() else Expression(self.ids[keep], self.a[keep], self.c, self.r)

    def take(self, entries: Index) -> Expression:
        """Some entries."""
        return Expression(self.ids, self.a[:, entries], self.c[entries], self.r[entries])

    def over(self, ids: Index) -> Array:
        """The coefficients of these symbols, among which must be its own."""
        _bounded(len(ids), self.a.shape[1])
        found = np.zeros((len(ids), self.a.shape[1]))
        found[np.searchsorted(ids, self.ids)] = self.a
        return found

    def magnitude(self, reach: Array) -> Array:
        """A bound of the sum of all terms' magnitudes, without ``r``, for symbols within ``reach``."""
        return (reach[..., self.ids] @ np.abs(self.a) + np.abs(self.c)) * ROOM + (len(self.ids) + 1) * ETA

    def ends(self, symbols: Symbols) -> tuple[Array, Array]:
        """Between which numbers the value lies; NaN if that is not known."""
        middle, radius = centred(symbols.lo[..., self.ids], symbols.hi[..., self.ids])
        size = np.abs(self.a)
        value, spread = middle @ self.a + self.c, radius @ size
        slack = gamma(len(self.ids) + 2) * (np.abs(middle) @ size + np.abs(self.c) + spread)
        spread = spread + ((slack + self.r) * ROOM + 2 * len(self.ids) * ETA)
        known = ~size.any(0) & (self.r == 0)
        return (
            np.where(known, self.c, np.nextafter(value - spread, -np.inf)),
            np.where(known, self.c, np.nextafter(value + spread, np.inf)),
        )

    def minus(self, other: Expression, scale: Array, symbols: Symbols) -> Expression:
        """``self - scale * other``, entry by entry. The product rounds unless it is by 1 or -1, the
        difference (by a share of what is left) unless one of both is 0.
        """
        ids, unit = np.union1d(self.ids, other.ids), np.abs(scale) == 1

        def less(mine: Array, theirs: Array) -> tuple[Array, Array]:
            product = theirs * scale
            made = mine - product
            rounded = np.abs(made) * ((mine != 0) & (product != 0))
            return made, rounded + np.where(unit, 0.0, np.abs(product))

        (made, size), (constant, wide) = less(self.over(ids), other.over(ids)), less(self.c, other.c)
        reach = symbols.reach[ids]
        off = 2 * U * (reach @ size + wide) + len(ids) * ETA * (2 + reach.sum()) + 4 * ETA
        off = np.where(unit & ~size.any(0) & (wide == 0), 0.0, off)
        return Expression(ids, made, constant, (self.r + np.abs(scale) * other.r + off) * ROOM)


class Values:
    """What the nodes of a graph made so far: each as long as a node or an output is to read it."""

    def __init__(self, graph: Graph, first: Expression) -> None:
        self._graph, self._made, self._count, self._kept = graph, {0: first}, 0, first.a.size
        self._last = {number: at for at, node in enumerate(graph.nodes) for number in node.inputs}
        self._last |= {output.number: len(graph.nodes) for output in graph.outputs.values()}

    def following(self) -> tuple[Node, list[Expression]] | None:
        """The node that is next, and what it reads."""
        if self._count == len(self._graph.nodes):
            return None
        node = self._graph.nodes[self._count]
        return node, [self._made[number] for number in node.inputs]

    def add(self, value: Expression, *stay: Expression) -> None:
        """What that node makes, and what stays in memory for good."""
        at, self._count = self._count, self._count + 1
        self._made[self._count] = value
        self._kept += value.a.size + sum(one.a.size for one in stay)
        for number in {*self._graph.nodes[at].inputs, self._count}:
            if self._last.get(number, at) <= at:
                self._kept -= self._made.pop(number).a.size
        if self._kept > MOST_KEPT:
            raise CheckFailed("not checked: all expressions together are too large")

    def outputs(self) -> list[Expression]:
        """Those of the graph."""
        return [self._made[output.number] for output in self._graph.outputs.values()]


def _bounded(symbols: int, entries: int) -> None:
    if symbols * entries > MOST_NUMBERS:
        raise CheckFailed(
            f"not checked: an expression of {entries} entries and {symbols} symbols is too large"
        )


def push(operation: Affine, inputs: Sequence[Expression], symbols: Symbols) -> Expression:
    """The expression of an affine node."""
    ids = np.unique(np.concatenate([before.ids for before in inputs]))
    terms, count, reach = operation.terms, len(operation.bias), symbols.reach
    _bounded(len(ids), count)
    a, c, weight = np.zeros((len(ids), count)), operation.bias, np.zeros(count)
    r, exact = np.zeros(count), len(inputs) == 1
    for part, before in zip(operation.maps, inputs, strict=True):
        a[np.searchsorted(ids, before.ids)] += part.forward(before.a, deadline=symbols.deadline)
        c = c + part.forward(before.c[None])[0]
        # A symbol with one coefficient, which is 1, is not rounded; nor is what only moves.
        lone = (np.count_nonzero(before.a, axis=1) == 1) & (before.a.max(1, initial=0.0) == 1)
        lone = lone if terms and exact else np.full(len(lone), not terms)
        others = np.abs(before.a[~lone])
        # What underflow takes from the radius here is multiplied by the weights, so it is added before.
        tiny = np.where(others.any(0), (len(others) + 4) * ETA, 0.0)
        size = before.r + gamma(terms) * (reach[before.ids[~lone]] @ others) + tiny
        r = r + part.forward(size[None], absolute=True)[0]
        if part.radius is not None:
            r = r + picked((before.magnitude(reach) + before.r)[None], part.index)[0] * part.radius + ETA
        weight = weight + part.forward(np.abs(before.c)[None], absolute=True)[0]
        exact = exact and bool(lone.all()) and not (before.r.any() or before.c.any())
    # Adding constants rounds where there are at least two.
    several = (weight > 0) & ((operation.bias != 0) | (terms > 0))
    r = r + np.where(several, gamma(terms + 2) * (weight + np.abs(operation.bias)), 0.0)
    if terms and not exact:  # what underflow may have lost
        r = r + (terms + 2) * ETA * (4 + float(reach[ids].sum()))
    return Expression(ids, a, c, r * ROOM).trimmed()
