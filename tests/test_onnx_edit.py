"""A channel cut out of ONNX models by hand: what it runs through is smaller, and all else is as it was, to
the last byte.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import relutrim
from cutting import declared_model as model
from cutting import free_labels, label, without_channel
from onnx_models import numbers, op, run
from relutrim.io.onnx.edit import edited
from relutrim.io.onnx.held import captured
from relutrim.io.onnx.read import network_from_proto

F, I64 = TensorProto.FLOAT, TensorProto.INT64


def tensor(proto: onnx.ModelProto, name: str) -> TensorProto:
    return next(one for one in proto.graph.initializer if one.name == name)


def node(proto: onnx.ModelProto, made: str) -> onnx.NodeProto:
    return next(one for one in proto.graph.node if made in one.output)


def expected(proto: onnx.ModelProto, **arrays: np.ndarray) -> onnx.ModelProto:
    """The model with these numbers in its initializers, all else as it is."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for name, array in arrays.items():
        one = tensor(copy, name)
        content = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape))
        del one.dims[:]
        one.dims.extend(array.shape)
        one.raw_data = content.raw_data
    return copy


def array(proto: onnx.ModelProto, name: str) -> np.ndarray:
    return numpy_helper.to_array(tensor(proto, name))


def less(proto: onnx.ModelProto, channel: int | list[int], **axes: int) -> dict[str, np.ndarray]:
    """Initializers without a channel along these axes."""
    return {name: np.delete(array(proto, name), channel, axis) for name, axis in axes.items()}


def with_remarks(proto: onnx.ModelProto) -> onnx.ModelProto:
    """With something wherever a model has a place for it."""
    proto.doc_string, proto.domain, proto.model_version = "a model", "org.example", 3
    proto.producer_name, proto.producer_version = "somebody", "7"
    proto.metadata_props.add(key="one", value="1")
    proto.training_info.add().algorithm.CopyFrom(helper.make_graph([], "training", [], []))
    proto.opset_import.append(helper.make_opsetid("org.example", 2))
    graph = proto.graph
    graph.doc_string = "a graph"
    for one in (*graph.node, *graph.initializer, *graph.input, *graph.output):
        one.doc_string = f"what {one.name} is for"
    for attribute in (attribute for one in graph.node for attribute in one.attribute):
        attribute.doc_string = f"why {attribute.name}"
    graph.quantization_annotation.add(tensor_name="w")
    graph.metadata_props.add(key="two", value="2")
    graph.node[0].metadata_props.add(key="three", value="3")
    values = numpy_helper.from_array(np.array([2.0], np.float32), "sparse")
    places = numpy_helper.from_array(np.array([1]), "sparse.indices")
    graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [4]))
    ids = [helper.make_opsetid("", 17)]
    proto.functions.append(
        helper.make_function("org.example", "Twice", ["a"], ["b"], [op("Add", ["a", "a"], "b")], ids)
    )
    return proto


def dense(**options: Any) -> onnx.ModelProto:
    nodes = [
        op("Gemm", ["x", "w", "b"], "h", transB=1), op("Relu", ["h"], "r"), op("MatMul", ["r", "v"], "k"),
        op("Add", ["k", "c"]),
    ]  # fmt: skip
    weights = {"w": numbers(5, 4), "b": numbers(5), "v": numbers(5, 3), "c": numbers(3)}
    return model(nodes, ["n", 4], weights, **options)


DENSE = {"w": 0, "b": 0, "v": 0}
"""Where the channels of its hidden layer are."""


def test_of_a_dense_layer_three_tensors_get_smaller_and_nothing_else_changes():
    proto = dense()
    assert without_channel(proto, "r", 2) == expected(proto, **less(proto, 2, **DENSE))


def test_what_relutrim_has_no_word_for_stays():
    proto = with_remarks(dense())
    # What onnx does not know yet either: field 1000 of the model and of a node.
    strange = b"\xc2\x3e\x03abc"
    proto.graph.node[1].MergeFromString(strange)
    proto.MergeFromString(strange)
    made = without_channel(proto, "r", 2)
    assert made.SerializeToString() == expected(proto, **less(proto, 2, **DENSE)).SerializeToString()
    assert made.SerializeToString().count(strange) == 2


