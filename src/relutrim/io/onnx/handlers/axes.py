"""How nodes name axes: with the batch axis in front, negative ones from the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from relutrim.errors import InputError, NetworkError
from relutrim.io.onnx.conversion import BatchAxisError, Call, Value
from relutrim.io.onnx.tensors import MOST_AXES


def refuse_batch(what: str) -> NoReturn:
    """Axis 0 is not the batch of independent inputs that it was taken for."""
    raise BatchAxisError(
        f"{what}; export the model with a fixed batch size of 1, or so that axis 0 stays the batch"
    )


def given_axes(call: Call, since: int) -> tuple[int, ...] | None:
    """The axes: an attribute before opset ``since``, the second input from there on."""
    attribute, legacy = call.integer_list("axes"), call.graph.opset < since
    if (attribute is not None and not legacy) or (call.has(1) and legacy):
        raise InputError(f"its axes are not given the way opset {call.graph.opset} does; the file is damaged")
    return call.integers(1) if call.has(1) else attribute


def normalised(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Axes counted from the front, each at most once."""
    if rank > MOST_AXES or any(not -rank <= axis < rank for axis in axes):
        raise NetworkError(f"its axes {tuple(axes)} do not exist in a tensor with {rank} axes")
    found = tuple(axis % rank for axis in axes)
    if len(set(found)) != len(found):
        raise NetworkError(f"its axes {tuple(axes)} name one axis twice")
    return found


def own_axes(call: Call, value: Value, axes: Sequence[int], batch: str) -> tuple[int, ...]:
    """Axes of a value, without the batch; ``batch`` says what it would mean if that were among them."""
    found = normalised(axes, len(value.shape) + call.batched)
    if call.batched and 0 in found:
        refuse_batch(batch)
    return tuple(axis - call.batched for axis in found)
