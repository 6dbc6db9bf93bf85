"""Edits of a program, made in the ``.pt2`` archive that holds it. Nothing in it is loaded or unpickled.

1. Which calls and which tensors change is decided as for a program in memory (:mod:`relutrim.io.torch.edit`).
   Every other node, file and name stays as it is, the inputs that the program was recorded with included.
2. What the program says of shapes and layouts follows: torch's own operators say what becomes of them, on
   tensors without memory.
3. The archive is read again, and has to be the graph that was meant; evaluated, it has to agree with it. What
   no edit names, opaque nodes and the bytes of tensors included, has to be what it was.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import torch

from relutrim.errors import CheckFailed, InputError, UnsupportedError, one_line
from relutrim.graph.comparing import check_equal, reading_back
from relutrim.graph.graph import Network
from relutrim.graph.slicing import Kept
from relutrim.io.exported import opened, program_in, stack_of, strings, tensor_of
from relutrim.io.exported_archive import PROGRAM, REMARKS, SCALAR_TYPES, Archive
from relutrim.io.exported_state import Array, State, check_state, described, without_numbers
from relutrim.io.torch.compare import compare
from relutrim.io.torch.edit import Edited, edited, result_names
from relutrim.io.torch.evaluate import arguments_of, evaluate, examples_of, operator_of, run
from relutrim.io.torch.read import Reading, read
from relutrim.io.torch.record import Call, Program, Ref, Tensor


def edited_exported(
    content: bytes,
    before: Network,
    after: Network,
    kept: Mapping[str, Kept] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """The archive, which was read as ``before``, such that it reads as ``after``; ``metadata`` are entries to
    add, or to change.
    """
    with opened(io.BytesIO(content)) as archive:
        program = program_in(archive)
        reading = replace(read(program), network=before)
        found = edited(program, reading, after, kept)
        parts = _Editor(archive, program, found).apply()
        said = {f"{REMARKS}{name}": text.encode() for name, text in (metadata or {}).items()}
        made = archive.edited(parts | said)
    _check(made, found, reading)
    with opened(io.BytesIO(content)) as old, reading_back(), opened(io.BytesIO(made)) as new:
        check_state(old, new, found)
    return made


def _check(content: bytes, found: Edited, reading: Reading) -> None:
    """Raise :class:`CheckFailed` unless the archive is the graph that was meant."""
    with reading_back(), opened(io.BytesIO(content)) as archive:
        program = program_in(archive)
        _check_calls(program, found)
        check_equal(read(program, found.names).network, found.network)
        compare(lambda x, *_: run(program, x), found.network, reading.places, examples_of(program))


def _check_calls(program: Program, found: Edited) -> None:
    """Raise :class:`CheckFailed` unless the calls that were there before, opaque ones included, are those
    that were meant.
    """
    wanted = [call for call in found.program.calls if call.name not in found.new]
    made = [call for call in program.calls if call.name not in found.new]
    for one, other in zip_longest(wanted, made):
        if one is None or other is None or _said_of(one) != _said_of(other):
            raise CheckFailed(
                "it reads otherwise than it should; this is a bug in relutrim",
                where=f"node {(one or other).name!r}",
            )


def _said_of(call: Call) -> tuple[object, ...]:
    made = [None if out is None else out.name for out in call.outputs]
    return call.name, call.target, [*call.arguments], repr([*call.arguments.values()]), made


class _Editor:
    def __init__(self, archive: Archive, program: Program, found: Edited) -> None:
        self.program, self.found = program, found
        self.document = archive.program()
        self.module = self.document["graph_module"]
        self.graph = self.module["graph"]
        self.metas: dict[str, Any] = self.graph["tensor_values"]
        self.like = {**self.metas[program.inputs[0].name], "requires_grad": False}
        values = (name for kind, said in self.graph.items() if kind.endswith("_values") for name in said)
        self.taken = {*values, *strings(self.graph["inputs"])}
        """What values are called."""
        self.state = State(archive, self.module, _read(program))
        self.open = {
            size["as_expr"]["expr_str"]: size
            for meta in self.metas.values()
            for size in meta["sizes"]
            if "as_expr" in size
        }
        """The sizes that are not known, by what they are called."""

    def apply(self) -> dict[str, bytes | None]:
        """The parts of the archive that change."""
        new = self.state.apply(self.found)
        gone = (_made(self.program) - _made(self.found.program)) | self.state.dropped
        self._check_names(gone)
        self._describe(new)
        self.graph["nodes"] = list(self._nodes())
        for kind in ("tensor_values", "sym_int_values", "sym_float_values", "sym_bool_values"):
            for name in gone & self.graph.get(kind, {}).keys():
                del self.graph[kind][name]
        return {**self.state.parts, PROGRAM: json.dumps(self.document).encode()}

    def _check_names(self, gone: set[str]) -> None:
        """Refuse what something else in the file would call by a name that it has not, or by one of two."""
        for entry in self.module["module_call_graph"]:
            said = entry["signature"] or {}
            named = gone.intersection(strings([said.get("inputs"), said.get("outputs")]))
            if named:
                raise UnsupportedError(
                    f"the signature of the submodule {entry['fqn']!r} names it, and it would go",
                    where=f"tensor {min(named)!r}",
                )
        twice = (_made(self.found.program) - _made(self.program)) & self.taken
        if twice:
            raise UnsupportedError("a new value would be called like something else", where=f"{min(twice)!r}")

    # What is said of tensors

    def _describe(self, new: Mapping[str, Array]) -> None:
        """Say what type and layout the values have now that ``new`` are tensors of the program."""
        changed = {name: without_numbers(array) for name, array in new.items()}
        values = self._recorded() | changed
        for name, tensor in changed.items():
            plain = {**self.like, "requires_grad": name in self.found.learnt}
            self.metas[name] = {**self.metas.get(name, plain), **described(tensor)}
        recorded = {call.name: call for call in self.program.calls}
        for call in self.found.program.calls:
            if recorded.get(call.name) is call and not changed.keys() & {*call.reads}:
                continue
            made = _evaluated(call, values)
            values |= made
            for out in call.outputs:
                if out is None or (out.name not in made and self._fits(out)):
                    continue
                if out.name not in made:
                    raise UnsupportedError("what it makes cannot be said", where=f"node {call.name!r}")
                said = self._said(out, made[out.name])
                if said != self.metas.get(out.name):
                    self.metas[out.name], changed[out.name] = said, made[out.name]

    def _recorded(self) -> dict[str, Any]:
        """Values as the program says them, without numbers; sizes that are open as in its example."""
        values: dict[str, Any] = {}
        for name, meta in self.metas.items():
            shape, strides = (_examples(meta[key]) for key in ("sizes", "strides"))
            dtype = getattr(torch, SCALAR_TYPES.get(meta["dtype"], ""), None)
            if dtype is not None and shape is not None and strides is not None:
                values[name] = _without_memory(name, shape, strides, dtype)
        sizes = {name: _examples([size]) for name, size in self.graph["sym_int_values"].items()}
        return values | {name: size[0] for name, size in sizes.items() if size is not None}

    def _fits(self, out: Tensor) -> bool:
        """Whether a value has the shape that the program says."""
        return out.name in self.metas and tensor_of(out.name, self.metas[out.name]).shape == out.shape

    def _said(self, out: Tensor, tensor: torch.Tensor) -> dict[str, Any]:
        """What the program is to say of a value."""
        said = {**self.metas.get(out.name, self.like), **described(tensor)}
        for axis, size in enumerate(out.shape):
            if isinstance(size, str):
                said["sizes"][axis] = self.open[size]
                if 0 < tensor.stride(axis) < max(tensor.stride()):
                    raise UnsupportedError("its layout depends on the batch", where=f"tensor {out.name!r}")
        return said

    # Nodes

    def _nodes(self) -> Iterator[dict[str, Any]]:
        pairs = zip(self.program.calls, self.graph["nodes"], strict=True)
        recorded = {call.name: (call, node) for call, node in pairs}
        for call in self.found.program.calls:
            if call.name in self.found.new:
                yield self._new(call)
            else:
                yield _changed(*recorded[call.name], call, self.metas)

    def _new(self, call: Call) -> dict[str, Any]:
        target = operator_of(call)
        assert target is not None
        args, kwargs = arguments_of(target, call, {name: Ref(name) for name in call.reads})
        named = [(one.name, value, 1) for one, value in zip(target._schema.arguments, args, strict=False)]
        named += [(name, value, 2) for name, value in kwargs.items()]
        return {
            "target": f"torch.ops.{call.target}",
            "inputs": [
                {"name": name, "arg": _argument(value, self.metas), "kind": kind}
                for name, value, kind in named
            ],
            "outputs": [{"as_tensor": {"name": out.name}} for out in call.outputs if out is not None],
            "metadata": {} if call.layer is None else _metadata(*call.layer),
            "is_hop_single_tensor_return": None,
            "name": call.name,
        }


def _without_memory(name: str, shape: list[int], strides: list[int], dtype: torch.dtype) -> torch.Tensor:
    try:
        return torch.empty_strided(shape, strides, dtype=dtype, device="meta")
    except RuntimeError as error:
        raise InputError(
            f"it cannot have such a layout ({one_line(str(error))}); the file is damaged",
            where=f"tensor {name!r}",
        ) from None


def _evaluated(call: Call, values: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return evaluate(call, values)
    except Exception as error:  # whatever torch's own operators raise
        raise UnsupportedError(
            f"torch cannot compute it ({one_line(str(error))})", where=f"node {call.name!r}"
        ) from error


def _changed(old: Call, node: dict[str, Any], call: Call, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """A node with the arguments that a call has now."""
    inputs = list(node["inputs"])
    for at, (name, argument) in enumerate(call.arguments.items()):
        if at >= len(inputs):
            inputs.append({"name": name, "arg": _argument(argument, tensors), "kind": 2})
        elif argument != old.arguments[name]:
            if not _WRITTEN.issuperset(inputs[at]["arg"]):
                raise UnsupportedError(
                    "it reads something else in a way that cannot be said", where=f"node {call.name!r}"
                )
            inputs[at] = {**inputs[at], "arg": _argument(argument, tensors)}
    return {**node, "target": node["target"].replace(old.target, call.target), "inputs": inputs}


def _metadata(key: str, name: str) -> dict[str, str]:
    """What the file says of a node, that it comes from a module of this name."""
    stack = stack_of(key, name)
    return {"nn_module_stack": ",".join((key, *stack[key]))} if stack else {}


_SINGLE = ("as_none", "as_bool", "as_int", "as_float", "as_tensor", "as_sym_int", "as_optional_tensor")
_WRITTEN = {*_SINGLE, *(f"{kind}s" for kind in _SINGLE)}
"""The arguments that can be others."""


def _argument(value: Any, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """An argument as the format has it."""
    match value:
        case None:
            return {"as_none": True}
        case bool():
            return {"as_bool": value}
        case int():
            return {"as_int": value}
        case float():
            return {"as_float": value}
        case Ref(name):
            return {"as_tensor": {"name": name}} if name in tensors else {"as_sym_int": {"as_name": name}}
        case list() | tuple():
            return _arguments([_argument(part, tensors) for part in value])
    raise UnsupportedError(f"the file has no word for {value!r}")


def _arguments(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """A list of them."""
    kinds = {kind for part in parts for kind in part} or {"as_int"}
    if "as_none" in kinds:
        return {"as_optional_tensors": parts}
    if kinds == {"as_int", "as_sym_int"}:
        return {"as_sym_ints": [part.get("as_sym_int", part) for part in parts]}
    kind = "as_float" if kinds == {"as_int", "as_float"} else max(kinds)
    return {f"{kind}s": [content for part in parts for content in part.values()]}


def _examples(sizes: Sequence[Mapping[str, Any]]) -> list[int] | None:
    """Sizes, as they were in the example that the program was recorded with; None if it does not say that."""
    hints = (size if "as_int" in size else size["as_expr"]["hint"] or {} for size in sizes)
    found = [hint["as_int"] for hint in hints if "as_int" in hint]
    return found if len(found) == len(sizes) else None


def _read(program: Program) -> set[str]:
    """The names of what anything reads."""
    read = {name for call in program.calls for name in call.reads}
    return read | {name for name in (*program.outputs, *program.kept) if name is not None}


def _made(program: Program) -> set[str]:
    """The names of all that there is but the inputs."""
    return {*program.constants, *(name for call in program.calls for name in result_names(call))}
