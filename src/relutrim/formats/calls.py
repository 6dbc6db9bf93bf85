"""Torch's operations by name, each as calls to a :class:`~relutrim.formats.building.Builder`.

The parameters are named as torch's own functions name them, so that the same table serves calls recorded by
torch.fx (positional or by keyword) and the nodes of an exported program (by name, ``self`` being called
``input``). A name that ends in an underscore is the in-place variant of the name before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from relutrim.errors import UnsupportedError
from relutrim.formats.building import BATCH, Builder, Constant, Operand, Size, Value
from relutrim.formats.calls_barriers import BARRIERS
from relutrim.formats.calls_moving import EXPORTED_MOVING, MOVING
from relutrim.formats.calls_piecewise import PIECEWISE

SUPPORTED = (
    "supported are linear layers, convolutions, pooling, batch normalisation, sums, slices and other moves, "
    "ReLU and what is made up of it (clamp, leaky ReLU), sigmoid, tanh, softmax, GELU and the like"
)
Handler: TypeAlias = Callable[..., object]


def _linear(b: Builder, name: str, input: Operand, weight: Operand, bias: Operand | None = None) -> Value:
    return b.linear(name, input, weight, bias)


def _matmul(b: Builder, name: str, input: Operand, other: Operand) -> Value:
    return b.matmul(name, input, other)


def _mm(b: Builder, name: str, input: Operand, mat2: Operand) -> Value:
    return b.matmul(name, input, mat2)


def _addmm(
    b: Builder, name: str, input: Operand, mat1: Operand, mat2: Operand, *, beta: float = 1, alpha: float = 1
) -> Value:
    if (beta, alpha) != (1, 1):
        raise UnsupportedError("addmm with beta or alpha other than 1; write x @ W + b")
    if isinstance(input, Value) or isinstance(mat2, Value) or _rank(input) != 1 or _rank(mat2) != 2:
        # The addend may broadcast, or be a value of its own.
        return b.add(name, b.matmul(f"{name}_product", mat1, mat2), input)
    return b.linear(name, mat1, np.asarray(mat2).T, input)


def _rank(constant: Constant) -> int:
    return np.asarray(constant).ndim


def _relu(b: Builder, name: str, input: Operand, inplace: bool = False) -> Value:
    made = b.relu(name, input)
    if inplace:
        b.changed(input, name)
    return made


def _add(b: Builder, name: str, input: Operand, other: Operand, *, alpha: float = 1) -> Value:
    return b.add(name, input, other, alpha)


def _sub(b: Builder, name: str, input: Operand, other: Operand, *, alpha: float = 1) -> Value:
    return b.add(name, input, other, -alpha)


def _rsub(b: Builder, name: str, input: Operand, other: Operand, *, alpha: float = 1) -> Value:
    return b.add(name, other, input, -alpha)


def _mul(b: Builder, name: str, input: Operand, other: Operand) -> Value:
    return b.multiply(name, input, other)


def _div(b: Builder, name: str, input: Operand, other: Operand, *, rounding_mode: str | None = None) -> Value:
    if rounding_mode is not None:
        raise UnsupportedError("a division that rounds its result is not piecewise linear")
    return b.divide(name, input, other)


def _neg(b: Builder, name: str, input: Operand) -> Value:
    return b.scale(name, input, -1.0)


def _flatten(b: Builder, name: str, input: Operand, start_dim: int = 0, end_dim: int = -1) -> Value:
    return b.flatten(name, input, start_dim, end_dim)


def _view(b: Builder, name: str, input: Operand, *size: Any, **named: Any) -> Value:
    # x.view(2, 3), x.view((2, 3)), x.reshape(shape=(2, 3))
    given: Any = named.get("size", named.get("shape", size))
    sizes: Sequence[Size] = given[0] if len(given) == 1 and isinstance(given[0], tuple | list) else given
    if not all(isinstance(entry, int) or entry is BATCH for entry in sizes):
        raise UnsupportedError(f"a reshape to {list(sizes)}; only sizes are understood, not dtypes")
    return b.reshape(name, input, sizes)


def _unflatten(b: Builder, name: str, input: Operand, dim: int, sizes: Sequence[int]) -> Value:
    if not isinstance(input, Value):
        raise UnsupportedError("it is applied to a constant")
    rank = len(input.shape) + 1
    axis = (dim + rank if dim < 0 else dim) - 1
    if not 0 <= axis < rank - 1:
        raise UnsupportedError(
            f"unflatten along axis {dim} of a value of {rank} axes; the batch axis must stay as it is"
        )
    return b.reshape(name, input, [BATCH, *input.shape[:axis], *sizes, *input.shape[axis + 1 :]])


def _same(b: Builder, name: str, input: Operand, *_: object, **__: object) -> Operand:
    return input


def _copy(b: Builder, name: str, input: Operand, **_: object) -> Value:
    return b.copy(input)


def _dropout(
    b: Builder, name: str, input: Operand, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Operand:
    if training and p > 0:
        raise UnsupportedError(
            "dropout stays on even in eval mode, so the network is random; pass training=self.training"
        )
    return input


def _exported_dropout(b: Builder, name: str, input: Operand, p: float, train: bool) -> Operand:
    if train and p > 0:
        raise UnsupportedError(
            "the program was exported in training mode, with dropout; call .eval() before the export"
        )
    return input


def _batch_norm(
    b: Builder,
    name: str,
    input: Operand,
    running_mean: Constant | None,
    running_var: Constant | None,
    weight: Constant | None = None,
    bias: Constant | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    **_: object,
) -> Value:
    if training:
        raise UnsupportedError(
            "batch normalisation by the statistics of the batch; use the running statistics (eval mode)"
        )
    return b.batch_norm(name, input, weight, bias, running_mean, running_var, eps)


def _tail(kind: str) -> Handler:
    def call(b: Builder, name: str, input: Operand) -> Value:
        return b.tail(name, kind, input)

    return call


def _softmax(kind: str) -> Handler:
    def call(
        b: Builder,
        name: str,
        input: Operand,
        dim: int | None = None,
        _stacklevel: int = 3,
        dtype: object = None,
        **_: object,
    ) -> Value:
        if dtype is not None:
            raise UnsupportedError(f"{kind} that converts to another dtype; drop its dtype argument")
        if dim is None:
            # Torch's old rule for a missing dim: axis 0 for 0, 1 or 3 axes, else axis 1.
            dim = 0 if isinstance(input, Value) and len(input.shape) in (0, 2) else 1
        return b.tail(name, kind, input, dim)

    return call


def in_place(handler: Handler) -> Handler:
    """The variant of an operation that overwrites its first operand."""

    def call(b: Builder, name: str, input: Operand, *args: Any, **kwargs: Any) -> object:
        made = handler(b, name, input, *args, **kwargs)
        b.changed(input, name)
        return made

    return call


HANDLERS: dict[str, Handler] = {
    "linear": _linear,
    "matmul": _matmul,
    "mm": _mm,
    "addmm": _addmm,
    "relu": _relu,
    "add": _add,
    "sub": _sub,
    "rsub": _rsub,
    "mul": _mul,
    "div": _div,
    "neg": _neg,
    "flatten": _flatten,
    "view": _view,
    "reshape": _view,
    "unflatten": _unflatten,
    "contiguous": _same,
    "detach": _same,
    "alias": _same,
    "clone": _copy,
    "dropout": _dropout,
    "batch_norm": _batch_norm,
    "softmax": _softmax("Softmax"),
    "log_softmax": _softmax("LogSoftmax"),
    "sigmoid": _tail("Sigmoid"),
    "tanh": _tail("Tanh"),
    **MOVING,
    **PIECEWISE,
    **BARRIERS,
}
_IN_PLACE = (
    "relu",
    "add",
    "sub",
    "mul",
    "div",
    "neg",
    "clamp",
    "hardtanh",
    "relu6",
    "leaky_relu",
    "hardsigmoid",
    "abs",
    "elu",
    "selu",
    "celu",
    "silu",
    "hardswish",
    "mish",
    "erf",
)
for _name in _IN_PLACE:
    HANDLERS[f"{_name}_"] = in_place(HANDLERS[_name])

EXPORTED: dict[str, Handler] = {
    **HANDLERS,
    **EXPORTED_MOVING,
    "dropout": _exported_dropout,
    "feature_dropout": _exported_dropout,
    "_softmax": HANDLERS["softmax"],
    "_log_softmax": HANDLERS["log_softmax"],
    "_unsafe_view": _view,
    "_native_batch_norm_legit_no_training": _batch_norm,
}
"""The same for exported programs, which name some operations and parameters differently."""
