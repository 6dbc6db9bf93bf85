"""The state of reading one graph, and what a handler sees of it.

A tensor of the ONNX graph is a :class:`Constant`, a :class:`Value` of the network, or :class:`Unknown`.
Handlers (:mod:`relutrim.io.onnx.handlers`) take a :class:`Call`, emit operators and return what the node's
output is (or its outputs are); naming it and saying where things went wrong is done for them. A handler that
raises :class:`UnsupportedError` has met something that relutrim does not represent: the node is opaque then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np
import onnx
from onnx import AttributeProto

from relutrim.errors import InputError, NetworkError, UnsupportedError
from relutrim.graph import Linear, Node, Operator, Port, Reshape, Scale, TailStep
from relutrim.graph.operators import Array, BatchNorm, Convolution, Shape
from relutrim.graph.operators.moving import Index
from relutrim.graph.origin import Origin, Stored
from relutrim.io.building import Building
from relutrim.io.building import Value as Value
from relutrim.io.onnx.tensors import BATCH_SIZE, FLOATS, Constant
from relutrim.io.onnx.types import Types
from relutrim.io.sizes import Room, TooLarge


class BatchAxisError(UnsupportedError):
    """A node that does not treat axis 0 as a batch of independent inputs."""


@dataclass(frozen=True)
class Unknown:
    """What an opaque node makes, and any input but the network's own; ``key`` is the node in origins."""

    name: str
    key: str | None = None


MadeT = TypeVar("MadeT")
Operand: TypeAlias = Constant | Value
Tensor: TypeAlias = Operand | Unknown


def describe(node: onnx.NodeProto) -> str:
    """How errors name a node."""
    name = node.name or next(iter(node.output), "")
    return f"node {name!r} ({node.op_type})"


def key_of(node: onnx.NodeProto) -> str:
    """What an origin calls a node: the first tensor that it makes."""
    return next(str(name) for name in node.output if name)


class Conversion(Building):
    """A graph on its way to a network: what each tensor is, and the nodes made so far. ``kept`` are the
    constants that the file stores, ``final`` the tensors that nothing reads but outputs and steps of tails.
    """

    def __init__(
        self,
        port: Port,
        dtype: str,
        opset: int,
        room: Room,
        types: Types,
        *,
        tensors: dict[str, Tensor],
        readers: Mapping[str, Sequence[onnx.NodeProto]],
        kept: Collection[str],
        final: Collection[str],
    ) -> None:
        super().__init__(port, dtype, room, (*tensors, *readers))
        self.opset, self.types, self.tensors, self.readers = opset, types, tensors, readers
        self.kept, self.final = kept, final
        self.given: dict[str, frozenset[str]] = {}
        self.measured: list[tuple[Value, str]] = []

    @property
    def batched(self) -> bool:
        """Whether tensors have a batch axis in front of a value's shape."""
        return self.port.batch is not None

    def root(self, name: str) -> str:
        """The name under which a tensor is stored, where Identity nodes give it others."""
        tensor = self.tensors.get(name)
        if isinstance(tensor, Constant) and self.tensors.get(tensor.name) is tensor:
            return tensor.name
        return name

    def alone(self, name: str) -> bool:
        """Whether one node or output reads a tensor, and nothing else."""
        readers = self.readers.get(name, ())
        return len(readers) == 1 and list(readers[0].input).count(name) < 2

    def operand(self, name: str) -> Operand:
        """What a tensor is; an unknown one becomes a value that comes from nowhere."""
        tensor = self.tensors[name]
        return self.value_from_nowhere(tensor) if isinstance(tensor, Unknown) else tensor

    def value_from_nowhere(self, tensor: Unknown) -> Value:
        """The value of an unknown tensor of floats whose sizes are known."""
        found = self.types.of(tensor.name)
        if found is None or FLOATS.get(found.kind) != self.dtype:
            raise UnsupportedError(f"nothing says that {tensor.name!r} is a tensor of {self.dtype}")
        sizes = found.sizes
        if self.batched:
            if not sizes or sizes[0] != self.port.batch:
                raise BatchAxisError(f"nothing says that the first axis of {tensor.name!r} is the batch")
            sizes = sizes[1:]
        shape = tuple(size for size in sizes if isinstance(size, int) and size > 0)
        if len(shape) != len(sizes):
            raise UnsupportedError(f"the shape of {tensor.name!r} is not known")
        try:
            self.room.value(shape)
        except TooLarge as error:
            raise UnsupportedError(error.message) from None
        return self.add(tensor, shape)

    def add(self, tensor: Unknown, shape: Shape) -> Value:
        """A value of this shape that comes from nowhere."""
        value = self.fresh(tensor.name, shape, None if tensor.key is None else Origin((tensor.key,)))
        self.tensors[tensor.name] = value
        return value

    def hide(self, node: onnx.NodeProto, reads: Sequence[str]) -> None:
        """Make a node opaque: what it reads must stay as it is, what it makes is unknown."""
        key = key_of(node)
        for name in reads:
            self.pin(self.tensors[name])
        self.tensors.update({name: Unknown(name, key) for name in node.output if name})

    def pin(self, value: object) -> None:
        """Demand that a value stays as it is, unless it comes from nowhere."""
        if isinstance(value, Value) and not self.is_fresh(value.name):
            super().pin(value)

    def settle(self, name: str, result: Operand) -> None:
        """Record what the tensor ``name`` is; a value that its own node made takes the tensor's name."""
        if isinstance(result, Value) and not result.tail:
            if result.name not in self.made:
                result = self.emit(Reshape(result.shape, result.shape), result)
            self.given[name] = self.given.get(result.name, frozenset())
            result = self.renamed(result, name)
        self.tensors[name] = result