@pytest.mark.parametrize("ir", [3, 8])
def test_initializers_that_are_inputs_too_are_smaller_there_as_well(ir):
    proto = dense(listed=True, ir=ir)
    wanted = expected(proto, **less(proto, 2, **DENSE))
    for name, shape in {"w": (4, 4), "b": (4,), "v": (4, 3)}.items():
        entry = next(entry for entry in wanted.graph.input if entry.name == name)
        entry.CopyFrom(helper.make_tensor_value_info(name, F, shape))
    assert without_channel(proto, "r", 2) == wanted


def test_numbers_stay_in_the_field_that_they_are_in():
    proto = dense()
    for one in proto.graph.initializer:
        numbers_of = numpy_helper.to_array(one).ravel().tolist()
        one.ClearField("raw_data")
        one.float_data.extend(numbers_of)
    wanted = onnx.ModelProto()
    wanted.CopyFrom(proto)
    for name, content in less(proto, 2, **DENSE).items():
        one = tensor(wanted, name)
        del one.dims[:], one.float_data[:]
        one.dims.extend(content.shape)
        one.float_data.extend(content.ravel().tolist())
    assert without_channel(proto, "r", 2) == wanted


def test_shapes_that_are_declared_follow():
    proto = dense()
    for name, shape in {"h": ["n", 5], "r": ["n", 5], "k": ["n", 3]}.items():
        proto.graph.value_info.append(helper.make_tensor_value_info(name, F, shape, doc_string=name))
    wanted = expected(proto, **less(proto, 2, **DENSE))
    for entry in wanted.graph.value_info[:2]:
        entry.type.tensor_type.shape.dim[1].dim_value = 4
    assert without_channel(proto, "r", 2) == wanted


def test_numbers_in_constant_nodes_are_cut_there():
    proto = dense()
    held = [
        helper.make_node("Constant", [], ["w"], value=tensor(proto, "w")),
        helper.make_node("Constant", [], ["b"], value_floats=array(proto, "b").tolist()),
    ]
    nodes = [*held, *proto.graph.node]
    wanted = less(proto, 2, **DENSE)
    for name in ("w", "b"):
        proto.graph.initializer.remove(tensor(proto, name))
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    made = without_channel(proto, "r", 2)
    assert list(made.graph.node[2:]) == list(proto.graph.node[2:])
    for one, before in zip(made.graph.node[:2], proto.graph.node[:2], strict=True):
        assert (one.name, one.output, one.op_type) == (before.name, before.output, before.op_type)
        found = numpy_helper.to_array(one.attribute[0].t)
        assert found.tobytes() == wanted[one.output[0]].tobytes()


@pytest.mark.parametrize("double", [False, True])
def test_tensors_that_two_layers_share_stay_shared_where_both_lose_the_same(double):
    nodes = [
        op("MatMul", ["x", "w"], "a"), op("MatMul", ["x", "w"], "b"), op("Add", ["a", "s"], "a1"),
        op("Add", ["b", "t"], "b1"), op("Sum", ["a1", "b1"], "h"), op("Relu", ["h"], "r"),
        op("MatMul", ["r", "v"]),
    ]  # fmt: skip
    weights = {"w": numbers(4, 5), "s": numbers(5), "t": numbers(5), "v": numbers(5, 2)}
    if double:
        nodes.insert(0, op("Identity", ["w"], "same"))
        nodes[2].input[1] = "same"
    proto = model(nodes, ["n", 4], weights)
    assert without_channel(proto, "h", 1) == expected(proto, **less(proto, 1, w=1, s=0, t=0, v=0))


def test_tensors_that_two_layers_share_part_where_only_one_loses_something():
    nodes = [
        op("MatMul", ["x", "w"], "a"), op("Relu", ["a"], "r"), op("MatMul", ["r", "w"], "b"),
        op("Relu", ["b"], "s"), op("MatMul", ["s", "v"]),
    ]  # fmt: skip
    proto = model(nodes, ["n", 4], {"w": numbers(4, 4), "v": numbers(4, 2)})
    tensor(proto, "w").doc_string = "shared"
    made = without_channel(proto, "s", 1)
    assert list(made.graph.initializer[:2]) == list(expected(proto, **less(proto, 1, v=0)).graph.initializer)
    (own,) = made.graph.initializer[2:]
    assert own.doc_string == "shared"
    assert np.array_equal(numpy_helper.to_array(own), np.delete(array(proto, "w"), 1, 1))
    wanted = onnx.ModelProto()
    wanted.CopyFrom(proto)
    wanted.graph.node[2].input[1] = own.name
    assert list(made.graph.node) == list(wanted.graph.node)


