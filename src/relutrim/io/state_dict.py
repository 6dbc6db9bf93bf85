"""PyTorch state dicts (``.pt``) together with the architecture they belong to.

A state dict names tensors, not what is computed with them, so the architecture is given beside it: either
``mlp:784-100-10`` (linear layers of these widths with ReLU between them) or ``package.module:factory``, a
function without arguments that makes the module, or a pair of the module and the shape of one input without
the batch axis, which a convolution does not tell. Files are only ever loaded with ``weights_only=True``: a
pickle that asks for anything but tensors is refused, not run. A factory is code of the caller's and is run.

The widths of a network that was rewritten may be those of an mlp where it is none, since a ReLU is missing.
Its file says so in the metadata that torch keeps beside the tensors, and is not read as an mlp.
"""

from __future__ import annotations

import importlib
import re
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from relutrim.errors import InputError, RelutrimError, UnsupportedError
from relutrim.graph import Linear, Network, Node, Output, Port, Relu, Reshape
from relutrim.graph.operators import Array
from relutrim.io.archives import open_zip
from relutrim.io.files import LARGEST_FILE, replacing
from relutrim.io.torch.graph_module import written
from relutrim.io.torch.module import read_module

_NO_MLP = "relutrim: not an mlp"


def read_state_dict(path: Path, arch: str, *, input_shape: tuple[int, ...] | None = None) -> Network:
    """The network of architecture ``arch`` with the weights in ``path``.

    ``input_shape`` is for factories whose module does not read flat inputs, as in
    :func:`~relutrim.io.torch.module.read_module`.
    """
    found = load_tensors(path)
    state, metadata = dict(found), getattr(found, "_metadata", None)
    try:
        if arch.startswith("mlp:"):
            if isinstance(metadata, Mapping) and _NO_MLP in metadata:
                raise InputError(
                    "the network that was written here is no mlp: not every layer but the last has a ReLU; "
                    "name its architecture as package.module:factory, or write it as .onnx"
                )
            return _mlp(state, _widths(arch))
        return _from_factory(state, arch, input_shape)
    except RelutrimError as error:
        raise error.at(str(path)) from error.__cause__


def write_state_dict(network: Network, path: Path) -> None:
    """Write the weights, whole or not at all; the keys keep the names of the nodes."""
    emission, _ = written(network)
    state: OrderedDict[str, Tensor] = OrderedDict()
    for name, key in emission.paths.items():
        state[key] = torch.tensor(emission.tensors[name])
        if key.endswith(".running_var"):
            state[key.replace("running_var", "num_batches_tracked")] = torch.zeros((), dtype=torch.long)
    if not _is_mlp(network):
        vars(state)["_metadata"] = {_NO_MLP: {}}
    with replacing(path) as aside:
        torch.save(state, aside)


def _is_mlp(network: Network) -> bool:
    """Whether ``mlp:`` reads the weights as what they are: linear nodes in a row, one ReLU between each
    two.
    """
    kinds = [type(node.operator) for node in network if not isinstance(node.operator, Reshape)]
    in_a_row = all(before.name in after.inputs for before, after in pairwise(network.nodes))
    expected = [Relu if place % 2 else Linear for place in range(len(kinds))]
    ends_there = len(kinds) % 2 == 1 and network.sources == (network.nodes[-1].name,)
    return in_a_row and kinds == expected and ends_there


def load_tensors(path: Path) -> Mapping[str, Tensor]:
    """The tensors of a state dict, and the metadata that it may have; nothing in the file is run."""
    where = str(path)
    if not path.is_file():
        what = "this is a directory, not a file" if path.is_dir() else "there is no such file"
        raise InputError(what, where=where)
    _refuse_bombs(path)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # Torch's message tells how to load the file all the same, which is the wrong advice here.
        raise InputError(
            "this is not a state dict, or it holds Python objects, which could run code and are not loaded "
            f"({type(error).__name__}); save torch.save(model.state_dict(), ...)",
            where=where,
        ) from None
    if not isinstance(state, Mapping):
        raise InputError(f"this holds a {type(state).__name__}, not a state dict", where=where)
    others = [
        str(key) for key, value in state.items() if not (isinstance(key, str) and isinstance(value, Tensor))
    ]
    if others:
        inner = next((key for key in others if isinstance(state.get(key), Mapping)), None)
        hint = (
            f"if {inner!r} is the state dict, save that alone" if inner else "save model.state_dict() alone"
        )
        raise InputError(f"beside tensors it holds {', '.join(others[:5])}; {hint}", where=where)
    return state


def _refuse_bombs(path: Path) -> None:
    try:
        with path.open("rb") as file:
            zipped = file.read(2) == b"PK" or zipfile.is_zipfile(file)
            size = file.seek(0, 2)
            if zipped:
                with open_zip(file) as archive:
                    size = max(size, sum(entry.file_size for entry in archive.infolist()))
    except InputError as error:
        raise error.at(str(path)) from None
    except (OSError, zipfile.BadZipFile) as error:
        raise InputError(f"the file cannot be read ({error})", where=str(path)) from None
    if size > LARGEST_FILE:
        raise InputError(f"it unpacks to more than {LARGEST_FILE} bytes", where=str(path))


def _widths(arch: str) -> list[int]:
    if not re.fullmatch(r"mlp:\d{1,9}(-\d{1,9})+", arch):
        raise InputError(f"the architecture {arch!r} is not understood; write the widths as mlp:784-100-10")
    widths = [int(width) for width in arch.removeprefix("mlp:").split("-")]
    if widths[0] == 0 or widths[-1] == 0:
        raise InputError(f"the architecture {arch!r} has no inputs or no outputs")
    return widths


