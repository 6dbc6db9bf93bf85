"""What ONNX operators make, apart from windows: moves, sums, products, and slopes on both sides of 0.

What only moves numbers is left to ONNX's own reference implementation, which moves their places instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from relutrim.certificate.check.call import Call, Tensor, decoded, places, size_of
from relutrim.certificate.check.maps import Map, Value
from relutrim.certificate.check.rounding import Array, quotient
from relutrim.errors import InputError, UnsupportedError

_FAR = 2.0**64
"""How large the ends of a clip may be."""

# Moves.


def _moved(call: Call) -> list[Tensor]:
    """The data's entries are numbered, and the numbers moved; constants are moved themselves."""
    kind, inputs = call.node.op_type, list(call.inputs)
    count = len(inputs) if kind == "Concat" else 1
    if any(isinstance(one, Value) for one in inputs[count:]):
        raise UnsupportedError("where it moves what is not constant")
    data = [one if isinstance(one, np.ndarray) else call.value(k) for k, one in enumerate(inputs[:count])]
    starts = np.cumsum([0, *(size_of(one.shape) for one in data)])
    size_of([starts[-1]])
    _agreed(call, data[0].shape)
    if all(isinstance(one, np.ndarray) for one in data):
        return _reference(call, inputs)
    inputs[:count] = [places(one.shape) + at for one, at in zip(data, starts[:-1], strict=True)]
    flat = [np.zeros(one.shape) if isinstance(one, Value) else call.array(k) for k, one in enumerate(data)]
    fill = call.array(2).item() if kind == "Pad" and call.given(2) is not None else 0.0
    numbers = np.concatenate([*(part.reshape(-1) for part in flat), [fill]])
    inputs = [*inputs[:2], np.array(-1)] if kind == "Pad" else inputs

    def made(moved: Any) -> Value:
        at, values = moved.reshape(-1), [k for k, one in enumerate(data) if isinstance(one, Value)]
        call.draft.reserve(len(values) * at.size)
        maps = [Map(np.where((at >= starts[k]) & (at < starts[k + 1]), at - starts[k], -1)) for k in values]
        return call.emit(maps, [call.value(k) for k in values], moved.shape, numbers[at])

    return [made(moved) for moved in _reference(call, inputs)]


