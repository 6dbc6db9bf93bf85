"""Operators that move numbers and change none; on constants they are carried out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from relutrim.certificate.check.call import Call, Tensor, Value, decoded, handles, size_of
from relutrim.certificate.check.maps import Pick
from relutrim.errors import InputError, UnsupportedError


@handles("Identity")
def identity(call: Call) -> Tensor:
    """The tensor itself."""
    found = call.inputs[0]
    assert found is not None
    return found


@handles("Dropout")
def dropout(call: Call) -> Tensor:
    """The tensor itself, at inference."""
    training = call.given(2)
    if training is not None and (not isinstance(training, np.ndarray) or training.any()):
        raise UnsupportedError("it drops numbers at random")
    return identity(call)


@handles("Constant")
def constant(call: Call) -> Tensor:
    """A stored tensor."""
    (attribute,) = call.node.attribute
    if attribute.name == "value":
        return decoded(attribute.t)
    kinds = {"value_float": np.float32, "value_floats": np.float32}
    kinds |= {"value_int": np.int64, "value_ints": np.int64}  # type: ignore[dict-item]
    return np.asarray(onnx.helper.get_attribute_value(attribute), kinds[attribute.name])


@handles("Shape")
def shape(call: Call) -> Tensor:
    """The sizes of a tensor."""
    found = call.inputs[0]
    shape = found.shape if isinstance(found, np.ndarray) else call.value().shape
    return np.array(shape, np.int64)[call.attribute("start", 0) : call.attribute("end", len(shape))]


@handles("Cast")
def cast(call: Call) -> Tensor:
    """The tensor itself, if the type stays."""
    found = identity(call)
    kept = TensorProto.DOUBLE if call.reader.double else TensorProto.FLOAT
    if isinstance(found, np.ndarray):
        kept = onnx.helper.np_dtype_to_tensor_dtype(found.dtype)
    if call.attribute("to") != kept:
        raise UnsupportedError("it changes the type, which rounds")
    return found


@handles("Reshape")
def reshape(call: Call) -> Tensor:
    """Another shape: 0 copies a size, -1 takes what is left."""
    target, zero = call.numbers(1, "shape") or [], call.attribute("allowzero", 0)

    def change(array: Any) -> Any:
        sizes = [array.shape[i] if n == 0 and not zero else n for i, n in enumerate(target)]
        if -1 not in sizes and math.prod(sizes) != array.size and sizes[0] > 1 == array.shape[0]:
            sizes[0] = 1  # the length of a batch, written out
        return array.reshape(sizes)

    return call.moved(change)


@handles("Flatten")
def flatten(call: Call) -> Tensor:
    """Two axes: those before, those from there on."""
    axis = call.attribute("axis", 1)

    def change(array: Any) -> Any:
        first = axis + array.ndim if axis < 0 else axis
        return array.reshape(math.prod(array.shape[:first]), math.prod(array.shape[first:]))

    return call.moved(change)


@handles("Squeeze")
def squeeze(call: Call) -> Tensor:
    """Axes of length 1 dropped."""
    axes = call.numbers(1, "axes")
    return call.moved(lambda array: np.squeeze(array, None if axes is None else tuple(axes)))


@handles("Unsqueeze")
def unsqueeze(call: Call) -> Tensor:
    """Axes of length 1 inserted."""
    axes = tuple(call.numbers(1, "axes") or ())
    return call.moved(lambda array: np.expand_dims(array, axes))


@handles("Transpose")
def transpose(call: Call) -> Tensor:
    """Another order of the axes."""
    return call.moved(lambda array: np.transpose(array, call.attribute("perm")))


@handles("Slice")
def slice_(call: Call) -> Tensor:
    """``x[start:end:step]`` along axes."""
    starts, ends = call.numbers(1, "starts"), call.numbers(2, "ends")
    if starts is None or ends is None:
        raise InputError("it does not say where to start and to end")
    axes = call.numbers(3, "axes") or list(range(len(starts)))
    steps = call.numbers(4, "steps") or [1] * len(starts)

    def change(array: Any) -> Any:
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
            size = array.shape[axis]
            low, high = (0, size) if step > 0 else (-1, size - 1)
            start, end = (n + size if n < 0 else n for n in (start, end))
            at = range(min(max(start, low if step > 0 else 0), high), min(max(end, low), size), step)
            array = np.take(array, np.array(at, np.int64), axis)
        return array

    return call.moved(change)


@handles("Split")
def split(call: Call) -> list[Tensor]:
    """Parts along an axis."""
    axis, parts, count = call.attribute("axis", 0), call.numbers(1, "split"), len(call.node.output)
    found = call.inputs[0]
    size = (found.shape if isinstance(found, np.ndarray) else call.value().shape)[axis]
    longest = -(-size // count)
    parts = parts or [*[longest] * (count - 1), size - longest * (count - 1)]
    if len(parts) != count or sum(parts) != size or min(parts) < 0:
        raise InputError(f"an axis of {size} does not split into {parts}")
    ends = np.cumsum(parts)

    def part(start: int, end: int) -> Tensor:
        return call.moved(lambda array: np.take(array, np.arange(start, end), axis))

    return [part(int(end) - size, int(end)) for end, size in zip(ends, parts, strict=True)]


@handles("Gather")
def gather(call: Call) -> Tensor:
    """Entries along an axis."""
    indices, axis = call.inputs[1], call.attribute("axis", 0)
    if not isinstance(indices, np.ndarray) or indices.dtype.kind != "i":
        raise UnsupportedError("its indices are not constant integers")
    return call.moved(lambda array: np.take(array, indices, axis))


@handles("Pad")
def pad(call: Call) -> Tensor:
    """A border."""
    value, mode = call.value(), call.attribute("mode", "constant")
    rank, pads = len(value.shape), call.numbers(1, "pads") or []
    axes = [axis % rank for axis in call.numbers(3, "axes") or range(rank)]
    fill = float(call.array(2).reshape(())) if call.given(2) is not None else call.attribute("value", 0.0)
    around = [(0, 0)] * rank
    for axis, before, behind in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        around[axis] = (before, behind)
    cut = tuple(slice(max(0, -a), n + min(0, b)) for (a, b), n in zip(around, value.shape, strict=True))
    widths = [(max(0, a), max(0, b)) for a, b in around]
    size_of([n + a + b for n, (a, b) in zip(value.shape, widths, strict=True)])
    kinds = {"constant": {"constant_values": -1}, "reflect": {}, "edge": {}, "wrap": {}}
    made = call.moved(lambda array: np.pad(array[cut], widths, mode=mode, **kinds[mode]))
    if fill == 0 or mode != "constant" or not isinstance(made, Value):
        return made
    inside = np.pad(np.zeros(value.shape)[cut], widths, constant_values=fill)
    return call.shifted(made, inside)


@handles("Concat")
def concat(call: Call) -> Tensor:
    """Tensors one behind the other."""
    axis, every = call.attribute("axis", 0), call.inputs
    if all(isinstance(one, np.ndarray) for one in every):
        return np.concatenate([np.asarray(one) for one in every], axis)
    total = sum(math.prod(one.shape) for one in every if isinstance(one, Value | np.ndarray))
    size_of([total])
    owners, places, constants = [], [], []
    for number, one in enumerate(every):
        shape = one.shape if isinstance(one, np.ndarray) else call.value(number).shape
        owners.append(np.full(shape, number))
        places.append(np.arange(math.prod(shape)).reshape(shape))
        constants.append(call.array(number) if isinstance(one, np.ndarray) else np.zeros(shape))
    owner, place = np.concatenate(owners, axis), np.concatenate(places, axis)
    values = [k for k, one in enumerate(every) if isinstance(one, Value)]
    maps = [Pick(np.where(owner == k, place, -1).reshape(-1)) for k in values]
    constant = np.concatenate(constants, axis)
    return call.emit(maps, [call.value(k) for k in values], constant.shape, constant.reshape(-1))
