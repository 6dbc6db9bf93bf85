"""From a network to an ONNX file that every runtime of the last years reads: opset 17, IR version 8 (with a
GELU opset 20, IR version 9).

Values keep their names; weights are stored in the network's type. The same network gives the same bytes.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

from relutrim._version import __version__
from relutrim.errors import InputError, NetworkError, RelutrimError
from relutrim.graph import Network, Output, TailStep
from relutrim.io.files import replacing
from relutrim.io.onnx import (  # noqa: F401  (fill the registry)
    emission_barriers,
    emission_moving,
    emission_windows,
)
from relutrim.io.onnx.emission import Emission, emit
from relutrim.io.onnx.parse import BATCH_MARK, NO_BATCH
from relutrim.io.onnx.verify import verify_written

_KINDS = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE}


def write_onnx(network: Network, path: Path) -> None:
    """Write an ``.onnx`` file; it takes its place only after :func:`verify_written` found it right."""
    if path.suffix.lower() != ".onnx":
        raise InputError("the name of an ONNX file must end in .onnx", where=str(path))
    try:
        content = network_to_proto(network).SerializeToString(deterministic=True)
    except RelutrimError as error:
        raise error.at(str(path)) from None
    except Exception as error:  # protobuf's exceptions differ between its implementations
        raise InputError(
            f"the network cannot be stored as one ONNX file, which holds 2 GiB at most ({error})",
            where=str(path),
        ) from error
    with replacing(path) as aside:
        aside.write_bytes(content)
        try:
            verify_written(aside, network)
        except RelutrimError as error:
            raise error.at(str(path)) from None


def network_to_proto(network: Network) -> onnx.ModelProto:
    """The network as an ONNX model."""
    emission = Emission(network, _value_names(network))
    for node in network:
        try:
            emit(emission, node)
        except RelutrimError as error:
            raise error.at(f"node {node.name!r}") from None
    chains: dict[tuple[str, str], str] = {}
    for output in {output.name: output for output in network.outputs}.values():
        _emit_output(emission, output, chains)
    kind = _KINDS[network.dtype]
    batch = [] if network.input.batch is None else [network.input.batch]
    graph = helper.make_graph(
        emission.nodes,
        "relutrim",
        [helper.make_tensor_value_info(network.input.name, kind, [*batch, *network.input.shape])],
        [
            helper.make_tensor_value_info(output.name, kind, [*batch, *network.shapes[output.source]])
            for output in network.outputs
        ],
        emission.initializers,
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", emission.opset)],
        ir_version=emission.ir_version,
        producer_name="relutrim",
        producer_version=__version__,
    )
    marks = {BATCH_MARK: NO_BATCH} if network.input.batch is None and len(network.input.shape) > 1 else {}
    for key, value in {**network.metadata, **marks}.items():
        model.metadata_props.add(key=key, value=value)
    return model


def _value_names(network: Network) -> dict[str, str]:
    """The tensor name of every value: its own, unless an output that is something else has that name."""
    owners = {output.name: output.source for output in network.outputs if not output.tail}
    outputs = {output.name for output in network.outputs}
    if network.input.name in outputs and owners.get(network.input.name) != network.input.name:
        raise NetworkError(
            f"the input and a different output are both called {network.input.name!r}; rename one"
        )
    first: dict[str, Output] = {}
    for output in network.outputs:
        if first.setdefault(output.name, output) != output:
            raise NetworkError(f"two different outputs are called {output.name!r}; rename one")
    taken = outputs | {network.input.name, *(node.name for node in network)}
    names = {network.input.name: network.input.name}
    for node in network:
        name = node.name
        if name in outputs and owners.get(name) != name:
            while name in taken:
                name += "_"
            taken.add(name)
        names[node.name] = name
    return names


def _emit_output(emission: Emission, output: Output, chains: dict[tuple[str, str], str]) -> None:
    """The tail of an output, of which outputs share what they have in common, and its name."""
    current = emission.tensor(output.source)
    for index, step in enumerate(output.tail):
        key = (current, _signature(step))
        last = index == len(output.tail) - 1
        if key not in chains:
            chains[key] = output.name if last else emission.fresh(step.name)
            emission.node(step.kind, [current], chains[key], **step.attributes)
        current = chains[key]
    if current != output.name:
        emission.node("Identity", [current], output.name)


def _signature(step: TailStep) -> str:
    return repr((step.kind, sorted(step.attributes.items())))