def _mlp(state: dict[str, Tensor], widths: list[int]) -> Network:
    layers = _pairs(state)
    shapes = list(zip(widths[1:], widths, strict=False))

    def fits(order: list[str]) -> bool:
        return [tuple(layers[name][0].shape) for name in order] == shapes

    orders = _orders(list(layers))
    fitting = [order for order in orders if fits(order)]
    if not fitting:
        found = ", ".join(f"{name}: {tuple(layers[name][0].shape)}" for name in orders[0])
        raise InputError(
            f"weight matrices of shapes {shapes} were expected, in this order; found were {found}"
        )
    if len(fitting) > 1:
        raise InputError(
            f"the layers fit in the order {fitting[0]} and in the order {fitting[1]}; name the architecture "
            "as package.module:factory, which leaves no doubt"
        )
    order = fitting[0]
    port = Port("input" if "input" not in layers else "network_input", (widths[0],))
    dtype = _precision({key: _dtype(tensor) for key, tensor in state.items()})
    nodes: list[Node] = []
    reads = port.name
    for position, name in enumerate(order):
        try:
            nodes.append(Node(name, Linear(*(_numbers(tensor) for tensor in layers[name])), (reads,)))
        except RelutrimError as error:
            raise error.at(f"layer {name!r}") from None
        reads = name
        if position < len(order) - 1:
            reads = _relu_name(name, layers)
            nodes.append(Node(reads, Relu(), (name,)))
    output = "output" if "output" not in layers else "network_output"
    return Network(port, tuple(nodes), (Output(output, reads),), dtype)


def _numbers(tensor: Tensor) -> Array:
    if tensor.layout != torch.strided:
        raise UnsupportedError(f"it holds a {tensor.layout} tensor; call .to_dense() on it first")
    return tensor.detach().cpu().numpy().astype("float64")


def _precision(dtypes: Mapping[str, str]) -> str:
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


def _pairs(state: dict[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """Weight and bias of each layer, under the layer's name, in the order of the file."""
    layers = [key.removesuffix(".weight") for key in state if key.endswith(".weight")]
    expected = {f"{layer}.{leaf}" for layer in layers for leaf in ("weight", "bias")}
    missing, unexpected = sorted(expected - state.keys()), sorted(state.keys() - expected)
    if missing or unexpected or not layers:
        found = "; ".join(
            f"{what}: {', '.join(keys[:5])}"
            for what, keys in (("missing", missing), ("unexpected", unexpected))
            if keys
        )
        raise InputError(
            "an mlp has a weight and a bias for each layer and nothing else "
            f"({found or 'no weights at all'}); for other networks name the architecture as "
            "package.module:factory"
        )
    return {layer: (state[f"{layer}.weight"], state[f"{layer}.bias"]) for layer in layers}


def _orders(names: list[str]) -> list[list[str]]:
    """The orders in which layers of these names may follow each other.

    Names that differ only in their numbers are ordered by these: ``layer10`` comes after ``layer9``.
    Otherwise the order of the file counts as well, which is the order in which the layers were defined.
    """
    natural = sorted(names, key=_natural)
    patterns = {tuple(re.split("[0-9]+", name)) for name in names}
    return [natural] if len(patterns) == 1 or natural == names else [natural, names]


def _natural(name: str) -> list[str | int]:
    # Text at even and digits at odd places, so that parts of two names compare like with like.
    parts = re.split("([0-9]+)", name)
    return [int(part) if place % 2 else part for place, part in enumerate(parts)]


def _relu_name(layer: str, layers: Mapping[str, object]) -> str:
    """In a plain Sequential a ReLU has the number between its neighbours."""
    numbered = re.fullmatch(r"(.*\.)?([0-9]+)", layer)
    name = f"{numbered[1] or ''}{int(numbered[2]) + 1}" if numbered else f"{layer}_relu"
    return name if name not in layers else f"{layer}_relu"


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _shape(given: object, arch: str) -> tuple[int, ...]:
    sizes = tuple(given) if isinstance(given, tuple | list | torch.Size) else ()
    if not sizes or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise InputError(
            f"the factory {arch!r} gives {given!r} as the shape of one input; give (3, 32, 32), say"
        )
    return sizes


def _from_factory(state: dict[str, Tensor], arch: str, input_shape: tuple[int, ...] | None) -> Network:
    home, colon, name = arch.partition(":")
    if not (home and colon and name):
        raise InputError(
            f"the architecture {arch!r} is not understood; write mlp:784-100-10 or package.module:factory"
        )
    try:
        factory = getattr(importlib.import_module(home), name)
    except Exception as error:  # the module is the caller's code and may fail in any way
        raise InputError(
            f"the architecture {arch!r} cannot be imported ({type(error).__name__}: {error})"
        ) from error
    try:
        module = factory()
    except Exception as error:
        raise InputError(f"the factory {arch!r} failed ({type(error).__name__}: {error})") from error
    if isinstance(module, tuple) and len(module) == 2:
        module, input_shape = module[0], _shape(module[1], arch)
    if not isinstance(module, nn.Module):
        raise InputError(f"the factory {arch!r} made a {type(module).__name__}, not a torch.nn.Module")
    try:
        # assign: the tensors of the file as they are. Copying would round float64 to the module's float32.
        module.load_state_dict(state, strict=True, assign=True)
    except RuntimeError as error:
        raise InputError(f"the file does not fit what {arch!r} makes: {error}") from error
    return read_module(module.eval(), input_shape)
