"""Sums, products with constants, batch normalisation, and what may come at the very end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relutrim.certificate.check.call import Call, Ended, Tensor, Value, handles, size_of
from relutrim.certificate.check.maps import Affine, Matrix, Node, Pick, quotient
from relutrim.certificate.check.rounding import Array
from relutrim.errors import InputError, UnsupportedError


@handles("Add", "Sum")
def add(call: Call) -> Tensor:
    """The sum of values and constants."""
    constants = [k for k, one in enumerate(call.inputs) if isinstance(one, np.ndarray)]
    total = call.sum([call.value(k) for k in range(len(call.inputs)) if k not in constants])
    for k in constants:
        total = call.shifted(total, call.array(k))
    return total


@handles("Sub")
def sub(call: Call) -> Tensor:
    """A difference."""
    if isinstance(call.inputs[1], np.ndarray):
        return call.shifted(call.value(0), -call.array(1))
    negative = call.scaled(call.value(1), -1.0)
    if isinstance(call.inputs[0], np.ndarray):
        return call.shifted(negative, call.array(0))
    return call.sum([call.value(0), negative])


@handles("Mul")
def mul(call: Call) -> Tensor:
    """A product with a constant."""
    side = 1 if isinstance(call.inputs[1], np.ndarray) else 0
    return call.scaled(call.value(1 - side), call.array(side))


@handles("Div")
def div(call: Call) -> Tensor:
    """A quotient by a constant."""
    divisor = call.array(1)
    if not divisor.all():
        raise InputError("it divides by zero")
    return call.scaled(call.value(0), *quotient(divisor))


@handles("Neg")
def neg(call: Call) -> Tensor:
    """``-x``."""
    return call.scaled(call.value(), -1.0)


@handles("BatchNormalization")
def batch_normalization(call: Call) -> Tensor:
    """``gain (x - mean) / sqrt(variance + epsilon) + bias`` along axis 1."""
    if call.attribute("training_mode", 0) or any(call.node.output[1:]):
        raise UnsupportedError("it is in training mode")
    value = call.value()
    shape = (1, -1, *(1,) * (len(value.shape) - 2))
    gain, bias, mean, variance = (call.array(k).reshape(shape) for k in range(1, 5))
    spread = np.sqrt(variance + call.attribute("epsilon", float(np.float32(1e-5))))
    # var + eps, its root and the quotient: three relative roundings.
    factor, radius = quotient(spread, gain, roundings=3)
    return call.shifted(call.scaled(call.shifted(value, -mean), factor, radius), bias)


def product(call: Call, weight: Array, value: Value, bias: Array | None = None) -> Value:
    """A matrix (out, in) along the last axis."""
    *lead, width = value.shape
    windows = (
        np.arange(size_of(value.shape)).reshape(-1, width) if width else np.zeros((size_of(lead), 0), int)
    )
    if width != weight.shape[1]:
        raise InputError(f"a matrix of shape {weight.shape} does not fit a tensor of shape {value.shape}")
    return call.emit([Matrix(weight, windows)], [value], [*lead, len(weight)], bias)


@handles("MatMul")
def mat_mul(call: Call) -> Tensor:
    """A product with a constant matrix, by numpy's rules."""
    side = 1 if isinstance(call.inputs[1], np.ndarray) else 0
    weight, value = call.array(side), call.value(1 - side)
    while weight.ndim > 2 and weight.shape[0] == 1 and weight.ndim <= len(value.shape):
        weight = weight[0]
    if weight.ndim > 2:
        raise UnsupportedError(f"a stack of matrices of shape {weight.shape}")
    vector = weight.ndim == 1
    if side == 1:
        made = product(call, weight[None] if vector else weight.T, value)
        return reshaped(call, made, made.shape[:-1]) if vector else made
    matrix = weight[None] if vector else weight
    if len(value.shape) == 1:
        made = product(call, matrix, value)
    else:
        made = swapped(call, product(call, matrix, swapped(call, value)))
    return reshaped(call, made, made.shape[: -2 or None] + made.shape[-1:]) if vector else made


@handles("Gemm")
def gemm(call: Call) -> Tensor:
    """``alpha A' B' + beta C``."""
    alpha, beta = call.attribute("alpha", 1.0), call.attribute("beta", 1.0)
    side = 1 if isinstance(call.inputs[1], np.ndarray) else 0
    weight, value = call.array(side), call.value(1 - side)
    flips = [call.attribute("transA", 0), call.attribute("transB", 0)]
    weight = weight.T if flips[side] else weight
    value = swapped(call, value) if flips[1 - side] else value
    bias = call.given(2) if beta else None
    if side == 0:
        made = swapped(call, product(call, weight, swapped(call, value)))
    elif alpha == beta == 1 and isinstance(bias, np.ndarray):
        made, row = product(call, weight.T, value), call.array(2)
        wide = np.broadcast_to(row, made.shape).reshape(-1)
        call.reader.nodes[-1] = Node(
            Affine(last_affine(call).maps, wide), (value.number,), call.node.output[0]
        )
        return made
    else:
        made = product(call, weight.T, value)
    made = call.scaled(made, alpha)
    if bias is None:
        return made
    if isinstance(bias, Value):
        return call.sum([made, call.scaled(bias, beta)])
    if beta not in (1.0, -1.0) and call.reader.double:
        raise UnsupportedError(f"beta = {beta} times a float64 constant, which rounds")
    return call.shifted(made, beta * call.array(2))


def last_affine(call: Call) -> Affine:
    """What was emitted last."""
    last = call.reader.nodes[-1].operation
    assert isinstance(last, Affine)
    return last


def reshaped(call: Call, value: Value, shape: Sequence[int]) -> Value:
    """The same numbers in another shape."""
    return Value(value.number, tuple(shape))


def swapped(call: Call, value: Value) -> Value:
    """The last two axes exchanged."""
    places = np.arange(size_of(value.shape)).reshape(value.shape).swapaxes(-1, -2)
    return call.emit([Pick(places.reshape(-1))], [value], places.shape)


@handles("Softmax", "LogSoftmax", "Sigmoid", "Tanh")
def tail(call: Call) -> Ended:
    """A step behind the last layer, by what it says about itcall."""
    found = call.inputs[0]
    before = Ended(found, ()) if isinstance(found, Value) else found
    if not isinstance(before, Ended):
        raise UnsupportedError("it computes with constants alone")
    default = 1 if call.reader.opset < 13 else -1
    axis = int(call.attribute("axis", default)) % max(1, len(before.value.shape))
    along = f" axis {axis} opset {'<13' if default == 1 else '13'}" if "Soft" in call.node.op_type else ""
    if default == 1 and all(size == 1 for size in before.value.shape[axis + 1 :]):
        along = f" axis {axis} opset 13"
    return Ended(before.value, (*before.steps, f"{call.node.op_type}{along}"))
