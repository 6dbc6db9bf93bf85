"""What may follow the last affine layer and is carried over untouched."""

from __future__ import annotations

from collections.abc import Mapping

from relutrim.errors import NetworkError, UnsupportedError
from relutrim.graph import TailStep
from relutrim.io.onnx.conversion import Call, Operand, Tail, Value, describe, handles


@handles("Softmax", "LogSoftmax", inputs=(1, 1), attributes=("axis",), behind_tail=True)
def softmax(call: Call) -> Operand:
    """A step of the tail; the reader refuses it where anything but the end of the graph follows."""
    return _step(call, {"axis": _axis(call, _before(call).source)})


@handles("Sigmoid", "Tanh", inputs=(1, 1), behind_tail=True)
def squash(call: Call) -> Operand:
    """A step of the tail that looks at each number alone."""
    return _step(call, {})


def _step(call: Call, attributes: Mapping[str, int]) -> Tail:
    before = _before(call)
    step = TailStep(call.node.op_type, call.output, attributes)
    return Tail(before.source, (*before.steps, step), before.origin)


def _before(call: Call) -> Tail:
    """What the node reads, as a tail that has no step yet if it is a value of the network."""
    operand = call.operand(0)
    return operand if isinstance(operand, Tail) else Tail(call.value(0), (), describe(call.node))


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