def convolved(nodes: list[onnx.NodeProto], opset: int = 17, **more: np.ndarray) -> onnx.ModelProto:
    """A convolution with five channels ``h`` of 4 x 4, what follows it, and a layer that reads ``e``."""
    first = [op("Conv", ["x", "w", "b"], "h", pads=[1, 1, 1, 1])]
    weights = {"w": numbers(5, 2, 3, 3), "b": numbers(5), **more}
    return model([*first, *nodes], ["n", 2, 4, 4], weights, opset=opset)


def test_batch_norms_lose_a_number_in_each_vector_and_kernels_a_plane():
    nodes = [
        op("BatchNormalization", ["h", "g", "a", "m", "s"], "n", epsilon=1e-3),
        op("Relu", ["n"], "r"), op("MaxPool", ["r"], "p", kernel_shape=[2, 2]), op("Conv", ["p", "v"]),
    ]  # fmt: skip
    vectors = {name: numbers(5) for name in "gam"} | {"s": np.abs(numbers(5)) + 1}
    proto = convolved(nodes, **vectors, v=numbers(3, 5, 1, 1))
    wanted = expected(proto, **less(proto, 3, w=0, b=0, g=0, a=0, m=0, s=0, v=1))
    assert without_channel(proto, "r", 3) == wanted


def test_of_kernels_per_channel_there_are_fewer_groups():
    nodes = [op("Conv", ["h", "d"], "e", group=5, pads=[0, 0, 0, 0]), op("Conv", ["e", "v"])]
    proto = convolved(nodes, d=numbers(5, 1, 3, 3), v=numbers(3, 5, 1, 1))
    proto.graph.node[1].attribute[0].doc_string = "one for each"
    wanted = expected(proto, **less(proto, 3, w=0, b=0, d=0, v=1))
    next(one for one in wanted.graph.node[1].attribute if one.name == "group").i = 4
    assert without_channel(proto, "e", 3) == wanted


def flattened(nodes: list[onnx.NodeProto], **more: np.ndarray) -> onnx.ModelProto:
    return convolved([*nodes, op("MatMul", ["e", "v"])], v=numbers(80, 3), **more)


BLOCK = list(range(48, 64))
"""Where the numbers of channel 3 are in what is flattened."""


@pytest.mark.parametrize(
    ("shape", "smaller"),
    [
        ([0, -1], [0, -1]),
        ([-1, 80], [-1, 64]),
        ([0, 80], [0, 64]),
    ],
)
def test_the_shape_of_a_reshape_says_what_it_said_as_far_as_that_is_true(shape, smaller):
    proto = flattened([op("Reshape", ["h", "shape"], "e")], shape=np.array(shape))
    wanted = expected(proto, **less(proto, 3, w=0, b=0), **less(proto, BLOCK, v=0), shape=np.array(smaller))
    assert without_channel(proto, "h", 3) == wanted


def test_reshapes_that_share_their_shape_part_where_they_must():
    nodes = [
        op("Reshape", ["h", "shape"], "e"), op("Conv", ["h", "u"], "o"), op("Reshape", ["o", "shape"], "f"),
        op("MatMul", ["e", "v"], "one"), op("MatMul", ["f", "v"], "two"), op("Add", ["one", "two"]),
    ]  # fmt: skip
    proto = convolved(nodes, shape=np.array([-1, 80]), u=numbers(5, 5, 1, 1), v=numbers(80, 3))
    made = without_channel(proto, "h", 3)
    kept = expected(proto, **less(proto, 3, w=0, b=0, u=1)).graph.initializer
    assert list(made.graph.initializer[:-2]) == list(kept)
    own = {one.name: numpy_helper.to_array(one) for one in made.graph.initializer[-2:]}
    assert own[node(made, "e").input[1]].tolist() == [-1, 64]
    assert np.array_equal(own[node(made, "one").input[1]], np.delete(array(proto, "v"), BLOCK, 0))
    assert node(made, "f") == node(proto, "f")


