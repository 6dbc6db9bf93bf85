"""Symbolic expressions as SMT-LIB writes them, folded from the inside out.

``fold`` never recurses: a sum nested a million deep costs memory, not the interpreter's stack. It hands every
list to ``reduce`` as soon as its closing parenthesis is read, with what its inner lists were reduced to, so
no tree of the whole file is ever built.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from relutrim.errors import InputError

Value = TypeVar("Value")

_TOKEN = re.compile(
    r"""  (?P<skip>    \s+ | ;[^\n]* )
        | (?P<open>    \( )
        | (?P<close>   \) )
        | (?P<symbol>  [^\s();"|]+ | "(?:[^"]|"")*" | \|[^|]*\| )
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Symbol:
    """Anything that is not a list: a name, a number, a string. ``at`` is where it starts in the text."""

    text: str
    at: int


def line_of(text: str, at: int) -> str:
    """The line of a position, as errors name it."""
    return f"line {text.count(chr(10), 0, at) + 1}"


def fold(text: str, reduce: Callable[[int, list[Symbol | Value]], Value]) -> Iterator[Value]:
    """What ``reduce(position, items)`` makes of each outermost list of ``text``, in order."""
    open_lists: list[tuple[int, list[Symbol | Value]]] = []
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:  # only an opening quote that is never closed matches nothing
            raise InputError(f"the quote {text[at]} is never closed", where=line_of(text, at))
        kind = token.lastgroup
        if kind == "open":
            open_lists.append((at, []))
        elif kind == "symbol":
            if not open_lists:
                raise InputError(
                    f"{shorten(token.group())} stands outside of any parentheses; this is not VNN-LIB",
                    where=line_of(text, at),
                )
            open_lists[-1][1].append(Symbol(token.group(), at))
        elif kind == "close":
            if not open_lists:
                raise InputError("a closing parenthesis without an opening one", where=line_of(text, at))
            value = reduce(*open_lists.pop())
            if open_lists:
                open_lists[-1][1].append(value)
            else:
                yield value
        at = token.end()
    if open_lists:
        raise InputError(
            f"{len(open_lists)} parenthes{'i' if len(open_lists) == 1 else 'e'}s opened here or further in "
            "are never closed; the file may be cut off",
            where=line_of(text, open_lists[0][0]),
        )


def shorten(text: str) -> str:
    """``text`` quoted for a message, not longer than a reader wants it."""
    return repr(text if len(text) <= 40 else text[:37] + "...")
