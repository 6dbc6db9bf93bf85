"""Piecewise linear functions as sums of ReLUs, exact over the real numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from relutrim.certificate.check.call import Call, Tensor, Value, handles
from relutrim.errors import UnsupportedError


@handles("Relu")
def relu(call: Call) -> Tensor:
    """``max(0, x)``."""
    return call.relu(call.value())


@handles("LeakyRelu")
def leaky_relu(call: Call) -> Tensor:
    """``x`` where positive, else ``alpha x``."""
    return leaky(call, call.value(), call.attribute("alpha", float(np.float32(0.01))))


@handles("PRelu")
def p_relu(call: Call) -> Tensor:
    """The same, with a slope per entry."""
    return leaky(call, call.value(), call.array(1))


def leaky(call: Call, value: Value, slope: Any) -> Value:
    """``relu(x) - slope relu(-x)``."""
    off = call.relu(call.scaled(value, -1.0))
    return call.sum([call.relu(value), call.scaled(off, -np.asarray(slope, np.float64))])


@handles("Abs")
def abs_(call: Call) -> Tensor:
    """``|x|``."""
    return leaky(call, call.value(), -1.0)


@handles("Clip")
def clip(call: Call) -> Tensor:
    """``min(max(x, low), high)``."""
    most = float(np.finfo(np.float64 if call.reader.double else np.float32).max)
    limits = [call.attribute("min"), call.attribute("max")]
    for k in (1, 2):
        given = call.given(k)
        if given is not None:
            limits[k - 1] = float(np.asarray(given).reshape(()))
    low, high = limits
    low = None if low is None or low <= -most else low
    high = None if high is None or high >= most else high
    return clipped(call, call.value(), low, high)


def clipped(call: Call, value: Value, low: Any, high: Any) -> Value:
    """``low + relu(x - low) - relu(x - high)``, or ``high - relu(high - x)``."""
    if low is not None and high is not None:
        if not np.all(np.asarray(low) <= np.asarray(high)):
            raise UnsupportedError(f"limits {low} and {high}")
        above = call.scaled(call.relu(call.shifted(value, -np.asarray(high))), -1.0)
        return call.shifted(call.sum([call.relu(call.shifted(value, -np.asarray(low))), above]), low)
    if low is not None:
        return call.shifted(call.relu(call.shifted(value, -np.asarray(low))), low)
    if high is None:
        return value
    off = call.relu(call.shifted(call.scaled(value, -1.0), high))
    return call.shifted(call.scaled(off, -1.0), high)


@handles("HardSigmoid")
def hard_sigmoid(call: Call) -> Tensor:
    """``min(max(alpha x + beta, 0), 1)``."""
    alpha, beta = call.attribute("alpha", float(np.float32(0.2))), call.attribute("beta", 0.5)
    return clipped(call, call.shifted(call.scaled(call.value(), alpha), beta), 0.0, 1.0)


def extreme(call: Call, largest: bool) -> Tensor:
    """``max(x, y) = x + relu(y - x)``, ``min(x, y) = x - relu(x - y)``; with constants by clipping."""
    constants = [k for k, one in enumerate(call.inputs) if isinstance(one, np.ndarray)]
    values = list(dict.fromkeys(call.value(k) for k in range(len(call.inputs)) if k not in constants))
    found, *others = values
    for other in others:
        first, second = (other, found) if largest else (found, other)
        above = call.relu(call.sum([first, call.scaled(second, -1.0)]))
        found = call.sum([found, above if largest else call.scaled(above, -1.0)])
    for k in constants:
        limit = call.array(k)
        found = clipped(call, found, limit, None) if largest else clipped(call, found, None, limit)
    return found


@handles("Max")
def max_(call: Call) -> Tensor:
    """The largest of several."""
    return extreme(call, True)


@handles("Min")
def min_(call: Call) -> Tensor:
    """The smallest of several."""
    return extreme(call, False)
