"""The input domain of a VNN-LIB 1 file. What it says about outputs is a property to verify, not a domain.

Rules, in the order in which they are applied:

1. Every number is read as the exact rational it spells; nothing is decided in floating point.
2. Assertions are conjunctions of linear comparisons. A comparison of inputs belongs to the domain; one of
   outputs is the property, and is ignored and counted; one of both is refused, because it cuts the domain by
   what the network computes.
3. ``(or A B ...)`` of outputs alone is ignored likewise. If inputs occur, all alternatives must say the same
   about them: ``(or (and X P) (and X Q))`` is ``X and (P or Q)``. Anything else is a union of domains and is
   refused.
4. Comparisons with one input are bounds; every input needs both. The others become rows
   ``lower <= matrix @ x <= upper``.
5. A strict bound stands for the closed one. This changes no verdict: a convex set that is not empty and its
   closure show the same states, since pre-activations are continuous and a state is a strict sign. That it is
   not empty is checked, which is simple for bounds but not for rows; a strict comparison in a file with rows
   is refused.
6. A decimal need not be a float64. **The domain is the box with its ends rounded outward.** A row is first
   brought to coprime integers, so decimal coefficients mostly become exact. To round a coefficient that is
   still not a float64 to the nearest moves the constraint either way and would not be sound alone; the row's
   ends therefore move outward by ``sum_i |rounding error of g_i| max|x_i|`` and are rounded outward too. The
   result always contains what the file describes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TypeAlias

import numpy as np

from relutrim.errors import DomainError, RelutrimError
from relutrim.graph.operators.base import Array
from relutrim.io.files import read_text
from relutrim.io.vnnlib_syntax import Row, Statements

_End: TypeAlias = tuple[Fraction, bool]
"""A bound and whether it is strict."""

_Block: TypeAlias = tuple[Array, Array, Array]
"""A matrix and the lower and upper ends of its rows."""


@dataclass(frozen=True, eq=False)
class InputSet:
    """``lo <= x <= hi`` and ``lower <= matrix @ x <= upper``; a one-sided row has an infinite other end."""

    lo: Array
    hi: Array
    matrix: Array
    lower: Array
    upper: Array
    ignored_output_assertions: int = 0

    def __post_init__(self) -> None:
        for array in (self.lo, self.hi, self.matrix, self.lower, self.upper):
            array.setflags(write=False)


def read_vnnlib(path: Path, inputs: int) -> InputSet:
    """The domain that a ``.vnnlib`` or ``.vnnlib.gz`` file states for a network with ``inputs`` inputs.

    ``X_i`` is entry ``i`` of the input, flat in C order. Whatever cannot be taken exactly as it is meant
    raises :class:`InputError` or :class:`DomainError` with file and line.
    """
    text = read_text(path).removeprefix("\ufeff")
    try:
        statements = Statements(text)
        _check_inputs(statements, inputs)
        _check_constants(statements)
        rows = [row for row in statements.rows if len(row.vector) > 1]
        _check_strict(statements, rows)
        lows, highs = _exact_box(statements, inputs)
        lo, hi = _outward(statements, lows, highs)
        _check_nonempty(statements, rows, lows, highs)
        return InputSet(lo, hi, *_block(rows, lo, hi), statements.ignored_output_assertions)
    except RelutrimError as error:
        raise error.at(str(path)) from None


def _check_inputs(statements: Statements, inputs: int) -> None:
    declared = statements.inputs
    for i, (key, at) in enumerate(declared.items()):
        if i != key:
            raise statements.error(
                at, f"X_{key} is declared, but X_{i} is not; inputs count from 0 without gaps"
            )
    if len(declared) != inputs:
        raise statements.error(
            max(declared.values(), default=None),
            f"the file declares {len(declared)} inputs (X_0, X_1, ...), the network has {inputs}; "
            "they do not belong together",
            DomainError,
        )


def _check_constants(statements: Statements) -> None:
    for row in statements.rows:
        if not row.vector and (row.bound < 0 or (row.strict and row.bound == 0)):
            raise statements.error(
                row.at, "this comparison of constants is false, so the domain is empty", DomainError
            )


def _check_strict(statements: Statements, rows: Sequence[Row]) -> None:
    strict = next((row for row in statements.rows if row.strict and row.vector), None)
    if strict and rows:
        raise statements.error(
            strict.at,
            "a strict comparison of inputs, in a file that constrains several inputs together: relutrim uses "
            "closed sets and cannot tell here whether closing this one changes it; "
            "write <= or >= if that is meant",
        )


def _exact_box(statements: Statements, inputs: int) -> tuple[list[Fraction], list[Fraction]]:
    """The bounds of every input as the file spells them."""
    low: list[_End | None] = [None] * inputs
    high: list[_End | None] = [None] * inputs
    for row in statements.rows:
        if len(row.vector) != 1:
            continue
        ((i, sign),) = row.vector
        ends, value = (high, row.bound) if sign > 0 else (low, -row.bound)
        old = ends[i]
        # Of two equal bounds the strict one is the tighter.
        if old is None or (value - old[0]) * sign < 0 or (value == old[0] and row.strict):
            ends[i] = (value, row.strict)
        one, other = low[i], high[i]
        if one and other and (one[0] > other[0] or (one[0] == other[0] and (one[1] or other[1]))):
            raise statements.error(
                row.at,
                f"this leaves no value for X_{i} (lower bound {_show(one)}, upper bound {_show(other)}), "
                "so the domain is empty",
                DomainError,
            )
    for name, sign_text, ends in (("lower", ">=", low), ("upper", "<=", high)):
        if None in ends:
            i = ends.index(None)
            raise statements.error(
                statements.inputs[i],
                f"X_{i} has no {name} bound of its own, and the domain must be bounded; "
                f"add (assert ({sign_text} X_{i} ...))",
                DomainError,
            )
    return [end[0] for end in low if end], [end[0] for end in high if end]


def _outward(
    statements: Statements, lows: Sequence[Fraction], highs: Sequence[Fraction]
) -> tuple[Array, Array]:
    """The box in float64."""
    lo = np.array([_below(low) for low in lows], dtype=np.float64)
    hi = np.array([_above(high) for high in highs], dtype=np.float64)
    beyond = np.flatnonzero(~(np.isfinite(lo) & np.isfinite(hi)))
    if beyond.size:
        i = int(beyond[0])
        raise statements.error(
            statements.inputs[i],
            f"a bound of X_{i} is beyond the largest float64; state a smaller domain",
            DomainError,
        )
    return lo, hi


def _check_nonempty(
    statements: Statements, rows: Sequence[Row], lows: Sequence[Fraction], highs: Sequence[Fraction]
) -> None:
    """No single row excludes the whole box, nor two opposite ones each other; more would take an LP."""
    least: dict[tuple[tuple[int, int], ...], Fraction] = {}
    for row in rows:
        opposite = tuple((i, -g) for i, g in row.vector)
        least[row.vector] = min(row.bound, least.get(row.vector, row.bound))
        smallest = sum((min(g * lows[i], g * highs[i]) for i, g in row.vector), Fraction(0))
        if smallest > row.bound or (opposite in least and -least[opposite] > least[row.vector]):
            raise statements.error(
                row.at,
                "no point of the box satisfies this and the assertions before it, so the domain is empty",
                DomainError,
            )


def _block(rows: Sequence[Row], lo: Array, hi: Array) -> _Block:
    """Rows over several inputs in float64; those with equal or opposite vectors are joined."""
    ends: dict[tuple[tuple[int, int], ...], tuple[list[Fraction], list[Fraction]]] = {}
    for row in rows:
        sign = 1 if row.vector[0][1] > 0 else -1
        lowers, uppers = ends.setdefault(tuple((i, sign * g) for i, g in row.vector), ([], []))
        (uppers if sign > 0 else lowers).append(sign * row.bound)
    matrix = np.zeros((len(ends), len(lo)))
    lower, upper = np.full(len(ends), -np.inf), np.full(len(ends), np.inf)
    for k, (vector, (lowers, uppers)) in enumerate(ends.items()):
        # Integers up to 2**53 are float64. A power of two brings larger ones there, and rounds nothing that
        # a float64 could hold before.
        bits = max(g.bit_length() for _, g in vector)
        unit = Fraction(1, 2 ** max(0, bits - 53))
        error = Fraction(0)
        for i, g in vector:
            matrix[k, i] = float(g * unit)
            largest = max(abs(Fraction(float(lo[i]))), abs(Fraction(float(hi[i]))))
            error += abs(g * unit - Fraction(float(matrix[k, i]))) * largest
        if lowers:
            lower[k] = _below(max(lowers) * unit - error)
        if uppers:
            upper[k] = _above(min(uppers) * unit + error)
    keep = np.isfinite(lower) | np.isfinite(upper)
    return matrix[keep], lower[keep], upper[keep]


def _below(number: Fraction) -> float:
    """The largest float64 that is at most ``number``."""
    try:
        nearest = float(number)
    except OverflowError:
        nearest = math.inf if number > 0 else -math.inf
    if nearest == math.inf or (nearest != -math.inf and Fraction(nearest) > number):
        return math.nextafter(nearest, -math.inf)
    return nearest


def _above(number: Fraction) -> float:
    """The smallest float64 that is at least ``number``."""
    return -_below(-number) + 0.0  # + 0.0 turns -0.0 into 0.0


def _show(end: _End) -> str:
    value, strict = end
    try:
        shown = repr(float(value))
    except OverflowError:
        shown = "beyond float64"
    return f"{shown}{' exclusive' if strict else ''}"
