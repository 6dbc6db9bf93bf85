"""Numbers as a person reads them. A bound is never shortened into a claim that was not proved."""

from __future__ import annotations

import math
import re
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal

from markupsafe import Markup, escape


def shortened(value: float, rounding: str, digits: int = 3) -> str:
    """A number with a few significant digits, rounded as :mod:`decimal` says.

    >>> shortened(0.0, ROUND_CEILING), shortened(1234.0, ROUND_FLOOR), shortened(-math.inf, ROUND_FLOOR)
    ('0', '1,230', '-∞')
    """
    if math.isnan(value):
        return "none"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    short = Context(prec=digits, rounding=rounding).create_decimal(Decimal(value))
    if not short:
        return "0"
    if -4 <= short.adjusted() < 6:
        text = f"{short:,f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{short:.{digits - 1}e}"


def at_most(value: float) -> str:
    """For an upper bound: rounded up.

    >>> at_most(1.2301e-08), at_most(0.25)
    ('1.24e-8', '0.25')
    """
    return shortened(value, ROUND_CEILING)


def at_least(value: float) -> str:
    """For a lower bound: rounded down.

    >>> at_least(1.2399e-08)
    '1.23e-8'
    """
    return shortened(value, ROUND_FLOOR)


def about(value: float) -> str:
    """For what was measured: rounded to nearest.

    >>> about(14.236)
    '14.2'
    """
    return shortened(value, ROUND_HALF_EVEN)


def share(part: float) -> str:
    """A percentage that says 100 only where nothing is missing.

    >>> share(1), share(0.99999), share(0.5)
    ('100%', '99.99%', '50.00%')
    """
    return "100%" if part == 1 else f"{min(100 * part, 99.99):.2f}%"


def removed(before: int, after: int) -> str:
    """How much of something went, as the terminal says it.

    >>> removed(200, 104), removed(0, 0)
    ('48.0%', '')
    """
    return f"{100 * (before - after) / before:.1f}%" if before else ""


def unbroken(text: str) -> Markup:
    """Text for a page, in which no line ends within a number: browsers break behind a minus.

    >>> unbroken("within 1.39e-8 & more")
    Markup('within <span class="unbroken">1.39e-8</span> &amp; more')
    """
    parts = re.split(r"(\d[\d.,]*e-\d+)", text)
    return Markup("").join(
        Markup('<span class="unbroken">{}</span>').format(part) if at % 2 else escape(part)
        for at, part in enumerate(parts)
    )


def words(text: str) -> Markup:
    """Text for a page, in which lines end between words if these fit: browsers break behind hyphens too.

    >>> words("relutrim --box 0")
    Markup('<span>relutrim</span> <span>--box</span> <span>0</span>')
    """
    return Markup(" ").join(Markup("<span>{}</span>").format(word) for word in text.split(" "))


def spans(indices: list[int]) -> str:
    """Indices in order, neighbours taken together.

    >>> spans([0, 1, 2, 5, 7, 8])
    '0–2, 5, 7, 8'
    """
    parts: list[list[int]] = []
    for index in indices:
        if parts and index == parts[-1][1] + 1:
            parts[-1][1] = index
        else:
            parts.append([index, index])
    words: list[str] = []
    for first, last in parts:
        words += [f"{first}–{last}"] if last > first + 1 else map(str, sorted({first, last}))
    return ", ".join(words)


def middle_out(name: str, longest: int) -> str:
    """A name short enough for a drawing; its ends tell more than its middle.

    >>> middle_out("features.3.relu.out", 11)
    'featu…u.out'
    """
    if len(name) <= longest:
        return name
    head = (longest - 1) // 2
    return f"{name[:head]}…{name[len(name) - (longest - 1 - head) :]}"