def _agreed(call: Call, shape: tuple[int, ...]) -> None:
    """Refuse what would take too much, and where the reference implementation does something else than ONNX
    says, or than runtimes do: axes that are not in order it takes one after the other, and none as none
    (others squeeze all); going back, it does not move a start before the first entry to that entry, nor an
    end behind the last to the first; and it splits into as many parts as the attribute says.
    """
    kind, axes = call.node.op_type, list(call.attribute("axes", ()))
    if kind in ("Squeeze", "Unsqueeze") and len(axes) > 1 and (min(axes) < 0 or axes != sorted(set(axes))):
        raise UnsupportedError(f"its axes {axes} are not in order")
    if kind == "Squeeze" and call.given(1) is not None and not call.numbers(1, "axes"):
        raise UnsupportedError("it has a list of axes that is empty")
    if kind == "Flatten" and not -len(shape) <= call.attribute("axis", 1) <= len(shape):
        raise InputError(f"it has no axis {call.attribute('axis', 1)}")
    if kind == "Split":
        _split_agreed(call, shape[call.attribute("axis", 0)])
    if kind == "Slice" and call.given(3) is not None:
        named = [range(len(shape))[axis] for axis in call.numbers(3, "axes") or []]
        if len(set(named)) != len(named):
            raise InputError(f"its axes {named} name one twice")
    if kind == "Slice" and call.given(4) is not None:
        starts, ends, steps = (call.numbers(k, "") or [] for k in (1, 2, 4))
        along = call.numbers(3, "axes") or range(len(starts))
        for start, end, axis, step in zip(starts, ends, along, steps, strict=True):
            if step < 0 and (start < -shape[axis] or end >= shape[axis]):
                raise UnsupportedError(f"it goes back from {start} to {end}, and there are {shape[axis]}")
    if kind == "Gather":
        along = max(1, shape[call.attribute("axis", 0)])
        size_of([np.asarray(call.inputs[1]).size, math.prod(shape) // along])
    if kind == "Pad":
        pads = call.numbers(1, "") or []
        plain = call.attribute("mode", "constant") == "constant" and len(call.inputs) < 4
        if not plain or len(pads) != 2 * len(shape):
            raise UnsupportedError("it is no border of one number, with a width for every axis")
        size_of([n + a + b for n, a, b in zip(shape, pads, pads[len(shape) :], strict=False)])


def _split_agreed(call: Call, size: int) -> None:
    """Refuse parts that are not those of an axis of this size; the reference implementation takes what there
    is.
    """
    count, older = len(call.node.output), call.draft.opset < 18
    parts = call.numbers(1, "split")
    if parts is None:
        if call.attribute("num_outputs", count if older else None) != count:
            raise UnsupportedError(f"it has {count} outputs, and says another number")
        longest = -(-size // count)
        if longest * (count - 1) >= size or (older and size % count):
            raise InputError(f"an axis of {size} is not split into {count} parts")
    elif len(parts) != count or min(parts) < 0 or sum(parts) != size:
        raise InputError(f"an axis of {size} is not split into parts of {parts}")


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
    if call.given(2) is not None:
        raise UnsupportedError("it may drop numbers at random")
    return call.value() if call.inputs[0] is None else call.inputs[0]


def _constant(call: Call) -> Tensor:
    """A stored tensor."""
    (attribute,) = call.node.attribute
    if attribute.name != "value":
        raise UnsupportedError(f"it holds a {attribute.name}, not a tensor")
    return decoded(attribute.t)


def _shape(call: Call) -> Tensor:
    """The sizes of a value."""
    if call.node.attribute:
        raise UnsupportedError("it makes a part of the shape only")
    return np.array(call.value().shape, np.int64)


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
    shape = call.value().shape
    if not call.attribute("spatial", 1) or any(call.array(k).shape != shape[1:2] for k in range(1, 5)):
        raise UnsupportedError("it has other numbers than one per channel")
    gain, bias, mean, variance = (call.array(k).reshape(1, -1, *(1,) * (len(shape) - 2)) for k in range(1, 5))
    spread = np.sqrt(variance + call.attribute("epsilon", float(np.float32(1e-5))))
    # var + eps, its root and the quotient: three relative roundings.
    factor, radius = quotient(spread, gain, roundings=3)
    return call.sum((factor, call.sum((1.0, call.value()), plus=-mean)), plus=bias, radius=radius)


def _product(call: Call, weight: Array) -> Value:
    """``x W`` over the last axis of ``x``."""
    *lead, width = call.value().shape
    if weight.ndim != 2 or len(weight) != width:
        raise UnsupportedError(f"a weight of shape {weight.shape} for a tensor of shape {(*lead, width)}")
    rows, outputs = places([*lead, width]).reshape(1, math.prod(lead), width), weight.shape[1]
    made = call.emit([Map(rows, weight.T[None])], [call.value()], [outputs, rows.shape[1]])
    return call.emit([Map(places(made.shape).T.reshape(-1))], [made], [*lead, outputs])


def _gemm(call: Call) -> Tensor:
    """``A B' + C``."""
    if call.attribute("alpha", 1.0) != 1 or call.attribute("beta", 1.0) != 1 or call.attribute("transA", 0):
        raise UnsupportedError("alpha, beta and transA, where they change something")
    made = _product(call, call.array(1).T if call.attribute("transB", 0) else call.array(1))
    if call.given(2) is None:
        return made
    total = call.sum((1.0, made), plus=call.array(2))
    if total.shape != made.shape:
        raise InputError(f"{call.array(2).shape} numbers cannot be added to {made.shape}")
    return total


def _leaky(call: Call, slope: Any) -> Tensor:
    """``x`` where positive, else ``slope x``: ``relu(x) - slope relu(-x)``."""
    off = call.relu(call.sum((-1.0, call.value())))
    return call.sum((1.0, call.relu(call.value())), (-np.asarray(slope, np.float64), off))


def _clipped(call: Call) -> Tensor:
    """``min(b, max(a, x)) = b - relu(b - m)`` with ``m = a + relu(x - a)``."""
    value, older = call.value(), call.draft.opset < 11
    ends: list[Any] = [
        call.attribute(name) if older else call.given(at) for at, name in ((1, "min"), (2, "max"))
    ]
    low, high = (
        None if end is None else np.float64(end) if older else call.array(at)
        for at, end in enumerate(ends, 1)
    )
    for end in (low, high):
        if end is not None and not (np.abs(end) < _FAR).all():
            raise UnsupportedError(f"it ends at {end}, where nothing of a sum would be left")
    if low is not None and high is not None and (low > high).any():
        raise UnsupportedError("its ends are in the wrong order")
    for end, sign in ((low, 1.0), (high, -1.0)):
        if end is not None:
            beyond = call.relu(call.sum((sign, value), plus=-sign * end))
            value = call.sum((sign, beyond), plus=end)
    return value


def _tail(call: Call) -> Tensor:
    """A step behind the last layer, by what it says about itself."""
    before, kind, older = call.inputs[0], call.node.op_type, call.draft.opset < 13
    if not isinstance(before, Value):
        raise UnsupportedError("it computes with constants alone")
    if "Soft" in kind:
        axis = range(len(before.shape))[call.attribute("axis", 1 if older else -1)]
        if older and math.prod(before.shape[axis + 1 :]) != 1:
            raise UnsupportedError("it is over several axes at once")
        kind = f"{kind} {axis}"
    return Value(before.number, before.shape, (*before.steps, kind))


HANDLERS: dict[str, Callable[[Call], Any]] = {
    **dict.fromkeys(("Concat", "Flatten", "Gather", "Pad", "Reshape", "Slice", "Split", "Squeeze"), _moved),
    **dict.fromkeys(("Transpose", "Unsqueeze"), _moved),
    **dict.fromkeys(("Identity", "Dropout"), _identity),
    "Constant": _constant,
    "Shape": _shape,
    **dict.fromkeys(("Add", "Sum"), _added),
    "Sub": _subtracted,
    "Mul": _multiplied,
    "Div": _divided,
    "Neg": lambda call: call.sum((-1.0, call.value())),
    "BatchNormalization": _batch_normalised,
    "MatMul": lambda call: _product(call, call.array(1)),
    "Gemm": _gemm,
    "Relu": lambda call: call.relu(call.value()),
    "LeakyRelu": lambda call: _leaky(call, call.attribute("alpha", float(np.float32(0.01)))),
    "PRelu": lambda call: _leaky(call, call.array(1)),
    "Abs": lambda call: _leaky(call, -1.0),
    "Clip": _clipped,
    **dict.fromkeys(("Softmax", "LogSoftmax", "Sigmoid", "Tanh"), _tail),
}
"""What each operator makes: a tensor, or a list of them."""
