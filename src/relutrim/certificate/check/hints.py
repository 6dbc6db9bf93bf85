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


def decoded(archive: Archive) -> dict[int, list[Callable[[], dict[str, Any]]]]:
    """The hints by the number of their layer, in their order. Each is made when it is needed and then
    forgotten: many hints may name the same long stretches.
    """
    said = need(archive.document, "proofs", list)
    found: dict[int, list[Callable[[], dict[str, Any]]]] = {}
    if not said:
        return found
    size = len(archive.arrays.get("domain.lo", ()))
    tables = {
        "rows": archive.array("proof.rows", "int32", (-1, 3)),
        "cuts": archive.array("proof.cuts", "int32", (-1, 5)),
        "subset": archive.array("proof.subset", "int32", (-1,)),
        "at": archive.array("proof.at", "int32", (-1,)),
        "values": archive.array("proof.values", "float64", (-1,)),
        "states": archive.array("proof.states", "int32", (-1, 3)),
        "lo": archive.array("proof.lo", "float64", (-1, size)),
        "hi": archive.array("proof.hi", "float64", (-1, size)),
        "part": archive.array("proof.part", "int32", (-1,)),
    }
    for entry in said:
        found.setdefault(need(entry, "layer", int), []).append(partial(_hint, entry, tables))
    return found


def _hint(entry: Any, tables: dict[str, Any]) -> dict[str, Any]:
    hint: dict[str, Any] = {"unit": need(entry, "unit", int), "sign": need(entry, "sign", int)}
    if "parts" not in entry:
        return hint | _tree(entry, tables)
    part = _stretch(tables["part"], entry["parts"])
    if len(part) > MOST_PARTS or not ((part >= 0) & (part < len(tables["lo"]))).all():
        raise InputError("a hint names parts that are not there, or too many")
    return hint | {"lo": tables["lo"][part], "hi": tables["hi"][part]}


def _tree(entry: Any, tables: dict[str, Any]) -> dict[str, Any]:
    rows = _stretch(tables["rows"], need(entry, "rows", list))
    stretches = [need(leaf, "states", list) for leaf in need(entry, "leaves", list)]
    named = len(rows) + len(_stretch(tables["cuts"], need(entry, "cuts", list)))
    named += sum(len(_stretch(tables["states"], stretch)) for stretch in stretches)
    if named > MOST_NAMED or len(stretches) > MOST_PARTS:
        raise CheckFailed(f"not checked: a hint of {len(stretches)} leaves, {named} rows, cuts and states")
    if not ((rows[:, 2] >= 0) & (rows[:, 2] < len(KINDS))).all():
        raise InputError("a hint has rows of a kind that does not exist")
    cuts = []
    for layer, unit, outside, start, stop in _stretch(tables["cuts"], need(entry, "cuts", list)).tolist():
        places = _stretch(tables["subset"], [start, stop])
        cuts.append(((layer, unit), Subset(places, bool(outside))))
    leaves = []
    for leaf in need(entry, "leaves", list):
        at = _stretch(tables["at"], need(leaf, "duals", list))
        values = _stretch(tables["values"], need(leaf, "duals", list))
        if not ((at >= 0) & (at < len(rows) + len(cuts))).all() or len(at) != len(values):
            raise InputError("a leaf has multipliers for rows that are not there")
        states = _stretch(tables["states"], need(leaf, "states", list)).tolist()
        fixed = {(layer, unit): bool(on) for layer, unit, on in states}
        if len(fixed) != len(states):
            raise InputError("a leaf fixes a unit twice")
        leaves.append({"states": fixed, "at": at, "values": values, "empty": need(leaf, "empty", bool)})
    return {"rows": rows.tolist(), "cuts": cuts, "leaves": leaves}


class Subset:
    """A set of places: those listed, or all but those."""

    def __init__(self, places: Any, outside: bool) -> None:
        self.places, self.outside = places, outside

    def among(self, places: Any) -> Any:
        """Which of these are in it."""
        return np.isin(places, self.places) != self.outside


def _stretch(table: Any, said: Any) -> Any:
    """``table[start:stop]``, where that is there."""
    if not (isinstance(said, list) and len(said) == 2 and all(type(n) is int for n in said)):
        raise InputError("a hint's stretch of an array is not two numbers")
    start, stop = said
    if not 0 <= start <= stop <= len(table):
        raise InputError("a hint's stretch of an array is not there")
    return table[start:stop]
