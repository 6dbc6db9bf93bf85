"""Edits of a graph, applied to the program that it was read from.

What comes out is a program again: calls that no edit names are the very same objects, tensors that no edit
names are not mentioned. Whoever holds the program (a module, a file) does the same to it.

1. What a tensor loses, or is set to, is done in the tensor where all its readers agree, else in one of their
   own. A call that cannot say its new sizes is replaced.
2. Where nodes of the graph take the place of calls, they are written as ATen spells them.
3. What nobody reads any more goes; what nobody has read before stays.
4. The program is read again, and has to be the graph that was meant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt

from relutrim.errors import UnsupportedError
from relutrim.graph.comparing import check_equal, reading_back
from relutrim.graph.edits import Edit, Replace, Resize, Rewire, SetTensor, SliceTensor, difference, settled
from relutrim.graph.graph import Network
from relutrim.graph.slicing import Kept
from relutrim.io.order import ordered
from relutrim.io.torch.emission import Emission
from relutrim.io.torch.held import Held
from relutrim.io.torch.read import ATEN, Reading, base, misread, read
from relutrim.io.torch.record import Call, Constant, Home, Program, Ref, Tensor, substituted
from relutrim.io.torch.resize import Resizing, resized

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Edited:
    """A program with edits, the network that it is, and what the values of its calls are called; ``new`` are
    the calls that there were not.

    ``tensors`` are those of the state whose content is new; ``added`` those that there were not, by their
    names in the program, ``paths`` what they are called in the state, ``learnt`` those of them that can be
    learnt; ``groups`` the group counts of convolutions, by the tensors of their weights. ``idle`` are the
    paths of layers that compute nothing any more. ``obstacle`` is why a module whose code stays as it is
    cannot compute this; None if it can, given its tensors, group counts and idle layers.
    """

    program: Program
    network: Network
    names: Mapping[str, str]
    new: frozenset[str]
    tensors: Mapping[str, Array]
    added: Mapping[str, Array]
    paths: Mapping[str, str]
    learnt: frozenset[str]
    groups: Mapping[str, int]
    idle: frozenset[str]
    obstacle: str | None


def edited(
    program: Program, reading: Reading, after: Network, kept: Mapping[str, Kept] | None = None
) -> Edited:
    """``program``, which was read as ``reading``, such that it reads as ``after``."""
    after = settled(reading.network, after)
    found = _Editor(program, reading, after).apply(difference(reading.network, after, kept))
    with reading_back():
        check_equal(read(found.program, found.names).network, after)
    return found


class _Editor:
    def __init__(self, program: Program, reading: Reading, after: Network) -> None:
        self.program, self.before, self.after = program, reading.network, after
        self.calls = {call.name: call for call in program.calls}
        self.index = {name: at for at, name in enumerate(self.calls)}
        self.names = dict(reading.names)
        tensors = {name: one for name, one in reading.tensors.items() if name in self.before.shapes}
        self.values = {tensor: name for name, tensor in tensors.items()}
        self.parts = {
            name: node.name for node in self.before.nodes if node.origin for name in node.origin.nodes
        }
        """The node that a call is a part of; the last of several."""
        taken = {*program.constants, *self.calls, *(tensor.name for tensor in program.inputs)}
        taken |= {name for call in program.calls for name in result_names(call)}
        self.emission = Emission(after, tensors, taken, program.batch)
        self.places: dict[str, tuple[int, int]] = {name: (at, 0) for name, at in self.index.items()}
        """Where calls belong, new ones behind those whose place they take."""
        self.changed: dict[str, dict[str, Any]] = {}
        """The arguments of calls that change."""

    def apply(self, edits: Sequence[Edit]) -> Edited:
        replaces = [edit for edit in edits if isinstance(edit, Replace)]
        for edit in edits:
            if isinstance(edit, Resize) and edit.instead not in replaces:
                found = self._resized(edit)
                if found is None:
                    replaces.append(edit.instead)
                else:
                    self._change(edit.node, found)
        gone = {name for edit in replaces for name in edit.old}
        stranded = self._stranded(gone)
        gone |= stranded
        self._write(replaces)
        held = Held(self.program, gone)
        slots = {}
        for edit in edits:
            if isinstance(edit, Rewire) and edit.node not in gone:
                old, new = (self.emission.names[name] for name in (edit.old, edit.new))
                self._change(edit.node, substituted(self._call(edit.node).arguments, {old: new}))
            elif isinstance(edit, SliceTensor | SetTensor) and edit.node not in gone:
                slots[edit.node, list(self.calls[edit.node].arguments)[edit.place]] = edit
        held.apply(slots)
        for (name, argument), array in held.own.items():
            self._change(name, {argument: self._own(f"{name}_{argument}", array)})
        rewired = any(isinstance(edit, Rewire) for edit in edits)
        idle = self._idle(gone)
        obstacle = self._obstacle(gone - stranded - {*idle}, rewired and not idle, held)
        return self._edited(gone, held, idle, obstacle)

    def _edited(self, gone: set[str], held: Held, idle: Mapping[str, str], obstacle: str | None) -> Edited:
        kept = [self._reshaped(self._call(name)) for name in self.calls if name not in gone]
        calls = self._live(_sorted([*kept, *self.emission.calls], self.places))
        if misread(replace(self.program, calls=tuple(calls))) is not None:
            calls = _out_of_place(calls)
        read_now = {name for call in calls for name in call.reads} | {
            *self.program.outputs,
            *self.program.kept,
        }
        constants = {**self.program.constants}
        for name, make in self.program.constants.items():
            home = make().home if held.tensors else None
            if home is not None and home.tensor in held.tensors:
                constants[name] = _constant(held.tensors[home.tensor], home)
        for name, array in self.emission.tensors.items():
            constants[name] = _constant(array, Home(name, tuple(range(array.ndim)), array.ndim))
        read_before = {name for call in self.program.calls for name in call.reads}
        program = replace(
            self.program,
            calls=tuple(calls),
            constants={n: one for n, one in constants.items() if n in read_now or n not in read_before},
        )
        added = {name: array for name, array in self.emission.tensors.items() if name in read_now}
        return Edited(
            program,
            self.after,
            self.names,
            frozenset(call.name for call in self.emission.calls),
            held.tensors,
            added,
            self.emission.paths,
            frozenset(self.emission.parameters & {*added}),
            self._groups(),
            frozenset(idle.values()),
            obstacle,
        )

    def _stranded(self, gone: set[str]) -> set[str]:
        """The calls that no result depends on, where what they read has another shape now, or is no more."""
        others = {*gone, *self.changed}
        lost = {name for call in others for name in result_names(self.calls[call]) if name not in self.values}
        lost |= {
            tensor
            for tensor, value in self.values.items()
            if self.after.shapes.get(value) != self.before.shapes[value]
        }
        found = set()
        needed = needed_calls(self.program)
        for call in self.program.calls:
            if call.name not in needed and not call.only_sizes and not lost.isdisjoint(call.reads):
                found.add(call.name)
                lost.update(result_names(call))
        return found

    def _idle(self, gone: set[str]) -> dict[str, str]:
        """The calls that are all that a layer computes and go, and the path of the layer."""
        paths = {name: call.layer[1] for name, call in self.calls.items() if call.layer is not None}
        stay = {path for name, path in paths.items() if name not in gone}
        return {name: path for name, path in paths.items() if path not in stay}

    def _obstacle(self, gone: set[str], rewired: bool, held: Held) -> str | None:
        if self.emission.calls:
            new = self.emission.calls[0]
            return f"it would take a new {new.kind} in place of {self.names.get(new.name, new.name)!r}"
        if gone or rewired:
            left_out = min(gone, key=lambda name: self.index[name], default="a step")
            return f"its forward() would have to leave out {left_out!r}"
        if held.own:
            return "layers that share a tensor would need different ones"
        return None

    # Calls

    def _call(self, name: str) -> Call:
        """A call as it is now, the very same one where nothing has changed."""
        call, changed = self.calls[name], self.changed.get(name)
        return replace(call, arguments={**call.arguments, **changed}) if changed else call

    def _change(self, name: str, arguments: Mapping[str, Any]) -> None:
        if arguments:
            self.changed.setdefault(name, {}).update(arguments)

    def _resized(self, edit: Resize) -> Mapping[str, Any] | None:
        call = self.calls[edit.node]
        made = [None if out is None else self.values.get(out.name) for out in call.outputs]
        return resized(Resizing(call, self.after, edit.instead.new, edit.before, made))

    def _write(self, replaces: Iterable[Replace]) -> None:
        """The calls that take the place of others."""
        new = {node.name: edit.old for edit in replaces for node in edit.new}
        for node in self.after.nodes:
            if node.name in new:
                start = len(self.emission.calls)
                self.emission.node(node)
                self.names[self.emission.calls[-1].name] = node.name
                at = max((self.index[name] for name in new[node.name]), default=-1)
                for place in range(start, len(self.emission.calls)):
                    self.places[self.emission.calls[place].name] = (at, place + 1)

    def _own(self, stem: str, array: Array) -> Ref:
        name = self.emission.free(stem)
        self.emission.tensors[name] = array
        self.emission.parameters.add(name)
        return Ref(name)

    def _groups(self) -> dict[str, int]:
        found = {}
        for node in self.after.nodes:
            groups = getattr(node.operator, "groups", None)
            if groups is not None and node.origin is not None and "weight" in node.origin.fields:
                found[node.origin.fields["weight"].tensor] = int(groups)
        return found

    def _reshaped(self, call: Call) -> Call:
        """With the shapes that its results have now."""
        outputs = tuple(out if out is None else self._sized(call, out) for out in call.outputs)
        return call if outputs == call.outputs else replace(call, outputs=outputs)

    def _sized(self, call: Call, out: Tensor) -> Tensor:
        value, shape = self.values.get(out.name), out.shape[1:]
        if value not in self.after.shapes:
            value = self.parts.get(call.name)  # what several calls compute together has one shape
        if value is None or value not in self.after.shapes or self.before.shapes.get(value) != shape:
            return out
        return replace(out, shape=(out.shape[0], *self.after.shapes[value]))

    # What stays

    def _live(self, calls: list[Call]) -> list[Call]:
        """Without calls whose results something read before and nothing reads now. Asking for the size of a
        tensor does not read it.
        """
        results = {name for name in (*self.program.outputs, *self.program.kept) if name is not None}
        read_before = _read(self.program.calls) | results
        held = {*self.program.constants, *self.emission.tensors, *(one.name for one in self.program.inputs)}
        while True:
            read = _read(calls) | results
            made = {*held, *(name for call in calls for name in result_names(call))}
            stay = []
            for call in calls:
                own = {*result_names(call)}
                dead = own and not own & read and (own & read_before or call.name not in self.calls)
                left = self._asking(call, made) if call.only_sizes else None if dead else call
                if left is not None:
                    stay.append(left)
            if len(stay) == len(calls):
                break
            calls = stay
        for call in stay:
            missing = [name for name in call.reads if name not in made]
            if missing:
                raise UnsupportedError(
                    "something that relutrim does not follow reads it, and it would go",
                    where=f"tensor {missing[0]!r}",
                )
        return stay

    def _asking(self, call: Call, made: set[str]) -> Call | None:
        """A call that asks for sizes: that of the batch is the input's; what was noted of others goes."""
        missing = [name for name in call.reads if name not in made]
        if call.kind == "sym_size" and call.arguments.get("dim") == 0:
            first = Ref(self.program.inputs[0].name)
            return replace(call, arguments={**call.arguments, "input": first}) if missing else call
        values = [self.values[name] for name in call.reads if name in self.values]
        moved = any(self.after.shapes.get(name) != self.before.shapes[name] for name in values)
        return None if missing or (moved and call.kind == "_assert_tensor_metadata") else call