def computed_shape(last: np.ndarray) -> list[onnx.NodeProto]:
    """A flattening as exporters write it: the batch size, read off the value, and something behind it."""
    return [
        op("Shape", ["h"], "sizes"), op("Gather", ["sizes", "zero"], "rows", axis=0),
        op("Unsqueeze", ["rows", "axes"], "rows1"), op("Concat", ["rows1", "last"], "shape", axis=0),
        op("Reshape", ["h", "shape"], "e"),
    ]  # fmt: skip


def test_a_shape_that_is_computed_stays():
    more = {"zero": np.array(0), "axes": np.array([0]), "last": np.array([-1])}
    proto = flattened(computed_shape(more["last"]), **more)
    wanted = expected(proto, **less(proto, 3, w=0, b=0), **less(proto, BLOCK, v=0))
    assert without_channel(proto, "h", 3) == wanted


def test_a_computed_shape_that_says_a_size_is_written_out():
    more = {"zero": np.array(0), "axes": np.array([0]), "last": np.array([80])}
    proto = flattened(computed_shape(more["last"]), **more)
    made = without_channel(proto, "h", 3)
    assert [one.op_type for one in made.graph.node] == ["Conv", "Flatten", "MatMul"]
    assert (made.graph.node[0], made.graph.node[2]) == (proto.graph.node[0], proto.graph.node[-1])
    wanted = expected(proto, **less(proto, 3, w=0, b=0), **less(proto, BLOCK, v=0)).graph.initializer
    stay = [one for one in wanted if one.name not in more]
    assert list(made.graph.initializer[: len(stay)]) == stay


def test_the_parts_of_a_split_are_as_long_as_what_is_left_of_them():
    nodes = [
        helper.make_node("Split", ["h", "sizes"], ["p", "q"], name="split", axis=1),
        op("Conv", ["p", "u"], "one"), op("Conv", ["q", "v"], "two"), op("Add", ["one", "two"]),
    ]  # fmt: skip
    more = {"sizes": np.array([2, 3]), "u": numbers(3, 2, 1, 1), "v": numbers(3, 3, 1, 1)}
    proto = convolved(nodes, **more)
    wanted = expected(proto, **less(proto, 3, w=0, b=0), **less(proto, 1, v=1), sizes=np.array([2, 2]))
    assert without_channel(proto, "h", 3) == wanted


def test_an_old_split_says_it_in_an_attribute():
    nodes = [
        helper.make_node("Split", ["h"], ["p", "q"], name="split", axis=1, split=[2, 3]),
        op("Conv", ["p", "u"], "one"), op("Conv", ["q", "v"], "two"), op("Add", ["one", "two"]),
    ]  # fmt: skip
    proto = convolved(nodes, 11, u=numbers(3, 2, 1, 1), v=numbers(3, 3, 1, 1))
    wanted = expected(proto, **less(proto, 3, w=0, b=0), **less(proto, 1, v=1))
    next(one for one in wanted.graph.node[1].attribute if one.name == "split").ints[:] = [2, 2]
    assert without_channel(proto, "h", 3) == wanted


def test_the_limits_of_a_slice_move_and_open_ends_stay_open():
    nodes = [
        op("Slice", ["h", "two", "end", "axes"], "p"), op("Slice", ["h", "start", "two", "axes"], "q"),
        op("Conv", ["p", "u"], "one"), op("Conv", ["q", "v"], "two of it"), op("Add", ["one", "two of it"]),
    ]  # fmt: skip
    more = {"start": np.array([0]), "two": np.array([2]), "end": np.array([2**63 - 1]), "axes": np.array([1])}
    proto = convolved(nodes, **more, u=numbers(3, 3, 1, 1), v=numbers(3, 2, 1, 1))
    assert without_channel(proto, "h", 3) == expected(
        proto, **less(proto, 3, w=0, b=0), **less(proto, 1, u=1)
    )
    made = without_channel(proto, "h", 1)
    own = {one.name: numpy_helper.to_array(one).tolist() for one in made.graph.initializer}
    assert own[node(made, "p").input[1]] == own[node(made, "q").input[2]] == [1]
    assert [one.op_type for one in made.graph.node] == [one.op_type for one in proto.graph.node]


