"""Concat: values, and constants among them, one behind the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relutrim.errors import InputError, NetworkError
from relutrim.graph import Scale
from relutrim.graph.operators import Array
from relutrim.io.onnx.conversion import Call, Operand, Value, handles
from relutrim.io.onnx.handlers.axes import normalised, refuse_batch
from relutrim.io.onnx.tensors import Constant


@handles("Concat", inputs=(1, None), attributes=("axis",))
def concat(call: Call) -> Operand:
    """Tensors joined along an axis.

    A constant is a stretch of zeros with a shift: values are joined without it, entries spread to their
    places, and the constant is added.
    """
    operands = [call.operand(index) for index in range(call.count)]
    if all(isinstance(operand, Constant) for operand in operands):
        return _constants(call, [call.constant(index) for index in range(call.count)])
    first = next(operand for operand in operands if isinstance(operand, Value))
    rank = len(first.shape) + call.batched
    (axis,) = normalised([call.integer("axis", 0)], rank)
    if call.batched and axis == 0:
        refuse_batch("it joins values along the batch axis")
    own = axis - call.batched
    arrays = {k: _array(call, k, first, own) for k in range(call.count) if call.is_constant(k)}
    parts = [arrays[k].shape[own] if k in arrays else call.value(k) for k in range(call.count)]
    _check_rest([part.shape for part in parts if isinstance(part, Value)], own)
    lengths = [part if isinstance(part, int) else part.shape[own] for part in parts]
    shape = (*first.shape[:own], sum(lengths), *first.shape[own + 1 :])
    call.graph.room.check(shape)
    spread = call.graph.joined(parts, own)
    if not any(array.any() for array in arrays.values()):
        return spread
    call.graph.room.take(shape, "its constants make a value")
    shift = np.zeros(shape)
    for index, end in enumerate(np.cumsum(lengths)):
        if index in arrays:
            shift[(slice(None),) * own + (slice(end - lengths[index], end),)] = arrays[index]
    return call.emit(Scale.exactly(shift=shift), spread)


def _array(call: Call, index: int, beside: Value, axis: int) -> Array:
    """A constant as it stands beside values, without the batch axis."""
    array = call.weights(index)
    if call.batched:
        rows = call.graph.port.batch
        alone = array.ndim == len(beside.shape) + 1 and array.shape[0] == 1
        if not alone or (isinstance(rows, int) and rows > 1):
            refuse_batch(
                f"a constant of shape {array.shape} gives rows of a batch different numbers, or lacks an axis"
            )
        array = array[0]
    _check_rest([beside.shape, array.shape], axis)
    return array


def _check_rest(shapes: Sequence[tuple[int, ...]], axis: int) -> None:
    rest = {(len(shape), *shape[:axis], *shape[axis + 1 :]) for shape in shapes}
    if len(rest) > 1:
        raise NetworkError(f"tensors of shapes {list(shapes)} cannot be joined along axis {axis}")


def _constants(call: Call, constants: Sequence[Constant]) -> Constant:
    kinds = {constant.kind for constant in constants}
    arrays = [constant.array for constant in constants]
    if len(kinds) > 1 or not arrays[0].ndim:
        raise InputError("it joins constants of different types or without axes; the file is damaged")
    (axis,) = normalised([call.integer("axis", 0)], arrays[0].ndim)
    _check_rest([array.shape for array in arrays], axis)
    total = sum(array.shape[axis] for array in arrays)
    call.graph.room.take(
        [*arrays[0].shape[:axis], total, *arrays[0].shape[axis + 1 :]], "it makes a constant"
    )
    return Constant(call.output, kinds.pop(), np.concatenate(arrays, axis))