def needed_calls(program: Program) -> set[str]:
    """The calls that what the program returns, or keeps, depends on; and those that make nothing."""
    wanted = {name for name in (*program.outputs, *program.kept) if name is not None}
    found = set()
    for call in reversed(program.calls):
        if not any(call.outputs) or not wanted.isdisjoint(result_names(call)):
            found.add(call.name)
            wanted.update(() if call.only_sizes else call.reads)
    return found


def _read(calls: Iterable[Call]) -> set[str]:
    return {name for call in calls if not call.only_sizes for name in call.reads}


def result_names(call: Call) -> list[str]:
    """The names of what a call makes; a size has that of its call."""
    return [out.name for out in call.outputs if out is not None] or [call.name]


def _constant(array: Array, home: Home) -> Callable[[], Constant]:
    return lambda: Constant(array, home)


def _out_of_place(calls: Sequence[Call]) -> list[Call]:
    """The calls with what they do in place done to new tensors."""
    found = []
    for call in calls:
        name = base(call.kind)
        if name != call.kind and name in ATEN:
            call = replace(call, target=f"aten.{name}.{call.target.rpartition('.')[2]}")
        found.append(call)
    return found


def _sorted(calls: Sequence[Call], places: Mapping[str, tuple[int, int]]) -> list[Call]:
    """The calls in topological order, by their places where that leaves a choice."""
    makers = {name: at for at, call in enumerate(calls) for name in result_names(call)}
    needs = [{makers[name] for name in call.reads if name in makers} - {at} for at, call in enumerate(calls)]
    return [calls[at] for at in ordered(needs, [places[call.name] for call in calls])]