def test_a_slice_along_no_axis_says_what_it_said():
    none = np.zeros(0, np.int64)
    proto = convolved([op("Slice", ["h", "none", "none", "none"], "p"), op("Conv", ["p", "v"])], none=none,
                      v=numbers(3, 5, 1, 1))  # fmt: skip
    assert without_channel(proto, "h", 3) == expected(proto, **less(proto, 3, w=0, b=0, v=1))


def test_the_indices_of_a_gather_are_counted_anew():
    nodes = [op("Gather", ["h", "order"], "e", axis=1), op("Conv", ["e", "v"])]
    proto = convolved(nodes, order=np.array([4, 1, 3, 0, 2]), v=numbers(3, 5, 1, 1))
    wanted = expected(proto, **less(proto, 3, w=0, b=0), **less(proto, 2, v=1), order=np.array([3, 1, 0, 2]))
    assert without_channel(proto, "h", 3) == wanted


def test_what_takes_all_of_a_value_still_does():
    nodes = [
        op("Gather", ["h", "order"], "g", axis=1), op("Slice", ["g", "zero", "five", "one"], "s"),
        op("Slice", ["s", "zero", "end", "one"], "t"), op("Add", ["t", "t"], "e"), op("Conv", ["e", "v"]),
    ]  # fmt: skip
    more = {"order": np.arange(5), "zero": np.array([0]), "one": np.array([1]), "five": np.array([5])}
    proto = convolved(nodes, **more, end=np.array([2**63 - 1]), v=numbers(3, 5, 1, 1))
    wanted = expected(proto, **less(proto, 3, w=0, b=0, v=1), order=np.arange(4))
    assert without_channel(proto, "h", 3) == wanted


def test_limits_that_count_from_the_end_are_said_anew():
    nodes = [op("Slice", ["h", "zero", "last", "one"], "e"), op("Conv", ["e", "v"])]
    more = {"zero": np.array([0]), "last": np.array([-1]), "one": np.array([1])}
    proto = convolved(nodes, **more, v=numbers(3, 4, 1, 1))
    wanted = expected(proto, **less(proto, 4, w=0, b=0), last=np.array([4]))
    assert without_channel(proto, "h", 4) == wanted


def test_an_output_that_takes_a_part_may_become_all_of_it():
    nodes = [op("Slice", ["h", "two", "five", "one"])]
    more = {"two": np.array([1]), "five": np.array([5]), "one": np.array([1])}
    proto = convolved(nodes, **more)
    wanted = expected(proto, **less(proto, 0, w=0, b=0), two=np.array([0]), five=np.array([4]))
    made = without_channel(proto, "h", 0)
    assert made.graph.node == wanted.graph.node
    assert [one for one in made.graph.initializer if one.name in "wb"] == list(wanted.graph.initializer[:2])


def test_a_node_that_no_output_depends_on_goes_where_what_it_reads_gets_smaller():
    nodes = [
        helper.make_node("Split", ["h", "sizes"], ["p", "q"], name="split", axis=1),
        op("Conv", ["p", "u"]), op("Conv", ["q", "v"], "nobody's"),
    ]  # fmt: skip
    more = {"sizes": np.array([2, 3]), "u": numbers(3, 2, 1, 1), "v": numbers(3, 3, 1, 1)}
    proto = convolved(nodes, **more)
    made = without_channel(proto, "h", 3)
    wanted = expected(proto, **less(proto, 3, w=0, b=0), sizes=np.array([2, 2]))
    del wanted.graph.node[-1], wanted.graph.initializer[-1]
    assert made == wanted


def test_so_does_one_within_a_layer():
    nodes = [
        op("MatMul", ["x", "w"], "k"), op("Add", ["k", "b"], "h"), op("MatMul", ["h", "v"]),
        op("MatMul", ["k", "u"], "nobody's"),
    ]  # fmt: skip
    proto = model(
        nodes, ["n", 4], {"w": numbers(4, 5), "b": numbers(5), "v": numbers(5, 2), "u": numbers(5, 2)}
    )
    wanted = expected(proto, **less(proto, 3, w=1, b=0, v=0))
    del wanted.graph.node[-1], wanted.graph.initializer[-1]
    assert without_channel(proto, "h", 3) == wanted


