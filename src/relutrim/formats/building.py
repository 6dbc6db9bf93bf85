"""From a program that computes with tensors to a network: what the torch formats share. Needs no torch.

A reader walks a recorded program (torch.fx, an exported program) and calls one method here per operation.
Operands are :class:`Value` where they depend on the input, and numbers or numpy arrays where they do not.

Three things a recorded program may do that a graph of pure operators cannot, and what is done about them:

1. *It names the batch size.* ``BATCH`` stands for it in shapes; anything that mixes it with data is refused.
2. *It changes values in place.* Reading a value, or another view of its memory, after a change is refused.
3. *It holds numbers of Python.* They are rounded to the network's own precision, as torch itself does and as
   any file will, so that reading and writing a network loses nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from relutrim.errors import InputError, NetworkError, UnsupportedError
from relutrim.formats.gates import gate, halved_gelu
from relutrim.formats.inner import inner
from relutrim.formats.picks import take
from relutrim.formats.sizes import check_size
from relutrim.network import (
    Add,
    Gelu,
    Linear,
    Network,
    Node,
    Operator,
    Output,
    Port,
    Relu,
    Reshape,
    Scale,
    TailStep,
)
from relutrim.network.operators import Array, Shape


class Batch:
    """The number of inputs in a batch, known only when the network runs."""

    def __repr__(self) -> str:
        return "BATCH"


BATCH: Final = Batch()


@dataclass(frozen=True)
class Value:
    """Something computed from the input.

    ``storage`` tells which values share memory, ``tail`` which steps follow the node of that name.
    """

    name: str
    shape: Shape
    storage: int
    tail: tuple[TailStep, ...] = ()


Constant: TypeAlias = npt.NDArray[Any] | int | float
Operand: TypeAlias = Value | Constant
Size: TypeAlias = int | Batch


class Builder:
    """Collects nodes; every method takes the name wanted for its result, which is made unique."""

    def __init__(self, port: Port, dtype: str) -> None:
        self.port = port
        self.dtype = dtype
        self.input = Value(port.name, port.shape, storage=0)
        self._nodes: list[Node] = []
        self._names = {port.name}
        self._storages = 1
        self._changed: dict[int, str] = {}
        self._inner: set[str] = set()

    # Affine maps

    def linear(self, name: str, x: Operand, weight: Operand, bias: Operand | None = None) -> Value:
        """``x W^T + b`` on the last axis."""
        x = self.read(x)
        if isinstance(weight, Value) or isinstance(bias, Value):
            raise UnsupportedError("its weights depend on the input, so it is not affine")
        matrix = self.stored(weight)
        offset = self.stored(bias) if bias is not None else np.zeros(matrix.shape[:1])
        if matrix.ndim != 2:
            raise UnsupportedError(
                f"a weight of shape {matrix.shape} is not a matrix; only x W^T + b is represented"
            )
        return self.append(
            name, Linear(matrix, offset.reshape(-1) if offset.shape[:-1] == (1,) else offset), x
        )

    def matmul(self, name: str, x: Operand, other: Operand) -> Value:
        """``x @ W`` with a constant matrix on the right; on the left it would mix the inputs of a batch."""
        if not isinstance(x, Value):
            raise UnsupportedError(
                "a constant multiplied from the left mixes the inputs of a batch; write x @ W.T"
            )
        if isinstance(other, Value):
            raise UnsupportedError(
                "a product of two values that both depend on the input is not piecewise linear"
            )
        matrix = self.stored(other)
        if matrix.ndim != 2:
            raise UnsupportedError(f"x @ W with W of shape {matrix.shape}; only matrices are represented")
        return self.linear(name, x, matrix.T)

    def add(self, name: str, a: Operand, b: Operand, alpha: float = 1) -> Value:
        """``a + alpha * b`` for ``alpha`` 1 or -1."""
        if alpha not in (1, -1):
            raise UnsupportedError(
                f"a + alpha * b with alpha = {alpha}; multiply in a step of its own instead"
            )
        if isinstance(a, Value) and isinstance(b, Value):
            return self.sum(name, [a, b if alpha == 1 else self.scale(f"{name}_negated", b, -1.0)])
        if isinstance(a, Value):
            return self.scale(name, a, 1.0, alpha * self._constant(b, a))
        b = self.read(b)
        return self.scale(name, b, float(alpha), self._constant(a, b))

    def sum(self, name: str, values: Sequence[Operand]) -> Value:
        """The sum of values, broadcast to one shape."""
        read = [self.read(value) for value in values]
        if len({len(value.shape) for value in read}) > 1:
            shapes = ", ".join(str(value.shape) for value in read)
            raise UnsupportedError(
                f"values of shapes {shapes} (without the batch axis) are added by broadcasting, so that the "
                "batch of one meets another axis of the other; bring them to one shape first"
            )
        try:
            shape = np.broadcast_shapes(*(value.shape for value in read))
        except ValueError as error:
            raise NetworkError(str(error)) from None
        return self.append(name, Add(len(read)), *(self._expanded(name, value, shape) for value in read))

    def _expanded(self, name: str, x: Value, shape: Shape) -> Value:
        """``x`` with axes of length 1 repeated."""
        picks = {
            a: np.zeros(new, int)
            for a, (old, new) in enumerate(zip(x.shape, shape, strict=True))
            if old != new
        }
        operator = take(x.shape, picks)
        return x if operator is None else self.append(f"{name}_expanded", operator, x)

    def multiply(self, name: str, a: Operand, b: Operand) -> Value:
        """``a * b`` where one of the two is constant, or where that is a function with a name."""
        x, factor = (a, b) if isinstance(a, Value) else (b, a)
        x = self.read(x)
        if isinstance(factor, Value):
            found = gate(self._find, x.name, self.read(factor).name, self.dtype)
            if found is None:
                raise UnsupportedError(
                    "a product of two values that depend on the input is not piecewise linear, unless it is "
                    "one of a value with a function of itself that makes a SiLU, Mish or GELU"
                )
            x = replace(x, name=found[0])
            for operator in found[1]:
                x = self.append(name, operator, x)
            return x
        constant = self._constant(factor, x)
        whole = halved_gelu(self._find, x.name, constant)
        if whole is not None:
            return self.append(name, Gelu(), replace(x, name=whole))
        return self.scale(name, x, constant)

    def divide(self, name: str, a: Operand, b: Operand) -> Value:
        """``a / b`` with a constant ``b``."""
        if isinstance(b, Value):
            raise UnsupportedError("division by a value that depends on the input is not piecewise linear")
        x = self.read(a)
        return self.append(name, Scale.divide(self._constant(b, x)), x)

    def scale(self, name: str, x: Operand, scale: Array | float = 1.0, shift: Array | float = 0.0) -> Value:
        """``scale * x + shift``, numbers taken as they are."""
        return self.append(name, Scale.exactly(scale, shift), self.read(x))

    def batch_norm(
        self,
        name: str,
        x: Operand,
        gain: Constant | None,
        bias: Constant | None,
        mean: Constant | None,
        variance: Constant | None,
        epsilon: float,
    ) -> Value:
        """Batch normalisation by its running statistics, channels on the first axis after the batch."""
        x = self.read(x)
        if mean is None or variance is None:
            raise UnsupportedError(
                "batch normalisation without running statistics depends on the other inputs of the batch; "
                "train it with track_running_stats=True"
            )
        channels = self.stored(mean).size
        if not x.shape or x.shape[0] != channels:
            raise NetworkError(f"batch normalisation of {channels} channels meets a value of shape {x.shape}")
        along = (channels, *(1 for _ in x.shape[1:]))

        def channel(values: Constant | None, default: float) -> Array:
            return np.full(along, default) if values is None else self.stored(values).reshape(along)

        scale = Scale.batch_norm(
            channel(gain, 1), channel(bias, 0), channel(mean, 0), channel(variance, 1), float(epsilon)
        )
        return self.append(name, scale, x)

    # Everything else

    def relu(self, name: str, x: Operand) -> Value:
        """``max(0, x)``."""
        return self.append(name, Relu(), self.read(x))

    def reshape(self, name: str, x: Operand, sizes: Sequence[Size]) -> Value:
        """``x`` in the shape ``sizes``, batch axis included; one size may be -1."""
        x = self.read(x)
        first, *rest = sizes or [0]
        ok = isinstance(first, Batch) or first == self.port.batch
        if any(isinstance(size, Batch) for size in rest) or not (ok or first == -1):
            raise UnsupportedError(
                f"a reshape to {list(sizes)} does not keep the batch as the first axis; "
                "write x.flatten(1) or x.reshape(x.size(0), ...)"
            )
        after = [int(size) for size in rest if not isinstance(size, Batch)]
        count, known = math.prod(x.shape), math.prod(size for size in after if size != -1)
        if after.count(-1) == 1 and ok and known and count % known == 0:
            after[after.index(-1)] = count // known
        if min(after, default=0) < 0 or math.prod(after) != count:
            raise NetworkError(f"a value of shape {x.shape} cannot be reshaped to {list(sizes)}")
        return replace(self.append(name, Reshape(x.shape, tuple(after)), x), storage=x.storage)

    def flatten(self, name: str, x: Operand, start: int = 1, end: int = -1) -> Value:
        """Axes ``start`` to ``end`` joined into one, counted with the batch axis."""
        x = self.read(x)
        rank = len(x.shape) + 1
        start, end = (axis + rank if axis < 0 else axis for axis in (start, end))
        if not 1 <= start <= end < rank:
            raise UnsupportedError(
                f"flatten from axis {start} to {end} of {rank} axes; the batch axis 0 must stay as it is"
            )
        joined = math.prod(x.shape[start - 1 : end])
        return self.reshape(name, x, [BATCH, *x.shape[: start - 1], joined, *x.shape[end:]])

    def tail(self, name: str, kind: str, x: Operand, axis: int | None = None) -> Value:
        """A step such as a softmax behind the last affine layer; ``axis`` counts the batch axis."""
        if not isinstance(x, Value):
            raise UnsupportedError("it is applied to a constant")
        self._check_unchanged(x)
        attributes: Mapping[str, Any] = {}
        if axis is not None:
            rank = len(x.shape) + 1
            if axis % rank == 0 or not -rank <= axis < rank:
                raise UnsupportedError(
                    f"{kind} along axis {axis} runs over the inputs of a batch; use dim=-1"
                )
            # Negative, so that it means the same with and without a batch axis.
            attributes = {"axis": axis - rank if axis >= 0 else axis}
        return replace(
            x, tail=(*x.tail, TailStep(kind, self._unique(name), attributes)), storage=self._fresh()
        )

    def copy(self, x: Operand) -> Value:
        """The same value in memory of its own."""
        return replace(self.read(x), storage=self._fresh())

    def changed(self, x: Operand, by: str) -> None:
        """Record that the memory of ``x`` now holds something else."""
        if isinstance(x, Value):
            self._changed[x.storage] = by

    def finish(self, outputs: Sequence[object], *, metadata: Mapping[str, str] | None = None) -> Network:
        """The network that computes ``outputs``."""
        made: list[Output] = []
        for position, value in enumerate(outputs):
            name = "output" if len(outputs) == 1 else f"output_{position}"
            if not isinstance(value, Value):
                raise UnsupportedError(
                    f"output {position} does not depend on the input; return tensors computed from it"
                )
            self._check_unchanged(value)
            if any(step.name in self._inner for step in value.tail):
                value = self._within(value)
            if name != value.name or value.tail:
                name = self._unique(name)
            made.append(Output(name, value.name, value.tail))
        return Network(self.port, self._live(made), tuple(made), self.dtype, metadata or {})

    def _live(self, outputs: Sequence[Output]) -> tuple[Node, ...]:
        """The nodes that some output depends on."""
        wanted = {output.source for output in outputs}
        kept = []
        for node in reversed(self._nodes):
            if node.name in wanted:
                kept.append(node)
                wanted.update(node.inputs)
        return tuple(reversed(kept))

    # Helpers

    def append(self, name: str, operator: Operator, *inputs: Value) -> Value:
        """Apply an operator."""
        shape = operator.output_shape([value.shape for value in inputs])
        check_size(shape)
        name = self._unique(name)
        self._nodes.append(Node(name, operator, tuple(value.name for value in inputs)))
        return Value(name, shape, self._fresh())

    def renamed(self, name: str, x: Value, since: int) -> Value:
        """``x`` under another name, if it is the last value and made after the first ``since`` nodes."""
        if self.count == since or self._nodes[-1].name != x.name:
            return x
        name = self._unique(name)
        self._names.discard(x.name)
        self._nodes[-1] = replace(self._nodes[-1], name=name)
        return replace(x, name=name)

    @property
    def count(self) -> int:
        """How many nodes there are."""
        return len(self._nodes)

    def _find(self, name: str) -> Node | None:
        return next((node for node in self._nodes if node.name == name), None)

    def read(self, x: Operand) -> Value:
        """A value that an operator may read now."""
        if not isinstance(x, Value):
            raise UnsupportedError("it is applied to a constant; fold it into the weights before")
        self._check_unchanged(x)
        return self._within(x) if x.tail else x

    def _within(self, x: Value) -> Value:
        """A value behind a tail that something reads: it is no tail then."""
        value = replace(x, tail=())
        for step in x.tail:
            if step.name not in self._inner:
                self._nodes.append(Node(step.name, inner(step, len(value.shape)), (value.name,)))
                self._inner.add(step.name)
            value = replace(value, name=step.name)
        return value

    def _check_unchanged(self, x: Value) -> None:
        if x.storage in self._changed:
            raise UnsupportedError(
                f"it reads {x.name!r}, whose memory {self._changed[x.storage]!r} changed in place before; "
                "use the form that makes a new tensor (inplace=False)"
            )

    def _constant(self, values: Operand, beside: Value) -> Array:
        """A constant as it broadcasts against the value without its batch axis."""
        if isinstance(values, Value):
            raise UnsupportedError("it combines two values that both depend on the input")
        array = self.stored(values)
        if array.ndim == len(beside.shape) + 1 and array.shape[0] == 1:
            array = array[0]
        try:
            fits = (
                array.ndim <= len(beside.shape)
                and np.broadcast_shapes(array.shape, beside.shape) == beside.shape
            )
        except ValueError:
            fits = False
        if not fits:
            raise UnsupportedError(
                f"a constant of shape {array.shape} does not broadcast into a value of shape {beside.shape} "
                "(without its batch axis); bring the two to one shape first"
            )
        return array

    def stored(self, values: Operand) -> Array:
        """The numbers as a file of the network's precision stores them."""
        if isinstance(values, Value | Batch):
            raise UnsupportedError("it computes with something that is only known when the network runs")
        with np.errstate(over="ignore"):
            return np.asarray(np.asarray(values).astype(self.dtype), dtype=np.float64)

    def _fresh(self) -> int:
        self._storages += 1
        return self._storages

    def _unique(self, name: str) -> str:
        candidate, count = name, 0
        while candidate in self._names:
            count += 1
            candidate = f"{name}_{count}"
        self._names.add(candidate)
        return candidate


def network_dtype(dtypes: Mapping[str, str]) -> str:
    """The one precision of all weights, given the name and the dtype of each floating-point tensor in use."""
    for name, dtype in dtypes.items():
        if dtype not in ("float32", "float64"):
            raise UnsupportedError(
                f"it holds {dtype} numbers; only float32 and float64 are represented. Convert the model "
                "first: model.float() loses nothing coming from float16 or bfloat16",
                where=f"tensor {name!r}",
            )
    found = sorted(set(dtypes.values()))
    if len(found) > 1:
        examples = ", ".join(
            f"{next(n for n, d in dtypes.items() if d == dtype)!r} is {dtype}" for dtype in found
        )
        raise InputError(
            f"the model mixes precisions ({examples}); convert it to one with model.double() or model.float()"
        )
    return found[0] if found else "float32"
