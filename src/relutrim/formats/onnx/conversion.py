"""The state of reading one graph, and what a handler sees of it.

A tensor of the ONNX graph is one of three things: a :class:`Constant`, a :class:`Value` of the network, or a
:class:`Tail`, something behind a softmax or its like. Handlers (:mod:`relutrim.formats.onnx.handlers`) take a
:class:`Call`, emit operators and return what the node's output is (or its outputs are); naming it and saying
where things went wrong is done for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np
import onnx
from onnx import AttributeProto

from relutrim.errors import InputError, NetworkError, UnsupportedError
from relutrim.formats.onnx.tensors import FLOATS, Constant
from relutrim.formats.sizes import check_size
from relutrim.network import Linear, Node, Operator, Port, Reshape, Scale, TailStep
from relutrim.network.operators import Array, Convolution, Shape


class BatchAxisError(UnsupportedError):
    """A node that does not treat axis 0 as a batch of independent inputs."""


@dataclass(frozen=True)
class Value:
    """A value of the network; ``shape`` is without the batch axis."""

    name: str
    shape: Shape


@dataclass(frozen=True)
class Tail:
    """What becomes of ``source`` at the very end, beyond what the network represents.

    ``origin`` says, for errors, which node of the file it starts with.
    """

    source: Value
    steps: tuple[TailStep, ...]
    origin: str


Operand: TypeAlias = Constant | Value | Tail


def describe(node: onnx.NodeProto) -> str:
    """How errors name a node."""
    name = node.name or next(iter(node.output), "")
    return f"node {name!r} ({node.op_type})"


@dataclass
class Conversion:
    """A graph on its way to a network: what each tensor is, and the nodes made so far."""

    port: Port
    dtype: str
    opset: int
    taken: set[str]
    uses: Mapping[str, int]
    tensors: dict[str, Operand]
    nodes: dict[str, Node] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.shapes[self.port.name] = self.port.shape

    @property
    def batched(self) -> bool:
        """Whether tensors have a batch axis in front of a value's shape."""
        return self.port.batch is not None

    def fresh(self, stem: str) -> str:
        """A name that no tensor of the file and no node has."""
        name, count = stem, 1
        while name in self.taken:
            count += 1
            name = f"{stem}_{count}"
        self.taken.add(name)
        return name

    def settle(self, name: str, result: Operand, made: set[str]) -> None:
        """Record what the tensor ``name`` is; a value that its own node made takes the tensor's name."""
        if isinstance(result, Value):
            if result.name in made:
                node = self.nodes.pop(result.name)
                self.taken.discard(result.name)
            else:
                node = Node("", Reshape(result.shape, result.shape), (result.name,))
            self.nodes[name] = Node(name, node.operator, node.inputs)
            self.shapes[name] = result.shape
            result = Value(name, result.shape)
        self.tensors[name] = result


