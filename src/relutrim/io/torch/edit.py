"""Edits of a graph, applied to the program that it was read from.

What comes out is a program again: calls that no edit names are the very same objects, tensors that no edit
names are not mentioned. Whoever holds the program (a module, a file) does the same to it.

1. It is edited as every source is (:mod:`relutrim.io.editing`). New calls are written as ATen spells them.
2. The program is read again, and has to be the graph that was meant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from relutrim.errors import UnsupportedError
from relutrim.graph.comparing import check_equal, reading_back
from relutrim.graph.edits import Edit, Resize, Rewire, difference, settled
from relutrim.graph.graph import Network, Node
from relutrim.graph.sharing import Slot
from relutrim.graph.slicing import Kept
from relutrim.io.editing import Array, Editor
from relutrim.io.torch.emission import Emission
from relutrim.io.torch.read import ATEN, Reading, base, misread, read
from relutrim.io.torch.record import Call, Constant, Home, Program, Ref, Tensor, names, substituted
from relutrim.io.torch.resize import CallResizing, resized


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
    found = _Editor(program, reading, after).edited(difference(reading.network, after, kept))
    with reading_back():
        check_equal(read(found.program, found.names).network, after)
    return found


class _Editor(Editor[Call]):
    def __init__(self, program: Program, reading: Reading, after: Network) -> None:
        self.program, before, self.names = program, reading.network, dict(reading.names)
        tensors = {name: one for name, one in reading.tensors.items() if name in before.shapes}
        values = {tensor: name for name, tensor in tensors.items()}
        calls, results = {call.name: call for call in program.calls}, (*program.outputs, *program.kept)
        super().__init__(before, after, calls, values, (name for name in results if name is not None))
        self.parts = {name: node.name for node in before.nodes if node.origin for name in node.origin.nodes}
        """The node that a call is a part of; the last of several."""
        taken = {*program.constants, *calls, *(tensor.name for tensor in program.inputs)}
        taken |= {name for call in program.calls for name in result_names(call)}
        self.emission = Emission(after, tensors, taken, program.batch)
        self.tensors: dict[str, Array] = {}
        """What tensors of the state hold from now on."""
        self.parted = False
        """Whether calls that read one tensor read several now."""
        self.same: dict[str, str] = {}
        for call in program.calls:
            moved, root = _moved(call), next(map(self.root, call.reads), "")
            if moved is not None and root in program.constants:
                self.same[moved] = root

    def edited(self, edits: Sequence[Edit]) -> Edited:
        """The program with these edits."""
        keys = self.apply(edits)
        new = frozenset(call.name for call in self.emission.calls)
        calls = [self.nodes[key] if key in new else self._reshaped(self.nodes[key]) for key in keys]
        program = replace(self.program, calls=tuple(calls))
        if misread(program) is not None:
            program = replace(program, calls=tuple(_out_of_place(calls)))
        read_now = self.results | {name for call in program.calls for name in call.reads}
        read_before = {name for call in self.program.calls for name in call.reads}
        constants = {**self.program.constants}
        for name in self.program.constants:
            home = self._home(name) if self.tensors else None
            if home is not None and home.tensor in self.tensors:
                constants[name] = _constant(self.tensors[home.tensor], home)
        for name, array in self.emission.tensors.items():
            constants[name] = _constant(array, Home(name, tuple(range(array.ndim)), array.ndim))
        constants = {n: one for n, one in constants.items() if n in read_now or n not in read_before}
        added = {name: array for name, array in self.emission.tensors.items() if name in read_now}
        idle = self._idle({*self.index} - {*keys} - self.live | self.gone)
        return Edited(
            replace(program, constants=constants),
            self.after,
            self.names,
            new,
            self.tensors,
            added,
            self.emission.paths,
            frozenset(self.emission.parameters & {*added}),
            self._groups(),
            frozenset(idle.values()),
            self._obstacle(idle, any(isinstance(edit, Rewire) for edit in edits)),
        )

    def _idle(self, gone: set[str]) -> dict[str, str]:
        """The calls that are all that a layer computes and go, and the path of the layer."""
        paths = {call.name: call.layer[1] for call in self.program.calls if call.layer is not None}
        stay = {path for name, path in paths.items() if name not in gone}
        return {name: path for name, path in paths.items() if path not in stay}

    def _obstacle(self, idle: Mapping[str, str], rewired: bool) -> str | None:
        gone = self.gone - {*idle}
        if self.emission.calls:
            new = self.emission.calls[0]
            return f"it would take a new {new.kind} in place of {self.names.get(new.name, new.name)!r}"
        if gone or (rewired and not idle):
            left_out = min(gone, key=lambda name: self.index[name], default="a step")
            return f"its forward() would have to leave out {left_out!r}"
        return "layers that share a tensor would need different ones" if self.parted else None

    def slots(self, node: Call) -> Iterator[tuple[int, str]]:
        for place, argument in enumerate(node.arguments.values()):
            yield from ((place, name) for name in names(argument))

    def makes(self, node: Call) -> set[str]:
        return {*result_names(node)}

    def needed(self) -> set[str]:
        return needed_calls(self.program)

    def only_sizes(self, node: Call) -> bool:
        return node.only_sizes

    def held(self) -> set[str]:
        inputs = (one.name for one in self.program.inputs)
        return {*self.program.constants, *self.emission.tensors, *inputs}

    def root(self, tensor: str) -> str:
        return self.same.get(tensor, tensor)

    def array(self, tensor: str) -> Array | None:
        root = self.root(tensor)
        return self.program.constants[root]().array if root in self.program.constants else None

    def _home(self, constant: str) -> Home:
        home = self.program.constants[constant]().home
        assert home is not None
        return home

    def resize(self, edit: Resize) -> bool:
        call = self.nodes[edit.node]
        made = [None if out is None else self.values.get(out.name) for out in call.outputs]
        found = resized(CallResizing(self.after, edit.instead.new, edit.before, call, made))
        self._change(edit.node, found or {})
        return found is not None

    def rewire(self, key: str, values: Mapping[str, str]) -> None:
        tensors = {self.emission.names[old]: self.emission.names[new] for old, new in values.items()}
        self._change(key, substituted(self.nodes[key].arguments, tensors))

    def write(self, node: Node, old: Sequence[str]) -> Mapping[str, Call]:
        start = len(self.emission.calls)
        self.emission.node(node)
        self.names[self.emission.calls[-1].name] = node.name
        return {call.name: call for call in self.emission.calls[start:]}

    def hold(self, tensor: str, array: Array) -> None:
        self.tensors[self._home(tensor).tensor] = array

    def own(self, slots: Sequence[Slot], array: Array) -> None:
        arguments = {key: list(self.nodes[key].arguments)[place] for key, place in slots}
        name = self.emission.free("_".join(next(iter(arguments.items()))))
        for key, argument in arguments.items():
            tensor = self.nodes[key].arguments[argument].name
            if tensor not in self.program.constants:
                raise UnsupportedError(
                    "several layers read it, and need it differently",
                    where=f"tensor {self._home(self.root(tensor)).tensor!r}",
                )
            self._change(key, {argument: Ref(name)})
        self.emission.tensors[name], self.parted = array, True
        self.emission.parameters.add(name)

    def _change(self, key: str, arguments: Mapping[str, Any]) -> None:
        """A call that nothing changes stays the very same one."""
        if arguments:
            call = self.nodes[key]
            self.nodes[key] = replace(call, arguments={**call.arguments, **arguments})

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

    def repaired(self, node: Call, made: set[str]) -> Call | None:
        """A call that asks for sizes: that of the batch is the input's; what was noted of others goes."""
        missing = [name for name in node.reads if name not in made]
        if not node.only_sizes:
            return node
        if node.kind == "sym_size" and node.arguments.get("dim") == 0:
            first = Ref(self.program.inputs[0].name)
            return replace(node, arguments={**node.arguments, "input": first}) if missing else node
        values = [self.values[name] for name in node.reads if name in self.values]
        moved = any(self.after.shapes.get(name) != self.before.shapes[name] for name in values)
        return None if missing or (moved and node.kind == "_assert_tensor_metadata") else node


def _moved(call: Call) -> str | None:
    """The tensor that a call makes of one other by moving its axes."""
    moves = call.kind in ("t", "numpy_T", "permute", "transpose", "detach", "alias", "clone", "contiguous")
    (out,) = call.outputs if len(call.outputs) == 1 else (None,)
    return out.name if moves and out is not None else None


def needed_calls(program: Program) -> set[str]:
    """The calls that what the program returns, or keeps, depends on; and those that make nothing."""
    wanted = {name for name in (*program.outputs, *program.kept) if name is not None}
    found = set()
    for call in reversed(program.calls):
        if not any(call.outputs) or not wanted.isdisjoint(result_names(call)):
            found.add(call.name)
            wanted.update(() if call.only_sizes else call.reads)
    return found


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
