"""One ONNX node as its handler sees it, and what handlers are made of.

Tensors keep ONNX's axes. What only moves numbers is carried out on an array of indices and becomes a
:class:`Pick`, so a handler says with numpy's own functions what ONNX means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from relutrim.certificate.check.maps import Affine, Map, Maximum, Node, Pick, Relu, Scale
from relutrim.certificate.check.rounding import Array, Index
from relutrim.errors import InputError, UnsupportedError

MOST = 2**24
"""No tensor of a network may have more entries."""
_WIDTHS = {TensorProto.FLOAT: 4, TensorProto.DOUBLE: 8, TensorProto.INT64: 8, TensorProto.INT32: 4}
_WIDTHS[TensorProto.BOOL] = 1


@dataclass(frozen=True)
class Value:
    """A computed tensor: its number among the values, and its shape."""

    number: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Ended:
    """A tensor behind a softmax or its like."""

    value: Value
    steps: tuple[str, ...]


Tensor: TypeAlias = Value | Ended | np.ndarray[Any, Any]


class Frame(Protocol):
    """What a node needs to know of the graph it is in."""

    opset: int
    double: bool
    nodes: list[Node]
    sizes: list[int]


@dataclass
class Call:
    """One ONNX node: its inputs as tensors, and ``do_...`` methods that say what it makes."""

    reader: Frame
    node: onnx.NodeProto
    inputs: list[Tensor | None]

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute's value."""
        for attribute in self.node.attribute:
            if attribute.name == name:
                found = onnx.helper.get_attribute_value(attribute)
                return found.decode() if isinstance(found, bytes) else found
        return default

    def given(self, index: int) -> Tensor | None:
        """An input that may be absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def value(self, index: int = 0) -> Value:
        """A computed input."""
        found = self.inputs[index]
        if not isinstance(found, Value):
            raise UnsupportedError("it computes with constants alone, or behind a softmax or its like")
        return found

    def array(self, index: int) -> Array:
        """A constant input of real numbers, finite."""
        found = self.inputs[index]
        if not isinstance(found, np.ndarray) or found.dtype.kind != "f" or not np.isfinite(found).all():
            raise UnsupportedError(f"input {index} is not a constant of finite floating-point numbers")
        return found.astype(np.float64)

    def numbers(self, index: int, name: str) -> list[int] | None:
        """Integers from a constant input, or from the attribute that older operator sets have."""
        found = self.given(index)
        if found is None:
            listed = self.attribute(name)
            return None if listed is None else [int(n) for n in listed]
        if not isinstance(found, np.ndarray) or found.dtype.kind != "i":
            raise UnsupportedError(f"its {name} are not constant integers")
        return [int(n) for n in found.reshape(-1)]

    def emit(
        self, maps: Sequence[Map], inputs: Sequence[Value], shape: Sequence[int], bias: Array | None = None
    ) -> Value:
        """A new affine value; a mere renaming is none."""
        only = maps[0]
        if bias is not None and not bias.any():
            bias = None
        if len(maps) == 1 and bias is None and isinstance(only, Pick) and _is_range(only.index, inputs[0]):
            return Value(inputs[0].number, tuple(shape))
        return self.made(Affine(tuple(maps), bias), inputs, shape)

    def made(
        self, operation: Affine | Relu | Maximum, inputs: Sequence[Value], shape: Sequence[int]
    ) -> Value:
        """A new value."""
        self.reader.sizes.append(size_of(shape))
        numbers = tuple(value.number for value in inputs)
        self.reader.nodes.append(Node(operation, numbers, str(self.node.output[0])))
        return Value(len(self.reader.nodes), tuple(shape))

    def moved(self, change: Callable[[Any], Any], index: int = 0) -> Tensor:
        """What a move of numbers makes of a constant, or of a value by its indices."""
        found = self.inputs[index]
        if isinstance(found, np.ndarray):
            return np.asarray(change(found))
        value = self.value(index)
        places = np.asarray(change(np.arange(size_of(value.shape)).reshape(value.shape)))
        size_of(places.shape)
        return self.emit([Pick(places.reshape(-1).astype(np.int64))], [value], places.shape)

    def relu(self, value: Value) -> Value:
        """``max(0, x)``."""
        return self.made(Relu(), [value], value.shape)

    def scaled(self, value: Value, factor: Any, radius: Any = None) -> Value:
        """``factor * x``, broadcast."""
        spread, factor = self._broadcast(value, np.asarray(factor, np.float64))
        if radius is not None:
            radius = np.broadcast_to(radius, spread.shape).reshape(-1)
        elif (factor == 1).all():
            return spread
        return self.emit([Scale(factor, radius)], [spread], spread.shape)

    def shifted(self, value: Value, constant: Any) -> Value:
        """``x + constant``, broadcast."""
        spread, bias = self._broadcast(value, np.asarray(constant, np.float64))
        return self.emit([Pick(np.arange(bias.size))], [spread], spread.shape, bias)

    def _broadcast(self, value: Value, constant: Array) -> tuple[Value, Array]:
        shape = np.broadcast_shapes(value.shape, constant.shape)
        size_of(shape)
        return self._spread(value, shape), np.broadcast_to(constant, shape).reshape(-1)

    def _spread(self, value: Value, shape: tuple[int, ...]) -> Value:
        size_of(shape)
        places = np.broadcast_to(np.arange(size_of(value.shape)).reshape(value.shape), shape)
        return self.emit([Pick(places.reshape(-1))], [value], shape)

    def sum(self, values: Sequence[Value]) -> Value:
        """The sum of values, broadcast."""
        shape = np.broadcast_shapes(*(value.shape for value in values))
        every = [self._spread(value, shape) for value in values]
        identity = Pick(np.arange(size_of(shape)))
        return every[0] if len(every) == 1 else self.emit([identity] * len(every), every, shape)


Handler: TypeAlias = Callable[["Call"], Any]
HandlerT = TypeVar("HandlerT", bound=Handler)
HANDLERS: dict[str, Handler] = {}
"""What each operator makes."""


def handles(*kinds: str) -> Callable[[HandlerT], HandlerT]:
    """Register the handler of operators."""

    def register(handler: HandlerT) -> HandlerT:
        HANDLERS.update(dict.fromkeys(kinds, handler))
        return handler

    return register


def size_of(shape: Sequence[int]) -> int:
    """How many entries, refused if too many."""
    size = math.prod(int(n) for n in shape)
    if size > MOST or any(n < 0 for n in shape):
        raise UnsupportedError(f"a tensor of shape {tuple(shape)} is beyond what the checker reads")
    return size


def _is_range(index: Index, value: Value) -> bool:
    return index.size == math.prod(value.shape) and bool((index == np.arange(index.size)).all())


def decoded(tensor: onnx.TensorProto) -> np.ndarray[Any, Any]:
    """The numbers of a stored tensor, whose size is known to agree with what is stored."""
    stored = (
        tensor.data_location == TensorProto.EXTERNAL or tensor.external_data or tensor.HasField("segment")
    )
    if stored or tensor.data_type not in _WIDTHS:
        raise UnsupportedError(f"the tensor {tensor.name!r} lies in another file, or is of a type not read")
    size = size_of(tensor.dims)
    if tensor.HasField("raw_data") and len(tensor.raw_data) != size * _WIDTHS[tensor.data_type]:
        raise InputError(f"the tensor {tensor.name!r} does not hold {size} numbers")
    try:
        return np.asarray(numpy_helper.to_array(tensor))
    except ValueError as error:
        raise InputError(f"the tensor {tensor.name!r} is damaged ({error})") from None
