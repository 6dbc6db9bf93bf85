"""ReduceMean and ReduceSum."""

from __future__ import annotations

import math

from relutrim.errors import InputError, NetworkError
from relutrim.graph import Scale
from relutrim.graph.operators import Mean
from relutrim.io.onnx.conversion import Call, Operand, Value, handles
from relutrim.io.onnx.handlers.axes import given_axes, own_axes, refuse_batch

_ATTRIBUTES = ("axes", "keepdims", "noop_with_empty_axes")


@handles("ReduceMean", inputs=(1, 2), attributes=_ATTRIBUTES)
def reduce_mean(call: Call) -> Operand:
    """The mean over some axes."""
    return _mean(call, call.value(0), since=18)[0]


@handles("ReduceSum", inputs=(1, 2), attributes=_ATTRIBUTES)
def reduce_sum(call: Call) -> Operand:
    """The sum over some axes: their mean times the number of entries."""
    made, count = _mean(call, call.value(0), since=13)
    return made if count == 1 else call.emit(Scale.exactly(float(count)), made)


def _mean(call: Call, value: Value, since: int) -> tuple[Value, int]:
    """The mean, and over how many entries it is."""
    axes, keep = given_axes(call, since), call.integer("keepdims", 1)
    if keep not in (0, 1):
        raise InputError(f"its keepdims is {keep}; the file is damaged")
    if not axes:
        if call.integer("noop_with_empty_axes", 0):
            return value, 1
        if call.batched:
            refuse_batch("it runs over all axes, the batch among them")
        axes = tuple(range(len(value.shape)))
    own = own_axes(call, value, axes, "it runs over the batch axis")
    count = math.prod(value.shape[axis] for axis in own)
    if not count:
        raise NetworkError(f"it runs over axes of a value of shape {value.shape} that have no entries")
    return (call.emit(Mean(tuple(sorted(own)), bool(keep)), value) if own else value), count
