"""From calls to nodes: what the handlers of ATen's operators work with.

An operand of a handler is a :class:`Value` (a node's value, which has a row for each input), a
:class:`Constant`, a number of Python, or :class:`Outside`: a tensor that is not followed, such as one
without a row for each input. A handler that meets what it does not know raises :class:`Opaque`; then the
call is an opaque node.

Numbers of Python are rounded to the network's own precision, as torch itself does and as any file will, so
that reading and writing a network loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from relutrim.errors import NetworkError, UnsupportedError
from relutrim.graph import Fresh, Network, Node, Operator, Output, Port, TailStep
from relutrim.graph.graph import live
from relutrim.graph.operators import Array, Shape
from relutrim.graph.origin import Origin, Stored
from relutrim.graph.sharing import Slot, shared_tensors
from relutrim.io.sizes import Room, TooLarge, check_graph
from relutrim.io.torch.record import Call, Constant


class Opaque(Exception):
    """A form of an operator whose mathematics is not known here."""


class Contradiction(NetworkError):
    """Numbers that no statement can be true of, or a record that contradicts itself."""


@dataclass(frozen=True)
class Value:
    """A value of the graph; ``tail`` are the steps that follow the node of that name."""

    name: str
    shape: Shape
    tail: tuple[TailStep, ...] = ()


@dataclass(frozen=True)
class Outside:
    """Something that is not followed."""


Operand: TypeAlias = Value | Constant | Outside | int | float
Shapes: TypeAlias = tuple[Shape | None, ...]
Handler: TypeAlias = Callable[..., Any]


class Builder:
    """Collects the nodes of a network, call by call."""

    def __init__(self, port: Port, dtype: str, size: int, final: Collection[str] = ()) -> None:
        self.port, self.dtype, self.size, self._final = port, dtype, size, final
        self.room = Room(size)
        self.room.value(port.shape, "the input is a value")
        self.input = Value(port.name, port.shape)
        self.call = Call("", "", {}, ())
        self.operands: Mapping[str, Any] = {}
        self.shapes: Shapes = ()
        """What the call makes, as recorded, without the batch axis; None for what is not followed."""
        self._name = ""
        self._nodes: dict[str, Node] = {}
        self._names = {port.name}
        self._pinned: dict[str, None] = {}
        self._also: tuple[str, ...] = ()

    # What handlers ask for

    def value(self, x: Operand) -> Value:
        """An operand that is a value of the graph."""
        if not isinstance(x, Value):
            raise Opaque("it is applied to something that is not followed")
        return x

    def numbers(self, x: object) -> Array:
        """The numbers of a constant, as the network's precision has them."""
        if isinstance(x, Constant):
            array = x.array
            if array.dtype.kind == "f" and str(array.dtype) != self.dtype:
                raise Opaque(f"it computes with {array.dtype} numbers")
            if array.ndim:
                self.room.use(id(x), array.shape)
        elif isinstance(x, int | float):
            array = np.asarray(x)
        else:
            raise Opaque("it computes with something that is only known when the network runs")
        if array.dtype.kind not in "fiub":
            raise Opaque(f"it computes with {array.dtype} numbers")
        with np.errstate(over="ignore"):
            found = np.asarray(array.astype(self.dtype), dtype=np.float64)
        if np.isnan(found).any():
            raise Contradiction("it computes with NaN; no statement about such a network can be true")
        if not np.isfinite(found).all():
            raise Opaque("it computes with infinite numbers")
        return found

    def beside(self, x: object, value: Value) -> tuple[Array, int]:
        """A constant as it broadcasts against a value without its batch axis, and how many axes it lost for
        that.
        """
        array = self.numbers(x)
        lost = int(array.ndim == len(value.shape) + 1 and array.shape[0] == 1)
        array = array[0] if lost else array
        try:
            fits = np.broadcast_shapes(array.shape, value.shape) == value.shape and array.ndim <= len(
                value.shape
            )
        except ValueError:
            fits = False
        if not fits:
            raise Opaque(
                f"a constant of shape {array.shape} does not broadcast into a value of shape {value.shape}"
            )
        return array, lost

    def stored(
        self, argument: str, x: object, axes: Sequence[int | None] | None = None, sign: float = 1.0
    ) -> Stored | None:
        """Where an operator's field is kept that is the constant ``x`` with its axes in this order (None for
        a new one); None for a number of the program itself.
        """
        if not isinstance(x, Constant) or x.home is None:
            return None
        home = x.home
        order = range(len(home.axes)) if axes is None else axes
        own = tuple(None if axis is None else home.axes[axis] for axis in order)
        return Stored(
            home.tensor, self.call.name, self.call.place(argument), own, home.rank, sign * home.sign
        )

    def emit(self, operator: Operator, *inputs: Value, **fields: Stored | None) -> Value:
        """Apply an operator; ``fields`` say where its numbers are kept."""
        shape = operator.output_shape([value.shape for value in inputs])
        self.room.make(operator, shape)
        name = self._unique(f"{self._name}_{operator.kind.lower()}")
        origin = Origin((self.call.name,), {key: one for key, one in fields.items() if one is not None})
        self._nodes[name] = Node(name, operator, tuple(value.name for value in inputs), origin)
        return Value(name, shape)

    @property
    def final(self) -> bool:
        """Whether nothing but outputs and steps of tails reads what the call makes."""
        return self.call.name in self._final

    def step(self, kind: str, x: Value, **attributes: int) -> Value:
        """A step of a tail."""
        name = self._unique(self._name)
        return replace(x, tail=(*x.tail, TailStep(kind, name, attributes)))

    def find(self, name: str) -> Node | None:
        """The node that makes a value; None for the input."""
        return self._nodes.get(name)

    def absorb(self, start: str, *ends: str) -> None:
        """What is emitted by this call stands for the nodes between ``start`` and ``ends`` too."""
        found: dict[str, None] = {}
        waiting = list(ends)
        while waiting:
            node = self._nodes.get(name := waiting.pop())
            if name != start and node is not None:
                found.update(dict.fromkeys(node.origin.nodes if node.origin else ()))
                waiting += node.inputs
        self._also = tuple(found)

    # Calls

    def apply(
        self, call: Call, name: str, shapes: Shapes, handler: Handler, operands: Mapping[str, Any]
    ) -> Any:
        """What a handler makes of a call, named ``name``; :class:`Opaque` if it does not know the form."""
        self.call, self.operands, self.shapes = call, operands, shapes
        self._name, self._also = name, ()
        before = len(self._nodes)
        try:
            made = handler(self, **operands)
            if not isinstance(made, tuple) and any(call.outputs[1:]):
                raise Opaque("more than its first result is read")
            parts = made if isinstance(made, tuple) else (made,)
            self._check(call, parts, shapes)
        except (Contradiction, TooLarge):
            raise
        except (Opaque, NetworkError, UnsupportedError, TypeError, IndexError) as error:
            for last in list(self._nodes)[before:]:
                del self._nodes[last]
                self._names.discard(last)
            raise Opaque(str(error)) from error
        own = list(self._nodes)[before:]
        for key in own:
            node = self._nodes[key]
            if self._also and node.origin is not None and node.origin.nodes == (call.name,):
                origin = replace(node.origin, nodes=(call.name, *self._also))
                self._nodes[key] = replace(node, origin=origin)
        several = isinstance(made, tuple)
        labels = [out.name if several and out is not None else name for out in call.outputs]
        named = tuple(self._renamed(part, label, own) for part, label in zip(parts, labels, strict=False))
        return named if several else named[0]

    @staticmethod
    def _check(call: Call, parts: Sequence[object], shapes: Shapes) -> None:
        for out, part, shape in zip(call.outputs, parts, shapes, strict=False):
            if out is None or not isinstance(part, Value):
                continue
            if shape is None:
                raise Opaque("it makes another type, or no row for each input")
            if part.shape != shape:
                raise Contradiction(f"it makes a value of shape {part.shape}, and {shape} is recorded for it")

    def _renamed(self, part: Any, name: str, own: Sequence[str]) -> Any:
        if not isinstance(part, Value) or part.tail or part.name not in own:
            return part
        node = self._nodes.pop(part.name)
        self._names.discard(part.name)
        name = self._unique(name)
        self._nodes[name] = replace(node, name=name)
        return replace(part, name=name)

    def opaque(
        self, call: Call, name: str, shapes: Shapes, operands: Sequence[object]
    ) -> list[Value | Outside]:
        """An opaque node: what it reads stays as it is, what it makes is anything."""
        self.pin(operands)
        made: list[Value | Outside] = []
        for out, shape in zip(call.outputs, shapes, strict=True):
            if out is None or shape is None:
                made.append(Outside())
            else:
                label = name if len(call.outputs) == 1 else out.name
                made.append(self.fresh(label, shape, Origin((call.name,))))
        return made

    def pin(self, operands: Sequence[object]) -> None:
        """Values must stay as they are."""
        for operand in operands:
            if isinstance(operand, Value):
                self._pinned[self.value(operand).name] = None

    @property
    def pinned(self) -> tuple[str, ...]:
        """The values that must stay as they are."""
        return tuple(self._pinned)

    def fresh(self, name: str, shape: Shape, origin: Origin | None = None) -> Value:
        """A value that may be anything."""
        self.room.value(shape)
        name = self._unique(name)
        self._nodes[name] = Node(name, Fresh(shape), (), origin)
        return Value(name, shape)

    def finish(
        self, outputs: Sequence[object], metadata: Mapping[str, str], readers: Mapping[str, Collection[Slot]]
    ) -> Network:
        """The network that computes those of ``outputs`` that are values, or else what the program's opaque
        nodes read; ``readers`` are the arguments of calls that read each tensor of the state.
        """
        values = [(place, value) for place, value in enumerate(outputs) if isinstance(value, Value)]
        if not values and self._pinned:
            # What comes out is made by opaque nodes alone.
            values = [(place, self._named(name)) for place, name in enumerate(self._pinned)]
        if not values:
            raise UnsupportedError("nothing that the program returns depends on its input, row by row")
        made: list[Output] = []
        for place, value in values:
            name = "output" if len(outputs) == 1 else f"output_{place}"
            if name != value.name or value.tail:
                name = self._unique(name)
            made.append(Output(name, value.name, value.tail))
        nodes = live(self._nodes.values(), [*(output.source for output in made), *self.pinned])
        shared = shared_tensors(nodes, readers)
        network = Network(self.port, nodes, tuple(made), self.dtype, metadata, self.pinned, shared)
        check_graph(network, self.size)
        return network

    def _named(self, name: str) -> Value:
        return self.input if name == self.input.name else Value(name, self._shape(name))

    def _shape(self, name: str) -> Shape:
        if name == self.port.name:
            return self.port.shape
        node = self._nodes[name]
        return node.operator.output_shape([self._shape(read) for read in node.inputs])

    def _unique(self, name: str) -> str:
        candidate, count = name, 0
        while candidate in self._names:
            count += 1
            candidate = f"{name}_{count}"
        self._names.add(candidate)
        return candidate
