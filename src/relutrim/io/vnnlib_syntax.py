"""The assertions of a VNN-LIB 1 file as exact linear inequalities.

Which of them count as the domain, and why, is said in :mod:`relutrim.io.vnnlib`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import TypeAlias

from relutrim.errors import InputError
from relutrim.io.sexpr import Symbol, fold, line_of, shorten

_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE]([+-]?[0-9]{1,9}))?")
_VARIABLE = re.compile(r"([XY])_(0|[1-9][0-9]{0,8})")
_LARGEST_EXPONENT = 5000
_LONGEST_NUMBER = 2000
_MOST_BITS = 2**16  # of a numerator or denominator: far beyond any real file, and a stop for hostile products

_HARMLESS = {"set-logic", "set-info", "set-option", "check-sat", "get-model", "exit"}
_VERSION_2 = {"vnnlib-version", "declare-network", "declare-input", "declare-hidden", "declare-output"}
_OF_OUTPUTS_ONLY = {"not", "=>", "xor"}
_SPLIT = "write one file per box and analyse each, or state one box that contains them all"


@dataclass(frozen=True, slots=True)
class Row:
    """``sum_i vector_i x_i <= bound`` (``<`` if strict) over inputs.

    The coefficients are coprime integers, so that equal half-spaces compare equal.
    """

    vector: tuple[tuple[int, int], ...]
    bound: Fraction
    strict: bool
    at: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class _Term:
    """``sum_i coefficients[i] v_i + constant``; ``X_i`` has the key ``i``, ``Y_j`` the key ``-1 - j``."""

    at: int
    coefficients: dict[int, Fraction]
    constant: Fraction


@dataclass(frozen=True, slots=True)
class _Formula:
    """The conjunction of ``rows`` over inputs and, perhaps, of something about outputs."""

    at: int
    rows: list[Row]
    about_outputs: bool


@dataclass(frozen=True, slots=True)
class _Other:
    """A command, or the empty list in ``(declare-fun X_0 () Real)``."""

    at: int
    what: str


_Value: TypeAlias = _Term | _Formula | _Other
_Item: TypeAlias = Symbol | _Value


class Statements:
    """What a file states: ``rows`` over the inputs, all of which hold, and where each input is declared."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.rows: list[Row] = []
        self.ignored_output_assertions = 0
        self._declared: dict[int, int] = {}  # variable key -> where
        for value in fold(text, self._reduce):
            if not isinstance(value, _Other) or value.what == "()":
                raise self.error(value.at, "a command such as (assert ...) was expected here")

    @property
    def inputs(self) -> dict[int, int]:
        """The declared inputs, sorted, and where in the text."""
        return {key: self._declared[key] for key in sorted(self._declared) if key >= 0}

    def error(self, at: int | None, message: str, kind: type[InputError] = InputError) -> InputError:
        """An error that names the line of position ``at``."""
        return kind(message, where=None if at is None else line_of(self.text, at))

    def _reduce(self, at: int, items: list[_Item]) -> _Value:
        """What a list stands for; the lists in it are reduced already."""
        if not items:
            return _Other(at, "()")
        head, rest = items[0], items[1:]
        if not isinstance(head, Symbol):
            raise self.error(at, "a list must begin with the name of a command or an operator")
        name = head.text
        if name in ("+", "-", "*", "/"):
            return self._arithmetic(at, name, [self._term(item) for item in rest])
        if name in ("<=", ">=", "<", ">", "="):
            return self._comparison(at, name, [self._term(item) for item in rest])
        if name in ("and", "or") or name in _OF_OUTPUTS_ONLY:
            return self._boolean(at, name, [self._formula(item) for item in rest])
        if name == "assert":
            self._assert(at, rest)
        elif name in ("declare-const", "declare-fun"):
            self._declare(at, name, rest)
        elif name in _VERSION_2:
            raise self.error(
                at,
                f"({name} ...) is VNN-LIB 2, which relutrim does not read; "
                "write the domain as VNN-LIB 1, with (declare-const X_0 Real) and so on",
            )
        elif name not in _HARMLESS:
            raise self.error(
                at, f"{shorten(name)} is not a command or operator of VNN-LIB 1 that relutrim knows"
            )
        return _Other(at, name)

    def _term(self, item: _Item) -> _Term:
        if isinstance(item, _Term):
            return item
        if not isinstance(item, Symbol):
            raise self.error(item.at, "a number, a variable or a sum of them was expected here")
        number = _NUMBER.fullmatch(item.text)
        if number:
            exponent = abs(int(number.group(1) or 0))
            if exponent > _LARGEST_EXPONENT or len(item.text) > _LONGEST_NUMBER:
                raise self.error(
                    item.at,
                    f"the number {shorten(item.text)} is too large, too small or too long to be meant",
                )
            return _Term(item.at, {}, Fraction(item.text))
        key = self._variable(item)
        if key not in self._declared:
            raise self.error(
                item.at, f"{item.text} is used but not declared; add (declare-const {item.text} Real) before"
            )
        return _Term(item.at, {key: Fraction(1)}, Fraction(0))

    def _variable(self, item: Symbol) -> int:
        """The key of a variable by its name."""
        found = _VARIABLE.fullmatch(item.text)
        if not found:
            raise self.error(
                item.at,
                f"{shorten(item.text)} is neither a number nor a variable; "
                "inputs are X_0, X_1, ..., outputs Y_0, Y_1, ...",
            )
        index = int(found.group(2))
        return index if found.group(1) == "X" else -1 - index

    def _formula(self, item: _Item) -> _Formula:
        if not isinstance(item, _Formula):
            raise self.error(item.at, "a comparison, or comparisons joined by and/or, was expected here")
        return item

    def _arithmetic(self, at: int, name: str, terms: list[_Term]) -> _Term:
        if not terms or (name == "/" and len(terms) == 1):
            raise self.error(at, f"({name} ...) with too few operands")
        if name == "+":
            return self._sum(at, terms, [1] * len(terms))
        if name == "-":
            return self._sum(at, terms, [1 if len(terms) > 1 else -1] + [-1] * (len(terms) - 1))
        result = terms[0]
        for term in terms[1:]:
            if name == "/":
                if term.coefficients:
                    raise self.error(
                        at, "division by a variable is not linear; only linear constraints describe a domain"
                    )
                if not term.constant:
                    raise self.error(at, "division by zero")
                term = _Term(term.at, {}, 1 / term.constant)
            elif result.coefficients and term.coefficients:
                raise self.error(
                    at, "a product of variables is not linear; only linear constraints describe a domain"
                )
            if not result.coefficients:
                result, term = term, result
            scaled = {
                key: self._sized(at, value * term.constant)
                for key, value in result.coefficients.items()
                if term.constant
            }
            result = _Term(at, scaled, self._sized(at, result.constant * term.constant))
        return result

    def _sum(self, at: int, terms: Sequence[_Term], signs: Sequence[int]) -> _Term:
        # The largest term takes up the others: a long sum written as nested pairs stays linear work.
        order = sorted(range(len(terms)), key=lambda k: -len(terms[k].coefficients))
        first = terms[order[0]].coefficients
        total = first if signs[order[0]] > 0 else {key: -value for key, value in first.items()}
        for k in order[1:]:
            for key, value in terms[k].coefficients.items():
                changed = self._sized(at, total.get(key, Fraction(0)) + signs[k] * value)
                if changed:
                    total[key] = changed
                else:
                    total.pop(key, None)
        constant = Fraction(0)
        for sign, term in zip(signs, terms, strict=True):
            if term.constant:
                constant = self._sized(at, constant + sign * term.constant)
        return _Term(at, total, constant)

    def _sized(self, at: int, number: Fraction) -> Fraction:
        if max(number.numerator.bit_length(), number.denominator.bit_length()) > _MOST_BITS:
            raise self.error(at, f"the exact result of this arithmetic has more than {_MOST_BITS} bits")
        return number

    def _comparison(self, at: int, name: str, terms: list[_Term]) -> _Formula:
        """``(<= a b c)`` means ``a <= b`` and ``b <= c``, as in SMT-LIB."""
        if len(terms) < 2:
            raise self.error(at, f"({name} ...) needs two sides")
        rows: list[Row] = []
        about_outputs = False
        for left, right in pairwise(terms):
            # _sum may take over a term's dictionary, and the middle of a chain is used twice.
            left, right = (_Term(side.at, dict(side.coefficients), side.constant) for side in (left, right))
            difference = self._sum(at, [left, right], [1, -1])
            keys = difference.coefficients.keys()
            if keys and max(keys) >= 0 and min(keys) < 0:
                raise self.error(
                    at,
                    "this compares inputs with outputs, so it cuts the domain by what the network computes; "
                    "relutrim needs a domain that is stated in inputs alone: "
                    "remove this assertion or bound the inputs instead",
                )
            if keys and max(keys) < 0:
                about_outputs = True
                continue
            if name not in (">=", ">"):
                rows.append(self._row(at, difference, 1, name == "<"))
            if name not in ("<=", "<"):
                rows.append(self._row(at, difference, -1, name == ">"))
        return _Formula(at, rows, about_outputs)

    def _row(self, at: int, difference: _Term, sign: int, strict: bool) -> Row:
        """``sign * difference <= 0`` with coprime integer coefficients; without variables, ``0 <= bound``."""
        values = difference.coefficients
        if not values:
            return Row((), -sign * difference.constant, strict, at)
        if len(values) == 1:  # nearly all rows of real files
            ((i, value),) = values.items()
            bound = difference.constant if abs(value) == 1 else difference.constant / abs(value)
            return Row(((i, sign if value > 0 else -sign),), -bound if sign > 0 else bound, strict, at)
        common = 1
        for value in values.values():
            common = math.lcm(common, value.denominator)
            if common.bit_length() > _MOST_BITS:
                raise self.error(at, f"the common denominator of this has more than {_MOST_BITS} bits")
        scale = sign * Fraction(common, math.gcd(*(value.numerator for value in values.values())))
        vector = tuple((i, int(values[i] * scale)) for i in sorted(values))
        return Row(vector, -difference.constant * scale, strict, at)

    def _boolean(self, at: int, name: str, parts: list[_Formula]) -> _Formula:
        if not parts:
            raise self.error(at, f"({name}) without anything in it")
        about_outputs = any(part.about_outputs for part in parts)
        if name in _OF_OUTPUTS_ONLY:
            if any(part.rows for part in parts):
                raise self.error(
                    at, f"({name} ...) about inputs does not describe one box or polytope; {_SPLIT}"
                )
            return _Formula(at, [], about_outputs)
        rows = parts[0].rows
        if name == "and":
            rows = max((part.rows for part in parts), key=len)  # takes up the others, as in _sum
            for part in parts:
                if part.rows is not rows:
                    rows.extend(part.rows)
        elif len(parts) > 1:
            same = set(rows)
            for part in parts[1:]:
                if set(part.rows) != same:
                    raise self.error(
                        at,
                        "this disjunction says different things about the inputs "
                        f"({line_of(self.text, parts[0].at)} and {line_of(self.text, part.at)}), "
                        f"so the domain is a union of several; {_SPLIT}",
                    )
        return _Formula(at, rows, about_outputs)

    def _assert(self, at: int, rest: list[_Item]) -> None:
        if len(rest) != 1:
            raise self.error(at, f"(assert ...) takes one formula, not {len(rest)}")
        formula = self._formula(rest[0])
        self.rows += formula.rows
        self.ignored_output_assertions += formula.about_outputs

    def _declare(self, at: int, name: str, rest: list[_Item]) -> None:
        if name == "declare-fun" and len(rest) == 3 and isinstance(rest[1], _Other) and rest[1].what == "()":
            rest = [rest[0], rest[2]]
        names = [item for item in rest if isinstance(item, Symbol)]
        if len(rest) != 2 or len(names) != 2:
            raise self.error(
                at, f"({name} ...) must read (declare-const X_0 Real) or (declare-fun X_0 () Real)"
            )
        variable, sort = names
        key = self._variable(variable)
        if sort.text != "Real":
            raise self.error(
                sort.at, f"{variable.text} is declared as {shorten(sort.text)}; variables must be Real"
            )
        if key in self._declared:
            before = line_of(self.text, self._declared[key])
            raise self.error(at, f"{variable.text} is declared for the second time, after {before}")
        self._declared[key] = at
