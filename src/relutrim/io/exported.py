"""Programs saved by ``torch.export.save`` (``.pt2``), read without running anything in them.

``torch.export.load`` unpickles parts of the file (example inputs, custom objects, some weights) and evaluates
symbolic expressions, so it can run code. The parts a network is made of are harmless: the graph is JSON and
ordinary weights are raw bytes. This reader opens these alone and refuses programs whose weights are pickled.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from relutrim.errors import InputError, RelutrimError, UnsupportedError
from relutrim.graph import Network
from relutrim.io.exported_archive import SCALAR_TYPES, Archive
from relutrim.io.files import LARGEST_FILE, replacing
from relutrim.io.torch.read import read
from relutrim.io.torch.record import Call, Constant, Home, Program, Ref, Tensor, with_remarks


def read_exported(path: Path) -> Network:
    """The network of an exported program."""
    try:
        with opened(path) as archive:
            return read(program_in(archive)).network
    except RelutrimError as error:
        raise error.at(str(path)) from None


@contextmanager
def opened(source: Path | BinaryIO) -> Iterator[Archive]:
    """The archive of a program; what is not as torch writes it is an :class:`InputError`."""
    try:
        with Archive(source) as archive:
            yield archive
    except RelutrimError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        raise InputError(
            f"this is not a program as torch.export.save writes it ({type(error).__name__}: {error})"
        ) from None


def program_in(archive: Archive) -> Program:
    """The calls of the program in an archive."""
    module = archive.program()["graph_module"]
    graph, signature = module["graph"], module["signature"]
    values: dict[str, Any] = graph["tensor_values"]
    stored, inputs = inputs_of(signature["input_specs"])
    if not inputs:
        raise UnsupportedError("the program takes no tensor; export it with one")
    known = {*stored, *inputs}
    calls: dict[str, Call] = {}
    for place, node in enumerate(graph["nodes"]):
        call = _call(node, values, place)
        missing = [name for name in call.reads if name not in known]
        if missing:
            raise InputError(f"it reads {missing[0]!r}, which nothing makes", where=f"node {call.name!r}")
        made = list(_made(node))
        twice = [name for name in made if name in known]
        if twice or len(set(made)) != len(made) or call.name in calls:
            raise InputError("it makes a value that another node makes too", where=f"node {call.name!r}")
        known.update(made)
        calls[call.name] = call
    outputs, kept, mutated = _outputs(signature["output_specs"], known)
    held = _Held(archive, values)
    program = Program(
        tuple(tensor_of(name, values[name]) for name in inputs),
        {name: held.constant(name, target) for name, target in stored.items()},
        tuple(calls.values()),
        tuple(outputs),
        frozenset(held.sharing(stored, mutated)),
        tuple(kept),
        archive.remarks(),
        archive.size,
    )
    return with_remarks(program)


class _Held:
    """The tensors of the archive. Many may be views of one, but together they must fit a file."""

    def __init__(self, archive: Archive, values: Mapping[str, Any]) -> None:
        self.archive, self.values, self.bytes = archive, values, 0

    def constant(self, name: str, target: str) -> Callable[[], Constant]:
        """How to read the tensor that the graph calls ``name``."""

        def make() -> Constant:
            array, said = self.archive.tensor(target), tensor_of(name, self.values[name])
            if array.shape != said.shape or self.archive.dtype(target) != said.dtype:
                raise InputError(
                    f"it is stored with {array.shape} {array.dtype} numbers, and the program says "
                    f"{said.shape} {said.dtype}; the file is damaged",
                    where=f"tensor {target!r}",
                )
            self.bytes += array.nbytes
            if self.bytes > LARGEST_FILE:
                raise UnsupportedError(f"its tensors take more than {LARGEST_FILE} bytes together")
            return Constant(array, Home(target, tuple(range(array.ndim)), array.ndim))

        return make

    def sharing(self, stored: Mapping[str, str], mutated: set[str]) -> Iterator[str]:
        """The constants that share their bytes with those that the program changes."""
        files = {self.archive.home(target) for target in mutated}
        yield from (name for name, target in stored.items() if self.archive.home(target) in files)


def inputs_of(specs: Sequence[dict[str, Any]]) -> tuple[dict[str, str], list[str]]:
    """The name under which each tensor is stored, by its name in the graph, and the names of the inputs."""
    tensors: dict[str, str] = {}
    inputs: list[str] = []
    for spec in specs:
        ((kind, body),) = spec.items()
        if kind in ("parameter", "buffer", "tensor_constant"):
            tensors[body["arg"]["name"]] = body[f"{kind}_name"]
        elif kind == "user_input" and "as_tensor" in body["arg"]:
            inputs.append(body["arg"]["as_tensor"]["name"])
    return tensors, inputs


def _outputs(specs: list[dict[str, Any]], known: set[str]) -> tuple[list[str | None], list[str], set[str]]:
    """What the program returns, what goes elsewhere, and the tensors that this changes."""
    outputs: list[str | None] = []
    kept: list[str] = []
    mutated: set[str] = set()
    for spec in specs:
        ((kind, body),) = spec.items()
        if kind == "user_output":
            names = list(strings(body["arg"].get("as_tensor", body["arg"].get("as_optional_tensor"))))
            outputs.append(names[0] if names else None)
        else:
            names = list(strings(body["arg"]))
            kept += names
            mutated.update(body[key] for key in ("buffer_name", "parameter_name") if key in body)
        if not known.issuperset(names):
            raise InputError(f"it returns {', '.join(names)}, which nothing makes")
    return outputs, kept, mutated


def strings(content: object) -> Iterator[str]:
    """Every string in a part of the file but the keys."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, dict):
        yield from (name for part in content.values() for name in strings(part))
    elif isinstance(content, list):
        yield from (name for part in content for name in strings(part))


