"""Every node that is read from an ONNX file says which nodes it stands for and where its numbers are kept."""

from __future__ import annotations

from itertools import chain

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from conformance import GROUPS
from onnx_models import model, numbers, op
from relutrim.errors import RelutrimError
from relutrim.graph import Network
from relutrim.graph.origin import Stored
from relutrim.io.files import read_bytes
from relutrim.io.onnx import network_from_proto
from relutrim.io.onnx.parse import parse


def check(proto: onnx.ModelProto, network: Network) -> int:
    """How many fields are stored; they are what the tensors hold, bit for bit."""
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    made = {next(name for name in node.output if name): node for node in proto.graph.node}
    for key, node in made.items():
        if node.op_type == "Constant":
            held = onnx.helper.get_attribute_value(node.attribute[0])
            tensors[key] = numpy_helper.to_array(held) if hasattr(held, "dims") else np.asarray(held)
        elif node.op_type == "Identity" and node.input[0] in tensors:
            tensors[key] = tensors[node.input[0]]
    count = 0
    for node in network:
        assert node.origin is not None
        assert node.origin.nodes
        assert made.keys() >= set(node.origin.nodes)
        for name, stored in node.origin.fields.items():
            field, tensor = getattr(node.operator, name), tensors[stored.tensor]
            assert stored.node in node.origin.nodes
            assert made[stored.node].input[stored.place] == stored.tensor
            assert len(stored.axes) == field.ndim
            assert stored.rank == tensor.ndim
            named = [axis for axis in stored.axes if axis is not None]
            assert len(set(named)) == len(named)
            for axis, size in zip(stored.axes, field.shape, strict=True):
                assert size == (1 if axis is None else tensor.shape[axis])
            back = stored.back(field)
            if stored.sign:
                assert back is not None
                assert back.shape == tensor.shape
                assert back.tobytes() == tensor.astype(np.float64).tobytes()
            count += 1
    return count


@pytest.mark.parametrize("group", GROUPS)
def test_numbers_go_back_to_where_they_are_kept(group):
    count = 0
    for case in GROUPS[group]():
        proto = case.proto()
        try:
            network = network_from_proto(proto)
        except RelutrimError:
            continue
        count += check(proto, network)
    held = {"gemms", "matrix_products", "batch_normalisations", "convolutions", "piecewise", "arithmetic"}
    assert (count > 0) == (group in held)


def test_every_layer_of_real_networks_is_stored(shared):
    for path in sorted(chain(shared.glob("networks/**/*.onnx"), shared.glob("networks/**/*.onnx.gz"))):
        proto = parse(read_bytes(path))
        network = network_from_proto(proto)
        assert check(proto, network) > 0
        for node in network:
            if node.operator.kind in ("Linear", "Convolution"):
                assert node.origin is not None
                assert "weight" in node.origin.fields, (path, node.name)


W, C = numbers(3, 3), numbers(3)
JOINT = {
    "product and sum": ([op("MatMul", ["x", "w"], "h"), op("Add", ["h", "c"])], ["weight", "bias"], 1),
    "twice a sum": (
        [op("MatMul", ["x", "w"], "h"), op("Add", ["h", "c"], "i"), op("Add", ["c", "i"])],
        ["weight", "bias"], 2,
    ),
    "a summand of zeros": ([op("Gemm", ["x", "w", "z"], "h"), op("Add", ["h", "c"])], ["weight", "bias"], 2),
    "factor and summand": ([op("Mul", ["c", "x"], "h"), op("Sub", ["h", "c"])], ["scale", "shift"], 1),
    "the product read elsewhere": (
        [op("MatMul", ["x", "w"], "h"), op("Add", ["h", "c"], "i"), op("Add", ["h", "i"])], ["weight"], 3,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", JOINT)
def test_a_product_and_the_sum_behind_it_are_one_node_that_knows_both(case):
    nodes, fields, count = JOINT[case]
    proto = model(nodes, ["n", 3], {"w": W, "c": C, "z": 0 * C})
    network = network_from_proto(proto)
    check(proto, network)
    first = network.nodes[0]
    assert first.origin is not None
    assert len(network.nodes) == count
    assert sorted(first.origin.fields) == sorted(fields)
    assert first.origin.nodes == (("h", "y") if count == 1 else ("h", "i") if "twice" in case else ("h",))


def test_a_function_of_one_number_stands_for_all_nodes_that_spell_it_out():
    network = network_from_proto(
        model([op("Sigmoid", ["x"], "s"), op("Mul", ["s", "x"], "g"), op("Relu", ["g"])], ["n", 3])
    )
    silu = network["g"]
    assert silu.operator.kind == "Silu"
    assert silu.origin is not None
    assert set(silu.origin.nodes) == {"s", "g"}


@pytest.mark.parametrize("kind", ["Transpose", "Concat", "Cast"])
def test_constants_that_nodes_made_are_stored_nowhere(kind):
    attributes = {"Concat": {"axis": 0}, "Cast": {"to": 1}}.get(kind, {})
    nodes = [op(kind, ["w"], "t", **attributes), op("MatMul", ["x", "t"])]
    weights = {"w": np.eye(3, dtype=np.int64) if kind == "Cast" else W}
    (node,) = network_from_proto(model(nodes, ["n", 3], weights)).nodes
    assert node.origin is not None
    assert not node.origin.fields


def test_a_number_for_many_entries_is_not_their_bias():
    nodes = [op("MatMul", ["x", "w"], "h"), op("Add", ["h", "c"])]
    (node,) = network_from_proto(model(nodes, ["n", 3], {"w": W, "c": C[:1]})).nodes
    assert node.origin is not None
    assert list(node.origin.fields) == ["weight"]
    assert (node.operator.bias == C[0]).all()


def test_a_tensor_of_other_axes_cannot_hold_a_field():
    """A scale per channel, and one number for all, which a fold and a map have put in its place."""
    stored = Stored("w", "s", 1, (0, 1), 2)
    assert stored.back(np.array(1.0)) is None
    np.testing.assert_array_equal(stored.back(np.ones((2, 1))), np.ones((2, 1)))
