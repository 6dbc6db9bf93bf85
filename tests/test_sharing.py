"""Tensors that several layers read: they count once, and no result stores more numbers than the model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

import relutrim
from onnx_models import op
from relutrim.io.onnx.read import network_from_proto
from relutrim.rewrite.cost import Cost

ANYTHING = relutrim.Everywhere()
HEADER = 32
STEP = 128
"""Bytes that a tensor takes besides its numbers: its name (twice), its type and its shape."""


def model(nodes: list[onnx.NodeProto], outputs: int, **arrays: np.ndarray) -> onnx.ModelProto:
    """A model of three inputs."""
    graph = helper.make_graph(
        nodes,
        "shared",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", outputs])],
        [numpy_helper.from_array(one.astype(np.float32), name) for name, one in arrays.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(made, full_check=True)
    return made


def twice(*dead: int, width: int = 6) -> onnx.ModelProto:
    """One layer that is applied twice, behind one some of whose units are dead."""
    random = np.random.default_rng(3)
    first, bias = random.normal(size=(3, width)), random.normal(size=width)
    first[:, dead], bias[list(dead)] = 0, -1
    nodes = [
        op("Gemm", ["x", "first", "first_bias"], "a"),
        op("Relu", ["a"], "b"),
        op("Gemm", ["b", "w", "w_bias"], "c"),
        op("Relu", ["c"], "d"),
        op("Gemm", ["d", "w", "w_bias"], "y"),
    ]
    weight = random.normal(size=(width, width))
    return model(nodes, width, first=first, first_bias=bias, w=weight, w_bias=random.normal(size=width))


def numbers(proto: onnx.ModelProto) -> int:
    """How many floats it stores."""
    tensors = [*proto.graph.initializer]
    tensors += [one.t for node in proto.graph.node if node.op_type == "Constant" for one in node.attribute]
    return sum(math.prod(one.dims) for one in tensors if one.data_type == TensorProto.FLOAT)


def compressed(proto: onnx.ModelProto, **options: Any) -> onnx.ModelProto:
    """What becomes of a model; it stores no more and computes the same."""
    found = relutrim.compress(proto, ANYTHING, tolerance=0, **options)
    assert found.obstacle is None
    result = found.model
    assert numbers(result) <= numbers(proto)
    assert found.stored.parameters <= found.original.parameters
    plain = onnx.ModelProto()
    plain.CopyFrom(result)
    del plain.metadata_props[:]
    more = max(0, len(plain.graph.initializer) - len(proto.graph.initializer))
    steps = max(0, len(plain.graph.node) - len(proto.graph.node))
    assert plain.ByteSize() <= proto.ByteSize() + HEADER * more + STEP * steps
    x = np.random.default_rng(5).normal(size=(4, 3)).astype(np.float32)
    np.testing.assert_allclose(run(result, x), run(proto, x), rtol=1e-4, atol=1e-4)
    return result


def run(proto: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": x})
    return np.asarray(found)


def test_an_initializer_that_two_layers_read_counts_once():
    network = network_from_proto(twice())
    assert network.parameters == numbers(twice())
    # What is computed does not depend on where its numbers are.
    assert network.multiply_adds == network.without_origins().multiply_adds
    assert Cost.MULTIPLY_ADDS.of(network)[0] == 3 * 6 + 2 * 6 * 6


def test_what_a_constant_node_holds_counts_once():
    proto = twice()
    weight = next(tensor for tensor in proto.graph.initializer if tensor.name == "w")
    proto.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=weight))
    proto.graph.initializer.remove(weight)
    assert network_from_proto(proto).parameters == numbers(proto)


def test_another_name_by_way_of_an_identity_is_no_other_tensor():
    proto = twice()
    proto.graph.node.insert(0, helper.make_node("Identity", ["w"], ["alias"]))
    proto.graph.node[-1].input[1] = "alias"
    assert network_from_proto(proto).parameters == numbers(proto)


def test_layers_stay_as_they_are_where_parting_them_costs_more_than_it_saves():
    proto = twice(2)
    assert compressed(proto).SerializeToString() == proto.SerializeToString()


def test_layers_part_where_that_saves_more_than_it_costs():
    proto = twice(0, 1, 2, 3, 4)
    result = compressed(proto)
    assert numbers(result) < numbers(proto)
    assert len({tuple(result.graph.node[at].input)[1] for at in (2, 4)}) == 2


def residual(dead: list[int], width: int = 6) -> onnx.ModelProto:
    """One layer that is applied twice and added to what it reads; the same units are dead everywhere."""
    random = np.random.default_rng(4)
    first, bias = random.normal(size=(3, width)), random.normal(size=width)
    weight, shared = random.normal(size=(width, width)), random.normal(size=width)
    first[:, dead], bias[dead], weight[:, dead], shared[dead] = 0, -1, 0, -1
    nodes = [op("Gemm", ["x", "first", "first_bias"], "a"), op("Relu", ["a"], "b0")]
    for at in range(2):
        nodes += [op("Gemm", [f"b{at}", "w", "w_bias"], f"c{at}"), op("Relu", [f"c{at}"], f"d{at}")]
        nodes += [op("Add", [f"b{at}", f"d{at}"], f"b{at + 1}")]
    nodes.append(op("Gemm", ["b2", "last"], "y"))
    arrays = {"first": first, "first_bias": bias, "w": weight, "w_bias": shared}
    return model(nodes, 2, **arrays, last=random.normal(size=(width, 2)))


def test_a_tensor_is_cut_once_where_all_layers_that_read_it_lose_the_same():
    result = compressed(residual([1, 4]))
    assert {one.name: tuple(one.dims) for one in result.graph.initializer} == {
        "first": (3, 4),
        "first_bias": (4,),
        "w": (4, 4),
        "w_bias": (4,),
        "last": (4, 2),
    }


def test_a_unit_that_is_dead_in_one_of_the_uses_stays_in_all():
    """Two towers of the same layer, of which one input has a dead unit that the other has not."""
    random = np.random.default_rng(6)
    left, right = random.normal(size=(3, 5)), random.normal(size=(3, 5))
    left[:, [1, 2]], right[:, [2, 3]] = 0, 0
    bias = np.ones(5)
    nodes = []
    for side in ("left", "right"):
        nodes += [op("MatMul", ["x", side], f"{side}0"), op("Relu", [f"{side}0"], f"{side}1")]
        nodes += [op("Gemm", [f"{side}1", "w", "bias"], f"{side}2")]
    nodes.append(op("Sub", ["left2", "right2"], "y"))
    proto = model(nodes, 5, left=left, right=right, w=random.normal(size=(5, 5)), bias=bias)
    result = compressed(proto)
    (weight,) = (one for one in result.graph.initializer if one.name == "w")
    assert tuple(weight.dims) == (4, 5)  # the one input that is dead in both


def test_a_tensor_that_an_unknown_node_reads_stays_besides():
    """Softsign is not known: the weights that it reads stay, whatever becomes of the layer."""
    proto = twice(2)
    proto.graph.node.append(op("Softsign", ["w"], "sign"))
    proto.graph.output.append(helper.make_tensor_value_info("sign", TensorProto.FLOAT, [6, 6]))
    found = relutrim.compress(proto, ANYTHING, tolerance=0)
    assert numbers(found.model) <= numbers(proto)


def test_of_several_results_only_what_costs_less_in_the_file_is_one():
    """Where multiply-adds are what counts, tensors may part."""
    found = relutrim.compress(twice(2), ANYTHING, tolerance=0, cost="multiply-adds")
    assert found.stored.multiply_adds < found.original.multiply_adds
    assert found.stored.parameters == numbers(found.model) > found.original.parameters


@st.composite
def towers(draw: st.DrawFn) -> onnx.ModelProto:
    """Layers in a row, with weights and biases that may be shared, and dead units here and there."""
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    width = draw(st.integers(2, 5))
    weights, biases = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    arrays = {"first": random.normal(size=(3, width)), "first_bias": random.normal(size=width)}
    arrays |= {f"w{at}": random.normal(size=(width, width)) for at in range(weights)}
    arrays |= {f"b{at}": random.normal(size=width) for at in range(biases)}
    dead = draw(st.lists(st.integers(0, width - 1), unique=True, max_size=width - 1))
    everywhere = draw(st.booleans())
    for name, array in arrays.items():
        if everywhere or name.startswith("first"):
            array[..., dead] = -1 if array.ndim == 1 else 0
    nodes, last = [op("Gemm", ["x", "first", "first_bias"], "h"), op("Relu", ["h"], "h0")], "h0"
    for at in range(draw(st.integers(1, 3))):
        weight, bias = draw(st.integers(0, weights - 1)), draw(st.integers(0, biases - 1))
        transposed = int(not everywhere and draw(st.booleans()))
        read = [last, f"w{weight}", f"b{bias}"]
        nodes += [op("Gemm", read, f"p{at}", transB=transposed), op("Relu", [f"p{at}"], f"r{at}")]
        last = f"r{at}"
        if draw(st.booleans()):
            nodes.append(op("Add", ["h0", last], f"s{at}"))
            last = f"s{at}"
    outputs = draw(st.sampled_from((2, width)))
    arrays["end"] = random.normal(size=(width, outputs))
    end = "w0" if outputs == width and draw(st.booleans()) else "end"
    return model([*nodes, op("Gemm", [last, end], "y")], outputs, **arrays)


@given(towers())
@settings(max_examples=40, deadline=None)
def test_no_result_stores_more_than_its_model(proto):
    compressed(proto)


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.one, self.other = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.other.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.other(self.one(self.first(x).relu()).relu())
        return found


class Towers(nn.Module):
    """A convolution and a batch norm that are called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.conv = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(6, 5, 3, padding=1)
        self.norm, self.last = nn.BatchNorm2d(5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        wide, low = (self.norm(self.conv(one)).relu() for one in (x, nn.functional.max_pool2d(x, 2)))
        found: Tensor = self.last(wide.mean((2, 3)) + low.mean((2, 3)))
        return found


def stored(module: nn.Module) -> int:
    """How many parameters it has."""
    return sum(one.numel() for one in module.parameters())


def test_tied_layers_of_a_module_are_left_alone_where_one_of_them_could_be_smaller():
    module = Tied().eval()
    with torch.no_grad():
        module.first.weight[2], module.first.bias[2] = 0, -1
    found = relutrim.compress(module, ANYTHING, input_shape=(6,), tolerance=0)
    assert type(found.model) is Tied
    assert found.model.other.weight is found.model.one.weight
    assert found.original.parameters == stored(module)
    assert found.stored.parameters == stored(found.model) <= stored(module)


@pytest.mark.parametrize("dead", ["first", "norm"])
def test_a_layer_that_a_module_calls_twice_is_cut_once(dead):
    module = Towers().eval()
    with torch.no_grad():
        layer = getattr(module, dead)
        layer.weight[[1, 3]], layer.bias[[1, 3]] = 0, -1
    found = relutrim.compress(module, ANYTHING, input_shape=(2, 6, 6), tolerance=0)
    assert type(found.model) is Towers
    assert found.original.parameters == stored(module)
    assert found.stored.parameters == stored(found.model)
    sizes = {"first": (4, 5), "norm": (6, 3)}
    assert found.model.conv.weight.shape[1::-1] == sizes[dead]
    x = torch.randn(3, 2, 6, 6)
    torch.testing.assert_close(found.model(x), module(x))
