"""How a constant meets a value: ONNX broadcasts like numpy, over the batch axis too."""

from __future__ import annotations

import numpy as np

from relutrim.errors import NetworkError, UnsupportedError
from relutrim.formats.onnx.conversion import BatchAxisError, Call, Value
from relutrim.network.operators import Array


def fitted(call: Call, value: Value, constant: Array) -> tuple[Value, Array]:
    """Both such that the constant broadcasts into the value's shape (without the batch), not beyond it."""
    rank = len(value.shape) + call.batched
    if call.batched and constant.ndim >= rank:
        if constant.ndim > rank or constant.shape[0] != 1:
            raise BatchAxisError(
                f"a constant of shape {constant.shape} gives rows of a batch different numbers, or adds an "
                "axis in front "
                "of the batch; export the model with a fixed batch size of 1"
            )
        constant = constant[0]
    if constant.ndim > len(value.shape):
        value = call.reshaped(value, (1,) * (constant.ndim - len(value.shape)) + value.shape)
    try:
        shape = np.broadcast_shapes(constant.shape, value.shape)
    except ValueError:
        raise NetworkError(
            f"a constant of shape {constant.shape} does not broadcast with a value of shape {value.shape}"
        ) from None
    if shape != value.shape:
        raise UnsupportedError(
            f"a constant of shape {constant.shape} expands the value of shape {value.shape} to {shape}; "
            "relutrim represents constants that fit into the value"
        )
    return value, constant