def _call(node: dict[str, Any], values: Mapping[str, Any], place: int) -> Call:
    target = str(node["target"]).removeprefix("torch.ops.")
    arguments: dict[str, Any] = {}
    for at, entry in enumerate(node["inputs"]):
        name = "input" if entry["name"] == "self" else entry["name"]
        arguments[name if name and name not in arguments else str(at)] = _argument(entry["arg"], values)
    made = list(_made(node))
    outputs = tuple(tensor_of(name, values[name]) if name in values else None for name in made)
    name = str(node.get("name") or (made[0] if made else f"{target} {place}"))
    return Call(name, target, arguments, outputs, _layer(node), _evaluation(target, arguments))


def _made(node: dict[str, Any]) -> Iterator[str]:
    """The names of a node's results."""
    for result in node["outputs"]:
        yield from strings(
            {kind: result[kind] for kind in result if kind not in ("as_none", "as_int", "as_bool")}
        )


def tensor_of(name: str, meta: Mapping[str, Any]) -> Tensor:
    """What the file says of a tensor."""
    sizes = tuple(
        _size(size["as_int"]) if "as_int" in size else str(size["as_expr"]["expr_str"])
        for size in meta["sizes"]
    )
    return Tensor(name, sizes, SCALAR_TYPES.get(meta["dtype"], "unknown"))


def _size(size: object) -> int:
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise InputError(f"a size of {size!r}; the file is damaged")
    return size


def _argument(argument: dict[str, Any], values: Mapping[str, Any]) -> Any:
    ((kind, content),) = argument.items()
    match kind:
        case "as_none":
            return None
        case "as_tensor":
            return Ref(content["name"])
        case "as_tensors":
            return [Ref(tensor["name"]) for tensor in content]
        case "as_optional_tensor":
            return _argument(content, values)
        case "as_optional_tensors":
            return [_argument(tensor, values) for tensor in content]
        case "as_sym_int" | "as_sym_bool" | "as_sym_float":
            return Ref(content["as_name"]) if "as_name" in content else next(iter(content.values()))
        case "as_sym_ints":
            return [_argument({"as_sym_int": entry}, values) for entry in content]
        case "as_float":
            return float(content)
        case "as_int" | "as_bool" | "as_ints" | "as_floats" | "as_bools" | "as_string":
            return content
        case "as_memory_format" | "as_layout" | "as_device" | "as_scalar_type":
            return f"{kind}={content}"
        case "as_graph":
            # A branch of control flow reads what it is given as arguments beside it.
            content = content["graph"]["inputs"]
    # Whatever it is, it may read all tensors that it names.
    return [Ref(name) for name in dict.fromkeys(strings(content)) if name in values]


def _layer(node: dict[str, Any]) -> tuple[str, str] | None:
    """The torch module that a node comes from."""
    last = str(node.get("metadata", {}).get("nn_module_stack", "")).split(";")[-1].split(",")
    known = len(last) == 3 and last[1] and last[2].startswith(("torch.nn.", "relutrim."))
    return (last[0], last[1]) if known else None


def _evaluation(target: str, arguments: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], Any] | None:
    """How a call is computed from constants, for the few operators that weights meet on their way."""
    space, _, rest = target.partition(".")
    compute = _ON_CONSTANTS.get(rest.partition(".")[0]) if space == "aten" else None
    if compute is None:
        return None

    def evaluate(read: Mapping[str, Any]) -> Any:
        given = {name: read[one.name] if isinstance(one, Ref) else one for name, one in arguments.items()}
        with np.errstate(all="ignore"):
            return np.asarray(compute(**given))

    return evaluate


_ON_CONSTANTS: dict[str, Callable[..., Any]] = {
    "add": lambda input, other: input + other,
    "sub": lambda input, other: input - other,
    "mul": lambda input, other: input * other,
    "div": lambda input, other: input / other,
    "neg": lambda input: -input,
    "view": lambda input, size: input.reshape(size),
    "reshape": lambda input, shape: input.reshape(shape),
    "unsqueeze": lambda input, dim: np.expand_dims(input, dim),
}
"""What is done to weights on the way to an operator; numpy keeps their precision and rounds as torch does."""


def write_exported(network: Network, path: Path) -> None:
    """Write the network as an exported program, whole or not at all; a fixed batch size stays fixed."""
    import torch

    from relutrim.io.torch.graph_module import written
    from relutrim.io.torch.source import exported_program

    program = exported_program(network)
    made = [node for node in program.graph.nodes if str(node.target).startswith("aten.") and node.users]
    calls = written(network)[0].calls
    if [str(node.target) for node in made] == [call.target for call in calls]:
        for node, call in zip(made, calls, strict=True):
            node.meta["nn_module_stack"] = {} if call.layer is None else stack_of(*call.layer)
    # By way of memory: torch names the folder in the archive after the file, which has another name by now.
    content = io.BytesIO()
    torch.export.save(program, content)
    with replacing(path) as aside:
        aside.write_bytes(content.getvalue())


def stack_of(key: str, name: str) -> dict[str, tuple[str, str]]:
    """What torch notes of a node, that it comes from a module of this name."""
    return {} if {*",;()[]"} & {*name} else {key: (name, "relutrim.graph.Node")}
