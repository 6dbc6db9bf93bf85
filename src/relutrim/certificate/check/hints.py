"""Hints for single units, as a certificate stores them: lists of numbers, checked before use.

``proofs`` in the document lists them. One with ``leaves`` goes to :mod:`hull`: its rows and cuts are
stretches of shared arrays, its leaves say which states they fix and which multipliers they use. One with
``parts`` names boxes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from relutrim.certificate.check.archive import Archive, need
from relutrim.certificate.check.hull import KINDS
from relutrim.errors import CheckFailed, InputError

MOST_PARTS = 2**17
MOST_NAMED = 2**21
"""How many rows, cuts and states one hint may name in all."""


TABLES = {"rows": 3, "cuts": 5, "states": 3, "subset": 0, "at": 0, "part": 0, "values": 0, "lo": -1, "hi": -1}
"""The arrays of all hints: how many columns each has (-1: one per input), of integers up to ``part``."""


def decoded(archive: Archive) -> dict[int, list[Callable[[], dict[str, Any]]]]:
    """The hints by the number of their layer, in their order. Each is made when it is needed and then
    forgotten: many hints may name the same long stretches.
    """
    found: dict[int, list[Callable[[], dict[str, Any]]]] = {}
    said, inputs, tables = need(archive.document, "proofs", list), len(archive.arrays["domain.lo"]), {}
    for name, columns in TABLES.items() if said else ():
        kind = "float64" if name in ("values", "lo", "hi") else "int32"
        shape = (-1,) if not columns else (-1, inputs if columns < 0 else columns)
        tables[name] = archive.array(f"proof.{name}", kind, shape)
    for entry in said:
        found.setdefault(need(entry, "layer", int), []).append(partial(_hint, entry, tables))
    return found


def _hint(entry: Any, tables: dict[str, Any]) -> dict[str, Any]:
    hint: dict[str, Any] = {"unit": need(entry, "unit", int), "sign": need(entry, "sign", int)}
    if "parts" not in entry:
        return hint | _tree(entry, tables)
    part = _stretch(tables["part"], entry, "parts")
    if len(part) > MOST_PARTS or not ((part >= 0) & (part < len(tables["lo"]))).all():
        raise InputError("a hint names parts that are not there, or too many")
    return hint | {"lo": tables["lo"][part], "hi": tables["hi"][part]}


def _tree(entry: Any, tables: dict[str, Any]) -> dict[str, Any]:
    rows, cuts = _stretch(tables["rows"], entry, "rows"), _stretch(tables["cuts"], entry, "cuts")
    leaves = need(entry, "leaves", list)
    named = len(rows) + len(cuts) + sum(len(_stretch(tables["states"], leaf, "states")) for leaf in leaves)
    if named > MOST_NAMED or len(leaves) > MOST_PARTS:
        raise CheckFailed(f"not checked: a hint of {len(leaves)} leaves, {named} rows, cuts and states")
    if not ((rows[:, 2] >= 0) & (rows[:, 2] < len(KINDS))).all():
        raise InputError("a hint has rows of a kind that does not exist")
    subsets = [_stretch(tables["subset"], {"subset": cut[3:].tolist()}, "subset") for cut in cuts]
    made = [
        ((layer, unit), Subset(subset, bool(outside)))
        for (layer, unit, outside, *_), subset in zip(cuts.tolist(), subsets, strict=True)
    ]
    return {
        "rows": rows.tolist(),
        "cuts": made,
        "leaves": [_leaf(leaf, tables, len(rows) + len(cuts)) for leaf in leaves],
    }


def _leaf(leaf: Any, tables: dict[str, Any], count: int) -> dict[str, Any]:
    at, values = (_stretch(tables[name], leaf, "duals") for name in ("at", "values"))
    if not ((at >= 0) & (at < count)).all():
        raise InputError("a leaf has multipliers for rows that are not there")
    states = _stretch(tables["states"], leaf, "states").tolist()
    fixed = {(layer, unit): bool(on) for layer, unit, on in states}
    if len(fixed) != len(states):
        raise InputError("a leaf fixes a unit twice")
    return {"states": fixed, "at": at, "values": values, "empty": need(leaf, "empty", bool)}


class Subset:
    """A set of places: those listed, or all but those."""

    def __init__(self, places: Any, outside: bool) -> None:
        self.places, self.outside = places, outside

    def among(self, places: Any) -> Any:
        """Which of these are in it."""
        return np.isin(places, self.places) != self.outside


def _stretch(table: Any, entry: Any, key: str) -> Any:
    """``table[start:stop]``, where that is there."""
    said = need(entry, key, list)
    if len(said) != 2 or any(type(n) is not int for n in said) or not 0 <= said[0] <= said[1] <= len(table):
        raise InputError(f"a hint's {key!r} is no stretch of an array")
    return table[said[0] : said[1]]