def test_so_does_one_whose_graph_captures_what_is_no_more():
    ends = [helper.make_tensor_value_info("z", F, ["n", 4])]
    inner = helper.make_graph([op("Neg", ["r"], "z")], "inner", [], ends)
    nodes = [
        op("Relu", ["x"], "r"), op("MatMul", ["r", "w"]),
        helper.make_node("If", ["flag"], ["nobody's"], then_branch=inner, else_branch=inner),
    ]  # fmt: skip
    proto = model(nodes, ["n", 4], {"w": numbers(4, 5), "flag": np.array(True)})
    made = onnx.ModelProto.FromString(relutrim.compress(proto, relutrim.Box(0, 1)).onnx)
    assert [one.op_type for one in made.graph.node] == ["MatMul"]


def test_names_within_a_graph_within_a_graph_are_its_own():
    ends = [helper.make_tensor_value_info("q", F, ["n", 4])]
    deep = helper.make_graph([op("Neg", ["x"], "p"), op("Neg", ["p"], "q")], "deep", [], ends)
    again = helper.make_node("If", ["flag"], ["z"], then_branch=deep, else_branch=deep)
    graph = helper.make_graph([again], "graph", [], [helper.make_tensor_value_info("z", F, ["n", 4])])
    node = helper.make_node("If", ["flag"], ["i"], then_branch=graph, else_branch=graph)
    assert captured(node) == {"flag", "x"}


def test_numbers_in_constant_nodes_are_cut_where_other_nodes_go():
    """The first ReLU is the identity on the box, and a neuron is dead."""
    nodes = [
        *(helper.make_node("Constant", [], [name], value=one) for name, one in held_in_constants().items()),
        op("Relu", ["x"], "c"), op("Gemm", ["c", "w", "b"], "h", transB=1), op("Relu", ["h"], "r"),
        op("MatMul", ["r", "v"]),
    ]  # fmt: skip
    proto = model(nodes, ["n", 4])
    made = onnx.ModelProto.FromString(relutrim.compress(proto, relutrim.Box(0, 1)).onnx)
    assert [one.op_type for one in made.graph.node if one.op_type != "Constant"] == ["Gemm", "Relu", "MatMul"]
    shapes = {one.output[0]: one.attribute[0].t.dims for one in made.graph.node if one.op_type == "Constant"}
    assert shapes == {"w": [4, 4], "b": [4], "v": [4, 3]}
    x = np.abs(numbers(3, 4)).clip(0, 1)
    np.testing.assert_allclose(run(made, x)[0], run(proto, x)[0], 1e-5, 1e-5)


def held_in_constants() -> dict[str, TensorProto]:
    weight, bias = np.abs(numbers(5, 4)), numbers(5)
    weight[2], bias[2] = 0, -1
    arrays = {"w": weight, "b": bias, "v": numbers(5, 3)}
    return {name: numpy_helper.from_array(array, name) for name, array in arrays.items()}


@pytest.mark.parametrize("pads", [[1, 1, 1, 1], [0, 1, 1, 0]])
def test_where_two_convolutions_become_one_its_windows_are_said_anew(pads):
    nodes = [
        op("Relu", ["x"], "r"), op("Conv", ["r", "w"], "h", pads=pads, strides=[2, 1]),
        op("Conv", ["h", "v"], kernel_shape=[1, 1]),
    ]  # fmt: skip
    proto = model(nodes, ["n", 3, 6, 6], {"w": numbers(3, 3, 3, 3), "v": numbers(2, 3, 1, 1)})
    result = relutrim.compress(proto, relutrim.Box(-1, 1), tolerance=1e-3)
    made = onnx.ModelProto.FromString(result.onnx)
    assert [one.op_type for one in made.graph.node] == ["Relu", "Conv"]
    said = {one.name: helper.get_attribute_value(one) for one in made.graph.node[1].attribute}
    assert said == {"kernel_shape": [3, 3], "pads": pads, "strides": [2, 1]}
    x = numbers(2, 3, 6, 6)
    np.testing.assert_allclose(run(made, x)[0], run(proto, x)[0], 1e-4, 1e-4)


