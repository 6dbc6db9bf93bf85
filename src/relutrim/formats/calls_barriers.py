"""Torch's functions that are not piecewise linear, by name; see :mod:`relutrim.formats.calls`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from relutrim.errors import UnsupportedError
from relutrim.formats.building import Builder, Operand, Value
from relutrim.network import Elu, Erf, Gelu, HardSwish, Mish, Operator, Scale, Silu, Softplus

THRESHOLD = {"float32": 20.0, "float64": 40.0}
"""Where torch may take a softplus for the identity: it is off by ``exp(-threshold)``, less than rounding."""
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


def _curve(kind: type[Operator]) -> Callable[..., Value]:
    def call(b: Builder, name: str, input: Operand, inplace: bool = False) -> Value:
        return _applied(b, name, input, inplace, kind())

    return call


def _applied(b: Builder, name: str, input: Operand, inplace: bool, *operators: Operator) -> Value:
    """Operators in a row; the last one bears the name."""
    value = b.read(input)
    for operator in operators[:-1]:
        value = b.append(f"{name}_{operator.kind.lower()}", operator, value)
    made = b.append(name, operators[-1], value)
    if inplace:
        b.changed(input, name)
    return made


def _softplus(b: Builder, name: str, input: Operand, beta: float = 1.0, threshold: float = 20.0) -> Value:
    if threshold < 20:
        raise UnsupportedError(
            f"a softplus that is cut off at {threshold} jumps there; use the default threshold of 20"
        )
    if beta == 1:
        return _applied(b, name, input, False, Softplus())
    factor = b.stored(beta)
    if not factor > 0:
        raise UnsupportedError(f"a softplus with beta = {beta}; only positive ones are represented")
    return _applied(b, name, input, False, Scale.exactly(factor), Softplus(), Scale.divide(factor))


def _elu(
    b: Builder,
    name: str,
    input: Operand,
    alpha: float = 1.0,
    inplace: bool = False,
    *,
    scale: float = 1.0,
    input_scale: float = 1.0,
) -> Value:
    if input_scale != 1:
        raise UnsupportedError("an ELU that scales its input; use nn.CELU, or nn.ELU behind a product")
    operators: list[Operator] = [Elu(float(b.stored(alpha)))]
    if scale != 1:
        operators.append(Scale.exactly(b.stored(scale)))
    return _applied(b, name, input, inplace, *operators)


def _selu(b: Builder, name: str, input: Operand, inplace: bool = False) -> Value:
    return _elu(b, name, input, _SELU_ALPHA, inplace, scale=_SELU_SCALE)


def _celu(b: Builder, name: str, input: Operand, alpha: float = 1.0, inplace: bool = False) -> Value:
    if alpha == 1:
        return _elu(b, name, input, 1.0, inplace)
    factor = b.stored(alpha)
    if not factor > 0:
        raise UnsupportedError(f"a CELU with alpha = {alpha}; only positive ones make a function that rises")
    divided = Scale.divide(np.asarray(factor))
    return _applied(b, name, input, inplace, divided, Elu(), Scale.exactly(factor))


def _gelu(b: Builder, name: str, input: Operand, approximate: str = "none") -> Value:
    if approximate != "none":
        raise UnsupportedError(
            f"GELU by the approximation {approximate!r}, which is not represented; use approximate='none'"
        )
    return _applied(b, name, input, False, Gelu())


BARRIERS: dict[str, Callable[..., object]] = {
    "softplus": _softplus,
    "elu": _elu,
    "selu": _selu,
    "celu": _celu,
    "gelu": _gelu,
    "silu": _curve(Silu),
    "hardswish": _curve(HardSwish),
    "mish": _curve(Mish),
    "erf": _curve(Erf),
}
