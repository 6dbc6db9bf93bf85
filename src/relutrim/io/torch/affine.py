"""ATen's operators that compute: products with weights, sums, batch norm. All of them make new tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from relutrim.graph import Add, BatchNorm, Concat, Linear, Mean, Scale
from relutrim.graph.operators import Array
from relutrim.graph.origin import Stored
from relutrim.io.gates import half, product
from relutrim.io.torch.build import Builder, Handler, Opaque, Operand, Value
from relutrim.io.torch.record import Constant


def own_axis(x: Value, dim: int) -> int:
    """An axis without the batch."""
    rank = len(x.shape) + 1
    if not -rank <= dim < rank or dim % rank == 0:
        raise Opaque(f"it works along axis {dim} of {rank}, the batch")
    return dim % rank - 1


def linear(b: Builder, input: Operand, weight: Operand, bias: Operand | None = None) -> Value:
    """``x W^T + b`` on the last axis."""
    return _linear(b, input, weight, "weight", bias, "bias", turned=False)


def _linear(
    b: Builder,
    x: Operand,
    weight: Operand,
    place: str,
    bias: Operand | None,
    bias_place: str,
    *,
    turned: bool,
) -> Value:
    value, matrix = b.value(x), b.numbers(weight)
    if matrix.ndim != 2:
        raise Opaque(f"a weight of shape {matrix.shape} is no matrix")
    axes = (1, 0) if turned else (0, 1)
    matrix = matrix.transpose(axes)
    offset = np.zeros(len(matrix)) if bias is None else b.numbers(bias)
    kept = None if bias is None else b.stored(bias_place, bias, tuple(range(offset.ndim)))
    if offset.ndim == 2 and offset.shape[0] == 1:
        offset, kept = offset[0], b.stored(bias_place, bias, (1,))
    return b.emit(Linear(matrix, offset), value, weight=b.stored(place, weight, axes), bias=kept)


def _addmm(
    b: Builder, input: Operand, mat1: Operand, mat2: Operand, beta: float = 1, alpha: float = 1
) -> Value:
    if (beta, alpha) != (1, 1):
        raise Opaque("addmm with beta or alpha other than 1")
    if not isinstance(input, Constant) or input.array.shape != np.shape(b.numbers(mat2))[1:]:
        # The addend may broadcast, or be a value of its own.
        return _sum(b, _linear(b, mat1, mat2, "mat2", None, "", turned=True), input)
    return _linear(b, mat1, mat2, "mat2", input, "input", turned=True)


def _sum(b: Builder, one: Operand, two: Operand, factor: float = 1) -> Value:
    """``one + factor * two`` for a factor of 1 or -1."""
    if factor not in (1, -1):
        raise Opaque(f"a + alpha * b with alpha = {factor}")
    if isinstance(one, Value) and isinstance(two, Value):
        x, y = b.value(one), b.value(two)
        return add(b, [x, y if factor == 1 else b.emit(Scale.exactly(-1.0), y)])
    if isinstance(one, Value):
        return _shifted(b, b.value(one), two, 1.0, float(factor))
    return _shifted(b, b.value(two), one, float(factor), 1.0)


def _shifted(b: Builder, x: Value, by: Operand, scale: float, sign: float) -> Value:
    """``scale * x + sign * by``."""
    shift, lost = b.beside(by, x)
    return b.emit(Scale.exactly(scale, sign * shift), x, shift=_kept(b, by, shift, lost, sign))


def _kept(b: Builder, constant: Operand, numbers: Array, lost: int, sign: float = 1.0) -> Stored | None:
    place = next((name for name, one in b.operands.items() if one is constant), "")
    return b.stored(place, constant, tuple(axis + lost for axis in range(numbers.ndim)), sign)


def add(b: Builder, values: Sequence[Value]) -> Value:
    """The sum of values, broadcast to one shape."""
    if len({len(value.shape) for value in values}) > 1:
        raise Opaque("the batch of one value meets another axis of the other")
    shape = np.broadcast_shapes(*(value.shape for value in values))
    return b.emit(Add(len(values)), *(b.expanded(value, shape) for value in values))


def _mul(b: Builder, input: Operand, other: Operand) -> Value:
    """A product with a constant; or one of two values that is a function with a name."""
    one, factor = (input, other) if isinstance(input, Value) else (other, input)
    x = b.value(one)
    if isinstance(factor, Value):
        y = b.value(factor)
        found = product(b, x, y)
        if found is None:
            raise Opaque("a product of two values")
        return found
    scale, lost = b.beside(factor, x)
    return half(b, x, scale) or b.emit(Scale.exactly(scale), x, scale=_kept(b, factor, scale, lost))


def _div(b: Builder, input: Operand, other: Operand, rounding_mode: str | None = None) -> Value:
    if rounding_mode is not None:
        raise Opaque("a division that rounds its result")
    x = b.value(input)
    divisor, lost = b.beside(other, x)
    # The scale is computed from the divisor.
    return b.emit(Scale.divide(divisor), x, scale=_kept(b, other, divisor, lost, sign=0.0))


def _batch_norm(
    b: Builder,
    input: Operand,
    weight: Operand | None,
    bias: Operand | None,
    running_mean: Operand | None,
    running_var: Operand | None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    cudnn_enabled: bool = False,
) -> Value:
    """Batch normalisation by its running statistics, channels on the first axis after the batch."""
    x = b.value(input)
    if training or running_mean is None or running_var is None:
        raise Opaque("batch normalisation by the statistics of the batch")
    if not x.shape:
        raise Opaque("batch normalisation of a value without channels")
    along = (x.shape[0], *(1 for _ in x.shape[1:]))

    def channel(values: Operand | None, default: float) -> Array:
        return np.full(along, default) if values is None else b.numbers(values).reshape(along)

    names = {"gain": "weight", "bias": "bias", "mean": "running_mean", "variance": "running_var"}
    given = dict(zip(names, (weight, bias, running_mean, running_var), strict=True))
    axes = (0, *(None for _ in x.shape[1:]))
    operator = BatchNorm.of(
        channel(weight, 1),
        channel(bias, 0),
        channel(running_mean, 0),
        channel(running_var, 1),
        float(b.numbers(eps)),  # torch adds it in the type of the variance
    )
    return b.emit(operator, x, **{key: b.stored(names[key], one, axes) for key, one in given.items()})


def _averaged(*, total: bool) -> Handler:
    def call(
        b: Builder,
        input: Operand,
        dim: Sequence[int] | None = None,
        keepdim: bool = False,
        dtype: object = None,
    ) -> Value:
        """The mean over some axes, or their sum."""
        x = b.value(input)
        axes = tuple(sorted({own_axis(x, axis) for axis in dim or range(len(x.shape) + 1)}))
        mean = b.emit(Mean(axes, keepdim), x)
        return (
            b.emit(Scale.exactly(float(math.prod(x.shape[axis] for axis in axes))), mean) if total else mean
        )

    return call


def _cat(b: Builder, tensors: Sequence[Operand], dim: int = 0) -> Value:
    """Values one behind the other; one that occurs twice is read once."""
    read = [b.value(value) for value in tensors]
    axis = own_axis(read[0], dim)
    if len(read) == 1:
        return b.emit(Concat(axis, (read[0].shape[axis],)), *read)
    return b.joined(read, axis)


def _stack(b: Builder, tensors: Sequence[Operand], dim: int = 0) -> Value:
    from relutrim.graph import Reshape

    read = [b.value(value) for value in tensors]
    axis = own_axis(Value("", (*read[0].shape, 1)), dim)
    shape = (*read[0].shape[:axis], 1, *read[0].shape[axis:])
    lifted = [b.emit(Reshape(value.shape, shape), value) for value in read]
    return b.emit(Concat(axis, (1,) * len(lifted)), *lifted)


AFFINE: dict[str, Handler] = {
    "linear": linear,
    "matmul": lambda b, input, other: _linear(b, input, other, "other", None, "", turned=True),
    "mm": lambda b, input, mat2: _linear(b, input, mat2, "mat2", None, "", turned=True),
    "addmm": _addmm,
    "add": lambda b, input, other, alpha=1: _sum(b, input, other, alpha),
    "sub": lambda b, input, other, alpha=1: _sum(b, input, other, -alpha),
    "rsub": lambda b, input, other, alpha=1: _sum(b, other, input, -alpha),
    "mul": _mul,
    "div": _div,
    "batch_norm": _batch_norm,
    "native_batch_norm": _batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "mean": _averaged(total=False),
    "sum": _averaged(total=True),
    "cat": _cat,
    "concat": _cat,
    "stack": _stack,
}
