"""Piecewise linear functions as ReLUs and affine maps, exact over the real numbers: no weight is rounded.

Every function takes ``emit``, which applies an operator to values and returns the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np

from relutrim.errors import UnsupportedError
from relutrim.graph.operators import Add, Array, Operator, Relu, Scale

V = TypeVar("V")


class Emit(Protocol[V]):
    """Apply an operator."""

    def __call__(self, operator: Operator, /, *inputs: V) -> V:
        """The result."""


def clip(emit: Emit[V], x: V, low: Array | float | None, high: Array | float | None) -> V:
    """``min(max(x, low), high) = low + relu(x - low) - relu(x - high)``; None is no limit."""
    if low is None and high is None:
        return x
    if low is None:
        assert high is not None
        return minimum(emit, x, high)
    if high is None:
        return _shifted(emit, emit(Relu(), _shifted(emit, x, -np.asarray(low, float))), low)
    if (np.asarray(low) > np.asarray(high)).any():
        raise UnsupportedError(
            f"its lower limit {low} is above its upper one {high}, so that its result is a constant; "
            "correct the limits"
        )
    above_low = emit(Relu(), _shifted(emit, x, -np.asarray(low, float)))
    above_high = emit(Relu(), _shifted(emit, x, -np.asarray(high, float)))
    return _shifted(emit, difference(emit, above_low, above_high), low)


def negative(emit: Emit[V], x: V) -> V:
    """``-x``."""
    return emit(Scale.exactly(-1.0), x)


def difference(emit: Emit[V], x: V, y: V) -> V:
    """``x - y``."""
    return emit(Add(2), x, negative(emit, y))


def hard_sigmoid(emit: Emit[V], x: V, alpha: float, beta: float) -> V:
    """``min(max(alpha x + beta, 0), 1)``."""
    return clip(emit, emit(Scale.exactly(alpha, beta), x), 0.0, 1.0)


def hard_sixth(emit: Emit[V], x: V) -> V:
    """``min(max(x + 3, 0), 6) / 6``, torch's hard sigmoid."""
    clipped = clip(emit, emit(Scale.exactly(shift=3.0), x), 0.0, 6.0)
    return emit(Scale.divide(np.asarray(6.0)), clipped)


def minimum(emit: Emit[V], x: V, high: Array | float) -> V:
    """``min(x, high) = high - relu(high - x)``."""
    return emit(Scale.exactly(-1.0, high), emit(Relu(), emit(Scale.exactly(-1.0, high), x)))


def shrink(emit: Emit[V], x: V, bias: float, limit: float) -> V:
    """0 up to ``limit`` on both sides, beyond it ``bias`` nearer to 0."""
    if bias != limit or limit < 0:
        raise UnsupportedError(f"it jumps, for its bias is {bias} and its limit {limit}")
    return soft_shrink(emit, x, limit)


def soft_shrink(emit: Emit[V], x: V, limit: float) -> V:
    """``relu(x - limit) - relu(-x - limit)``."""
    above = emit(Relu(), _shifted(emit, x, -limit))
    below = emit(Relu(), emit(Scale.exactly(-1.0, -limit), x))
    return difference(emit, above, below)


def leaky_relu(emit: Emit[V], x: V, slope: Array | float) -> V:
    """``relu(x) + slope * (x - relu(x))``: one ReLU, so that bounds relax the function once; and, in
    contrast to ``slope * x + (1 - slope) * relu(x)``, no number that a file would have to round. In floats
    it is the function itself, since one of the two terms is 0.
    """
    return bent(emit, x, lambda below: emit(Scale.exactly(np.asarray(slope, float)), below))


def bent(emit: Emit[V], x: V, sloped: Callable[[V], V]) -> V:
    """The same; ``sloped`` multiplies by the slope."""
    above = emit(Relu(), x)
    return emit(Add(2), above, sloped(difference(emit, x, above)))


def absolute(emit: Emit[V], x: V) -> V:
    """``|x|`` is a leaky ReLU of slope -1."""
    return leaky_relu(emit, x, -1.0)


def larger(emit: Emit[V], x: V, y: V) -> V:
    """``max(x, y) = x + relu(y - x)``."""
    return emit(Add(2), x, emit(Relu(), difference(emit, y, x)))


def smaller(emit: Emit[V], x: V, y: V) -> V:
    """``min(x, y) = x - relu(x - y)``."""
    return difference(emit, x, emit(Relu(), difference(emit, x, y)))


def _shifted(emit: Emit[V], x: V, by: Array | float) -> V:
    return emit(Scale.exactly(shift=by), x) if np.any(by) else x
