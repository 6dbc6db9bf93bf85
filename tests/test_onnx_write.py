from __future__ import annotations

import sys

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from onnx import numpy_helper

from onnx_models import assert_same, numbers, run, sample, values_at
from oracle import Polytope, outputs, random_points
from relutrim._version import __version__
from relutrim.errors import CheckFailed, InputError, NetworkError, UnsupportedError
from relutrim.graph import Add, Linear, Network, Node, Output, Port, Relu, Reshape, Scale, TailStep, Tanh
from relutrim.io.onnx import network_from_proto, network_to_proto, read_onnx, verify_written, write_onnx
from relutrim.io.onnx.emission import spells
from strategies import networks


def chain(shape, *operators, batch="batch", dtype="float32", **fields) -> Network:
    """Operators one after the other, named v0, v1, ...; the last one is output y."""
    names = ["x", *(f"v{k}" for k in range(len(operators)))]
    nodes = tuple(
        Node(name, o, (before,)) for name, o, before in zip(names[1:], operators, names, strict=False)
    )
    fields.setdefault("outputs", (Output("y", names[-1]),))
    return Network(Port("x", shape, batch), nodes, dtype=dtype, **fields)


def linear(outputs: int, inputs: int) -> Linear:
    return Linear(numbers(outputs, inputs), numbers(outputs))


NETWORKS = {
    "dense": chain((3,), linear(4, 3), Relu(), linear(2, 4)),
    "fixed batch": chain((3,), linear(4, 3), Relu(), batch=1),
    "larger fixed batch": chain((3,), linear(4, 3), Relu(), batch=5),
    "no batch": chain((3,), linear(4, 3), Relu(), linear(2, 4), batch=None),
    "matrix without batch": chain((2, 3), linear(4, 3), batch=None),
    "higher rank": chain((2, 3), linear(4, 3), Relu()),
    "no bias": chain((2, 3), Linear(numbers(4, 3), np.zeros(4))),
    "scale": chain((3,), Scale.exactly(numbers(3), numbers(3))),
    "only a factor": chain((2, 3), Scale.exactly(numbers(2, 1))),
    "only a shift": chain((2, 3), Scale.exactly(shift=numbers(1, 3))),
    "nothing": chain((3,), Scale.exactly()),
    "flatten": chain((2, 3), Reshape((2, 3), (6,)), linear(2, 6)),
    "reshape": chain((6,), Reshape((6,), (2, 3)), Relu(), Reshape((2, 3), (3, 1, 2))),
    "reshape without batch": chain((6,), Reshape((6,), (2, 3)), Reshape((2, 3), (6,)), batch=None),
    "to one number": chain((1,), Reshape((1,), ()), Reshape((), (1, 1)), batch=None),
    "to one number per row": chain((1,), Reshape((1,), ()), Reshape((), (1,))),
    "identity": chain((3,), Reshape((3,), (3,)), Relu()),
    "empty layer": chain((3,), linear(0, 3), Relu(), linear(2, 0)),
    "empty layer of higher rank": chain((2, 3), linear(0, 3), Relu(), linear(2, 0)),
    "empty layers": chain((3,), linear(0, 3), Relu(), linear(0, 0), Relu(), linear(1, 0)),
    "empty output": chain((3,), linear(0, 3)),
    "empty flatten": chain((2, 3), linear(0, 3), Reshape((2, 0), (0,)), linear(2, 0)),
    "empty reshape": chain((2, 3), linear(0, 3), Reshape((2, 0), (0, 5)), Relu(), batch=2),
    "empty reshape without batch": chain((2, 3), linear(0, 3), Reshape((2, 0), (5, 0)), batch=None),
    "input is output": chain((3,)),
    "input is output under its name": chain((3,), outputs=(Output("x", "x"),)),
    "input and more": chain((3,), Relu(), outputs=(Output("x", "x"), Output("v0", "v0"))),
    "float64": chain((3,), Linear(numbers(2, 3, dtype=float), numbers(2, dtype=float)), dtype="float64"),
    "names that crossed": chain((3,), Relu(), linear(3, 3), outputs=(Output("v1", "v0"), Output("v0", "v1"))),
    "one value twice": chain((3,), Relu(), outputs=(Output("a", "v0"), Output("b", "v0"), Output("a", "v0"))),
    "softmax": chain((3,), Relu(), outputs=(Output("y", "v0", (TailStep("Softmax", "y", {"axis": -1}),)),)),
    "sigmoid": chain((3,), Relu(), outputs=(Output("y", "v0", (TailStep("Sigmoid", "y"),)),)),
    "tanh without batch": chain((3,), batch=None, outputs=(Output("y", "x", (TailStep("Tanh", "y"),)),)),
    "softmax of the input": chain(
        (3,), outputs=(Output("y", "x", (TailStep("Softmax", "y", {"axis": 1}),)),)
    ),
    "softmax without batch": chain(
        (3,), Relu(), batch=None, outputs=(Output("y", "v0", (TailStep("LogSoftmax", "y", {"axis": 0}),)),)
    ),
    "shared tails": chain(
        (3,),
        Relu(),
        outputs=(
            Output("v0", "v0"),
            Output("q", "v0", (TailStep("Softmax", "p", {"axis": 1}), TailStep("Identity", "q"))),
            Output("p", "v0", (TailStep("Softmax", "p", {"axis": 1}),)),
            Output("l", "v0", (TailStep("LogSoftmax", "p", {"axis": 1}),)),
            Output("p2", "v0", (TailStep("Softmax", "p", {"axis": 1}),)),
        ),
    ),
    "sums": Network(
        Port("x", (3,)),
        (
            Node("r", Relu(), ("x",)),
            Node("s", Add(2), ("x", "r")),
            Node("t", Add(3), ("x", "r", "s")),
            Node("u", Add(1), ("t",)),
            Node("v", Add(2), ("u", "u")),
        ),
        (Output("v", "v"),),
    ),
}


