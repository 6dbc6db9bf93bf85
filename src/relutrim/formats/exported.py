"""Programs saved by ``torch.export.save`` (``.pt2``), read without running anything in them; no torch needed.

``torch.export.load`` unpickles parts of the file (example inputs, custom objects, some weights) and evaluates
symbolic expressions, so it can run code. The parts a network is made of are harmless: the graph is JSON and
ordinary weights are raw bytes. This reader opens these alone and refuses programs whose weights are pickled.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relutrim.errors import InputError, RelutrimError, UnsupportedError
from relutrim.formats.building import BATCH, Builder, Value, network_dtype
from relutrim.formats.calls import EXPORTED, SUPPORTED
from relutrim.formats.exported_archive import SCALAR_TYPES, Archive
from relutrim.formats.files import replacing
from relutrim.network import Network, Port


def read_exported(path: Path) -> Network:
    """The network of an exported program."""
    try:
        with Archive(path) as archive:
            return _read(archive)
    except RelutrimError as error:
        raise error.at(str(path)) from None
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        raise InputError(
            f"this is not a program as torch.export.save writes it ({type(error).__name__}: {error})",
            where=str(path),
        ) from None


def write_exported(network: Network, path: Path) -> None:
    """Write the network as an exported program, whole or not at all; a fixed batch size stays fixed."""
    import torch

    from relutrim.formats.torch_write import build_module

    batch = network.input.batch
    count = batch if isinstance(batch, int) else 2
    example = torch.zeros(count, *network.input.shape, dtype=getattr(torch, network.dtype))
    free = None if isinstance(batch, int) else ({0: torch.export.Dim("batch")},)
    program = torch.export.export(build_module(network), (example,), dynamic_shapes=free)
    for node in program.graph.nodes:
        # They name folders of this machine, and are of no use to anyone else.
        node.meta.pop("stack_trace", None)
    # By way of memory: torch names the folder in the archive after the file, which has another name by now.
    content = io.BytesIO()
    torch.export.save(program, content)
    with replacing(path) as aside:
        aside.write_bytes(content.getvalue())


@dataclass(frozen=True)
class _Unknown:
    """A check on sizes, or arithmetic with the batch size: harmless as long as nothing else reads it."""


def _read(archive: Archive) -> Network:
    module = archive.program()["graph_module"]
    graph, signature = module["graph"], module["signature"]
    _check_result(module["module_call_graph"])
    tensors, name = _inputs(signature["input_specs"])
    meta = graph["tensor_values"][name]
    sizes = [size.get("as_int") for size in meta["sizes"]]
    if len(sizes) < 2 or None in sizes[1:]:
        raise UnsupportedError(
            "an input of shape (batch, ...) is needed, of which only the batch may have a free size",
            where=f"input {name!r}",
        )
    used = {key for node in graph["nodes"] for key in _reads(node["inputs"])} & tensors.keys()
    dtypes = {tensors[key]: archive.dtype(tensors[key]) for key in sorted(used)}
    floating = {key: dtype for key, dtype in dtypes.items() if not dtype.startswith(("int", "uint"))}
    dtype = network_dtype({name: SCALAR_TYPES.get(meta["dtype"], "unknown"), **floating})
    builder = Builder(Port(name, tuple(sizes[1:]), sizes[0] if sizes[0] is not None else "batch"), dtype)
    values: dict[str, object] = {key: archive.tensor(tensors[key]) for key in used}
    values[name] = builder.input
    for node in graph["nodes"]:
        try:
            made = _call(builder, node, values)
        except RelutrimError as error:
            raise error.at(f"node {node.get('name') or node['target']!r}") from None
        # Of several results (batch norm has three) the first one matters; a split makes a tuple of them.
        keys = list(_reads(node["outputs"]))
        parts = made if isinstance(made, tuple) else (made,)
        values.update(zip(keys, parts, strict=False))
    outputs = []
    for spec in signature["output_specs"]:
        ((kind, body),) = spec.items()
        if kind != "user_output":
            raise UnsupportedError(f"the program has side effects ({kind}); only what it returns can be kept")
        outputs.append(values[body["arg"]["as_tensor"]["name"]])
    return builder.finish(outputs)


def _check_result(calls: list[dict[str, Any]]) -> None:
    tree = json.loads(calls[0]["signature"]["out_spec"])[1]
    leaves = [child["type"] is None for child in tree["children_spec"]]
    several = tree["type"] in ("builtins.tuple", "builtins.list") and len(leaves) > 1 and all(leaves)
    if tree["type"] is not None and not several:
        raise UnsupportedError(
            f"the program returns a {tree['type']}; it must return a tensor or a tuple of several"
        )


def _inputs(specs: list[dict[str, Any]]) -> tuple[dict[str, str], str]:
    """The name under which each tensor is stored, by its name in the graph, and the name of the input."""
    tensors: dict[str, str] = {}
    inputs: list[str] = []
    for spec in specs:
        ((kind, body),) = spec.items()
        if kind in ("parameter", "buffer", "tensor_constant"):
            tensors[body["arg"]["name"]] = body[f"{kind}_name"]
        elif kind == "user_input" and "as_tensor" in body["arg"]:
            inputs.append(body["arg"]["as_tensor"]["name"])
        elif kind != "constant_input" and not (kind == "user_input" and "as_none" in body["arg"]):
            raise UnsupportedError(
                f"the program takes a {kind} that is not a tensor; export it with one tensor alone"
            )
    if len(inputs) != 1:
        raise UnsupportedError(f"the program takes {len(inputs)} tensors; export it with one")
    return tensors, inputs[0]


def _reads(arguments: list[dict[str, Any]]) -> Iterator[str]:
    """The names of values among arguments or results."""
    for argument in arguments:
        ((kind, content),) = argument.get("arg", argument).items()
        if kind == "as_tensors":
            yield from (tensor["name"] for tensor in content)
        elif kind in ("as_tensor", "as_sym_int", "as_sym_bool", "as_optional_tensor"):
            content = content.get("as_tensor", content)
            if isinstance(content, dict) and (name := content.get("name") or content.get("as_name")):
                yield name


def _call(builder: Builder, node: dict[str, Any], values: dict[str, object]) -> object:
    """What one node makes: a value, a constant, or a size."""
    target: str = node["target"]
    arguments = {
        "input" if entry["name"] == "self" else entry["name"]: _argument(entry["arg"], values)
        for entry in node["inputs"]
    }
    kind = target.removeprefix("torch.ops.aten.").split(".")[0]
    if target.startswith("_operator.") or kind.startswith(("_assert", "sym_constrain")):
        return _Unknown()
    x = arguments.get("input")
    if kind == "sym_size" and isinstance(x, Value):
        return (BATCH, *x.shape)[arguments["dim"]]
    if not target.startswith("torch.ops.aten."):
        kind = ""
    if kind in _ON_CONSTANTS and not any(_on_data(argument) for argument in arguments.values()):
        with np.errstate(all="ignore"):
            return _ON_CONSTANTS[kind](**arguments)
    if kind not in EXPORTED:
        raise UnsupportedError(f"{target} is not an operator relutrim represents exactly; {SUPPORTED}")
    if any(isinstance(argument, _Unknown) for argument in arguments.values()):
        raise UnsupportedError(
            "it computes with the batch size, so the inputs of a batch are not independent"
        )
    try:
        return EXPORTED[kind](builder, _layer_name(node), **arguments)
    except TypeError as error:
        raise UnsupportedError(f"{target} with arguments that are not understood ({error})") from None


def _on_data(argument: object) -> bool:
    return isinstance(argument, Value) or (isinstance(argument, list) and any(map(_on_data, argument)))


_ON_CONSTANTS: dict[str, Callable[..., Any]] = {
    "add": lambda input, other: input + other,
    "sub": lambda input, other: input - other,
    "mul": lambda input, other: input * other,
    "div": lambda input, other: input / other,
    "neg": lambda input: -input,
    "t": lambda input: input.T,
    "numpy_T": lambda input: input.T,
    "permute": lambda input, dims: input.transpose(dims),
    "transpose": lambda input, dim0, dim1: input.swapaxes(dim0, dim1),
    "view": lambda input, size: input.reshape(size),
    "reshape": lambda input, shape: input.reshape(shape),
    **{
        kind: lambda input, **_: input
        for kind in ("alias", "clone", "contiguous", "detach", "detach_", "lift_fresh_copy")
    },
}
"""What is done to weights on the way to an operator; numpy keeps their precision and rounds as torch does."""


def _argument(argument: dict[str, Any], values: dict[str, object]) -> Any:
    ((kind, content),) = argument.items()
    match kind:
        case "as_none":
            return None
        case "as_tensor":
            return values[content["name"]]
        case "as_tensors":
            return [values[tensor["name"]] for tensor in content]
        case "as_optional_tensor":
            return _argument(content, values)
        case "as_sym_int" | "as_sym_bool":
            return values[content["as_name"]] if "as_name" in content else next(iter(content.values()))
        case "as_sym_ints":
            return [_argument({"as_sym_int": entry}, values) for entry in content]
        case "as_float":
            return float(content)
        case "as_int" | "as_bool" | "as_ints" | "as_string":
            return content
        case "as_memory_format" | "as_layout" | "as_device" | "as_scalar_type":
            return f"{kind}={content}"
    raise UnsupportedError(f"an argument of kind {kind} is not understood")


def _layer_name(node: dict[str, Any]) -> str:
    """The path of the torch module a node comes from, else the name of the node."""
    last = str(node.get("metadata", {}).get("nn_module_stack", "")).split(";")[-1].split(",")
    if len(last) == 3 and last[1] and last[2].startswith(("torch.nn.modules.", "relutrim.")):
        return last[1]
    return str(node.get("name") or next(_reads(node["outputs"])))
