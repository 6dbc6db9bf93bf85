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
from relutrim.graph import Network, Output, Port, TailStep
from relutrim.graph.operators import Array, Shape
from relutrim.graph.origin import Origin, Stored
from relutrim.graph.sharing import Slot
from relutrim.io.building import Building
from relutrim.io.building import Value as Value
from relutrim.io.sizes import Room, TooLarge, check_graph
from relutrim.io.torch.record import Call, Constant


class Opaque(Exception):
    """A form of an operator whose mathematics is not known here."""


class Contradiction(NetworkError):
    """Numbers that no statement can be true of, or a record that contradicts itself."""


@dataclass(frozen=True)
class Outside:
    """Something that is not followed."""


Operand: TypeAlias = Value | Constant | Outside | int | float
Shapes: TypeAlias = tuple[Shape | None, ...]
Handler: TypeAlias = Callable[..., Any]


class Builder(Building):
    """Collects the nodes of a network, call by call."""

    def __init__(self, port: Port, dtype: str, size: int, final: Collection[str] = ()) -> None:
        super().__init__(port, dtype, Room(size), ())
        self.size, self._final = size, final
        self.input = Value(port.name, port.shape)
        self.call = Call("", "", {}, ())
        self.operands: Mapping[str, Any] = {}
        self.recorded: Shapes = ()
        """What the call makes, as recorded, without the batch axis; None for what is not followed."""

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

    @property
    def final(self) -> bool:
        """Whether nothing but outputs and steps of tails reads what the call makes."""
        return self.call.name in self._final

    def step(self, kind: str, x: Value, **attributes: int) -> Value:
        """A step of a tail."""
        name = self.unique(self.stem)
        return replace(x, tail=(*x.tail, TailStep(kind, name, attributes)))

    # Calls

    def apply(
        self, call: Call, name: str, shapes: Shapes, handler: Handler, operands: Mapping[str, Any]
    ) -> Any:
        """What a handler makes of a call, named ``name``; :class:`Opaque` if it does not know the form."""
        self.call, self.operands, self.recorded = call, operands, shapes
        self.begin(call.name, name)
        try:
            made = handler(self, **operands)
            if not isinstance(made, tuple) and any(call.outputs[1:]):
                raise Opaque("more than its first result is read")
            parts = made if isinstance(made, tuple) else (made,)
            self._check(call, parts, shapes)
        except (Contradiction, TooLarge):
            raise
        except (Opaque, NetworkError, UnsupportedError, TypeError, IndexError) as error:
            self.undo()
            raise Opaque(str(error)) from error
        several = isinstance(made, tuple)
        labels = [out.name if several and out is not None else name for out in call.outputs]
        named = tuple(self._named(part, label) for part, label in zip(parts, labels, strict=False))
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

    def _named(self, part: Any, name: str) -> Any:
        """A result; a value that this call made takes the name, or one like it."""
        if not isinstance(part, Value) or part.tail or part.name not in self.made:
            return part
        self.taken.discard(part.name)
        return self.renamed(part, self.unique(name))

    def opaque(
        self, call: Call, name: str, shapes: Shapes, operands: Sequence[object]
    ) -> list[Value | Outside]:
        """An opaque node: what it reads stays as it is, what it makes is anything."""
        for operand in operands:
            self.pin(operand)
        made: list[Value | Outside] = []
        for out, shape in zip(call.outputs, shapes, strict=True):
            if out is None or shape is None:
                made.append(Outside())
            else:
                label = name if len(call.outputs) == 1 else out.name
                made.append(self.anything(label, shape, Origin((call.name,))))
        return made

    def anything(self, name: str, shape: Shape, origin: Origin | None = None) -> Value:
        """A value that may be anything, under this name or one like it."""
        self.room.value(shape)
        return self.fresh(self.unique(name), shape, origin)

    def finish(
        self, outputs: Sequence[object], metadata: Mapping[str, str], readers: Mapping[str, Collection[Slot]]
    ) -> Network:
        """The network that computes those of ``outputs`` that are values, or else what the program's opaque
        nodes read; ``readers`` are the arguments of calls that read each tensor of the state.
        """
        values = [(place, value) for place, value in enumerate(outputs) if isinstance(value, Value)]
        if not values:
            # What comes out is made by opaque nodes alone.
            values = [(place, Value(name, self.shapes[name])) for place, name in enumerate(self.pinned)]
        if not values:
            raise UnsupportedError("nothing that the program returns depends on its input, row by row")
        made: list[Output] = []
        for place, value in values:
            name = "output" if len(outputs) == 1 else f"output_{place}"
            if name != value.name or value.tail:
                name = self.unique(name)
            made.append(Output(name, value.name, value.tail))
        network = self.network(made, metadata, readers)
        check_graph(network, self.size)
        return network
