"""Softmax and LogSoftmax: steps of a tail, or within the network."""

from __future__ import annotations

from relutrim.errors import NetworkError, UnsupportedError
from relutrim.graph import Softmax
from relutrim.io.onnx.conversion import BatchAxisError, Call, Operand, Value, handles
from relutrim.io.tails import NO_RANGE


@handles("Softmax", "LogSoftmax", inputs=(1, 1), attributes=("axis",))
def softmax(call: Call) -> Operand:
    """A step of a tail where nothing else reads it; else it may not mix the rows of a batch."""
    value = call.value(0)
    axis = _axis(call, value)
    if call.final:
        return call.step(call.node.op_type, axis=axis)
    if call.node.op_type == "LogSoftmax":
        raise UnsupportedError(f"{NO_RANGE}: cut the model in two there")
    own = axis % (len(value.shape) + call.batched) - call.batched
    if own < 0:
        raise BatchAxisError("it is a softmax along the batch axis")
    return call.emit(Softmax(own), value)


def _axis(call: Call, value: Value) -> int:
    """The axis in the sense of opset 13 and later, where a softmax runs along a single one.

    Before, it ran along all axes from ``axis`` (default 1) on, taken together. Both are the same if at most
    one of them is longer than 1.
    """
    rank = len(value.shape) + call.batched
    joint = call.graph.opset < 13
    given = call.integer("axis", 1 if joint else -1)
    if not -rank <= given < rank and not (joint and given == rank):
        raise NetworkError(f"its axis {given} does not exist in a tensor with {rank} axes")
    if not joint:
        return given
    batch = call.graph.port.batch
    lengths = ([batch if isinstance(batch, int) else 0] if call.batched else []) + list(value.shape)
    first = given % rank if given < rank else rank
    long = [axis for axis in range(first, rank) if lengths[axis] != 1]
    if len(long) > 1 or first == rank:
        raise UnsupportedError(
            f"in opset {call.graph.opset} it runs along all axes from {given} on taken together, which "
            "today's ONNX cannot "
            "say; export the model with opset 13 or newer"
        )
    return long[0] if long else rank - 1
