"""Models in and out, by suffix. Each format is one module, imported only when it is needed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from relutrim.errors import InputError, RelutrimError

if TYPE_CHECKING:
    from relutrim.graph.graph import Network

READABLE = (".onnx", ".onnx.gz", ".pt", ".pt2", ".nnet", ".dat")
WRITABLE = (".onnx", ".pt", ".pt2")


def suffix(path: Path) -> str:
    """The ending that decides the format, in lower case, with a ``.gz`` behind it if there is one."""
    endings = [ending.lower() for ending in path.suffixes[-2:]]
    return "".join(endings if endings[-1:] == [".gz"] else endings[-1:])


def load(
    path: Any,
    *,
    arch: str | None = None,
    input_shape: tuple[int, ...] | None = None,
    example_input: Any = None,
) -> Network:
    """Read a network from a file, or from a model in memory: an ``onnx.ModelProto``, an ``nn.Module`` or an
    ``ExportedProgram``.

    ``.onnx``, ``.onnx.gz``, ``.pt2`` (a torch.export program), ``.pt`` (a state dict; ``arch`` says what it
    belongs to, such as ``mlp:784-100-10`` or ``package.module:factory``), ``.nnet``, and the reference
    implementation's ``weights.dat``. In memory: a ``torch.export`` program, or an ``nn.Module`` with
    ``input_shape``, the shape of one input, or ``example_input``, a batch of inputs.

    >>> import relutrim
    >>> [relu.name for relu in relutrim.load(relutrim.demo_model()).relus]
    ['relu1.out', 'relu2.out']
    """
    if not isinstance(path, str | Path):
        if arch is not None:
            raise InputError("an architecture goes with a .pt state dict only")
        return as_network(path, input_shape=input_shape, example_input=example_input)
    if input_shape is not None or example_input is not None:
        raise InputError("a file says the shape of its input; input_shape and example_input go with a module")
    path = Path(path)
    try:
        return _load(path, arch)
    except RelutrimError as error:
        named = (error.where or "").startswith(str(path))
        raise error if named else error.at(str(path)) from None


def is_proto(model: Any) -> bool:
    """Whether something is an ``onnx.ModelProto``; this does not load onnx."""
    return type(model).__name__ == "ModelProto" and hasattr(model, "opset_import")


def _load(path: Path, arch: str | None) -> Network:
    kind = suffix(path)
    if arch is not None and kind != ".pt":
        raise InputError("an architecture goes with a .pt state dict only; this format brings its own")
    match kind:
        case ".onnx" | ".onnx.gz":
            from relutrim.io.onnx import read_onnx

            return read_onnx(path)
        case ".pt":
            if arch is None:
                raise InputError(
                    "a .pt state dict holds weights without their structure; add --arch "
                    "mlp:784-100-10 or --arch package.module:factory"
                )
            from relutrim.io.state_dict import read_state_dict

            return read_state_dict(path, arch)
        case ".pt2":
            from relutrim.io.exported import read_exported

            return read_exported(path)
        case ".nnet":
            from relutrim.io.nnet import read_nnet

            return read_nnet(path)
        case ".dat":
            from relutrim.io.weights_dat import read_weights_dat

            return read_weights_dat(path)
    raise InputError(
        f"{kind or 'a file without suffix'} is no format relutrim reads; it reads {', '.join(READABLE)}"
    )


def save(network: Network, path: str | Path) -> None:
    """Write a network, whole or not at all: ``.onnx``, ``.pt`` or ``.pt2``.

    >>> import tempfile, relutrim
    >>> network = relutrim.load(relutrim.demo_model())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     relutrim.save(network, f"{folder}/copy.onnx")
    ...     relutrim.load(f"{folder}/copy.onnx").widths == network.widths
    True
    """
    path = Path(path)
    check_writable(path)
    match suffix(path):
        case ".onnx":
            from relutrim.io.onnx import write_onnx

            write_onnx(network, path)
        case ".pt":
            from relutrim.io.state_dict import write_state_dict

            write_state_dict(network, path)
        case _:
            from relutrim.io.exported import write_exported

            write_exported(network, path)


def check_writable(path: Path) -> None:
    """Raise before any work is done if ``path`` cannot become a model file."""
    if suffix(path) not in WRITABLE:
        raise InputError(
            f"{suffix(path) or 'a name without suffix'} is no format relutrim writes; end the "
            f"name in {', '.join(WRITABLE)}",
            where=str(path),
        )
    from relutrim.io.files import check_target

    check_target(path)


def as_network(
    model: Any,
    *,
    output_relu: bool = False,
    input_shape: tuple[int, ...] | None = None,
    example_input: Any = None,
) -> Network:
    """A path, an ``onnx.ModelProto``, an ``nn.Module``, an ``ExportedProgram`` or a :class:`Network`, as a
    network. ``input_shape`` (of one input) and ``example_input`` (a batch of inputs) are for modules, which
    do not tell theirs.
    """
    from relutrim.graph.graph import Network

    if isinstance(model, str | Path):
        network = load(model)
    elif is_proto(model):
        from relutrim.io.onnx import network_from_proto

        network = network_from_proto(model)
    elif isinstance(model, Network):
        network = model
    else:
        network = _from_memory(model, input_shape, example_input)
    if output_relu:
        from relutrim.analysis import with_output_relu

        return with_output_relu(network)
    return network


def _from_memory(model: Any, input_shape: tuple[int, ...] | None, example_input: Any) -> Network:
    from relutrim.io.torch.source import TorchSource

    return TorchSource.of(model, input_shape, example_input=example_input).network
