"""Piecewise linear functions with tensors for parameters, or of several values: Clip, PRelu, Max, Min."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np

from relutrim.errors import InputError, UnsupportedError
from relutrim.graph import Elu, Scale
from relutrim.io import piecewise
from relutrim.io.onnx.conversion import Call, Operand, Value, handles
from relutrim.io.onnx.handlers.broadcast import fitted, same_shape


@handles("Clip", inputs=(1, 3), attributes=("max", "min"))
def clip(call: Call) -> Operand:
    """``min(max(x, low), high)``; the largest number there is means no limit."""
    if call.graph.opset < 11:
        limits = [call.optional_number(name) for name in ("min", "max")]
    else:
        limits = [_number(call, index) if call.has(index) else None for index in (1, 2)]
    most = float(np.finfo(call.graph.dtype).max)
    low, high = limits
    low = None if low is not None and low <= -most else low
    high = None if high is not None and high >= most else high
    if any(limit is not None and abs(limit) >= most for limit in (low, high)):
        raise UnsupportedError(f"its limits {limits} leave nothing between them")
    return piecewise.clip(call.emit, call.value(0), low, high)


@handles("PRelu", inputs=(2, 2))
def prelu(call: Call) -> Operand:
    """A leaky ReLU with a slope per entry or channel. Behind a plain Elu, one slope makes another Elu."""
    value, slope = fitted(call, call.value(0), call.weights(1))
    before = call.graph.nodes.get(value.name)
    plain = before is not None and isinstance(before.operator, Elu) and before.operator.alpha == 1
    if before is not None and plain and slope.size == 1 and (slope >= 0).all():
        call.graph.absorb(before.inputs[0], value.name)
        return call.emit(Elu(float(slope.reshape(()))), Value(before.inputs[0], value.shape))
    stored = call.where(slope)
    return piecewise.bent(call.emit, value, lambda x: call.emit(Scale.exactly(slope), x, scale=stored))


@handles("Max", inputs=(1, None))
def maximum(call: Call) -> Operand:
    """The largest of several values and constants."""
    return _extreme(
        call, piecewise.larger, lambda emit, value, limit: piecewise.clip(emit, value, limit, None)
    )


@handles("Min", inputs=(1, None))
def minimum(call: Call) -> Operand:
    """The smallest of several values and constants."""
    return _extreme(call, piecewise.smaller, piecewise.minimum)


def _extreme(call: Call, of_two: Callable[..., Value], with_constant: Callable[..., Value]) -> Value:
    constants = [index for index in range(call.count) if call.is_constant(index)]
    if len(constants) == call.count:
        call.value(0)
    values = [call.value(index) for index in range(call.count) if index not in constants]
    distinct = list({value.name: value for value in values}.values())
    found = reduce(lambda x, y: of_two(call.emit, x, y), same_shape(call, distinct))
    for index in constants:
        value, limit = fitted(call, found, call.weights(index), expand=True)
        found = with_constant(call.emit, value, limit)
    return found


def _number(call: Call, index: int) -> float:
    constant = call.constant(index)
    if constant.array.size != 1:
        raise InputError(f"the limit {constant.name!r} should be one number, not {constant.array.shape}")
    number = float(constant.array.reshape(()))
    if np.isnan(number):
        raise UnsupportedError(f"the limit {constant.name!r} is NaN")
    return number
