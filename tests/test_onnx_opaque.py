"""What relutrim does not know in an ONNX model: such nodes are opaque, their inputs stay, and what they make
comes from nowhere.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from command_line import call
from onnx_models import model, numbers, op, opaque, run
from relutrim.errors import InputError
from relutrim.graph import Fresh, Network
from relutrim.io.onnx import network_from_proto, read_onnx
from relutrim.io.onnx.read import reading

W, C = numbers(3, 3), numbers(3)
F, D, I64 = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64


def fresh(network: Network) -> dict[str, tuple[int, ...]]:
    """Shapes of the values that come from nowhere."""
    return {node.name: node.operator.shape for node in network if isinstance(node.operator, Fresh)}


def kinds(network: Network) -> list[str]:
    return [node.operator.kind for node in network]


def taking(
    proto: onnx.ModelProto, *inputs: tuple[str, int, list[int | str | None] | None]
) -> onnx.ModelProto:
    """The model with these inputs: name, type, shape."""
    del proto.graph.input[:]
    proto.graph.input.extend(helper.make_tensor_value_info(*one) for one in inputs)
    return proto


# Between known nodes.


def test_an_opaque_node_pins_what_it_reads_and_its_value_comes_from_nowhere():
    nodes = [
        op("MatMul", ["x", "w"], "h"), op("Relu", ["h"], "r"), op("Exp", ["r"], "e"),
        op("MatMul", ["e", "w"], "k"), op("Add", ["k", "c"]),
    ]  # fmt: skip
    network = network_from_proto(model(nodes, ["n", 3], {"w": W, "c": C}))
    assert network.pinned == ("r",)
    assert fresh(network) == {"e": (3,)}
    assert network["e"].origin is not None
    assert network["e"].origin.nodes == ("e",)
    assert kinds(network) == ["Linear", "Relu", "Fresh", "Linear"]
    assert network["y"].origin is not None
    assert network["y"].origin.nodes == ("k", "y")


def test_outputs_that_depend_on_nothing_unknown_are_read_right():
    nodes = [op("Relu", ["x"], "r"), op("Exp", ["r"], "e"), op("MatMul", ["r", "w"])]
    proto = model(nodes, ["n", 3], {"w": W}, outputs=["y", "e"])
    network = network_from_proto(proto)
    assert [output.name for output in network.outputs] == ["y"]
    x = numbers(4, 3)
    found = network.run(torch.as_tensor(x, dtype=torch.float64))["y"].numpy()
    np.testing.assert_allclose(found, run(proto, x)[0], 1e-5, 1e-5)


def test_only_what_known_nodes_read_is_made_to_come_from_nowhere():
    nodes = [
        helper.make_node("TopK", ["x", "k"], ["t", "where"], name="top"), op("Exp", ["t"], "e"),
        op("Exp", ["e"], "f"), op("Relu", ["f"]),
    ]  # fmt: skip
    network = network_from_proto(model(nodes, ["n", 3], {"k": np.array([2])}))
    assert fresh(network) == {"f": (2,)}
    assert network.pinned == ("x",)


def test_two_random_nodes_are_two():
    nodes = [op("RandomNormalLike", ["x"], "a"), op("RandomNormalLike", ["x"], "b"), op("Sub", ["a", "b"])]
    assert fresh(network_from_proto(model(nodes, ["n", 3]))) == {"a": (3,), "b": (3,)}


def test_a_product_that_an_opaque_node_reads_is_not_joined_with_its_sum():
    nodes = [op("MatMul", ["x", "w"], "h"), op("Exp", ["h"], "e"), op("Add", ["h", "c"])]
    network = network_from_proto(model(nodes, ["n", 3], {"w": W, "c": C}, outputs=["y", "e"]))
    assert network.pinned == ("h",)
    assert kinds(network) == ["Linear", "Scale"]


def test_half_of_a_sum_that_turns_out_opaque_is_undone():
    nodes = [op("MatMul", ["x", "w"], "h"), op("Sum", ["h", "c", "inf"])]
    weights = {"w": W, "c": C, "inf": np.full(3, np.inf, np.float32)}
    network = network_from_proto(model(nodes, ["n", 3], weights))
    assert network.pinned == ("h",)
    assert kinds(network) == ["Linear", "Fresh"]


def test_an_attention_mask_makes_the_node_that_adds_it_opaque():
    mask = np.where(np.tri(3) > 0, 0, -np.inf).astype(np.float32)
    nodes = [
        op("MatMul", ["x", "w"], "h"),
        op("Add", ["h", "m"], "s"),
        op("Softmax", ["s"], "p"),
        op("Relu", ["p"]),
    ]
    network = network_from_proto(model(nodes, [1, 3, 3], {"w": W, "m": mask}))
    assert network.pinned == ("h",)
    assert kinds(network) == ["Linear", "Fresh", "Softmax", "Relu"]


def test_a_tail_that_an_opaque_node_reads_pins_what_is_before_it():
    nodes = [op("MatMul", ["x", "w"], "h"), op("LogSoftmax", ["h"], "p"), op("Exp", ["p"])]
    network = network_from_proto(model(nodes, ["n", 3], {"w": W}))
    assert network.pinned == ("h",)


@pytest.mark.parametrize("name", ["If", "Loop"])
def test_all_that_a_graph_within_a_node_reads_stays(name):
    inner = helper.make_graph(
        [op("Add", ["h", "k"], "z")], "inner", [], [helper.make_tensor_value_info("z", F, ["n", 3])]
    )
    nodes = [op("MatMul", ["x", "w"], "h"), op("Relu", ["x"], "k"), op("Neg", ["x"], "v")]
    if name == "If":
        nodes.append(helper.make_node("If", ["flag"], ["i"], then_branch=inner, else_branch=inner))
    else:
        inner.node.insert(0, op("Identity", ["more"], "again"))
        inner.input.append(helper.make_tensor_value_info("turn", I64, []))
        inner.input.append(helper.make_tensor_value_info("more", TensorProto.BOOL, []))
        inner.input.append(helper.make_tensor_value_info("last", F, ["n", 3]))
        inner.output.insert(0, helper.make_tensor_value_info("again", TensorProto.BOOL, []))
        nodes.append(helper.make_node("Loop", ["", "flag", "v"], ["i"], body=inner))
    proto = model([*nodes, op("Relu", ["i"])], ["n", 3], {"w": W, "flag": np.array(True)})
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", F, ["n", 3]))
    proto.graph.value_info.append(helper.make_tensor_value_info("i", F, ["n", 3]))
    onnx.checker.check_model(proto)
    network = network_from_proto(proto)
    assert set(network.pinned) == {"h", "k"} | ({"v"} if name == "Loop" else set())
    assert fresh(network) == {"i": (3,)}


def test_a_node_of_a_function_or_of_another_domain_is_opaque():
    proto = model([helper.make_node("Relu", ["x"], ["h"], domain="mine"), op("Relu", ["h"])], ["n", 3])
    ids = [helper.make_opsetid("", 17)]
    proto.functions.append(helper.make_function("mine", "Relu", ["a"], ["b"], [op("Neg", ["a"], "b")], ids))
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    proto.graph.value_info.append(helper.make_tensor_value_info("h", F, ["n", 3]))
    assert fresh(network_from_proto(proto)) == {"h": (3,)}


def calling(*functions: onnx.FunctionProto) -> onnx.ModelProto:
    """A layer, a call of the first function, and a layer behind it."""
    nodes = [
        op("MatMul", ["x", "w"], "h"), op("Relu", ["h"], "r"),
        helper.make_node(functions[0].name, ["r"], ["f"], domain="own"),
        op("MatMul", ["f", "w"], "k"), op("Relu", ["k"], "s"), op("MatMul", ["s", "w"]),
    ]  # fmt: skip
    proto = model(nodes, ["n", 3], {"w": W})
    proto.functions.extend(functions)
    proto.opset_import.append(helper.make_opsetid("own", 1))
    return proto


def function(name: str, *nodes: onnx.NodeProto) -> onnx.FunctionProto:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, ["a"], ["b"], list(nodes), opsets)


def test_what_is_behind_a_call_of_a_function_is_read():
    soft = function("soft", helper.make_node("Softsign", ["a"], ["b"]))
    network = network_from_proto(calling(soft))
    assert kinds(network) == ["Linear", "Relu", "Fresh", "Linear", "Relu", "Linear"]
    assert fresh(network) == {"f": (3,)}


def test_functions_that_would_take_forever_written_out_are_not_followed():
    names = [f"f{number}" for number in range(60)]
    functions = [
        function(
            name,
            helper.make_node(below, ["a"], ["c"], domain="own"),
            helper.make_node(below, ["c"], ["b"], domain="own"),
        )
        for name, below in pairwise(names)
    ]
    functions.append(function(names[-1], helper.make_node("Softsign", ["a"], ["b"])))
    network = network_from_proto(calling(*functions))
    assert kinds(network)[:2] == ["Linear", "Relu"]
    assert network.pinned


def test_a_function_that_calls_itself_is_not_followed():
    network = network_from_proto(calling(function("f", helper.make_node("f", ["a"], ["b"], domain="own"))))
    assert kinds(network)[:2] == ["Linear", "Relu"]


def test_a_function_may_take_the_name_of_a_known_operator():
    proto = model([op("Relu", ["x"])], ["n", 3])
    ids = [helper.make_opsetid("", 17)]
    proto.functions.append(helper.make_function("", "Relu", ["a"], ["b"], [op("Neg", ["a"], "b")], ids))
    assert "Relu" in opaque(proto)


def test_old_operator_sets_are_read_where_they_mean_the_same():
    nodes = [op("Relu", ["x"], "h"), op("Add", ["h", "c"], "a", axis=0), op("Relu", ["a"])]
    proto = model(nodes, ["n", 3], {"c": C}, opset=6)
    assert list(reading(proto).opaque) == ["a"]
    proto.opset_import[0].version = 5  # Relu still has consumed_inputs
    assert list(reading(proto).opaque) == ["h", "a", "y"]
    proto.opset_import[0].version = 99
    assert list(reading(proto).opaque) == ["h", "a", "y"]


def test_dead_nodes_pin_nothing():
    nodes = [op("MatMul", ["x", "w"], "h"), op("Exp", ["h"], "dead"), op("Relu", ["h"])]
    assert network_from_proto(model(nodes, ["n", 3], {"w": W})).pinned == ()


# The batch axis.


def test_what_has_no_batch_in_front_stays_unknown():
    nodes = [
        op("NonZero", ["x"], "z"),
        op("Cast", ["z"], "f", to=F),
        op("Relu", ["f"], "r"),
        op("Neg", ["x"]),
    ]
    network = network_from_proto(model(nodes, ["n", 3], outputs=["y", "r"]))
    assert network.pinned == ("x",)
    assert not fresh(network)


def test_a_node_that_mixes_an_open_batch_is_opaque():
    nodes = [op("MatMul", ["x", "w"], "h"), op("Softmax", ["h"], "p", axis=0), op("Relu", ["p"], "r")]
    network = network_from_proto(model([*nodes, op("Relu", ["h"])], ["n", 3], {"w": W}, outputs=["y", "r"]))
    assert network.pinned == ("h",)


def test_of_a_fixed_batch_the_reading_with_fewer_opaque_nodes_counts():
    dense = [op("MatMul", ["x", "w"], "h"), op("Softmax", ["h"], "p", axis=0), op("Relu", ["p"])]
    assert network_from_proto(model(dense, [4, 3], {"w": W})).input.batch is None
    kernel = {"w": numbers(3, 3, 1, 1)}
    deep = [
        op("Conv", ["x", "w"], "h"),
        op("Conv", ["h", "w"], "i"),
        op("Softmax", ["i"], "p", axis=0),
        op("Relu", ["p"]),
    ]
    assert network_from_proto(model(deep, [4, 3, 2, 2], kernel)).input.batch == 4


# Inputs and outputs.


def test_the_first_float_input_of_known_shape_is_the_networks():
    proto = taking(
        model([op("Concat", ["x", "z"], axis=1)], ["n", 3]),
        ("tokens", I64, ["n", 7]), ("open", F, ["n", "m"]), ("x", F, ["n", 3]), ("z", F, ["n", 2]),
    )  # fmt: skip
    network = network_from_proto(proto)
    assert network.input.name == "x"
    assert fresh(network) == {"z": (2,)}
    assert network["z"].origin is None


def test_inputs_with_another_batch_or_type_are_not_known():
    for other in (("z", F, ["m", 3]), ("z", D, ["n", 3]), ("z", F, None), ("z", F, [3])):
        proto = taking(model([op("Add", ["x", "z"])], ["n", 3]), ("x", F, ["n", 3]), other)
        network = network_from_proto(proto)
        assert network.pinned == ("x",)
        assert list(fresh(network)) == ["y"]


@pytest.mark.parametrize("shape", [["n", 4], [1, 4], [None, 4], [4]])
def test_a_model_without_a_usable_input_has_a_stand_in_that_nothing_reads(shape):
    nodes = [op("Cast", ["x"], "f", to=F), op("Relu", ["f"])]
    network = network_from_proto(taking(model(nodes, ["n", 4]), ("x", I64, shape)))
    assert network.input.name == "no input"
    assert kinds(network) == ["Fresh", "Relu"]
    assert not network.readers(network.input.name)


def test_a_model_without_any_input_loads():
    proto = taking(model([op("RandomNormal", [], "r", shape=[2, 3]), op("Relu", ["r"])], ["n", 3]))
    assert fresh(network_from_proto(proto)) == {"r": (2, 3)}
    assert network_from_proto(taking(model([op("Identity", ["c"])], ["n", 3], {"c": C}))).outputs


def test_weights_that_are_inputs_too_are_constants():
    network = network_from_proto(model([op("MatMul", ["x", "w"])], ["n", 3], {"w": W}, listed=True))
    assert kinds(network) == ["Linear"]


def test_outputs_that_are_no_values_are_carried_over():
    nodes = [op("Relu", ["x"]), op("ArgMax", ["x"], "i", axis=1), op("Identity", ["c"], "k")]
    network = network_from_proto(model(nodes, ["n", 3], {"c": C}, outputs=["i", "y", "k"]))
    assert [output.name for output in network.outputs] == ["y"]
    assert network.pinned == ("x",)


@pytest.mark.parametrize("kind", ["ArgMax", "Exp", "Identity"])
def test_where_no_output_is_known_one_comes_from_nowhere(kind):
    proto = model([op(kind, ["c" if kind == "Identity" else "x"])], ["n", 3], {"c": C})
    network = network_from_proto(proto)
    (output,) = network.outputs
    assert list(fresh(network)) == [output.source] == ["y"]


def test_sparse_weights_are_not_looked_at():
    proto = model([op("Add", ["x", "s"], "h"), op("Relu", ["x"])], ["n", 3], outputs=["h", "y"])
    values = helper.make_tensor("s", F, [1], [1.0])
    indices = helper.make_tensor("i", I64, [1], [1])
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3]))
    assert network_from_proto(proto).pinned == ("x",)


# Sizes that are computed.


def after_shape(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    weights = {
        "w": W, "zero": np.array(0), "one": np.array(1), "front": np.array([0]), "rest": np.array([-1]),
        "start": np.array([0]), "end": np.array([1]), "two": np.array(2),
    }  # fmt: skip
    return model([op("MatMul", ["x", "w"], "h"), op("Shape", ["h"], "s"), *nodes], ["n", 3], weights)


def test_who_picks_the_batch_alone_pins_nothing():
    flat = [
        op("Unsqueeze", ["b", "front"], "u"),
        op("Concat", ["u", "rest"], "t", axis=0),
        op("Reshape", ["h", "t"]),
    ]
    network = network_from_proto(after_shape(op("Gather", ["s", "zero"], "b"), *flat))
    assert not network.pinned
    assert kinds(network) == ["Linear"]
    network = network_from_proto(after_shape(op("Slice", ["s", "start", "end"], "u"), *flat[1:]))
    assert not network.pinned


def test_who_picks_another_axis_pins_the_value():
    nodes = [op("Gather", ["s", "one"], "g"), op("Unsqueeze", ["g", "front"], "u")]
    last = [op("Concat", ["rest", "u"], "t", axis=0), op("Reshape", ["h", "t"])]
    network = network_from_proto(after_shape(*nodes, *last))
    assert network.pinned == ("h",)
    assert kinds(network) == ["Linear"]
    assert network_from_proto(after_shape(op("Reshape", ["h", "s"]))).pinned == ("h",)


def test_sizes_are_computed_from_sizes():
    nodes = [
        op("Gather", ["s", "one"], "g"), op("Mul", ["g", "two"], "m"), op("Div", ["m", "two"], "d"),
        op("Unsqueeze", ["d", "front"], "u"), op("Concat", ["rest", "u"], "t", axis=0),
        op("Reshape", ["h", "t"]),
    ]  # fmt: skip
    assert kinds(network_from_proto(after_shape(*nodes))) == ["Linear"]


def test_nobody_computes_with_the_open_batch_size():
    nodes = [op("Mul", ["s", "two"], "t"), op("Reshape", ["h", "t"])]
    assert "batch size" in opaque(after_shape(*nodes))
    assert "batch size" in opaque(after_shape(op("Expand", ["h", "s"], "e"), op("Slice", ["h", "s", "s"])))


def test_a_first_axis_that_is_no_batch_may_be_cut_so_who_picks_it_pins():
    nodes = [op("Shape", ["h"], "s"), op("Gather", ["s", "zero"], "t")]
    start = op("MatMul", ["v", "x"], "h")
    proto = model(
        [start, *nodes, op("Reshape", ["h", "t"])], [3], {"v": numbers(4, 3), "zero": np.array([0])}
    )
    assert network_from_proto(proto).pinned == ("h",)


# Files.


def test_data_in_another_file_is_read(tmp_path):
    proto, folder = model([op("MatMul", ["x", "w"])], ["n", 3], {"w": W}), tmp_path / "m"
    folder.mkdir()
    onnx.save(proto, folder / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    (node,) = read_onnx(folder / "m.onnx").nodes
    assert np.array_equal(node.operator.weight, W.T)
    assert "another file" in opaque(onnx.load(folder / "m.onnx", load_external_data=False))
    (folder / "w.bin").unlink()
    with pytest.raises(InputError, match=r"'w'.*beside the model"):
        read_onnx(folder / "m.onnx")


def test_inspect_says_what_is_not_known_and_why(tmp_path: Path, capsys):
    proto = model([op("Relu", ["x"], "h"), op("Exp", ["h"], "e"), op("Relu", ["e"])], ["n", 3])
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    outcome = call(capsys, "inspect", tmp_path / "m.onnx", "--verbose")
    assert outcome.code == 0
    assert "1 values come from" in outcome.out
    assert "not known: node 'exp_e' (Exp)" in outcome.out


def test_weights_are_bit_for_bit_those_of_the_file():
    (node,) = network_from_proto(model([op("MatMul", ["x", "w"])], ["n", 3], {"w": W})).nodes
    assert (
        node.operator.weight.tobytes()
        == numpy_helper.to_array(numpy_helper.from_array(W)).T.astype(float).tobytes()
    )
