"""How constants and values meet: ONNX broadcasts like numpy, over the batch axis too."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relutrim.errors import NetworkError
from relutrim.graph.operators import Array, Shape
from relutrim.io.onnx.conversion import BatchAxisError, Call, Value


def fitted(call: Call, value: Value, constant: Array, *, expand: bool = False) -> tuple[Value, Array]:
    """Both such that the constant broadcasts into the value's shape (without the batch), not beyond it.

    A constant that is larger than the value repeats it, where ``expand`` allows that.
    """
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
    shape = _common(
        [constant.shape, value.shape],
        f"a constant of shape {constant.shape} does not broadcast with a value of shape {value.shape}",
    )
    if shape != value.shape and not expand:
        raise NetworkError(
            f"a constant of shape {constant.shape} does not fit into the value of shape {value.shape}"
        )
    return call.graph.expanded(value, shape), constant


def same_shape(call: Call, values: Sequence[Value]) -> list[Value]:
    """Values broadcast to one shape."""
    shapes = [value.shape for value in values]
    if call.batched and any(len(shape) != len(shapes[0]) for shape in shapes):
        raise BatchAxisError(
            f"it combines computed values of shapes {shapes} (without the batch axis) by broadcasting, so "
            "that the batch of one meets another axis of the other; export the model with a fixed batch size "
            "of 1"
        )
    shape = _common(shapes, f"it combines computed values of shapes {shapes}, which do not broadcast")
    return [call.graph.expanded(value, shape) for value in values]


def _common(shapes: Sequence[Shape], problem: str) -> Shape:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise NetworkError(problem) from None
