"""Small ONNX models, and what onnxruntime says about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

from relutrim.certificate.check.read import read
from relutrim.certificate.hinting import run as run_graph
from relutrim.errors import UnsupportedError
from relutrim.graph import Fresh, Network
from relutrim.io.onnx import network_from_proto, network_to_proto
from relutrim.io.onnx.read import reading

KINDS = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float64): TensorProto.DOUBLE}
RNG = np.random.default_rng(7)


def numbers(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.asarray(RNG.normal(size=shape)).astype(dtype)


def op(kind: str, inputs: Sequence[str], output: str = "y", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, list(inputs), [output], name=f"{kind.lower()}_{output}", **attributes)


def model(
    nodes: Sequence[onnx.NodeProto],
    shape: Sequence[int | str | None],
    weights: Mapping[str, np.ndarray] | None = None,
    *,
    outputs: Sequence[str] = ("y",),
    opset: int = 17,
    ir: int = 8,
    dtype: Any = np.float32,
    listed: bool = False,
) -> onnx.ModelProto:
    """A model with input ``x``; ``listed`` writes the weights among the inputs, as files before IR 4 do."""
    kind = KINDS[np.dtype(dtype)]
    initializers = [
        numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()
    ]
    inputs = [helper.make_tensor_value_info("x", kind, shape)]
    if listed:
        inputs += [helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in initializers]
    ends = [helper.make_tensor_value_info(name, kind, None) for name in outputs]
    graph = helper.make_graph(list(nodes), "test", inputs, ends, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir)


def run(proto: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, {session.get_inputs()[0].name: x})


def sample(network: Network, rows: int = 4) -> np.ndarray:
    """A random input of the file, with the batch axis that it has."""
    batch = network.input.batch
    lead = () if batch is None else (batch if isinstance(batch, int) else rows,)
    return np.asarray(RNG.normal(size=(*lead, *network.input.shape))).astype(network.dtype)


def values_at(network: Network, x: np.ndarray) -> list[np.ndarray]:
    """What the network makes of an input of the file, per output, before tails."""
    single = network.input.batch is None
    values = network.run(torch.as_tensor(x[None] if single else x, dtype=torch.float64))
    found = [values[output.source].numpy() for output in network.outputs]
    return [array[0] for array in found] if single else found


def assert_same(found: np.ndarray, expected: np.ndarray, tolerance: float = 1e-5) -> None:
    assert found.shape == expected.shape
    np.testing.assert_allclose(
        found, expected, rtol=tolerance, atol=tolerance * (1 + abs(expected).max(initial=0))
    )


def opaque(proto: onnx.ModelProto) -> str:
    """Why nodes are opaque, which they have to be: then something is unknown, or must stay as it is."""
    found = reading(proto)
    assert found.opaque
    assert any(isinstance(node.operator, Fresh) for node in found.network) or found.network.pinned
    return "\n".join(found.opaque.values())


def assert_reads(proto: onnx.ModelProto) -> Network:
    """Reading gives what onnxruntime computes, and so does the file that is written from it."""
    network = network_from_proto(proto)
    x = sample(network)
    expected = run(proto, x)
    written = run(network_to_proto(network), x)
    for output, value, truth, again in zip(
        network.outputs, values_at(network, x), expected, written, strict=True
    ):
        if not output.tail:
            assert_same(value, truth)
        assert_same(again, truth)
    assert_checker_reads(proto, network, x)
    return network


def assert_checker_reads(proto: onnx.ModelProto, network: Network, x: np.ndarray) -> None:
    """What the certificate's checker reads, if it does, computes the same."""
    try:
        graph = read(proto.SerializeToString())
    except UnsupportedError:
        return
    if graph.sizes[0] != network.input.size:  # rows of a fixed batch that are joined: no domain fits both
        return
    rows = 1 if network.input.batch is None else len(x)
    values = run_graph(graph, x.reshape(rows, -1).astype(np.float64))
    for output, value in zip(network.outputs, values_at(network, x), strict=True):
        assert_same(values[graph.outputs[output.name].number], value.reshape(rows, -1), 1e-9)
