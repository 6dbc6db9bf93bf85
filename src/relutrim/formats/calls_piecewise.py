"""Torch's piecewise linear functions by name; see :mod:`relutrim.formats.calls`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from relutrim.errors import UnsupportedError
from relutrim.formats import piecewise
from relutrim.formats.building import Builder, Constant, Operand, Value
from relutrim.network import Operator, Scale
from relutrim.network.operators import Array


def _applied(
    b: Builder,
    name: str,
    input: Operand,
    inplace: bool,
    apply: Callable[[piecewise.Emit[Value], Value], Value],
) -> Value:
    """A function of one value; the last of its operators bears the name."""
    value, before = b.read(input), b.count

    def emit(operator: Operator, /, *inputs: Value) -> Value:
        return b.append(f"{name}_{operator.kind.lower()}", operator, *inputs)

    made = b.renamed(name, apply(emit, value), before)
    if inplace:
        b.changed(input, name)
    return made


def _clamp(
    b: Builder, name: str, input: Operand, min: Any = None, max: Any = None, inplace: bool = False
) -> Value:
    low, high = _limit(b, min), _limit(b, max)
    return _applied(b, name, input, inplace, lambda emit, x: piecewise.clip(emit, x, low, high))


def _limit(b: Builder, limit: Operand | None) -> float | None:
    if limit is None:
        return None
    if isinstance(limit, Value) or np.size(limit) != 1:
        raise UnsupportedError("its limits are not single constant numbers")
    found = float(b.stored(limit).reshape(()))
    if np.isnan(found):
        raise UnsupportedError("one of its limits is NaN")
    return None if np.isinf(found) else found


def _hardtanh(
    b: Builder, name: str, input: Operand, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Value:
    return _clamp(b, name, input, min_val, max_val, inplace)


def _relu6(b: Builder, name: str, input: Operand, inplace: bool = False) -> Value:
    return _clamp(b, name, input, 0.0, 6.0, inplace)


def _clamp_min(b: Builder, name: str, input: Operand, min: Any) -> Value:
    return _clamp(b, name, input, min)


def _clamp_max(b: Builder, name: str, input: Operand, max: Any) -> Value:
    return _clamp(b, name, input, None, max)


def _leaky_relu(
    b: Builder, name: str, input: Operand, negative_slope: float = 0.01, inplace: bool = False
) -> Value:
    slope = float(b.stored(negative_slope))
    return _applied(b, name, input, inplace, lambda emit, x: piecewise.leaky_relu(emit, x, slope))


def _prelu(b: Builder, name: str, input: Operand, weight: Constant) -> Value:
    slopes = _per_channel(b, b.read(input), weight)
    return _applied(b, name, input, False, lambda emit, x: piecewise.leaky_relu(emit, x, slopes))


def _per_channel(b: Builder, x: Value, weight: Operand) -> Array:
    slopes = b.stored(weight).reshape(-1)
    return slopes if slopes.size == 1 else slopes.reshape(-1, *(1 for _ in x.shape[1:]))


def _hardsigmoid(b: Builder, name: str, input: Operand, inplace: bool = False) -> Value:
    def apply(emit: piecewise.Emit[Value], x: Value) -> Value:
        clipped = piecewise.clip(emit, emit(Scale.exactly(shift=3.0), x), 0.0, 6.0)
        return emit(Scale.divide(np.asarray(6.0)), clipped)

    return _applied(b, name, input, inplace, apply)


def _abs(b: Builder, name: str, input: Operand) -> Value:
    return _applied(b, name, input, False, piecewise.absolute)


def _extreme(largest: bool) -> Callable[..., Value]:
    def call(b: Builder, name: str, input: Operand, other: Operand) -> Value:
        x, y = b.read(input), b.read(other)
        if x.shape != y.shape:
            raise UnsupportedError(
                f"values of shapes {x.shape} and {y.shape} are compared; bring them to one shape"
            )
        if x.name == y.name:
            return x
        of_two = piecewise.larger if largest else piecewise.smaller
        return _applied(b, name, x, False, lambda emit, value: of_two(emit, value, y))

    return call


PIECEWISE: dict[str, Callable[..., object]] = {
    "clamp": _clamp,
    "clip": _clamp,
    "clamp_min": _clamp_min,
    "clamp_max": _clamp_max,
    "hardtanh": _hardtanh,
    "relu6": _relu6,
    "leaky_relu": _leaky_relu,
    "prelu": _prelu,
    "hardsigmoid": _hardsigmoid,
    "abs": _abs,
    "maximum": _extreme(True),
    "minimum": _extreme(False),
}