@pytest.mark.parametrize("case", NETWORKS)
def test_what_is_written_is_valid_and_reads_back_the_same(case, tmp_path):
    network, path = NETWORKS[case], tmp_path / "m.onnx"
    write_onnx(network, path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.onnx"]
    again = read_onnx(path)
    assert (again.input.name, again.input.batch) == ("x", network.input.batch)
    assert again.input.shape == network.input.shape
    assert [output.name for output in again.outputs] == [output.name for output in network.outputs]
    assert again.dtype == network.dtype
    x = sample(network)
    for output, value, back, file in zip(
        network.outputs,
        values_at(network, x),
        values_at(again, x),
        run(onnx.load(path), x),
        strict=True,
    ):
        assert_same(back, value, 1e-12)
        if not output.tail:
            assert_same(file, value)


@given(networks())
@settings(max_examples=60, deadline=None)
def test_round_trips_keep_names_and_the_exact_function(network):
    again = network_from_proto(network_to_proto(network))
    live = {node.name for node in again}
    assert {node.name for node in again.relus} <= {node.name for node in network.relus}
    assert live <= {node.name for node in network}
    box = Polytope.of([-1] * network.input.size, [1] * network.input.size)
    for x in random_points(box, 4):
        assert outputs(again, x) == outputs(network, x)


@given(networks())
@settings(max_examples=25, deadline=None)
def test_random_networks_pass_their_own_check(tmp_path_factory, network):
    path = tmp_path_factory.getbasetemp() / "random.onnx"
    write_onnx(network, path)
    first = path.read_bytes()
    write_onnx(network, path)
    assert path.read_bytes() == first, "the same network must give the same bytes"


def test_the_file_says_who_wrote_it_and_for_which_runtimes():
    network = chain((3,), Relu(), metadata={"b": "2", "a": "1"})
    proto = network_to_proto(network)
    assert (proto.ir_version, proto.opset_import[0].version) == (8, 17)
    assert (proto.producer_name, proto.producer_version) == ("relutrim", __version__)
    assert {entry.key: entry.value for entry in proto.metadata_props} == {"b": "2", "a": "1"}
    assert network_from_proto(proto).metadata == network.metadata


def operators_of(network: Network) -> list[str]:
    return [node.op_type for node in network_to_proto(network).graph.node]


@pytest.mark.parametrize(
    ("case", "kinds"),
    [
        ("dense", ["Gemm", "Relu", "Gemm", "Identity"]),
        ("higher rank", ["MatMul", "Add", "Relu", "Identity"]),
        ("no bias", ["MatMul", "Identity"]),
        ("scale", ["Mul", "Add", "Identity"]),
        ("only a factor", ["Mul", "Identity"]),
        ("only a shift", ["Add", "Identity"]),
        ("nothing", ["Identity", "Identity"]),
        ("flatten", ["Flatten", "Gemm", "Identity"]),
        ("identity", ["Identity", "Relu", "Identity"]),
        ("input is output under its name", []),
        ("shared tails", ["Relu", "Softmax", "Identity", "Identity", "LogSoftmax", "Identity"]),
        ("sums", ["Relu", "Add", "Sum", "Identity", "Add"]),
    ],
)
def test_operators_are_spelt_as_simply_as_possible(case, kinds):
    assert operators_of(NETWORKS[case]) == kinds


def test_output_shapes_and_batch_axis_are_declared():
    (output,) = network_to_proto(NETWORKS["dense"]).graph.output
    sizes = [axis.dim_param or axis.dim_value for axis in output.type.tensor_type.shape.dim]
    assert sizes == ["batch", 2]


def test_weights_are_stored_in_the_type_of_the_network():
    for name in ("float32", "float64"):
        proto = network_to_proto(chain((3,), linear(2, 3), dtype=name))
        assert {numpy_helper.to_array(t).dtype.name for t in proto.graph.initializer} == {name}


BAD = {
    "too large": (chain((1,), Scale.exactly(1e300)), NetworkError, "'v0'.*1e.300 .*too large for float32"),
    "two outputs of one name": (
        chain((1,), Relu(), outputs=(Output("y", "v0"), Output("y", "x"))),
        NetworkError, "two different outputs",
    ),
    "output called like the input": (
        chain((1,), Relu(), outputs=(Output("x", "v0"),)), NetworkError, "both called 'x'",
    ),
    "empty reshape": (
        chain((2, 3), linear(0, 3), Reshape((2, 0), (0, 5))), UnsupportedError, "'v1'.*open batch axis",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_networks_that_cannot_be_written_say_why(case, tmp_path):
    network, kind, text = BAD[case]
    with pytest.raises(kind, match=text):
        write_onnx(network, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


class Strange(Relu):
    kind = "Strange"


def test_an_operator_without_a_spelling_is_refused():
    with pytest.raises(UnsupportedError, match="node 'v0': the operator Strange cannot be written"):
        network_to_proto(chain((1,), Strange()))
    with pytest.raises(ValueError, match="already is a spelling of Relu"):
        spells(Relu)(lambda emission, node, operator: None)


@pytest.mark.parametrize("name", ["m.onnx.gz", "m.pt", "m"])
def test_only_onnx_names_are_written(name, tmp_path):
    with pytest.raises(InputError, match=r"must end in \.onnx"):
        write_onnx(NETWORKS["dense"], tmp_path / name)


def test_a_wrong_file_never_takes_the_place_of_a_right_one(tmp_path, monkeypatch):
    path = tmp_path / "m.onnx"
    write_onnx(NETWORKS["dense"], path)
    right = path.read_bytes()
    other = network_to_proto(chain((3,), linear(4, 3), Relu(), linear(2, 4)))
    monkeypatch.setattr("relutrim.io.onnx.write.network_to_proto", lambda network: other)
    with pytest.raises(CheckFailed, match=r"m\.onnx: output 'y' .* off the network"):
        write_onnx(NETWORKS["dense"], path)
    assert path.read_bytes() == right
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.onnx"]


def _without_nodes(proto):
    del proto.graph.node[:]


def _other_operator(proto):
    proto.graph.node[1].op_type = "Frobnicate"


def _no_relu(proto):
    proto.graph.node[1].op_type = "Identity"


def _other_shape(proto):
    proto.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 9


@pytest.mark.parametrize("damage", [_without_nodes, _other_operator, _no_relu, _other_shape])
def test_the_check_finds_damage(damage, tmp_path):
    proto = network_to_proto(NETWORKS["dense"])
    damage(proto)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(CheckFailed):
        verify_written(tmp_path / "m.onnx", NETWORKS["dense"])


def test_the_check_finds_what_is_lost_beside_large_numbers(tmp_path):
    large = np.array([[1e4, 1e4, 1e4], [1.0, 1.0, 1.0]])
    write_onnx(chain((3,), Linear(large, np.zeros(2)), batch=1), tmp_path / "m.onnx")
    with pytest.raises(CheckFailed, match="off the network"):
        verify_written(tmp_path / "m.onnx", chain((3,), Linear(large, np.array([0.0, 0.5])), batch=1))


def test_a_network_that_magnifies_the_last_bit_is_written(tmp_path):
    steps = [
        step for _ in range(100) for step in (Linear(3 * numbers(32, 32) / 32**0.5, np.zeros(32)), Tanh())
    ]
    write_onnx(chain((32,), *steps, linear(2, 32)), tmp_path / "m.onnx")


def test_numbers_that_overflow_on_the_way_are_no_mistake(tmp_path):
    factors = (Scale.exactly(1e30), Scale.exactly(1e30), Scale.exactly(1e-30))
    write_onnx(chain((3,), *factors, Relu()), tmp_path / "m.onnx")


def test_without_onnxruntime_validity_is_still_checked(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    write_onnx(NETWORKS["dense"], tmp_path / "m.onnx")
    (tmp_path / "m.onnx").write_bytes(b"\x08\x08")
    with pytest.raises(CheckFailed, match="not valid ONNX"):
        verify_written(tmp_path / "m.onnx", NETWORKS["dense"])