@dataclass
class Call:
    """One node of the ONNX graph, as its handler sees it."""

    node: onnx.NodeProto
    graph: Conversion
    read: list[tuple[int, Array]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.graph.begin(self.key, next(iter(self.node.output), ""))

    @property
    def key(self) -> str:
        """What an origin calls the node."""
        return key_of(self.node)

    @property
    def output(self) -> str:
        """The name of the tensor to make."""
        return str(self.node.output[0])

    @property
    def batched(self) -> bool:
        """Whether tensors have a batch axis in front of a value's shape."""
        return self.graph.batched

    @property
    def final(self) -> bool:
        """Whether nothing but outputs and steps of tails reads what the node makes."""
        return self.output in self.graph.final

    def step(self, kind: str, **attributes: int) -> Value:
        """A step of a tail."""
        before = self.value(0)
        return replace(before, tail=(*before.tail, TailStep(kind, self.output, attributes)))

    @property
    def count(self) -> int:
        """How many inputs are listed, absent ones included."""
        return len(self.node.input)

    def has(self, index: int) -> bool:
        """Whether an optional input is given."""
        return index < len(self.node.input) and bool(self.node.input[index])

    def operand(self, index: int) -> Operand:
        """The tensor of an input, whatever it is."""
        return self.graph.operand(self.node.input[index])

    def is_constant(self, index: int) -> bool:
        """Whether an input does not depend on the network's input."""
        return isinstance(self.operand(index), Constant)

    def value(self, index: int) -> Value:
        """An input that depends on the network's input."""
        operand = self.operand(index)
        if isinstance(operand, Value):
            return operand
        raise UnsupportedError(
            f"it computes with constants alone ({self.node.input[index]!r}), which would round"
        )

    def sizes(self, index: int) -> tuple[Operand, Shape, bool]:
        """An input, its sizes, and whether the batch axis comes before these."""
        operand = self.operand(index)
        if isinstance(operand, Constant):
            return operand, operand.array.shape, False
        return operand, operand.shape, self.batched

    def constant(self, index: int) -> Constant:
        """An input that does not depend on the network's input."""
        operand = self.operand(index)
        if isinstance(operand, Constant):
            return operand
        raise UnsupportedError(
            f"its input {self.node.input[index]!r} is computed, and only a constant is known here"
        )

    def weights(self, index: int) -> Array:
        """A constant input as real numbers: in the network's type, finite."""
        constant = self.constant(index)
        if FLOATS.get(constant.kind) != self.graph.dtype:
            raise UnsupportedError(
                f"the tensor {constant.name!r} is {constant.type_name} in a {self.graph.dtype} model"
            )
        self.graph.room.use(constant.name, constant.array.shape)
        array = constant.array.astype(np.float64)
        if not np.isfinite(array).all():
            raise UnsupportedError(f"the tensor {constant.name!r} holds numbers that are NaN or infinite")
        self.read.append((index, array))
        return array

    def where(self, array: Array, sign: float = 1.0) -> Stored | None:
        """Where a field of an operator is stored that is ``array``, a view of what :meth:`weights` returned;
        ``sign`` as :class:`Stored` has it. None unless that input is an initializer or what a Constant node
        holds, by way of Identity nodes at most: constants that others made of these are stored nowhere.
        """
        for place, whole in self.read:
            if np.may_share_memory(array, whole):
                constant, axes = self.constant(place), _axes(array, whole)
                known = self.graph.tensors.get(constant.name) is constant and constant.name in self.graph.kept
                if axes is None or not known:
                    return None
                return Stored(self.node.input[place], self.key, place, axes, whole.ndim, sign)
        return None

    def integers(self, index: int, *, batch: bool = False) -> tuple[int, ...]:
        """A constant input of integers: a shape, a list of axes; ``batch`` if the first may be the open batch
        size.
        """
        constant = self.constant(index)
        array = constant.array
        if array.dtype.kind != "i" or array.ndim > 1:
            raise InputError(
                f"the tensor {constant.name!r} should be a list of integers and is {constant.type_name}"
            )
        if (array.reshape(-1)[batch:] == BATCH_SIZE).any():
            raise UnsupportedError(f"{constant.name!r} depends on the batch size, which is open")
        return tuple(int(number) for number in array.reshape(-1))

    def integer(self, name: str, default: int) -> int:
        """An integer attribute."""
        return int(self._attribute(name, AttributeProto.INT, "i", default))

    def integer_list(self, name: str) -> tuple[int, ...] | None:
        """An attribute that lists integers, None if it is absent."""
        found = self._attribute(name, AttributeProto.INTS, "ints", None)
        return None if found is None else tuple(int(number) for number in found)

    def number(self, name: str, default: float) -> float:
        """A float attribute, finite. ONNX keeps all of them in float32, defaults as well: that of an
        ``epsilon`` is the float32 next to 1e-5, which is 2.5e-13 less.
        """
        found = float(np.float32(self._attribute(name, AttributeProto.FLOAT, "f", default)))
        if not np.isfinite(found):
            raise UnsupportedError(f"its attribute {name!r} is {found}")
        return found

    def optional_number(self, name: str) -> float | None:
        """A float attribute that may be absent or infinite."""
        found = self._attribute(name, AttributeProto.FLOAT, "f", None)
        if found is not None and np.isnan(found):
            raise UnsupportedError(f"its attribute {name!r} is {found}")
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

    def finite(self, make: Callable[[], MadeT]) -> MadeT:
        """What is made of numbers; the node is opaque where these are infinite, or divide by 0."""
        try:
            return make()
        except NetworkError as error:
            raise UnsupportedError(error.message) from None

    def emit(self, operator: Operator, *inputs: Value, **fields: Stored | None) -> Value:
        """Apply an operator; the result is the tensor of the node if the handler returns it. ``fields`` are
        those that come from inputs of the node, and where they are stored.
        """
        made = self.graph.emit(operator, *inputs, **fields)
        self.graph.given[made.name] = frozenset(fields)
        return made

    def chain(self, value: Value, operators: Sequence[Operator]) -> Value:
        """Apply operators one after the other."""
        return self.graph.chain(value, operators)

    def reshaped(self, value: Value, shape: Shape) -> Value:
        """The same numbers in another shape."""
        return self.graph.reshaped(value, shape)

    def moved(self, operand: Operand, shape: Shape) -> Operand:
        """The same, of a constant too."""
        if isinstance(operand, Value):
            return self.graph.reshaped(operand, shape)
        return replace(operand, tensor=operand.array.reshape(shape))

    def picked(self, operand: Operand, picks: Mapping[int, Index]) -> Operand:
        """Entries along some axes."""
        if isinstance(operand, Value):
            return self.graph.picked(operand, picks)
        array = operand.array
        for axis, pick in picks.items():
            shape = [*array.shape[:axis], *pick.shape, *array.shape[axis + 1 :]]
            self.graph.room.take(shape, "it makes a constant")
            array = np.asarray(np.take(array, pick, axis))
        return replace(operand, tensor=array)

    def shifted(self, value: Value, constant: Array, stored: Array, sign: float = 1.0) -> Value:
        """``value + constant``, where the constant broadcasts into the value; ``stored`` is a view of the
        same shape, of the input that it comes from with this ``sign``.

        Right behind a product without bias it becomes the bias (``0 + b`` rounds nothing), so that MatMul and
        Add are one layer, as they are in Gemm, and Mul and Add one Scale.
        """
        node = self.graph.nodes.get(value.name)
        alone = value.name in self.graph.made or self.graph.alone(value.name)
        given = self.graph.given.get(value.name, frozenset())
        joint = _with_shift(node, constant, given) if node is not None and alone else None
        if node is None or joint is None:
            return self.emit(Scale.exactly(shift=constant), value, shift=self.where(stored, sign))
        operator, name = joint
        field = stored if name == "shift" else stored.reshape(-1)
        known = {name: self.where(field, sign) if field.shape == getattr(operator, name).shape else None}
        assert node.origin is not None
        self.graph.sources = tuple(dict.fromkeys([*node.origin.nodes, *self.graph.sources]))
        inputs = (Value(name, self.graph.shapes[name]) for name in node.inputs)
        made = self.emit(operator, *inputs, **node.origin.fields, **known)
        self.graph.remove(value.name)
        self.graph.given[made.name] |= given
        return made


def _with_shift(node: Node, constant: Array, given: Collection[str]) -> tuple[Operator, str] | None:
    """One operator for that of ``node`` and a sum with ``constant`` behind it, if that takes no arithmetic
    and the node is ``given`` no summand of its own; and the field that the constant is.
    """
    operator = node.operator
    if isinstance(operator, Linear) and "bias" not in given:
        size = operator.bias.size
        if all(length == 1 for length in constant.shape[:-1]) and constant.size in (1, size):
            return Linear(operator.weight, np.broadcast_to(constant.reshape(-1), (size,))), "bias"
    if isinstance(operator, Convolution) and "bias" not in given:
        size, axes = operator.bias.size, operator.weight.ndim - 1
        per_channel = constant.reshape((1,) * (axes - constant.ndim) + constant.shape)
        if per_channel.size == per_channel.shape[0] in (1, size):
            return replace(operator, bias=np.broadcast_to(per_channel.reshape(-1), (size,))), "bias"
    if not isinstance(operator, Scale) or isinstance(operator, BatchNorm):  # that has its own numbers
        return None
    if "shift" not in given and not operator.shift.any() and operator.exact:
        return replace(operator, shift=constant), "shift"
    return None


def _axes(array: Array, whole: Array) -> tuple[int | None, ...] | None:
    """Which axis of ``whole`` each axis of a view of it is, None for new ones; None if it is not all of it
    with its axes in another order. Several axes of length 1 cannot be told apart, and count as new: what has
    one of them longer is not put back where it came from.
    """
    if array.size != whole.size:
        return None
    ones = [axis for axis, length in enumerate(whole.shape) if length == 1]
    only = ones[0] if len(ones) == 1 == array.shape.count(1) else None
    free = {axis: one for axis, one in enumerate(zip(whole.shape, whole.strides, strict=True)) if one[0] != 1}
    found: list[int | None] = []
    for length, stride in zip(array.shape, array.strides, strict=True):
        fits = [axis for axis, one in free.items() if one == (length, stride)]
        if length != 1 and not fits:
            return None
        found.append(only if length == 1 else fits[0])
        free.pop(-1 if found[-1] is None else found[-1], None)
    return tuple(found)


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


HANDLERS: dict[str, Entry] = {}
"""How each ONNX operator is read."""

_ANY_NUMBER = 2**31


def handles(
    *kinds: str, inputs: tuple[int, int | None], attributes: Sequence[str] = ()
) -> Callable[[HandlerT], HandlerT]:
    """Register the handler of ONNX operators.

    ``inputs`` is the smallest and largest number of inputs (None: any number); attributes that are not listed
    are refused.
    """

    def register(handle: HandlerT) -> HandlerT:
        for kind in kinds:
            if kind in HANDLERS:
                raise ValueError(f"there already is a handler for {kind}")
            most = _ANY_NUMBER if inputs[1] is None else inputs[1]
            HANDLERS[kind] = Entry(handle, frozenset(attributes), (inputs[0], most))
        return handle

    return register
