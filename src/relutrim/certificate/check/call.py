"""One ONNX node as its handler sees it, and what handlers are made of. Tensors keep ONNX's axes."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from relutrim.certificate.check.maps import Affine, Map, Node, Value
from relutrim.certificate.check.rounding import Array, Index
from relutrim.errors import CheckFailed, InputError, UnsupportedError

MOST = 2**24
"""No tensor of a network may have more entries."""
_WIDTHS = {TensorProto.FLOAT: 4, TensorProto.DOUBLE: 8, TensorProto.INT64: 8, TensorProto.INT32: 4}

Tensor: TypeAlias = Value | np.ndarray[Any, Any]


def size_of(shape: Sequence[int]) -> int:
    """How many entries, refused if too many."""
    size = math.prod(int(n) for n in shape)
    if size > MOST or any(n < 0 for n in shape):
        raise UnsupportedError(f"a tensor of shape {tuple(shape)} is beyond what the checker reads")
    return size


def places(shape: Sequence[int]) -> Index:
    """The places of a tensor's entries, in its shape."""
    return np.arange(size_of(shape)).reshape(shape)


def decoded(tensor: onnx.TensorProto) -> np.ndarray[Any, Any]:
    """The numbers of a stored tensor, whose size is known to agree with what is stored."""
    outside = tensor.data_location == TensorProto.EXTERNAL or tensor.external_data
    if outside or tensor.HasField("segment") or tensor.data_type not in _WIDTHS:
        raise UnsupportedError(f"the tensor {tensor.name!r} lies in another file, or is of a type not read")
    size = size_of(tensor.dims)
    if tensor.HasField("raw_data") and len(tensor.raw_data) != size * _WIDTHS[tensor.data_type]:
        raise InputError(f"the tensor {tensor.name!r} does not hold {size} numbers")
    return np.asarray(numpy_helper.to_array(tensor))


@dataclass
class Draft:
    """A graph in the making."""

    opset: int
    deadline: float
    sizes: list[int] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    spent: int = 0

    def spend(self, *arrays: Any) -> None:
        """Count numbers that are kept."""
        self.spent += sum(getattr(one.base, "size", one.size) for one in arrays if one is not None)
        self.reserve(0)

    def back_to(self, count: int) -> None:
        """Forget all but the first nodes."""
        del self.nodes[count:], self.sizes[count + 1 :]

    def reserve(self, count: int) -> None:
        """Raise if so many numbers, about to be made, would be too many, or when it takes too long."""
        if time.monotonic() > self.deadline or self.spent + count > 4 * MOST:
            raise CheckFailed("not checked: the model is too large, or takes longer to read than the limit")


@dataclass
class Call:
    """One ONNX node: its inputs as tensors, and what it can make of them."""

    draft: Draft
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

    def constant(self, index: int) -> bool:
        """Whether an input is known already."""
        return isinstance(self.inputs[index], np.ndarray)

    def value(self, index: int = 0) -> Value:
        """A computed input."""
        found = self.inputs[index]
        if not isinstance(found, Value) or found.steps:
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
        self, maps: Sequence[Map], inputs: Sequence[Value], shape: Sequence[int], bias: Any = 0.0
    ) -> Value:
        """A new affine value; a mere renaming is none."""
        size = size_of(shape)
        operation = Affine(tuple(maps), np.broadcast_to(np.asarray(bias, np.float64), size))
        same = not operation.terms and size == size_of(inputs[0].shape) and not operation.bias.any()
        if same and np.array_equal(maps[0].index, np.arange(size)):
            return Value(inputs[0].number, tuple(shape))
        return self.add(operation, inputs, shape)

    def add(
        self, operation: Affine | None, inputs: Sequence[Value], shape: Sequence[int], minor: bool = False
    ) -> Value:
        """A new value."""
        maps, bias = (operation.maps, operation.bias) if operation else ((), None)
        self.draft.spend(bias, *(array for one in maps for array in vars(one).values()))
        self.draft.sizes.append(size_of(shape))
        numbers = tuple(value.number for value in inputs)
        self.draft.nodes.append(Node(operation, numbers, str(self.node.output[0]), minor))
        return Value(len(self.draft.nodes), tuple(shape))

    def sum(self, *terms: tuple[Any, Value], plus: Any = 0.0, radius: Any = None) -> Value:
        """The sum of factors times values, and of a constant, broadcast. The true factors are within
        ``radius``.
        """
        factors = [np.asarray(factor, np.float64) for factor, _ in terms]
        shape = np.broadcast_shapes(*(v.shape for _, v in terms), *(f.shape for f in factors), np.shape(plus))
        self.draft.reserve(len(terms) * size_of(shape))

        def wide(array: Any) -> Any:
            return np.broadcast_to(array, shape).reshape(-1)

        maps = [
            Map(wide(places(value.shape)))
            if radius is None and (factor == 1).all()
            else Map(wide(places(value.shape)), None, wide(factor), None if radius is None else wide(radius))
            for factor, (_, value) in zip(factors, terms, strict=True)
        ]
        return self.emit(maps, [value for _, value in terms], shape, wide(np.asarray(plus, np.float64)))

    def relu(self, value: Value) -> Value:
        """``max(0, x)``."""
        return self.add(None, [value], value.shape)

    def maximum(self, value: Value, table: Index, shape: Sequence[int]) -> Value:
        """The largest of each window (windows, entries; -1 for none, behind the others): halves of windows
        are compared until there is one entry each, by ``max(x, y) = x + max(0, y - x)``.
        """
        while (width := table.shape[1]) > 1:
            left, right = table[:, : -(-width // 2)], table[:, -(-width // 2) :]
            beside = np.pad(right, [(0, 0), (0, left.shape[1] - right.shape[1])], constant_values=-1)
            both = np.flatnonzero(beside.reshape(-1) >= 0)
            first, second = left.reshape(-1)[both], beside.reshape(-1)[both]
            minus = [Map(second), Map(first, None, -np.ones(len(both)))]
            between = self.emit(minus, [value, value], [len(both)])
            ahead = self.add(None, [between], between.shape, minor=True)
            back = np.full(left.size, -1)
            back[both] = np.arange(len(both))
            value = self.emit([Map(left.reshape(-1)), Map(back)], [value, ahead], [left.size])
            table = np.where(left < 0, -1, places(left.shape))
        return self.emit([Map(table[:, 0])], [value], shape)
