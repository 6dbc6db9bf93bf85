"""ATen's functions of one number, of two, and softmax. All of them make new tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from relutrim.graph import Relu, Reshape, Scale, Softmax
from relutrim.graph.operators.curves import Atan, Erf, Gelu, HardSwish, Mish, Sigmoid, Silu, Tanh
from relutrim.io import piecewise
from relutrim.io.activations import Function, celu, elu, softplus
from relutrim.io.tails import NO_RANGE, TAILS
from relutrim.io.torch.affine import own_axis
from relutrim.io.torch.build import Builder, Handler, Opaque, Operand, Value

THRESHOLD = {"float32": 80.0, "float64": 700.0}
"""Where torch may take a softplus for the identity at the latest: the exponential overflows soon."""
_SELU = 1.6732632423543772, 1.0507009873554805

LINES = {
    "relu": Function(Relu),
    "sigmoid": Function(Sigmoid),
    "tanh": Function(Tanh),
    "silu": Function(Silu),
    "hardswish": Function(HardSwish),
    "mish": Function(Mish),
    "erf": Function(Erf),
    "atan": Function(Atan),
    "elu": Function(elu, alpha=1.0, scale=1.0, input_scale=1.0),
    "celu": Function(celu, alpha=1.0),
    "gelu": Function(Gelu, approximate="none"),
    "softplus": Function(softplus, beta=1.0, threshold=20.0),
    "leaky_relu": Function(piecewise.leaky_relu, negative_slope=0.01),
    "hardsigmoid": Function(piecewise.hard_sixth),
    "softshrink": Function(piecewise.soft_shrink, lambd=0.5),
    "abs": Function(piecewise.absolute),
    "neg": Function(piecewise.negative),
}
"""Functions of each number alone. A line with an operator of the graph reads and writes it."""


def _line(line: Function) -> Handler:
    def call(b: Builder, input: Operand, **given: Any) -> Value:
        if not given.keys() <= line.parameters.keys():
            raise Opaque(f"it is told {sorted(given)}")
        if b.final and line.operator is not None and line.operator.kind in TAILS:
            return b.step(line.operator.kind, b.value(input))
        said = ({**line.parameters, **given}[name] for name in line.parameters)
        return line.read(b.emit, b.value(input), [_number(b, one) for one in said])

    return call


def _number(b: Builder, number: Any) -> Any:
    """A word, or a number as the network's precision has it; an infinite one is left to the operator."""
    if isinstance(number, str) or (isinstance(number, float) and np.isinf(number)):
        return number
    return float(b.numbers(number))


def _softmax(kind: str) -> Handler:
    def call(
        b: Builder, input: Operand, dim: int, dtype: object = None, half_to_float: bool = False
    ) -> Value:
        x = b.value(input)
        if b.recorded[0] is None:
            raise Opaque("it converts to another type")
        axis = own_axis(x, dim)
        if b.final:
            # Negative, so that it means the same with and without a batch axis.
            return b.step(kind, x, axis=axis - len(x.shape))
        if kind == "LogSoftmax":
            raise Opaque(NO_RANGE)
        return b.emit(Softmax(axis), x)

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
    return piecewise.bent(b.emit, x, lambda below: b.emit(Scale.exactly(slopes), below, scale=kept))


def _extreme(largest: bool) -> Handler:
    def call(b: Builder, input: Operand, other: Operand) -> Value:
        x, y = b.value(input), b.value(other)
        if x.shape != y.shape:
            raise Opaque(f"values of shapes {x.shape} and {y.shape} are compared")
        of_two = piecewise.larger if largest else piecewise.smaller
        return b.emit(Reshape(x.shape, x.shape), x) if x.name == y.name else of_two(b.emit, x, y)

    return call


def _selu(b: Builder, input: Operand) -> Value:
    alpha, scale = (float(b.numbers(number)) for number in _SELU)
    return elu(b.emit, b.value(input), alpha, scale)


FUNCTIONS: dict[str, Handler] = {
    **{name: _line(line) for name, line in LINES.items()},
    "relu6": lambda b, input: _clamp(b, input, 0.0, 6.0),
    "hardtanh": _hardtanh,
    "clamp": _clamp,
    "clip": _clamp,
    "clamp_min": _clamp,
    "clamp_max": lambda b, input, max: _clamp(b, input, None, max),
    "prelu": _prelu,
    "_prelu_kernel": _prelu,
    "maximum": _extreme(True),
    "minimum": _extreme(False),
    "max": _extreme(True),
    "min": _extreme(False),
    "softmax": _softmax("Softmax"),
    "_softmax": _softmax("Softmax"),
    "log_softmax": _softmax("LogSoftmax"),
    "_log_softmax": _softmax("LogSoftmax"),
    "selu": _selu,
}