def test_external_data_stays_where_it_is_but_for_what_gets_smaller(tmp_path):
    proto = dense()
    sizes = {one.name: len(one.raw_data) for one in proto.graph.initializer}
    content = proto.SerializeToString()
    onnx.save(
        proto, tmp_path / "model.onnx", save_as_external_data=True, location="data.bin", size_threshold=0
    )
    proto.ParseFromString(content)
    external = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    content = (tmp_path / "data.bin").read_bytes()
    made = without_channel(external, "r", 2, tmp_path)
    assert (tmp_path / "data.bin").read_bytes() == content
    assert tensor(made, "c") == tensor(external, "c")
    assert tensor(made, "c").data_location == TensorProto.EXTERNAL
    for name, smaller in less(proto, 2, **DENSE).items():
        assert tensor(made, name).data_location == TensorProto.DEFAULT
        assert tensor(made, name).raw_data == smaller.tobytes()
        assert len(smaller.tobytes()) < sizes[name]


def test_a_batch_norm_of_an_old_operator_set_is_cut_all_the_same():
    nodes = [
        op("BatchNormalization", ["h", "g", "a", "m", "s"], "n", spatial=1),
        op("Dropout", ["n"], "d", ratio=0.5), op("Relu", ["d"], "r"), op("Conv", ["r", "v"]),
    ]  # fmt: skip
    vectors = {name: numbers(5) for name in "gam"} | {"s": np.abs(numbers(5)) + 1}
    proto = convolved(nodes, 7, **vectors, v=numbers(3, 5, 1, 1))
    wanted = expected(proto, **less(proto, 3, w=0, b=0, g=0, a=0, m=0, s=0, v=1))
    assert without_channel(proto, "r", 3) == wanted


def with_inner(kind: str) -> onnx.ModelProto:
    """A dense network beside whose second layer a subgraph reads the first channel layer ``r``."""
    ends = [helper.make_tensor_value_info("z", F, ["n", 5])]
    inner = helper.make_graph([op("Mul", ["r", "r"], "z")], "inner", [], ends)
    if kind == "If":
        nodes = [helper.make_node("If", ["flag"], ["i"], name="if", then_branch=inner, else_branch=inner)]
    else:
        inner.node.insert(0, op("Identity", ["more"], "again"))
        inner.input.append(helper.make_tensor_value_info("turn", I64, []))
        inner.input.append(helper.make_tensor_value_info("more", TensorProto.BOOL, []))
        inner.output.insert(0, helper.make_tensor_value_info("again", TensorProto.BOOL, []))
        inner.output[1].CopyFrom(helper.make_tensor_value_info("z", F, ["n", 5]))
        nodes = [helper.make_node("Loop", ["trips", "flag"], ["i"], name="loop", body=inner)]
    proto = dense()
    return model(
        [
            *proto.graph.node[:2],
            *nodes,
            op("Relu", ["h"], "q"),
            *proto.graph.node[2:],
            op("ReduceSum", ["i"], "sum"),
        ],
        ["n", 4],
        {
            **{one.name: numpy_helper.to_array(one) for one in proto.graph.initializer},
            "flag": np.array(True),
            "trips": np.array(1),
        },
        outputs=["y", "sum"],
    )


@pytest.mark.parametrize("kind", ["If", "Loop"])
def test_what_a_graph_within_a_node_captures_keeps_its_channels(kind):
    proto = with_inner(kind)
    onnx.checker.check_model(proto)
    network = network_from_proto(proto)
    assert label(network, "r", 2) not in free_labels(network)


@pytest.mark.parametrize("kind", ["If", "Loop"])
def test_channels_beside_what_a_graph_within_a_node_captures_go(kind):
    proto = with_inner(kind)
    extra = [op("MatMul", ["x", "w2"], "h2"), op("Relu", ["h2"], "r2"), op("MatMul", ["r2", "v2"], "y2")]
    proto.graph.node.extend([*extra, op("Add", ["y", "y2"], "end")])
    proto.graph.output[0].name = "end"
    for name, shape in {"w2": (4, 5), "v2": (5, 3)}.items():
        proto.graph.initializer.append(numpy_helper.from_array(numbers(*shape), name))
    assert without_channel(proto, "r2", 2) == expected(proto, **less(proto, 2, w2=1, v2=0))


def test_a_call_of_a_function_keeps_what_it_reads():
    proto = with_remarks(dense())
    proto.graph.node.append(helper.make_node("Twice", ["y"], ["t"], domain="org.example", name="call"))
    proto.graph.output.append(helper.make_tensor_value_info("t", F, ["n", 3]))
    assert without_channel(proto, "r", 2) == expected(proto, **less(proto, 2, **DENSE))


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "dense": dense,
    "remarks": lambda: with_remarks(dense()),
    "listed": lambda: dense(listed=True, ir=3),
    "If": lambda: with_inner("If"),
    "Loop": lambda: with_inner("Loop"),
}


