"""Operators that move numbers and change none: Flatten, Reshape, Squeeze, Transpose, Identity, Dropout, ...

On constants they are carried out, for exporters write weights that way; on values they become a Reshape or a
Transpose, or are refused where numbers would leave the batch axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from onnx import TensorProto, helper

from relutrim.errors import InputError, NetworkError, UnsupportedError
from relutrim.graph.operators import Shape, Transpose
from relutrim.io.onnx.conversion import Call, Operand, Value, handles
from relutrim.io.onnx.handlers.axes import given_axes, normalised, refuse_batch
from relutrim.io.onnx.tensors import BATCH_SIZE, FLOATS, STORED, Constant, type_name

_EXACT = {kind: helper.tensor_dtype_to_np_dtype(kind) for kind in STORED}


@handles("Identity", inputs=(1, 1))
def identity(call: Call) -> Operand:
    """The tensor itself."""
    operand = call.operand(0)
    return call.step("Identity") if isinstance(operand, Value) and operand.tail else operand


@handles("Dropout", inputs=(1, 3), attributes=("ratio", "seed"))
def dropout(call: Call) -> Operand:
    """The tensor itself, at inference."""
    if call.has(2) and call.constant(2).array.any():
        raise UnsupportedError("it drops numbers at random (training_mode)")
    return identity(call)


@handles("Cast", inputs=(1, 1), attributes=("to", "saturate", "round_mode"))
def cast(call: Call) -> Operand:
    """The tensor itself, if the type stays."""
    operand, target = call.operand(0), call.integer("to", 0)
    if isinstance(operand, Constant) and target in _EXACT and operand.kind in _EXACT:
        array = operand.array.astype(_EXACT[target])
        if array.dtype == operand.array.dtype:
            return operand
        if np.array_equal(array.astype(operand.array.dtype), operand.array):
            return Constant(call.output, target, array)
    elif FLOATS.get(target) == call.graph.dtype and not isinstance(operand, Constant):
        return operand
    raise UnsupportedError(f"it converts to {type_name(target)}, which rounds")


@handles("Flatten", inputs=(1, 1), attributes=("axis",))
def flatten(call: Call) -> Operand:
    """Two axes: all before ``axis`` as one, all from it on as the other."""
    (operand, shape, batched), given = call.sizes(0), call.integer("axis", 1)
    rank = len(shape) + batched
    if not -rank <= given <= rank:
        raise NetworkError(f"its axis {given} does not exist in a tensor with {rank} axes")
    axis = given + rank if given < 0 else given
    if not batched:
        return call.moved(operand, (math.prod(shape[:axis]), math.prod(shape[axis:])))
    if axis == 0 and call.graph.port.batch != 1:
        refuse_batch("it flattens the batch into one row")
    rest = max(axis - 1, 0)
    if math.prod(shape[:rest]) != 1:
        refuse_batch(f"it flattens from axis {axis} on, so that other axes join the batch")
    return call.moved(operand, (math.prod(shape[rest:]),))


@handles("Reshape", inputs=(2, 2), attributes=("allowzero",))
def reshape(call: Call) -> Operand:
    """A constant shape, in which 0 copies an axis and -1 takes what is left."""
    (operand, shape, batched), target = call.sizes(0), call.integers(1, batch=True)
    copies = not call.integer("allowzero", 0)
    open_batch = target[:1] == (BATCH_SIZE,)
    if open_batch and (isinstance(operand, Constant) or not isinstance(call.graph.port.batch, str)):
        raise UnsupportedError("it gives a tensor without that axis the open batch size")
    if any(size < -1 for size in target[open_batch:]) or target.count(-1) > 1:
        raise InputError(f"the shape {target} is not one a tensor can have")
    found = _row_shape(call, shape, target, copies) if batched else _resolved(shape, target, copies)
    return call.moved(operand, found)


@handles("Squeeze", inputs=(1, 2), attributes=("axes",))
def squeeze(call: Call) -> Operand:
    """Drop axes of length 1."""
    (operand, shape, batched), axes = call.sizes(0), given_axes(call, 13)
    if axes == ():
        raise UnsupportedError("its list of axes is empty, which some runtimes take for all axes of length 1")
    if not batched:
        return call.moved(operand, _squeezed(shape, axes))
    batch, rank = call.graph.port.batch, len(shape) + 1
    if axes is None and not (isinstance(batch, int) and batch > 1):
        refuse_batch("it drops all axes of length 1, the batch axis among them if the batch is 1")
    if axes is not None:
        axes = normalised(axes, rank)
        if 0 in axes:
            refuse_batch("it drops the batch axis")
        axes = tuple(axis - 1 for axis in axes)
    return call.moved(operand, _squeezed(shape, axes))


@handles("Unsqueeze", inputs=(1, 2), attributes=("axes",))
def unsqueeze(call: Call) -> Operand:
    """Insert axes of length 1, which are counted in the result."""
    (operand, shape, batched), axes = call.sizes(0), given_axes(call, 13)
    if axes is None:
        raise InputError("it does not say which axes to insert")
    if not batched:
        return call.moved(operand, _unsqueezed(shape, axes))
    axes = normalised(axes, len(shape) + 1 + len(axes))
    if 0 in axes:
        refuse_batch("it inserts an axis in front of the batch")
    return call.moved(operand, _unsqueezed(shape, tuple(axis - 1 for axis in axes)))


@handles("Transpose", inputs=(1, 1), attributes=("perm",))
def transpose(call: Call) -> Operand:
    """Another order of the axes; where the numbers of a value stay in theirs, it is a reshape."""
    operand, shape, batched = call.sizes(0)
    rank, given = len(shape) + batched, call.integer_list("perm")
    order = tuple(reversed(range(rank))) if given is None else given
    if sorted(order) != list(range(rank)):
        raise InputError(f"{order} is not an order of {rank} axes")
    if isinstance(operand, Constant):
        return replace(operand, tensor=np.transpose(operand.array, order))
    if batched:
        if order[0] != 0:
            refuse_batch("it moves the batch axis")
        order = tuple(axis - 1 for axis in order[1:])
    long = [axis for axis in order if shape[axis] != 1]
    if long != sorted(long):
        return call.emit(Transpose(order), operand)
    return call.moved(operand, tuple(shape[axis] for axis in order))


@handles("Shape", inputs=(1, 1), attributes=("end", "start"))
def shape_of(call: Call) -> Operand:
    """The sizes of a tensor. Where more of a value's is read than its first, the value must stay as it is."""
    operand, sizes, batched = call.sizes(0)
    if batched:
        batch = call.graph.port.batch
        sizes = (batch if isinstance(batch, int) else BATCH_SIZE, *sizes)
    wanted = range(len(sizes))[call.integer("start", 0) : call.integer("end", len(sizes))]
    if isinstance(operand, Value) and not call.batched and sizes[:1] != (1,):
        call.graph.pin(operand)
    elif isinstance(operand, Value) and any(wanted):
        call.graph.measured.append((operand, call.output))
    return Constant(call.output, TensorProto.INT64, np.array([sizes[k] for k in wanted], np.int64))


