"""Add, Sub, Mul, Div, Sum with constants or among values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from relutrim.errors import UnsupportedError
from relutrim.graph import Add, Scale
from relutrim.graph.operators import Array
from relutrim.io.gates import half, product
from relutrim.io.onnx.conversion import Call, Operand, Value, handles
from relutrim.io.onnx.handlers.broadcast import fitted, same_shape


@handles("Add", inputs=(2, 2))
@handles("Sum", inputs=(1, None))
def sum_up(call: Call) -> Operand:
    """The sum of any number of values and constants."""
    indices = range(call.count)
    constants = dict.fromkeys(index for index in indices if call.is_constant(index))
    if len(constants) == call.count:
        call.value(0)
    total = _total(call, [call.value(index) for index in indices if index not in constants])
    for index in constants:
        total, constant = fitted(call, total, call.weights(index), expand=True)
        total = call.shifted(total, constant, constant)
    return total


@handles("Sub", inputs=(2, 2))
def subtract(call: Call) -> Operand:
    """``x - c``, ``c - x`` or ``x - y``."""
    if call.is_constant(1):
        value, constant = fitted(call, call.value(0), call.weights(1), expand=True)
        return call.shifted(value, -constant, constant, -1.0)
    if call.is_constant(0):
        value, constant = fitted(call, call.value(1), call.weights(0), expand=True)
        return call.emit(Scale.exactly(-1.0, constant), value, shift=call.where(constant))
    first, second = same_shape(call, [call.value(0), call.value(1)])
    return call.emit(Add(2), first, call.emit(Scale.exactly(-1.0), second))


@handles("Mul", inputs=(2, 2))
def multiply(call: Call) -> Operand:
    """``x * c`` or ``c * x``, or a product that is a function with a name."""
    side = 1 if call.is_constant(1) else 0
    if not call.is_constant(side):
        found = product(call.graph, call.value(0), call.value(1))
        if found is None:
            raise UnsupportedError("it multiplies two computed values, which is not affine")
        return found
    value, constant = fitted(call, call.value(1 - side), call.weights(side), expand=True)
    whole = half(call.graph, value, constant)
    return whole or call.emit(Scale.exactly(constant), value, scale=call.where(constant))


@handles("Div", inputs=(2, 2))
def divide(call: Call) -> Operand:
    """``x / c``."""
    if not call.is_constant(1):
        raise UnsupportedError("it divides by a computed value, which is not affine")
    value, divisor = fitted(call, call.value(0), call.weights(1), expand=True)
    operator = call.finite(lambda: _division(divisor))
    return call.emit(operator, value, scale=call.where(divisor, 0.0))


def _division(divisor: Array) -> Scale:
    """``x / divisor``; the reciprocal of a power of two is exact and stays so."""
    mantissa, exponent = np.frexp(np.abs(divisor))
    if (mantissa == 0.5).all() and (np.abs(exponent) < 1000).all():
        return Scale.exactly(1.0 / divisor)
    return Scale.divide(divisor)


def _total(call: Call, values: Sequence[Value]) -> Value:
    """The sum of values; one that occurs ``k`` times is multiplied by ``k``, so that each is read once."""
    times = Counter(value.name for value in values)
    given = {value.name: value for value in values}
    distinct = dict(zip(given, same_shape(call, list(given.values())), strict=True))
    terms = [
        value if times[name] == 1 else call.emit(Scale.exactly(float(times[name])), value)
        for name, value in distinct.items()
    ]
    return terms[0] if len(terms) == 1 else call.emit(Add(len(terms)), *terms)