@dataclass
class Call:
    """One node of the ONNX graph, as its handler sees it."""

    node: onnx.NodeProto
    graph: Conversion
    made: set[str] = field(default_factory=set)

    @property
    def output(self) -> str:
        """The name of the tensor to make."""
        return str(self.node.output[0])

    @property
    def batched(self) -> bool:
        """Whether tensors have a batch axis in front of a value's shape."""
        return self.graph.batched

    @property
    def count(self) -> int:
        """How many inputs are listed, absent ones included."""
        return len(self.node.input)

    def has(self, index: int) -> bool:
        """Whether an optional input is given."""
        return index < len(self.node.input) and bool(self.node.input[index])

    def operand(self, index: int) -> Operand:
        """The tensor of an input, whatever it is."""
        return self.graph.tensors[self.node.input[index]]

    def is_constant(self, index: int) -> bool:
        """Whether an input does not depend on the network's input."""
        return isinstance(self.operand(index), Constant)

    def value(self, index: int) -> Value:
        """An input that depends on the network's input."""
        operand = self.operand(index)
        if isinstance(operand, Value):
            return operand
        raise UnsupportedError(
            f"it computes with constants alone ({self.node.input[index]!r}), which would round; "
            "fold constants when exporting, or with onnxsim"
        )

    def constant(self, index: int) -> Constant:
        """An input that does not depend on the network's input."""
        operand = self.operand(index)
        if isinstance(operand, Constant):
            return operand
        raise UnsupportedError(
            f"its input {self.node.input[index]!r} is computed, and only a constant can be represented here; "
            "simplify the model with onnxsim, or export it with a fixed input shape"
        )

    def weights(self, index: int) -> Array:
        """A constant input as real numbers: in the network's type, finite."""
        constant = self.constant(index)
        if constant.kind not in FLOATS:
            raise InputError(
                f"the tensor {constant.name!r} is {constant.type_name}; relutrim reads weights in float32 "
                "and float64 "
                "only, so export the model in one of these"
            )
        if FLOATS[constant.kind] != self.graph.dtype:
            raise InputError(
                f"the tensor {constant.name!r} is {constant.type_name} in a {self.graph.dtype} model; "
                "export the model in one type"
            )
        array = constant.array.astype(np.float64)
        bad = array.size - int(np.isfinite(array).sum())
        if bad:
            raise NetworkError(
                f"the tensor {constant.name!r} holds {bad} value(s) that are NaN or infinite; "
                "no statement about such a network can be true, so train or export it again"
            )
        return array

    def integers(self, index: int) -> tuple[int, ...]:
        """A constant input of integers: a shape, a list of axes."""
        constant = self.constant(index)
        array = constant.array
        if array.dtype.kind != "i" or array.ndim > 1:
            raise InputError(
                f"the tensor {constant.name!r} should be a list of integers and is {constant.type_name}"
            )
        return tuple(int(number) for number in array.reshape(-1))

    def integer(self, name: str, default: int) -> int:
        """An integer attribute."""
        return int(self._attribute(name, AttributeProto.INT, "i", default))

    def integer_list(self, name: str) -> tuple[int, ...] | None:
        """An attribute that lists integers, None if it is absent."""
        found = self._attribute(name, AttributeProto.INTS, "ints", None)
        return None if found is None else tuple(int(number) for number in found)

    def number(self, name: str, default: float) -> float:
        """A float attribute, finite."""
        found = float(self._attribute(name, AttributeProto.FLOAT, "f", default))
        if not np.isfinite(found):
            raise NetworkError(f"its attribute {name!r} is {found}")
        return found

    def optional_number(self, name: str) -> float | None:
        """A float attribute that may be absent or infinite."""
        found = self._attribute(name, AttributeProto.FLOAT, "f", None)
        if found is not None and np.isnan(found):
            raise NetworkError(f"its attribute {name!r} is {found}")
        return None if found is None else float(found)

    def text(self, name: str, default: str) -> str:
        """A string attribute."""
        found: bytes = self._attribute(name, AttributeProto.STRING, "s", default.encode())
        return found.decode("utf-8", "replace")

    def _attribute(self, name: str, kind: int, slot: str, default: Any) -> Any:
        for attribute in self.node.attribute:
            if attribute.name == name:
                if attribute.type != kind:
                    raise InputError(f"its attribute {name!r} has the wrong type; the file is damaged")
                return getattr(attribute, slot)
        return default

    def emit(self, operator: Operator, *inputs: Value) -> Value:
        """Apply an operator; the result is the tensor of the node if the handler returns it."""
        shape = operator.output_shape([value.shape for value in inputs])
        check_size(shape)
        name = self.graph.fresh(f"{self.output}/{operator.kind.lower()}")
        self.graph.nodes[name] = Node(name, operator, tuple(value.name for value in inputs))
        self.graph.shapes[name] = shape
        self.made.add(name)
        return Value(name, shape)

    def chain(self, value: Value, operators: Sequence[Operator]) -> Value:
        """Apply operators one after the other."""
        for operator in operators:
            value = self.emit(operator, value)
        return value

    def reshaped(self, value: Value, shape: Shape) -> Value:
        """The same numbers in another shape."""
        return value if value.shape == shape else self.emit(Reshape(value.shape, shape), value)

    def shifted(self, value: Value, constant: Array) -> Value:
        """``value + constant``, where the constant broadcasts into the value.

        Right behind a product without bias it becomes the bias (``0 + b`` rounds nothing), so that MatMul and
        Add are one layer, as they are in Gemm, and Mul and Add one Scale.
        """
        node = self.graph.nodes.get(value.name)
        alone = value.name in self.made or self.graph.uses.get(value.name) == 1
        joint = _with_shift(node.operator, constant) if node is not None and alone else None
        if node is None or joint is None:
            return self.emit(Scale.exactly(shift=constant), value)
        del self.graph.nodes[value.name]
        return self.emit(joint, *(Value(name, self.graph.shapes[name]) for name in node.inputs))


def _with_shift(operator: Operator, constant: Array) -> Operator | None:
    """One operator for ``operator`` and a sum with ``constant`` behind it, if that takes no arithmetic."""
    if isinstance(operator, Linear) and not operator.bias.any():
        size = operator.bias.size
        if all(length == 1 for length in constant.shape[:-1]) and constant.size in (1, size):
            return Linear(operator.weight, np.broadcast_to(constant.reshape(-1), (size,)))
    if isinstance(operator, Convolution) and not operator.bias.any():
        size, axes = operator.bias.size, operator.weight.ndim - 1
        per_channel = constant.reshape((1,) * (axes - constant.ndim) + constant.shape)
        if per_channel.size == per_channel.shape[0] in (1, size):
            return replace(operator, bias=np.broadcast_to(per_channel.reshape(-1), (size,)))
    if isinstance(operator, Scale) and not operator.shift.any() and not operator.shift_radius.any():
        return replace(operator, shift=constant)
    return None


Made: TypeAlias = Operand | Sequence[Operand | None]
"""What a node makes: its first result, or all of them, None for one that nobody reads."""

Handler: TypeAlias = Callable[[Call], Made]
HandlerT = TypeVar("HandlerT", bound=Handler)


@dataclass(frozen=True)
class Entry:
    """A handler, and what a node must look like for it."""

    handle: Handler
    attributes: frozenset[str]
    inputs: tuple[int, int]
    behind_tail: bool


HANDLERS: dict[str, Entry] = {}
"""How each ONNX operator is read."""

_ANY_NUMBER = 2**31


def handles(
    *kinds: str, inputs: tuple[int, int | None], attributes: Sequence[str] = (), behind_tail: bool = False
) -> Callable[[HandlerT], HandlerT]:
    """Register the handler of ONNX operators.

    ``inputs`` is the smallest and largest number of inputs (None: any number); attributes that are not listed
    are refused. ``behind_tail`` says that the handler copes with what comes behind a softmax.
    """

    def register(handle: HandlerT) -> HandlerT:
        for kind in kinds:
            if kind in HANDLERS:
                raise ValueError(f"there already is a handler for {kind}")
            most = _ANY_NUMBER if inputs[1] is None else inputs[1]
            HANDLERS[kind] = Entry(handle, frozenset(attributes), (inputs[0], most), behind_tail)
        return handle

    return register
