"""What ONNX operators make, apart from windows: moves, sums, products, and piecewise linear functions.

What only moves numbers is left to ONNX's own reference implementation, which moves their places instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from relutrim.certificate.check.call import Call, Tensor, decoded, places, size_of
from relutrim.certificate.check.maps import Map, Value
from relutrim.certificate.check.rounding import Array, quotient
from relutrim.errors import InputError, UnsupportedError

# Moves.


def _moved(call: Call) -> list[Tensor]:
    """The data's entries are numbered, and the numbers moved; constants are moved themselves."""
    count = len(call.inputs) if call.node.op_type == "Concat" else 1
    if any(isinstance(one, Value) for one in call.inputs[count:]):
        raise UnsupportedError("where it moves what is not constant")
    known = {k: np.asarray(call.inputs[k]) for k in range(count) if call.constant(k)}
    values = [k for k in range(count) if k not in known]
    shapes = [known[k].shape if k in known else call.value(k).shape for k in range(count)]
    starts = np.cumsum([0, *map(size_of, shapes)])
    size_of([starts[-1]])
    if call.node.op_type == "Gather":
        along = shapes[0][call.attribute("axis", 0)]
        size_of([np.asarray(call.inputs[1]).size, starts[1] // max(1, along)])
    _agreed(call, shapes[0])
    if not values:
        return _reference(call, call.inputs)
    numbered = [places(shape) + at for shape, at in zip(shapes, starts[:-1], strict=True)]
    parts = [np.zeros(size_of(shapes[k])) if k in values else call.array(k).reshape(-1) for k in range(count)]
    flat = np.concatenate(parts)

    def made(numbers: Any) -> Value:
        at = numbers.reshape(-1)
        inside = [(at >= starts[k]) & (at < starts[k + 1]) for k in values]
        maps = [Map(np.where(own, at - starts[k], -1)) for own, k in zip(inside, values, strict=True)]
        return call.emit(maps, [call.value(k) for k in values], numbers.shape, flat[at])

    return [made(numbers) for numbers in _reference(call, [*numbered, *call.inputs[count:]])]


def _agreed(call: Call, shape: Sequence[int]) -> None:
    """Refuse where the reference implementation does something else than ONNX says: axes that are not in
    order it takes one after the other, and a start before the first entry it does not move to that entry.
    """
    kind, axes = call.node.op_type, list(call.attribute("axes", ()))
    if kind in ("Squeeze", "Unsqueeze") and len(axes) > 1 and (min(axes) < 0 or axes != sorted(set(axes))):
        raise UnsupportedError(f"its axes {axes} are not in order")
    if kind == "Slice" and call.given(4) is not None:
        starts, steps = call.numbers(1, "starts") or [], call.numbers(4, "steps") or []
        along = call.numbers(3, "axes") or range(len(starts))
        if any(d < 0 and s < -shape[a] for s, a, d in zip(starts, along, steps, strict=True)):
            raise UnsupportedError(f"it begins at {starts}, before the first entry, and goes back")


def _reference(call: Call, inputs: list[Any]) -> list[Any]:
    """What ONNX's reference implementation makes of arrays."""
    names = [f"i{k}" if one is not None else "" for k, one in enumerate(inputs)]
    node = onnx.NodeProto()
    node.CopyFrom(call.node)
    node.input[:] = names
    node.output[:] = [f"o{k}" for k in range(len(node.output))]
    entries = [
        [helper.make_tensor_value_info(name, TensorProto.INT64, None) for name in every if name]
        for every in (names, node.output)
    ]
    opset = [helper.make_opsetid("", call.draft.opset)]
    model = helper.make_model(helper.make_graph([node], "moves", *entries), opset_imports=opset)
    given = {name: one for name, one in zip(names, inputs, strict=True) if name}
    return [np.asarray(one) for one in ReferenceEvaluator(model).run(None, given)]


def _identity(call: Call) -> Tensor:
    """The tensor itself; nothing is dropped at inference."""
    training, found = call.given(2), call.inputs[0]
    if training is not None and (not isinstance(training, np.ndarray) or training.any()):
        raise UnsupportedError("it drops numbers at random")
    return call.value() if found is None else found


def _constant(call: Call) -> Tensor:
    """A stored tensor."""
    (attribute,) = call.node.attribute
    if attribute.name == "value":
        return decoded(attribute.t)
    kinds = {"value_float": np.float32, "value_floats": np.float32}
    kinds |= {"value_int": np.int64, "value_ints": np.int64}  # type: ignore[dict-item]
    return np.asarray(helper.get_attribute_value(attribute), kinds[attribute.name])


def _shape(call: Call) -> Tensor:
    """The sizes of a tensor."""
    found = call.inputs[0] if call.constant(0) else call.value()
    sizes = np.array(found.shape, np.int64)  # type: ignore[union-attr]
    return sizes[call.attribute("start", 0) : call.attribute("end", len(sizes))]


def _cast(call: Call) -> Tensor:
    """The tensor itself, if the type stays."""
    found, kept = call.inputs[0], TensorProto.DOUBLE if call.draft.double else TensorProto.FLOAT
    if isinstance(found, np.ndarray):
        kept = helper.np_dtype_to_tensor_dtype(found.dtype)
    if call.attribute("to") != kept:
        raise UnsupportedError("it changes the type, which rounds")
    return _identity(call)


def _reshape(call: Call) -> Tensor:
    """Another shape: 0 copies a size, -1 takes what is left."""
    array = np.asarray(call.inputs[0]) if call.constant(0) else places(call.value().shape)
    target, zero = call.numbers(1, "shape") or [], call.attribute("allowzero", 0)
    sizes = [array.shape[i] if n == 0 and not zero else n for i, n in enumerate(target)]
    if -1 not in sizes and math.prod(sizes) != array.size and sizes[0] > 1 == array.shape[0]:
        sizes[0] = 1  # the length of a batch, written out
    made = array.reshape(sizes)
    return made if call.constant(0) else Value(call.value().number, made.shape)


def _pad(call: Call) -> Tensor:
    """A border; a negative one cuts."""
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
    at = np.pad(places(value.shape)[cut], widths, mode=mode, **kinds[mode])
    return call.emit([Map(at.reshape(-1))], [value], at.shape, np.where(at < 0, fill, 0.0).reshape(-1))


# Sums and products.


def _added(call: Call) -> Tensor:
    """The sum of values and constants."""
    numbers = range(len(call.inputs))
    total = call.sum(*((1.0, call.value(k)) for k in numbers if not call.constant(k)))
    for k in filter(call.constant, numbers):
        total = call.sum((1.0, total), plus=call.array(k))
    return total


def _subtracted(call: Call) -> Tensor:
    if call.constant(1):
        return call.sum((1.0, call.value(0)), plus=-call.array(1))
    if call.constant(0):
        return call.sum((-1.0, call.value(1)), plus=call.array(0))
    return call.sum((1.0, call.value(0)), (-1.0, call.value(1)))


def _multiplied(call: Call) -> Tensor:
    side = int(call.constant(1))
    return call.sum((call.array(side), call.value(1 - side)))


def _divided(call: Call) -> Tensor:
    if not call.array(1).all():
        raise InputError("it divides by zero")
    factor, radius = quotient(call.array(1))
    return call.sum((factor, call.value(0)), radius=radius)


def _batch_normalised(call: Call) -> Tensor:
    """``gain (x - mean) / sqrt(variance + epsilon) + bias`` along axis 1."""
    if call.attribute("training_mode", 0) or any(call.node.output[1:]):
        raise UnsupportedError("it is in training mode")
    if not call.attribute("spatial", 1) or any(
        call.array(k).shape != call.value().shape[1:2] for k in range(1, 5)
    ):
        raise UnsupportedError("it has other numbers than one per channel")
    shape = (1, -1, *(1,) * (len(call.value().shape) - 2))
    gain, bias, mean, variance = (call.array(k).reshape(shape) for k in range(1, 5))
    spread = np.sqrt(variance + call.attribute("epsilon", float(np.float32(1e-5))))
    # var + eps, its root and the quotient: three relative roundings.
    factor, radius = quotient(spread, gain, roundings=3)
    return call.sum((factor, call.sum((1.0, call.value()), plus=-mean)), plus=bias, radius=radius)


def _product(call: Call, weight: Array, value: Value, *, left: bool, flip: bool = False) -> Value:
    """``W x`` or ``x W`` over the last two axes, by numpy's rules; ``flip``: with ``x`` transposed."""
    at = places(value.shape).swapaxes(-1, -2) if flip else places(value.shape)
    matrix = np.atleast_2d(weight if left else weight.T)  # (outputs, entries)
    rows = at.swapaxes(-1, -2) if left and at.ndim > 1 else np.atleast_2d(at)  # (..., windows, entries)
    if rows.shape[-1] != matrix.shape[1]:
        raise InputError(f"a matrix of shape {weight.shape} does not fit a tensor of shape {value.shape}")
    *lead, count, width = rows.shape
    index = rows.reshape(math.prod(lead), count, width)
    wide = np.broadcast_to(matrix, (len(index), *matrix.shape))
    made = call.emit([Map(index, wide)], [value], [*lead, len(matrix), count])
    ends = [len(matrix)] * (weight.ndim > 1), [count] * (at.ndim > 1)
    if left:
        return Value(made.number, (*lead, *ends[0], *ends[1]))
    turned = places(made.shape).swapaxes(-1, -2)
    return call.emit([Map(turned.reshape(-1))], [made], (*lead, *ends[1], *ends[0]))


def _mat_mul(call: Call) -> Tensor:
    left = call.constant(0)
    weight, value = call.array(int(not left)), call.value(int(left))
    while weight.ndim > 2 and weight.shape[0] == 1 and weight.ndim <= len(value.shape):
        weight = weight[0]
    if weight.ndim > 2:
        raise UnsupportedError(f"a stack of matrices of shape {weight.shape}")
    return _product(call, weight, value, left=left)


def _gemm(call: Call) -> Tensor:
    """``alpha A' B' + beta C``."""
    alpha, beta = call.attribute("alpha", 1.0), call.attribute("beta", 1.0)
    left, flips = call.constant(0), [call.attribute("transA", 0), call.attribute("transB", 0)]
    weight, value = call.array(int(not left)), call.value(int(left))
    weight = weight.T if flips[int(not left)] else weight
    made = _product(call, weight, value, left=left, flip=bool(flips[int(left)]))
    added = call.given(2)
    if added is None or not beta:
        return call.sum((alpha, made))
    if np.broadcast_shapes(made.shape, added.shape) != made.shape:
        raise InputError(f"{added.shape} numbers cannot be added to {made.shape}")
    if not call.constant(2):
        return call.sum((alpha, made), (beta, call.value(2)))
    if beta not in (1.0, -1.0) and call.draft.double:
        raise UnsupportedError(f"beta = {beta} times a float64 constant, which rounds")
    return call.sum((1.0, call.sum((alpha, made))), plus=beta * call.array(2))


def _tail(call: Call) -> Tensor:
    """A step behind the last layer, by what it says about itself."""
    before = call.inputs[0]
    if not isinstance(before, Value):
        raise UnsupportedError("it computes with constants alone")
    default = 1 if call.draft.opset < 13 else -1
    axis = int(call.attribute("axis", default)) % max(1, len(before.shape))
    along = f" axis {axis} opset {'<13' if default == 1 else '13'}" if "Soft" in call.node.op_type else ""
    if default == 1 and all(size == 1 for size in before.shape[axis + 1 :]):
        along = f" axis {axis} opset 13"
    return Value(before.number, before.shape, (*before.steps, f"{call.node.op_type}{along}"))


# Piecewise linear functions as sums of ReLUs, exact over the real numbers.


def _leaky(call: Call, slope: Any) -> Tensor:
    """``x`` where positive, else ``slope x``: ``relu(x) - slope relu(-x)``."""
    off = call.relu(call.sum((-1.0, call.value())))
    return call.sum((1.0, call.relu(call.value())), (-np.asarray(slope, np.float64), off))


def _clip(call: Call) -> Tensor:
    """``min(max(x, low), high)``; beyond the largest number of the type there is no limit."""
    most = float(np.finfo(np.float64 if call.draft.double else np.float32).max)
    given = {"min": call.given(1), "max": call.given(2)}
    low, high = (
        call.attribute(name) if one is None else float(np.asarray(one).reshape(()))
        for name, one in given.items()
    )
    low = None if low is None or low <= -most else np.array(low)
    return _clipped(call, call.value(), low, None if high is None or high >= most else np.array(high))


def _clipped(call: Call, value: Value, low: Any, high: Any) -> Value:
    """``low + relu(x - low) - relu(x - high)``, or ``high - relu(high - x)``."""
    if low is not None and high is not None and not np.all(low <= high):
        raise UnsupportedError(f"limits {low} and {high}")
    if low is not None:
        parts = [(1.0, call.relu(call.sum((1.0, value), plus=-low)))]
        if high is not None:
            parts.append((-1.0, call.relu(call.sum((1.0, value), plus=-high))))
        return call.sum(*parts, plus=low)
    if high is None:
        return value
    return call.sum((-1.0, call.relu(call.sum((-1.0, value), plus=high))), plus=high)


def _hard_sigmoid(call: Call) -> Tensor:
    """``min(max(alpha x + beta, 0), 1)``."""
    alpha, beta = call.attribute("alpha", float(np.float32(0.2))), call.attribute("beta", 0.5)
    return _clipped(call, call.sum((alpha, call.value()), plus=beta), np.zeros(()), np.ones(()))


def _extreme(call: Call, sign: float) -> Tensor:
    """``max(x, y) = x + relu(y - x)``, ``min(x, y) = x - relu(x - y)``; with constants by clipping."""
    numbers = range(len(call.inputs))
    found, *others = dict.fromkeys(call.value(k) for k in numbers if not call.constant(k))
    for other in others:
        found = call.sum((1.0, found), (sign, call.relu(call.sum((sign, other), (-sign, found)))))
    for k in filter(call.constant, numbers):
        limits = (call.array(k), None) if sign > 0 else (None, call.array(k))
        found = _clipped(call, found, *limits)
    return found


HANDLERS: dict[str, Callable[[Call], Any]] = {
    **dict.fromkeys(("Concat", "Flatten", "Gather", "Slice", "Split", "Squeeze"), _moved),
    **dict.fromkeys(("Transpose", "Unsqueeze"), _moved),
    **dict.fromkeys(("Identity", "Dropout"), _identity),
    "Constant": _constant,
    "Shape": _shape,
    "Cast": _cast,
    "Reshape": _reshape,
    "Pad": _pad,
    **dict.fromkeys(("Add", "Sum"), _added),
    "Sub": _subtracted,
    "Mul": _multiplied,
    "Div": _divided,
    "Neg": lambda call: call.sum((-1.0, call.value())),
    "BatchNormalization": _batch_normalised,
    "MatMul": _mat_mul,
    "Gemm": _gemm,
    **dict.fromkeys(("Softmax", "LogSoftmax", "Sigmoid", "Tanh"), _tail),
    "Relu": lambda call: call.relu(call.value()),
    "LeakyRelu": lambda call: _leaky(call, call.attribute("alpha", float(np.float32(0.01)))),
    "PRelu": lambda call: _leaky(call, call.array(1)),
    "Abs": lambda call: _leaky(call, -1.0),
    "Clip": _clip,
    "HardSigmoid": _hard_sigmoid,
    "Max": lambda call: _extreme(call, 1.0),
    "Min": lambda call: _extreme(call, -1.0),
}
"""What each operator makes: a tensor, or a list of them."""