def _resolved(shape: Shape, target: Sequence[int], copies: bool) -> Shape:
    """``target`` with 0 and -1 replaced by numbers, for a tensor of ``shape``."""
    if copies and any(size == 0 and axis >= len(shape) for axis, size in enumerate(target)):
        raise NetworkError(
            f"the shape {tuple(target)} copies an axis that a tensor of shape {shape} does not have"
        )
    sizes = [shape[axis] if size == 0 and copies else size for axis, size in enumerate(target)]
    known, total = math.prod(size for size in sizes if size != -1), math.prod(shape)
    if -1 in sizes and known and total % known == 0:
        sizes[sizes.index(-1)] = total // known
    if -1 in sizes or math.prod(sizes) != total:
        raise NetworkError(f"a tensor of shape {shape} cannot be given the shape {tuple(target)}")
    return tuple(sizes)


def _row_shape(call: Call, shape: Shape, target: Sequence[int], copies: bool) -> Shape:
    """What ``target`` makes of a single row, provided that axis 0 stays the batch."""
    batch = call.graph.port.batch
    if not target:
        refuse_batch("it drops the batch axis")
    if target[0] == -1:
        # The batch is what is left over, if the rest takes one row whole.
        rest = [
            shape[axis] if size == 0 and copies and axis < len(shape) else size
            for axis, size in enumerate(target[1:])
        ]
        if math.prod(rest) != math.prod(shape):
            refuse_batch(f"the shape {tuple(target)} splits or joins rows of a batch of shape {shape}")
    elif target[0] not in (batch, BATCH_SIZE) and not (target[0] == 0 and copies):
        refuse_batch(f"the shape {tuple(target)} does not keep the batch axis of {batch!r}")
    # With a stand-in of length 1 for the batch, the rest is as for any tensor.
    return _resolved((1, *shape), [1, *target[1:]], copies)[1:]


def _squeezed(shape: Shape, axes: Sequence[int] | None) -> Shape:
    if axes is None:
        return tuple(size for size in shape if size != 1)
    dropped = normalised(axes, len(shape))
    if any(shape[axis] != 1 for axis in dropped):
        raise NetworkError(
            f"it drops axes {tuple(axes)} of a tensor of shape {shape}, which are not all of length 1"
        )
    return tuple(size for axis, size in enumerate(shape) if axis not in dropped)


def _unsqueezed(shape: Shape, axes: Sequence[int]) -> Shape:
    inserted = normalised(axes, len(shape) + len(axes))
    sizes = iter(shape)
    return tuple(1 if axis in inserted else next(sizes) for axis in range(len(shape) + len(axes)))