@pytest.mark.parametrize("name", MODELS)
def test_where_nothing_is_cut_the_bytes_are_the_same(name):
    proto = MODELS[name]()
    network = network_from_proto(proto)
    assert edited(proto, network, network).SerializeToString() == proto.SerializeToString()


@pytest.mark.parametrize("kind", ["Clip", "Relu", "LeakyRelu", "output"])
def test_what_is_several_nodes_of_the_graph_stays_one_of_the_model(kind):
    """A clip of which one end never applies, say: without one of its ReLUs it would be five nodes."""
    clips = kind in ("Clip", "output")
    inputs = ["g", "lo", "hi"] if clips else ["g"]
    tail = [] if kind == "output" else [op("Gemm", ["c", "v"], "y")]
    weights = {"w": np.eye(3) * [1, 1, 0], "b": np.array([0.5, 0.5, -1]), "v": np.ones((3, 2))}
    weights |= {"lo": np.array(-1.0), "hi": np.array(1.0)} if clips else {}
    nodes = [op("Gemm", ["x", "w", "b"], "g"), op("Clip" if kind == "output" else kind, inputs, "c"), *tail]
    weights = {name: array.astype(np.float32) for name, array in weights.items()}
    proto = model(nodes, ("n", 3), weights, outputs=["c" if kind == "output" else "y"])
    found = relutrim.compress(proto, relutrim.Box(0, 1), tolerance=0)
    assert found.original.neurons > 0
    types = [one.op_type for one in found.model.graph.node]
    if kind == "Relu":  # two of its three neurons are active, and the other one went
        assert types == ["Gemm", "Gemm"]
    else:
        assert types == [one.op_type for one in nodes]
        assert found.unchanged


@pytest.mark.parametrize("transposed", [0, 1])
def test_a_weight_that_grows_is_not_put_back_the_wrong_way_round(transposed):
    """Of a matrix with a single entry nobody sees which way round it is. Here it is multiplied into the one
    before, of two columns.
    """
    nodes = [
        op("Gemm", ["x", "a"], "g", transB=1),
        op("Gemm", ["g", "b"], "h", transB=transposed),
        op("Relu", ["h"], "r"),
        op("Gemm", ["r", "c"], "y", transB=1),
    ]
    weights = {"a": np.array([[1.0, -2.0]]), "b": np.array([[0.5]]), "c": np.array([[3.0], [1.0]])}
    weights = {name: array.astype(np.float32) for name, array in weights.items()}
    proto = model(nodes, ("n", 2), weights, outputs=["y"])
    found = relutrim.compress(proto, relutrim.Box(-1, 1))
    assert found.stored.parameters < found.original.parameters
    x = np.random.default_rng(0).uniform(-1, 1, (5, 2)).astype(np.float32)
    np.testing.assert_allclose(run(found.model, x)[0], run(proto, x)[0], rtol=1e-6, atol=1e-6)


def test_a_sum_behind_a_batch_norm_that_is_0_stays_a_sum():
    """A batch norm has a bias of its own; with the constant as its shift it would forget it when cut."""
    nodes = [
        op("Gemm", ["x", "w", "b"], "g"),
        op("BatchNormalization", ["g", "gain", "bias", "mean", "variance"], "n"),
        op("Add", ["n", "c"], "a"),
        op("Relu", ["a"], "r"),
        op("Gemm", ["r", "v"], "y"),
    ]
    weights = {"w": np.zeros((1, 2)), "b": [0, 0], "gain": [0, 0], "bias": [0, 0], "mean": [0, 0]}
    weights |= {"variance": [8.75, 8.75], "c": [0, 1], "v": np.ones((2, 2))}
    weights = {name: np.array(array, np.float32) for name, array in weights.items()}
    proto = model(nodes, ["n", 1], weights, outputs=["y"])
    assert network_from_proto(proto)["n"].operator.shift.tolist() == [0, 0]
    found = relutrim.compress(proto, relutrim.Box(0, 1), tolerance=0, method="bounds")
    assert found.stored.parameters < found.original.parameters
    x = np.array([[0.25], [1.0]], np.float32)
    assert np.array_equal(run(found.model, x)[0], run(proto, x)[0])
