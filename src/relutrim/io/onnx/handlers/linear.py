"""Gemm and MatMul: one factor is a constant, the other a value."""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from relutrim.errors import NetworkError, UnsupportedError
from relutrim.graph import Add, Linear, Scale
from relutrim.graph.operators import Array
from relutrim.io.onnx.conversion import BatchAxisError, Call, Operand, Value, handles
from relutrim.io.onnx.handlers.broadcast import fitted


@handles("MatMul", inputs=(2, 2))
def matmul(call: Call) -> Operand:
    """``x @ W`` or ``W @ x`` by numpy's rules."""
    if call.is_constant(1):
        return _from_right(call, call.value(0), call.weights(1))
    if call.is_constant(0):
        return _from_left(call, call.value(1), call.weights(0))
    raise _two_values()


@handles("Gemm", inputs=(2, 3), attributes=("alpha", "beta", "transA", "transB"))
def gemm(call: Call) -> Operand:
    """``alpha * A' @ B' + beta * C`` in real arithmetic, ``'`` an optional transpose.

    The products with ``alpha`` and ``beta`` are float64 numbers where the model is in float32.
    """
    alpha, beta = call.number("alpha", 1.0), call.number("beta", 1.0)
    flips = bool(call.integer("transA", 0)), bool(call.integer("transB", 0))
    side = 0 if call.is_constant(0) else 1
    if not call.is_constant(side):
        raise _two_values()
    value, weight = call.value(1 - side), call.weights(side)
    rank = len(value.shape) + call.batched
    if rank != 2 or weight.ndim != 2:
        raise NetworkError(f"Gemm multiplies matrices, and meets tensors with {rank} and {weight.ndim} axes")
    weight = weight.T if flips[side] else weight
    if flips[1 - side]:
        value = _transposed(call, value)

    _check_factor(call, alpha)
    product = (_from_right if side == 1 else _from_left)(call, value, weight, alpha)
    return _plus(call, product, beta) if call.has(2) else product


def _check_factor(call: Call, factor: float) -> None:
    if call.graph.dtype != "float32" and factor not in (0.0, 1.0, -1.0):
        raise UnsupportedError(f"its products with {factor} would round")


def _plus(call: Call, product: Value, beta: float) -> Value:
    """``product + beta * C``."""
    if not call.is_constant(2):
        if beta == 0:
            return product
        other = call.value(2)
        other = other if beta == 1 else call.emit(Scale.exactly(beta), other)
        return call.emit(Add(2), product, other)
    constant = call.weights(2)
    if constant.ndim > 2:
        raise NetworkError(f"the summand of shape {constant.shape} has more axes than the product")
    product, constant = fitted(call, product, constant)
    if beta == 0:
        return product
    _check_factor(call, beta)
    return call.shifted(product, beta * constant, constant, 1.0 if beta == 1 else 0.0)


def _from_right(call: Call, value: Value, weight: Array, factor: float = 1.0) -> Value:
    """``value @ weight``: a linear layer over the last axis, as everyone writes it."""
    if not value.shape:
        _refuse_batch_product()
    weight = _plain(call, value, weight)
    if weight.ndim == 1:
        return call.reshaped(_linear(call, value, weight[None], factor), value.shape[:-1])
    return _linear(call, value, weight.T, factor)


def _from_left(call: Call, value: Value, weight: Array, factor: float = 1.0) -> Value:
    """``weight @ value`` for a column: the same layer, on the axis before the last."""
    shape = value.shape
    weight = _plain(call, value, weight)
    matrix = weight[None] if weight.ndim == 1 else weight
    if call.batched and len(shape) < 2:
        _refuse_batch_product()
    if not shape:
        raise NetworkError("a product with a value that has no axes")
    if len(shape) == 1:
        return _drop_row(call, _linear(call, value, matrix, factor), weight, 0)
    if shape[-1] != 1:
        raise UnsupportedError(
            f"a constant multiplies the value of shape {shape} from the left, which mixes its rows; "
            "relutrim represents "
            "that only for a single column, so write the product as value @ constant"
        )
    product = _linear(call, call.reshaped(value, shape[:-1]), matrix, factor)
    return _drop_row(call, product, weight, 1)


def _drop_row(call: Call, product: Value, weight: Array, columns: int) -> Value:
    """Give ``product`` (one row of numbers) the shape numpy gives to ``weight @ column``."""
    rows = product.shape[:-1] if weight.ndim == 1 else product.shape
    return call.reshaped(product, (*rows, *(1,) * columns))


def _plain(call: Call, value: Value, weight: Array) -> Array:
    """The factor as a matrix or vector; leading axes of length 1 that the value has as well say nothing."""
    rank = len(value.shape) + call.batched
    while weight.ndim > 2 and weight.shape[0] == 1 and weight.ndim <= rank:
        weight = weight[0]
    if weight.ndim > 2:
        raise UnsupportedError(
            f"a stack of matrices of shape {weight.shape}; relutrim represents a single one"
        )
    if weight.ndim == 0:
        raise NetworkError("a product with a constant that has no axes; use Mul")
    return weight


def _linear(call: Call, value: Value, weight: Array, factor: float) -> Value:
    operator = Linear(factor * weight, np.zeros(weight.shape[0]))
    return call.emit(operator, value, weight=call.where(weight, 1.0 if factor == 1 else 0.0))


def _transposed(call: Call, value: Value) -> Value:
    """The transpose of a matrix; only a row or a column keeps the order of its numbers."""
    if call.batched:
        raise BatchAxisError(
            "it transposes the batch axis away; export the model with a fixed batch size of 1, or without "
            "the transpose"
        )
    if 1 not in value.shape:
        raise UnsupportedError(
            f"it transposes a computed matrix of shape {value.shape}; export without the transpose"
        )
    return call.reshaped(value, value.shape[::-1])


def _refuse_batch_product() -> NoReturn:
    raise BatchAxisError(
        "it multiplies along the batch axis, so that rows of a batch are mixed; "
        "export the model with a fixed batch size of 1"
    )


def _two_values() -> UnsupportedError:
    return UnsupportedError(
        "it multiplies two computed values (attention does so), which is not affine; "
        "relutrim represents products with constants only"
    )
