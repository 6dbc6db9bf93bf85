"""Products of a value with a function of itself, which are functions of one number with a name: exporters
spell SiLU, Mish and GELU out, because the ONNX of their day has no operator for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from relutrim.graph import Curve, Erf, Gelu, Mish, Node, Operator, Scale, Sigmoid, Silu, Softplus, Tanh
from relutrim.graph.operators import Array
from relutrim.io.building import Building, Value

Find: TypeAlias = Callable[[str], Node | None]
"""The node that makes the value of a name; None for the input."""
_ROOT = {"float32": 2.0**-24, "float64": 2.0**-51}
"""How far a number of a type may be from the root of 2, relative to it: what rounding makes of it."""
_NEAR = 3
"""So many numbers on both sides of a rounded reciprocal may be the divisor. Near the root of 2 no two of them
have the same.
"""


def product(graph: Building, x: Value, y: Value) -> Value | None:
    """The product of two values if it is a function with a name."""
    found = gate(graph.nodes.get, x.name, y.name, graph.dtype)
    if found is None:
        return None
    graph.absorb(found[0], x.name, y.name)
    return graph.chain(Value(found[0], x.shape), found[1])


def half(graph: Building, x: Value, factor: Array) -> Value | None:
    """``factor`` times a value if that halves twice a GELU."""
    found = halved_gelu(graph.nodes.get, x.name, factor)
    if found is None:
        return None
    graph.absorb(found[0], x.name)
    return graph.emit(found[1], Value(found[0], x.shape))


def gate(find: Find, one: str, other: str, dtype: str) -> tuple[str, list[Operator]] | None:
    """The product of two values as operators on a third one, None if it is something else; ``dtype`` is the
    type of the model's numbers.

    ``x sigmoid(x)``, ``x tanh(softplus(x))``, and ``x (1 + erf(x / sqrt(2)))`` or half of it.
    """
    for x, factor in ((one, other), (other, one)):
        if _read(find, factor, Sigmoid) == x:
            return x, [Silu()]
        softplus = _read(find, factor, Tanh)
        if softplus is not None and _read(find, softplus, Softplus) == x:
            return x, [Mish()]
        shifted, half = _scaled(find, factor), _scaled(find, x)
        if shifted is None or shifted[1:] != (1.0, 1.0):
            continue
        inner = _read(find, shifted[0], Erf)
        divided = None if inner is None else _scaled(find, inner)
        if inner is None or divided is None or divided[2] != 0:
            continue
        spelt = _spelt(find(inner), divided[1], dtype)
        if spelt is None or not abs(divided[1] * np.sqrt(2) - 1) <= _ROOT[dtype]:
            continue
        if divided[0] == x:
            return x, [Gelu(spelt=spelt), Scale.exactly(2.0)]
        if half is not None and half == (divided[0], 0.5, 0.0):
            return divided[0], [Gelu(spelt=spelt)]
    return None


def halved_gelu(find: Find, name: str, factor: Array) -> tuple[str, Gelu] | None:
    """The value ``x`` and the GELU if ``factor`` times the value ``name`` is ``gelu(x)``: that is, 0.5 times
    twice it.
    """
    twice = _scaled(find, name)
    if twice is None or twice[1:] != (2.0, 0.0) or not (factor == 0.5).all():
        return None
    node = find(twice[0])
    if node is None or not isinstance(node.operator, Gelu):
        return None
    return node.inputs[0], node.operator


def _spelt(node: Node | None, scale: float, dtype: str) -> tuple[str, float] | None:
    """Which number of the model's type a value is multiplied or divided by, exactly."""
    if node is None or not isinstance(node.operator, Scale):
        return None
    if node.operator.exact:
        return ("Mul", scale) if float(np.dtype(dtype).type(scale)) == scale else None
    if not scale:
        return None
    below = above = np.dtype(dtype).type(1 / scale)
    for _ in range(_NEAR):
        for divisor in (below, above):
            if 1 / float(divisor) == scale:
                return "Div", float(divisor)
        below, above = np.nextafter(below, below - 1), np.nextafter(above, above + 1)
    return None


def _read(find: Find, name: str, kind: type[Curve]) -> str | None:
    """What a node of this kind reads."""
    node = find(name)
    return node.inputs[0] if node is not None and isinstance(node.operator, kind) else None


def _scaled(find: Find, name: str) -> tuple[str, float, float] | None:
    """What is scaled and shifted by one number each, and those."""
    node = find(name)
    if node is None or not isinstance(node.operator, Scale):
        return None
    scale, shift = node.operator.scale, node.operator.shift
    if scale.size != 1 or shift.size != 1:
        return None
    return node.inputs[0], float(scale.reshape(())), float(shift.reshape(()))
