"""Channels cut out of ONNX models by hand, and what onnxruntime says of what is left."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from benchmarks.cutting import free_labels, touched, without
from onnx import TensorProto, helper, numpy_helper

from onnx_models import assert_same, model, numbers, op, run
from relutrim.graph import Network
from relutrim.graph.slicing import Kept
from relutrim.io.onnx.edit import edited
from relutrim.io.onnx.external import with_external
from relutrim.io.onnx.read import network_from_proto
from relutrim.rewrite.channels import Labels

__all__ = ["declared_model", "free_labels", "label", "touched", "without", "without_channel", "without_label"]


def declared_model(*arguments: Any, **options: Any) -> onnx.ModelProto:
    """A model whose outputs have shapes, as the checker wants them."""
    proto = model(*arguments, **options)
    inferred = onnx.shape_inference.infer_shapes(proto, strict_mode=True).graph.output
    for entry, found in zip(proto.graph.output, inferred, strict=True):
        entry.CopyFrom(found)
    return proto


def label(network: Network, value: str, channel: int) -> int:
    """The label of a channel of a value."""
    return int(Labels(network).roots(value)[channel])


def whole(proto: onnx.ModelProto, folder: Path | None) -> onnx.ModelProto:
    """The model with its external data."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    return copy if folder is None else with_external(copy, folder)


def without_channel(
    proto: onnx.ModelProto, value: str, channel: int, folder: Path | None = None
) -> onnx.ModelProto:
    """The model without a channel of a value, checked by onnx and by onnxruntime."""
    network = network_from_proto(whole(proto, folder))
    return without_label(proto, network, label(network, value, channel), folder)


def without_label(
    proto: onnx.ModelProto, network: Network, cut: int, folder: Path | None = None
) -> onnx.ModelProto:
    """The model without a label of its network."""
    onnx.checker.check_model(whole(proto, folder), full_check=True)
    given = proto.SerializeToString()
    assert cut in free_labels(network)
    after, kept = without(network, {cut})
    made = edited(proto, network, after, kept, folder=folder)
    assert proto.SerializeToString() == given
    onnx.checker.check_model(whole(made, folder), full_check=True)
    assert_computes_what_is_left(whole(proto, folder), whole(made, folder), network, kept)
    return made


def assert_computes_what_is_left(
    before: onnx.ModelProto, after: onnx.ModelProto, network: Network, kept: Mapping[str, Kept]
) -> None:
    """What is computed is what was, with the channels that went as zeros."""
    batch = network.input.batch
    rows = () if batch is None else (batch if isinstance(batch, int) else 3,)
    x = numbers(*rows, *network.input.shape)
    for found, expected in zip(run(after, x), run(masked(before, network, kept), x), strict=True):
        assert_same(found, expected)


def masked(proto: onnx.ModelProto, network: Network, kept: Mapping[str, Kept]) -> onnx.ModelProto:
    """The model in which every value is 0 where it loses something."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    nodes = list(copy.graph.node)
    del copy.graph.node[:]
    for node in nodes:
        cut = [name for name in node.output if name in kept]
        for place, name in enumerate(node.output):
            node.output[place] = f"{name} as it was" if name in cut else name
        copy.graph.node.append(node)
        for name in cut:
            mask = np.zeros(network.shapes[name], np.float32)
            np.moveaxis(mask, kept[name].axis, 0)[kept[name].indices] = 1
            tensor = numpy_helper.from_array(mask, f"{name} mask")
            copy.graph.initializer.append(tensor)
            if copy.ir_version < 4:
                copy.graph.input.append(
                    helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT, mask.shape)
                )
            copy.graph.node.append(op("Mul", [f"{name} as it was", tensor.name], name))
    return copy
