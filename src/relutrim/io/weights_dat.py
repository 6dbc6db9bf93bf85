"""``weights.dat`` of the paper's reference implementation, read only.

    levels = 3;                  // affine layers; ReLU between them, none after the last
    n = [784, 100, 100, 10];     // sizes, the input first
    W = [ 0.1, -0.2, ...         // one row of weights per neuron, layer after layer;
    ,0.3, 0.4, ...               // every row but the first starts with a comma
    ];
    B = [ 0.5, ...               // one row of biases per layer
    ];

The numbers were printed from float32 with as many digits as tell two float32 apart. They are therefore read
back as float32, which gives the very weights the network was trained with; read as float64 they would be
other numbers, close by.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import numpy as np

from relutrim.errors import InputError, RelutrimError
from relutrim.graph import Linear, Network, Node, Operator, Output, Port, Relu
from relutrim.graph.operators import Array
from relutrim.io.files import read_text

_Row: TypeAlias = tuple[int, list[str]]
"""Number of a line, and the fields on it."""

_NAMES = ("levels", "n", "W", "B")


def read_weights_dat(path: Path) -> Network:
    """The network of a ``weights.dat``, with weights as float32."""
    try:
        return _read(_statements(read_text(path)))
    except RelutrimError as error:
        raise error if error.where == str(path) else error.at(str(path)) from None


def _read(statements: dict[str, list[_Row]]) -> Network:
    for name in _NAMES:
        if name not in statements:
            raise InputError(f"there is no '{name} = ...' in it; it is not a whole weights.dat")
    (levels,) = _whole(statements["levels"], 1, "levels")
    if levels < 1:
        raise InputError("a network has at least one layer", where=_line(statements["levels"]))
    sizes = _whole(statements["n"], levels + 1, "n")
    if min(sizes) < 1:
        raise InputError(f"layer sizes {sizes} must all be positive", where=_line(statements["n"]))

    widths = [before for before, after in pairwise(sizes) for _ in range(after)]
    weights = _numbers(statements["W"], widths, "W, a row for each neuron")
    biases = _numbers(statements["B"], sizes[1:], "B, a row for each layer")
    nodes: list[Node] = []
    used_weights = used_biases = 0
    reads = "input"
    for layer, (before, after) in enumerate(pairwise(sizes), start=1):
        weight = weights[used_weights : used_weights + before * after].reshape(after, before)
        bias = biases[used_biases : used_biases + after]
        used_weights, used_biases = used_weights + weight.size, used_biases + bias.size
        steps: list[tuple[str, Operator]] = [(f"layer{layer}", Linear(weight, bias))]
        if layer < levels:
            steps.append((f"relu{layer}", Relu()))
        for name, operator in steps:
            nodes.append(Node(name, operator, (reads,)))
            reads = name
    return Network(Port("input", (sizes[0],)), tuple(nodes), (Output("output", reads),), "float32")


def _statements(text: str) -> dict[str, list[_Row]]:
    """The fields of each ``name = ...;``, line by line."""
    found: dict[str, list[_Row]] = {}
    open_name: str | None = None
    for number, raw in enumerate(text.splitlines(), start=1):
        rest, where = raw.partition("//")[0].strip(), f"line {number}"
        while rest:
            if open_name is None:
                start = re.match(r"(\w+)\s*=\s*", rest)
                if not start or start[1] not in _NAMES or start[1] in found:
                    expected = ", ".join(name for name in _NAMES if name not in found) or "nothing more"
                    raise InputError(f"{rest[:40]!r} is not understood; expected was {expected}", where=where)
                open_name, rest = start[1], rest[start.end() :]
                found[open_name] = []
                closing = ";"
                if rest.startswith("["):
                    closing, rest = "]", rest[1:]
            inside, closed, rest = rest.partition(closing)
            fields = [field.strip() for field in inside.split(",") if field.strip()]
            if fields:
                found[open_name].append((number, fields))
            if closed:
                open_name = None
                rest = rest.lstrip(" \t;")
    if open_name is not None:
        raise InputError(f"the file ends within '{open_name} = ...'; it is not a whole weights.dat")
    return found


def _whole(rows: list[_Row], count: int, what: str) -> list[int]:
    fields = [field for _, row in rows for field in row]
    if len(fields) != count:
        message = f"{what}: {len(fields)} number(s) where {count} were expected"
        raise InputError(message, where=_line(rows))
    if not all(re.fullmatch(r"\d{1,9}", field) for field in fields):
        raise InputError(f"{what}: whole numbers were expected, not {', '.join(fields)}", where=_line(rows))
    return [int(field) for field in fields]


def _numbers(rows: list[_Row], widths: list[int], what: str) -> Array:
    """All numbers in order. Lines may be broken elsewhere than between rows as long as the total is right."""
    values: list[float] = []
    for i, (number, fields) in enumerate(rows):
        if len(rows) == len(widths) and len(fields) != widths[i]:
            message = f"{what}: {len(fields)} number(s) where {widths[i]} were expected"
            raise InputError(message, where=f"line {number}")
        try:
            values += [float(field) for field in fields]
        except ValueError as error:
            raise InputError(f"{what}: {error}", where=f"line {number}") from None
        if not (np.abs(values[-len(fields) :]) <= np.finfo(np.float32).max).all():
            raise InputError(f"{what}: NaN, infinity or a number beyond float32", where=f"line {number}")
    if len(values) != sum(widths):
        message = f"{what}: {len(values)} number(s) where {sum(widths)} were expected"
        raise InputError(message, where=_line(rows))
    return np.array(values, dtype=np.float32).astype(np.float64)


def _line(rows: list[_Row]) -> str | None:
    return f"line {rows[-1][0]}" if rows else None
