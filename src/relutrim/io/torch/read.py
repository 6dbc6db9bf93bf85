"""A recorded program as a graph, call by call.

1. What depends on no input is a constant, and is computed as torch computes it.
2. A call of an operator in the table becomes nodes that know their source.
3. Every other call is an opaque node: what it reads is pinned, and what it makes is a fresh value.
4. What is read under another name after it was changed in place is refused
   (:mod:`relutrim.io.torch.aliasing`).
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from relutrim.errors import RelutrimError, UnsupportedError
from relutrim.graph import Network, Port
from relutrim.graph.sharing import Slot
from relutrim.io.torch.affine import AFFINE
from relutrim.io.torch.aliasing import changes, problem
from relutrim.io.torch.build import Builder, Opaque, Outside, Value
from relutrim.io.torch.functions import FUNCTIONS
from relutrim.io.torch.moving import DROPOUT, MOVING, SAME
from relutrim.io.torch.record import Call, Constant, Program, Ref, names
from relutrim.io.torch.windows import WINDOWS

ATEN = {**AFFINE, **FUNCTIONS, **WINDOWS, **MOVING}
"""By the names of the operators; one that ends in an underscore is the same in place."""
_TURNED = ("t", "numpy_T", "permute", "transpose")
_SAME = ("detach", "alias", "clone", "contiguous", "lift_fresh_copy", "detach_")


def base(kind: str) -> str:
    """The name of an operator without what says that it works in place."""
    return kind[:-1] if kind.endswith("_") and not kind.endswith("__") else kind


_STEPS = {"sigmoid", "tanh", "softmax", "_softmax", "log_softmax", "_log_softmax", *SAME, *DROPOUT}
"""The operators that steps of a tail may be, and those that leave values as they are."""
NEW = frozenset((*AFFINE, *FUNCTIONS, *WINDOWS, "clone", "lift_fresh_copy"))
"""The operators whose results share memory with nothing."""


def misread(program: Program) -> str | None:
    """Why the program cannot be read as if nothing in it were changed in place; None if it can."""
    return problem(program, NEW)


@dataclass(frozen=True, eq=False)
class Reading:
    """The network of a program; which of the program's results its outputs are, and which of the program's
    tensors its values are. ``names`` are what the values of each call are called.
    """

    network: Network
    places: tuple[int, ...]
    tensors: Mapping[str, str]
    names: Mapping[str, str]


def read(program: Program, names: Mapping[str, str] | None = None) -> Reading:
    """The network of a program; values are called by the torch modules that make them, or as ``names`` says
    of calls.
    """
    reason = misread(program)
    if reason is not None:
        raise UnsupportedError(
            f"{reason}; use the form that makes a new tensor (inplace=False, or y = y + ... instead of "
            "y += ...), or save the program that program.run_decompositions({}) makes"
        )
    return _Reader(program, names or {}).read()


def network_dtype(program: Program) -> str:
    """The precision of the network: that of its input, or float32 for an input that is not followed."""
    dtype = program.inputs[0].dtype
    return dtype if dtype in ("float32", "float64") else "float32"


class _Reader:
    def __init__(self, program: Program, names: Mapping[str, str]) -> None:
        self.program = program
        self.names = {**_names(program.calls), **names}
        self.dtype = network_dtype(program)
        first, *others = program.inputs
        shape = tuple(size for size in first.shape[1:] if isinstance(size, int))
        if not first.shape or len(shape) != len(first.shape) - 1:
            raise UnsupportedError(
                "an input of shape (batch, ...) is needed, of which only the batch may have a free size",
                where=f"input {first.name!r}",
            )
        batch = program.batch
        self.used = {name for call in program.calls for name in call.reads if not call.only_sizes}
        self.used.update(name for name in (*program.outputs, *program.kept) if name is not None)
        port = Port(first.name, shape, batch if isinstance(batch, int) else "batch")
        self.builder = Builder(port, self.dtype, program.size, self._final())
        self.values: dict[str, object] = {}
        if program.rows(first, self.dtype) is not None:
            self.values[first.name] = self.builder.input
        for other in others:
            own = program.rows(other, self.dtype)
            if own is not None:
                self.values[other.name] = self.builder.anything(other.name, own)

    def _final(self) -> set[str]:
        """The calls whose results nothing reads but outputs and steps of tails."""
        found, taken = set[str](), set(self.program.kept)
        for call in reversed(self.program.calls):
            made = {out.name for out in call.outputs if out is not None}
            if call.only_sizes or not made & self.used:
                continue
            if not made & taken:
                found.add(call.name)
            rows = all(out is None or self.program.rows(out, self.dtype) is not None for out in call.outputs)
            if call.name not in found or base(call.kind) not in _STEPS or not rows:
                taken.update(call.reads)
        return found

    def read(self) -> Reading:
        for name, make in self.program.constants.items():
            if name in self.used and name not in self.program.mutable:
                self.values[name] = make()
        for call in self.program.calls:
            used = tuple(out if out is not None and out.name in self.used else None for out in call.outputs)
            if not any(used) or call.only_sizes:
                continue
            try:
                made = self._made(replace(call, outputs=used), self.names[call.name])
            except RelutrimError as error:
                raise error.at(f"node {self.names[call.name]!r}") from None
            for out, value in zip(used, made, strict=False):
                if out is not None:
                    self.values[out.name] = value
        results = [None if name is None else self.values.get(name) for name in self.program.outputs]
        for name in self.program.kept:
            self.builder.pin(self.values.get(name))
        if not self.builder.pinned and not any(isinstance(value, Value) for value in results):
            results = self._stand_in(results)
        constants = {name: one for name, one in self.values.items() if isinstance(one, Constant)}
        homes = {name: one.home.tensor for name, one in constants.items() if one.home is not None}
        network = self.builder.finish(results, self.program.remarks, _slots(self.program, homes))
        places = [place for place, value in enumerate(results) if isinstance(value, Value)]
        tensors: dict[str, str] = {}
        for tensor, value in self.values.items():
            if isinstance(value, Value):
                tensors.setdefault(value.tail[-1].name if value.tail else value.name, tensor)
        return Reading(network, tuple(places), tensors, self.names)

    def _stand_in(self, results: Sequence[object]) -> list[object]:
        """The results, the first one that is not followed and has a row for each input as a fresh value: for
        a program of which nothing is followed, such as one in half precision.
        """
        made = {out.name: out for call in self.program.calls for out in call.outputs if out is not None}
        made |= {one.name: one for one in self.program.inputs}
        found = list(results)
        for place, (name, value) in enumerate(zip(self.program.outputs, results, strict=True)):
            tensor = made.get(name or "")
            shape = None if tensor is None else self.program.rows(tensor, tensor.dtype)
            if tensor is not None and shape is not None and not isinstance(value, Constant):
                found[place] = self.builder.anything(self.names.get(tensor.name, tensor.name), shape)
                break
        return found

    def _made(self, call: Call, name: str) -> Sequence[object]:
        read = [self.values.get(one, Outside()) for one in call.reads]
        if all(isinstance(one, Constant) for one in read):
            return self._folded(call)
        shapes = tuple(None if out is None else self.program.rows(out, self.dtype) for out in call.outputs)
        handler = ATEN.get(base(call.kind))
        if handler is not None and any(isinstance(one, Value) for one in read):
            try:
                operands = {key: self._operand(argument) for key, argument in call.arguments.items()}
                made = self.builder.apply(call, name, shapes, handler, operands)
                return made if isinstance(made, tuple) else [made]
            except Opaque:
                pass
        return self.builder.opaque(call, name, shapes, read)

    def _operand(self, argument: Any) -> Any:
        if isinstance(argument, Ref):
            return self.values.get(argument.name, Outside())
        if isinstance(argument, list | tuple):
            return [self._operand(part) for part in argument]
        return argument

    def _folded(self, call: Call) -> Sequence[object]:
        """What a call makes of constants alone."""
        for out in call.outputs:
            if out is not None and all(isinstance(size, int) for size in out.shape):
                self.builder.room.take([int(size) for size in out.shape], "it makes a constant")
        first = next((self.values[one] for one in call.reads), None)
        if isinstance(first, Constant) and (call.kind in _TURNED or call.kind in _SAME):
            return [_moved(call, first)]
        written = changes(call)
        raw = {one: self.values[one].raw for one in call.reads}  # type: ignore[attr-defined]
        raw.update({one: copy.deepcopy(raw[one]) for one in written})  # it changes nothing but its own copy
        try:
            made = None if call.evaluate is None else call.evaluate(raw)
        except Exception:  # torch's own operators, and numbers of a file: whatever fails is not known
            made = None
        if made is None:
            return [Outside()] * len(call.outputs)
        return [Constant(part) for part in (made if isinstance(made, tuple | list) else [made])]


def _moved(call: Call, constant: Constant) -> Constant:
    """A constant with its axes in another order, or as it is."""
    rank = len(constant.raw.shape)
    order = list(range(rank))
    match base(call.kind):
        case "t" | "numpy_T":
            order = order[::-1]
        case "permute":
            order = [int(dim) % rank for dim in call.arguments["dims"]]
        case "transpose":
            one, two = int(call.arguments["dim0"]), int(call.arguments["dim1"])
            order[one], order[two] = order[two], order[one]
    return constant if order == sorted(order) else constant.permuted(np.array(order).tolist())


def _names(calls: Sequence[Call]) -> dict[str, str]:
    """What the value of each call is named: the path of its torch module where that makes one call (with a
    number where the module is used again), else as in the program.
    """
    counts = Counter(call.layer for call in calls if call.outputs and not call.only_sizes)
    taken = Counter[str]()
    found = {}
    for call in calls:
        found[call.name] = call.name
        if call.layer and counts[call.layer] == 1 and call.outputs and not call.only_sizes:
            path = call.layer[1]
            found[call.name] = f"{path}_{taken[path]}" if taken[path] else path
            taken[path] += 1
    return found


def _slots(program: Program, homes: Mapping[str, str]) -> dict[str, set[Slot]]:
    """The arguments of calls that read each tensor of the state; ``homes`` are the names in the program of
    these tensors, and of what is moved of nothing but them.
    """
    found: dict[str, set[Slot]] = {}
    for call in program.calls:
        made = [out.name for out in call.outputs if out is not None]
        if call.only_sizes or (made and homes.keys() >= {*made}):
            continue
        for place, value in enumerate(call.arguments.values()):
            for name in names(value):
                if name in homes:
                    found.setdefault(homes[name], set()).add((call.name, place))
    for one in (*program.outputs, *program.kept):
        if one is not None and one in homes:
            found.setdefault(homes[one], set()).add((one, -1))
    return found
