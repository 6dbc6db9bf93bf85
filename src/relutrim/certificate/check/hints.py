"""Hints for single units, as a certificate stores them: tables of numbers, checked before use.

A stretch of a table is two columns of another: from where, to where. A hint with leaves goes to :mod:`hull`:
its rows and cuts are stretches, and each leaf says which states it fixes and which multipliers it uses. A
hint with parts names boxes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from relutrim.certificate.check.archive import Archive, need
from relutrim.certificate.check.hull import KINDS
from relutrim.errors import CheckFailed, InputError

MOST_PARTS = 2**17
MOST_NAMED = 2**21
"""How many rows, cuts and states one hint may name in all."""
TABLES = {"hints": 11, "rows": 3, "cuts": 5, "leaves": 5, "states": 3, "subset": 0, "at": 0, "part": 0}
"""The tables of integers, and how many columns they have (0: a list)."""
STRETCHES = {
    "hints": {3: "rows", 5: "cuts", 7: "leaves", 9: "part"},  # behind layer, unit, sign
    "cuts": {3: "subset"},  # behind layer, unit, and whether the listed places are those outside
    "leaves": {0: "states", 2: "at"},  # then: whether it is empty
}


def decoded(archive: Archive) -> dict[int, list[Callable[[], dict[str, Any]]]]:
    """The hints by the number of their layer, in their order. Each is made when it is needed and then
    forgotten: many hints may name the same long stretches.
    """
    found: dict[int, list[Callable[[], dict[str, Any]]]] = {}
    name = need(need(archive.document, "domain", dict), "lo", str)  # the very array that the domain has
    count, inputs = need(archive.document, "proofs", int), len(archive.arrays[name])
    if not count:
        return found
    shapes = {name: (-1, columns) if columns else (-1,) for name, columns in TABLES.items()}
    tables = {name: archive.array(f"proof.{name}", "int32", shape) for name, shape in shapes.items()}
    tables["values"] = archive.array("proof.values", "float64", tables["at"].shape)
    tables["lo"] = archive.array("proof.lo", "float64", (-1, inputs))
    tables["hi"] = archive.array("proof.hi", "float64", tables["lo"].shape)
    for name, stretches in STRETCHES.items():
        for column, other in stretches.items():
            start, stop = tables[name][:, column], tables[name][:, column + 1]
            if not ((start >= 0) & (start <= stop) & (stop <= len(tables[other]))).all():
                raise InputError(f"the table of {name} names {other} that are not there")
    part, kind = tables["part"], tables["rows"][:, 2]
    if not (((part >= 0) & (part < len(tables["lo"]))).all() and ((kind >= 0) & (kind < len(KINDS))).all()):
        raise InputError("a hint has a part, or a row of a kind, that does not exist")
    if len(tables["hints"]) != count:
        raise InputError(f"there are {len(tables['hints'])} hints, and {count} are listed")
    for row in tables["hints"].tolist():
        found.setdefault(row[0], []).append(partial(_hint, tables, *row[1:]))
    return found


def _hint(tables: dict[str, Any], unit: int, sign: int, *ends: int) -> dict[str, Any]:
    names, hint = STRETCHES["hints"].values(), {"unit": unit, "sign": sign}
    stretches = zip(names, ends[::2], ends[1::2], strict=True)
    rows, cuts, leaves, part = (tables[name][start:stop] for name, start, stop in stretches)
    named = len(rows) + len(cuts) + int((leaves[:, 1] - leaves[:, 0]).sum())
    if named > MOST_NAMED or max(len(leaves), len(part)) > MOST_PARTS:
        raise CheckFailed(f"not checked: a hint of {len(leaves)} leaves, {named} rows, cuts and states")
    if len(part):
        return hint | {"lo": tables["lo"][part], "hi": tables["hi"][part]}
    subsets = [
        ((layer, entry), tables["subset"][start:stop], bool(outside))
        for layer, entry, outside, start, stop in cuts.tolist()
    ]
    made = [_leaf(tables, len(rows) + len(cuts), *leaf) for leaf in leaves.tolist()]
    return hint | {"rows": rows.tolist(), "cuts": subsets, "leaves": made}


def _leaf(tables: dict[str, Any], rows: int, start: int, stop: int, first: int, last: int, empty: int) -> Any:
    at, states = tables["at"][first:last], tables["states"][start:stop].tolist()
    fixed = {(layer, unit): bool(on) for layer, unit, on in states}
    if not ((at >= 0) & (at < rows)).all() or len(fixed) != len(states):
        raise InputError("a leaf has multipliers for rows that are not there, or fixes a unit twice")
    return {"states": fixed, "at": at, "values": tables["values"][first:last], "empty": bool(empty)}
