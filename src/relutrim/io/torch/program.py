"""Programs of ``torch.export``, in memory, as calls."""

from __future__ import annotations

import io
import logging
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument

from relutrim.errors import UnsupportedError
from relutrim.io.torch.read import misread
from relutrim.io.torch.record import Call, Constant, Home, Program, Ref, Tensor

_HELD = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_NO_MEMORY = ("empty", "new_empty", "resize", "set_")
"""Operators whose results hold whatever was in memory."""


def functional(exported: ExportedProgram) -> tuple[ExportedProgram, Program]:
    """The program as calls; without what it does in place, if that cannot be read as it is.

    Decomposing takes seconds, so it is done only then.
    """
    program = program_of(exported)
    if misread(program) is None:
        return exported, program
    try:
        with quiet():
            exported = exported.run_decompositions({})
    except Exception as error:
        raise UnsupportedError(
            f"{misread(program)}, and torch cannot write that without: {reason(error)}"
        ) from error
    return exported, program_of(exported)


def program_of(exported: ExportedProgram) -> Program:
    """The calls of a program."""
    signature = exported.graph_signature
    nodes = {node.name: node for node in exported.graph.nodes}
    held = {spec.arg.name: str(spec.target) for spec in signature.input_specs if spec.kind in _HELD}
    inputs = [
        _tensor(spec.arg.name, nodes[spec.arg.name].meta["val"])
        for spec in signature.input_specs
        if spec.kind == InputKind.USER_INPUT and isinstance(spec.arg, TensorArgument)
    ]
    if not inputs:
        raise UnsupportedError("the program takes no tensor; export it with one")
    results = [spec for spec in signature.output_specs if spec.kind == OutputKind.USER_OUTPUT]
    return Program(
        tuple(inputs),
        {name: _constant(exported, target) for name, target in held.items()},
        tuple(_calls(exported.graph)),
        tuple(spec.arg.name if isinstance(spec.arg, TensorArgument) else None for spec in results),
        frozenset(_mutable(exported, held)),
        tuple(
            spec.arg.name
            for spec in signature.output_specs
            if spec.kind != OutputKind.USER_OUTPUT and isinstance(spec.arg, TensorArgument)
        ),
        size=_size(_held(exported, target) for target in held.values()),
    )


def _constant(exported: ExportedProgram, target: str) -> Callable[[], Constant]:
    def make() -> Constant:
        tensor = _held(exported, target).detach().cpu()
        rank = tensor.ndim
        return Constant(tensor, Home(target, tuple(range(rank)), rank))

    return make


def _held(exported: ExportedProgram, target: str) -> torch.Tensor:
    found = exported.state_dict.get(target)
    if found is None:
        found = exported.constants[target]
    assert isinstance(found, torch.Tensor)
    return found


def _mutable(exported: ExportedProgram, held: Mapping[str, str]) -> Iterator[str]:
    """The constants that the program changes, and whatever shares memory with them."""
    changed = set(exported.graph_signature.buffers_to_mutate.values())
    changed |= set(getattr(exported.graph_signature, "parameters_to_mutate", {}).values())
    storages = {_storage(_held(exported, target)) for target in changed}
    yield from (name for name, target in held.items() if _storage(_held(exported, target)) in storages)


def _size(tensors: Iterable[torch.Tensor]) -> int:
    """How many bytes hold these tensors."""
    strided = [one.untyped_storage() for one in tensors if one.layout == torch.strided]
    return sum({storage.data_ptr(): storage.nbytes() for storage in strided}.values())


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else id(tensor)


def _calls(graph: fx.Graph) -> Iterator[Call]:
    for node in graph.nodes:
        if node.op != "call_function" or _is_part(node):
            continue
        yield Call(
            node.name, _target(node), _arguments(node), tuple(_outputs(node)), _layer(node), _evaluation(node)
        )


def _is_part(node: fx.Node) -> bool:
    """Whether a node takes one of the results of another one."""
    whole = node.args[0] if node.args else None
    return (
        node.target is operator.getitem
        and isinstance(whole, fx.Node)
        and isinstance(whole.meta.get("val"), tuple | list)
    )


def _outputs(node: fx.Node) -> Iterator[Tensor | None]:
    value = node.meta.get("val")
    if not isinstance(value, tuple | list):
        yield _tensor(node.name, value) if isinstance(value, torch.Tensor) else None
        return
    parts = {int(user.args[1]): user.name for user in node.users if _is_part(user)}  # type: ignore[arg-type]
    for place, part in enumerate(value):
        yield _tensor(parts[place], part) if place in parts and isinstance(part, torch.Tensor) else None


def _tensor(name: str, value: torch.Tensor) -> Tensor:
    sizes = tuple(int(str(size)) if str(size).isdigit() else str(size) for size in value.shape)
    return Tensor(name, sizes, str(value.dtype).removeprefix("torch."))


def _target(node: fx.Node) -> str:
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order.{target._name}"
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__name__', target)}"


def _arguments(node: fx.Node) -> dict[str, Any]:
    names = [str(place) for place in range(len(node.args))]
    if isinstance(node.target, torch._ops.OpOverload):
        names = ["input" if one.name == "self" else one.name for one in node.target._schema.arguments]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    return {name: _with_refs(value) for name, value in given.items()}


def _with_refs(argument: Any) -> Any:
    if isinstance(argument, fx.Node):
        return Ref(argument.name)
    if isinstance(argument, list | tuple):
        return [_with_refs(part) for part in argument]
    if isinstance(argument, Mapping):
        return {key: _with_refs(part) for key, part in argument.items()}
    return argument


def _layer(node: fx.Node) -> tuple[str, str] | None:
    stack = node.meta.get("nn_module_stack") or {}
    if not stack:
        return None
    path, kind = list(stack.values())[-1]
    kind = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
    return (list(stack)[-1], str(path)) if path and kind.startswith(("torch.nn.", "relutrim.")) else None


def _evaluation(node: fx.Node) -> Callable[[Mapping[str, Any]], Any] | None:
    """Torch's own computation, unless it is another one each time."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target._schema.name.partition("::")[0] not in (
        "aten",
        "prims",
    ):
        return None
    if torch.Tag.nondeterministic_seeded in target.tags or target._schema.name.partition("::")[2].startswith(
        _NO_MEMORY
    ):
        return None

    def evaluate(read: Mapping[str, Any]) -> Any:
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda one: torch.as_tensor(read[one.name]))
        with torch.no_grad():
            return target(*args, **kwargs)

    return evaluate


@contextmanager
def quiet() -> Iterator[None]:
    """Without what torch warns of, logs and prints within its own code."""
    level = logging.root.manager.disable
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(level)


def reason(error: Exception) -> str:
    """What torch says, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]
