"""ATen's functions of one number, of two, and softmax. All of them make new tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from relutrim.graph import Elu, Gelu, Operator, Reshape, Scale, Softplus
from relutrim.graph.operators import Array
from relutrim.io import piecewise
from relutrim.io.torch.build import Builder, Handler, Opaque, Operand, Value
from relutrim.io.torch.plain import PLAIN

THRESHOLD = {"float32": 80.0, "float64": 700.0}
"""Where torch may take a softplus for the identity at the latest: the exponential overflows soon."""
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


def _plain(make: type[Operator]) -> Handler:
    return lambda b, input: b.emit(make(), b.value(input))


def _tail(kind: str) -> Handler:
    return lambda b, input: b.tail(kind, input)


def _softmax(kind: str) -> Handler:
    def call(
        b: Builder, input: Operand, dim: int, dtype: object = None, half_to_float: bool = False
    ) -> Value:
        if b.shapes[0] is None:
            raise Opaque("it converts to another type")
        return b.tail(kind, input, dim)

    return call


def _clamp(b: Builder, input: Operand, min: Any = None, max: Any = None) -> Value:
    return piecewise.clip(b.emit, b.value(input), _limit(b, min), _limit(b, max))


def _limit(b: Builder, limit: Any) -> float | None:
    if limit is None or (isinstance(limit, float) and np.isinf(limit)):
        return None
    if np.size(numbers := b.numbers(limit)) != 1:
        raise Opaque("its limits are not single numbers")
    return float(numbers.reshape(()))


def _hardtanh(b: Builder, input: Operand, min_val: float = -1.0, max_val: float = 1.0) -> Value:
    return _clamp(b, input, min_val, max_val)


def _leaky_relu(b: Builder, input: Operand, negative_slope: float = 0.01) -> Value:
    return piecewise.leaky_relu(b.emit, b.value(input), float(b.numbers(negative_slope)))


def _prelu(b: Builder, input: Operand, weight: Operand) -> Value:
    """A leaky ReLU with a slope for each channel, or one for all."""
    x, slopes = b.value(input), b.numbers(weight)
    if slopes.ndim != 1:
        # What prelu is made of has its slopes broadcast already.
        slopes, _ = b.beside(weight, x)
        return piecewise.leaky_relu(b.emit, x, slopes)
    behind = 0 if slopes.size == 1 else len(x.shape) - 1
    slopes = slopes.reshape(-1, *(1,) * behind)
    kept = b.stored("weight", weight, (0, *(None,) * behind))

    def emit(operator: Operator, /, *inputs: Value) -> Value:
        scales = isinstance(operator, Scale) and operator.scale.shape == slopes.shape
        return b.emit(operator, *inputs, **({"scale": kept} if scales else {}))

    return piecewise.leaky_relu(emit, x, slopes)


def _hardsigmoid(b: Builder, input: Operand) -> Value:
    clipped = piecewise.clip(b.emit, b.emit(Scale.exactly(shift=3.0), b.value(input)), 0.0, 6.0)
    return b.emit(Scale.divide(np.asarray(6.0)), clipped)


def _extreme(largest: bool) -> Handler:
    def call(b: Builder, input: Operand, other: Operand) -> Value:
        x, y = b.value(input), b.value(other)
        if x.shape != y.shape:
            raise Opaque(f"values of shapes {x.shape} and {y.shape} are compared")
        of_two = piecewise.larger if largest else piecewise.smaller
        return b.emit(Reshape(x.shape, x.shape), x) if x.name == y.name else of_two(b.emit, x, y)

    return call


def _softplus(b: Builder, input: Operand, beta: float = 1.0, threshold: float = 20.0) -> Value:
    if threshold < 20:
        raise Opaque(f"a softplus that is cut off at {threshold} jumps there")
    x, factor = b.value(input), b.numbers(beta)
    if factor == 1:
        return b.emit(Softplus(threshold), x)
    if not factor > 0:
        raise Opaque(f"a softplus with beta = {beta}")
    return _scaled(b, b.emit(Softplus(threshold), _scaled(b, x, factor)), factor, divide=True)


def _scaled(b: Builder, x: Value, factor: Array, *, divide: bool = False) -> Value:
    return b.emit(Scale.divide(factor) if divide else Scale.exactly(factor), x)


def _elu(
    b: Builder, input: Operand, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0
) -> Value:
    if input_scale != 1:
        raise Opaque("an ELU that scales its input")
    made = b.emit(Elu(float(b.numbers(alpha))), b.value(input))
    return made if scale == 1 else _scaled(b, made, b.numbers(scale))


def _selu(b: Builder, input: Operand) -> Value:
    return _elu(b, input, _SELU_ALPHA, _SELU_SCALE)


def _celu(b: Builder, input: Operand, alpha: float = 1.0) -> Value:
    factor = b.numbers(alpha)
    if factor == 1:
        return _elu(b, input)
    if not factor > 0:
        raise Opaque(f"a CELU with alpha = {alpha}")
    return _scaled(b, b.emit(Elu(), _scaled(b, b.value(input), factor, divide=True)), factor)


def _gelu(b: Builder, input: Operand, approximate: str = "none") -> Value:
    if approximate != "none":
        raise Opaque(f"GELU by the approximation {approximate!r}")
    return b.emit(Gelu(), b.value(input))


FUNCTIONS: dict[str, Handler] = {
    **{name: _plain(kind) for name, kind in PLAIN.items()},
    "relu6": lambda b, input: _clamp(b, input, 0.0, 6.0),
    "hardtanh": _hardtanh,
    "clamp": _clamp,
    "clip": _clamp,
    "clamp_min": _clamp,
    "clamp_max": lambda b, input, max: _clamp(b, input, None, max),
    "leaky_relu": _leaky_relu,
    "prelu": _prelu,
    "_prelu_kernel": _prelu,
    "hardsigmoid": _hardsigmoid,
    "abs": lambda b, input: piecewise.absolute(b.emit, b.value(input)),
    "maximum": _extreme(True),
    "minimum": _extreme(False),
    "max": _extreme(True),
    "min": _extreme(False),
    "sigmoid": _tail("Sigmoid"),
    "tanh": _tail("Tanh"),
    "softmax": _softmax("Softmax"),
    "_softmax": _softmax("Softmax"),
    "log_softmax": _softmax("LogSoftmax"),
    "_log_softmax": _softmax("LogSoftmax"),
    "softplus": _softplus,
    "elu": _elu,
    "selu": _selu,
    "celu": _celu,
    "gelu": _gelu,
}
