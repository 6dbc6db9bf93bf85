"""Slice, Split, Gather and Pad: entries picked along axes. On constants they are carried out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relutrim.errors import InputError, NetworkError, UnsupportedError
from relutrim.graph import Scale
from relutrim.io.onnx.conversion import Call, Operand, handles
from relutrim.io.onnx.handlers.axes import normalised, refuse_batch
from relutrim.io.picks import blank, gathered, padded, sliced


@handles("Slice", inputs=(1, 5), attributes=("axes", "ends", "starts"))
def slice_(call: Call) -> Operand:
    """``x[start:end:step]`` along some axes."""
    if call.graph.opset < 10:
        starts, ends, axes = (call.integer_list(name) for name in ("starts", "ends", "axes"))
        steps = None
        if call.count > 1:
            raise InputError("its limits are inputs, which opset 10 introduced; the file is damaged")
    else:
        starts, ends, axes, steps = (call.integers(k) if call.has(k) else None for k in range(1, 5))
    if starts is None or ends is None:
        raise InputError("it does not say where to start and to end")
    axes = tuple(range(len(starts))) if axes is None else axes
    steps = (1,) * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise InputError(f"its starts {starts}, ends {ends}, axes {axes} and steps {steps} are not as many")
    if any(step < 0 and end >= 2**31 - 1 for end, step in zip(ends, steps, strict=True)):
        raise UnsupportedError(
            f"it goes back, by steps {steps}, to ends {ends}: to behind the last entry by the specification, "
            "which is nothing, and to the first one in onnxruntime; say where it ends"
        )
    operand, shape, batched = call.sizes(0)
    numbers = zip(starts, ends, steps, strict=True)
    limits = dict(zip(normalised(axes, len(shape) + batched), numbers, strict=True))
    if batched and 0 in limits:
        _check_whole_batch(call, *limits.pop(0))
    own = {axis - batched: limits[axis] for axis in limits}
    return call.picked(operand, {axis: sliced(shape[axis], *own[axis]) for axis in own})


@handles("Split", inputs=(1, 2), attributes=("axis", "num_outputs", "split"))
def split(call: Call) -> Sequence[Operand | None]:
    """Parts of a value along an axis, one per output."""
    operand, shape, batched = call.sizes(0)
    (axis,) = normalised([call.integer("axis", 0)], len(shape) + batched)
    if batched and axis == 0:
        refuse_batch("it splits the batch")
    own = axis - batched
    parts = _parts(call, shape[own], len(call.node.output))
    used = [bool(name) and name in call.graph.readers for name in call.node.output]
    return [
        call.picked(operand, {own: np.arange(end - part, end, dtype=np.int64)}) if wanted else None
        for part, end, wanted in zip(parts, np.cumsum(parts), used, strict=True)
    ]


@handles("Gather", inputs=(2, 2), attributes=("axis",))
def gather(call: Call) -> Operand:
    """``x[..., indices, ...]``; the axis is replaced by the axes of the indices."""
    constant = call.constant(1)
    if constant.array.dtype.kind != "i":
        raise InputError(f"the tensor {constant.name!r} should hold integers and is {constant.type_name}")
    operand, shape, batched = call.sizes(0)
    (axis,) = normalised([call.integer("axis", 0)], len(shape) + batched)
    if batched and axis == 0:
        refuse_batch("it takes rows out of the batch")
    own = axis - batched
    indices = gathered(shape[own], constant.array)
    made = call.picked(operand, {own: indices.reshape(-1)})
    return call.moved(made, (*shape[:own], *indices.shape, *shape[own + 1 :]))


@handles("Pad", inputs=(1, 4), attributes=("mode", "pads", "value"))
def pad(call: Call) -> Operand:
    """A border of a constant, or of entries of the value itself."""
    value, mode = call.value(0), call.text("mode", "constant")
    rank = len(value.shape) + call.batched
    axes: Sequence[int] = range(rank)
    if call.graph.opset < 11:
        pads, constant = call.integer_list("pads"), call.number("value", 0.0)
    else:
        pads = call.integers(1) if call.has(1) else None
        constant = _number(call, 2) if call.has(2) else 0.0
        if call.has(3):
            axes = normalised(call.integers(3), rank)
    if pads is None or len(pads) != 2 * len(axes):
        raise InputError(f"its pads {pads} should be two numbers for each of {len(axes)} axes")
    around = dict(zip(axes, zip(pads[: len(axes)], pads[len(axes) :], strict=True), strict=True))
    if call.batched and any(around.pop(0, (0, 0))):
        refuse_batch("it pads the batch")
    own = {axis - call.batched: pair for axis, pair in around.items()}
    picks = padded(value.shape, own, mode)
    made = call.graph.picked(value, picks)
    if mode != "constant" or constant == 0 or made is value:
        return made
    call.graph.room.take(made.shape, "its border is an array")
    border = blank([picks.get(axis) for axis in range(len(value.shape))], made.shape)
    return call.emit(Scale.exactly(shift=np.where(border, constant, 0.0)), made)


def _check_whole_batch(call: Call, start: int, end: int, step: int) -> None:
    batch = call.graph.port.batch
    known = batch if isinstance(batch, int) else None
    whole = start == 0 or (known is not None and start <= -known)
    if step != 1 or not whole or end < (2**31 - 1 if known is None else known):
        refuse_batch("it takes rows out of the batch")


def _parts(call: Call, size: int, count: int) -> list[int]:
    """How long each part is."""
    legacy = call.graph.opset < 13
    if (call.has(1) and legacy) or (call.integer_list("split") is not None and not legacy):
        raise InputError(f"its parts are not given as opset {call.graph.opset} does; the file is damaged")
    parts = call.integers(1) if call.has(1) else call.integer_list("split")
    if parts is None:
        said = call.integer("num_outputs", count if call.graph.opset < 18 else 0)
        if said != count:
            raise InputError(f"it says it has {said} results and has {count}; the file is damaged")
        longest = -(-size // count)
        if longest * (count - 1) >= size:
            raise NetworkError(f"an axis of {size} is too short for {count} parts")
        parts = (*(longest,) * (count - 1), size - longest * (count - 1))
        if call.graph.opset < 18 and size % count:
            raise NetworkError(f"an axis of {size} cannot be split into {count} equal parts")
    if len(parts) != count or sum(parts) != size or min(parts) < 0:
        raise NetworkError(f"an axis of {size} cannot be split into {count} parts of {parts}")
    return list(parts)


def _number(call: Call, index: int) -> float:
    numbers = call.weights(index)
    if numbers.size != 1:
        raise InputError(f"its constant should be one number and has the shape {numbers.shape}")
    return float(numbers.reshape(()))
