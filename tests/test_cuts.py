"""Certificates of what was cut away: networks of any size, without ends, and with nodes that nobody knows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from onnx import helper, numpy_helper

import relutrim
from certifying import entries
from command_line import call
from relutrim.certificate import schema
from relutrim.certificate.check import check
from relutrim.certificate.check.cuts import Cuts, maximum
from relutrim.certificate.check.domain import Domain
from relutrim.certificate.check.read import read
from relutrim.certificate.check.spans import Span, relu_moved
from relutrim.errors import CheckFailed, RelutrimError

OPSET = [helper.make_opsetid("", 17)]


def tensor(name: str, array: Any) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(array, np.float32), name)


def model(
    nodes: list[onnx.NodeProto],
    weights: dict[str, Any],
    shape: list[Any],
    outputs: list[Any],
    *,
    inputs: tuple[onnx.ValueInfoProto, ...] = (),
    **more: Any,
) -> bytes:
    """A float32 model from ``x``."""
    ends = [helper.make_tensor_value_info("x", 1, shape), *inputs]
    listed = [tensor(name, array) for name, array in weights.items()]
    made = [helper.make_tensor_value_info(name, 1, None) for name in outputs]
    graph = helper.make_graph(nodes, "g", ends, made, listed)
    return helper.make_model(graph, **{"opset_imports": OPSET, "ir_version": 8, **more}).SerializeToString()


def box(size: int, lo: float = 0.0, hi: float = 1.0) -> Domain:
    return Domain(np.full(size, lo), np.full(size, hi), np.zeros((0, size)))


def bounds(before: bytes, after: bytes, domain: Domain) -> list[np.ndarray]:
    graphs = [read(content, domain=domain, opaque=True) for content in (before, after)]
    return Cuts(*graphs, domain).bounds()


# Convolutional networks from which channels are cut, dead or not.


@dataclass
class Drawn:
    """A network ``conv - batch norm - ReLU - pool - conv (depthwise or not) - add - ... - dense``."""

    seed: int
    pool: str
    depthwise: bool
    residual: bool

    def build(self, keep: np.ndarray, shift: float = 0.0) -> bytes:
        """With only some of the six channels, and with the last constants moved."""
        draw, one = np.random.default_rng(self.seed), np.arange(6)[keep]

        def some(*shape: int) -> np.ndarray:
            return draw.normal(size=shape).astype(np.float32)

        first, norm = some(6, 2, 3, 3), [some(6), some(6), some(6), abs(some(6)) + 0.5]
        second = some(6, 1, 3, 3) if self.depthwise else some(6, 6, 3, 3)
        inner = second[one] if self.depthwise else second[np.ix_(one, one)]
        bias, last, end = some(6), some(3, 6, 4, 4), some(3)
        weights = {"w1": first[one], "w2": inner, "b2": bias[one]}
        weights |= dict(zip(("g", "b", "m", "v"), (part[one] for part in norm), strict=True))
        weights |= {"w3": last[:, one].reshape(3, -1), "b3": end + np.float32(shift)}
        windows = {"kernel_shape": [2, 2], "strides": [2, 2]}
        nodes = [
            helper.make_node("Conv", ["x", "w1"], ["c1"], pads=[1] * 4),
            helper.make_node("BatchNormalization", ["c1", "g", "b", "m", "v"], ["n1"]),
            helper.make_node("Clip" if self.pool == "clip" else "Relu", ["n1"], ["r1"]),
            helper.make_node("AveragePool" if self.pool == "mean" else "MaxPool", ["r1"], ["p1"], **windows),
            helper.make_node(
                "Conv", ["p1", "w2", "b2"], ["c2"], pads=[1] * 4, group=len(one) if self.depthwise else 1
            ),
            helper.make_node("Add", ["c2", "p1" if self.residual else "c2"], ["a2"]),
            helper.make_node("Relu", ["a2"], ["r2"]),
            helper.make_node("Flatten", ["r2"], ["f"]),
            helper.make_node("Gemm", ["f", "w3", "b3"], ["y"], transB=1),
        ]
        if self.pool == "clip":
            nodes[2].input.extend(["low", "high"])
            weights |= {"low": np.float32(0), "high": np.float32(0.75)}
        return model(nodes, weights, ["n", 2, 8, 8], ["y"])


drawn = st.builds(
    Drawn, st.integers(0, 2**16), st.sampled_from(["max", "mean", "clip"]), st.booleans(), st.booleans()
)


def run(content: bytes, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x.astype(np.float32)})[0])


@settings(deadline=None, max_examples=30)
@given(drawn, st.lists(st.booleans(), min_size=6, max_size=6).filter(any), st.sampled_from([0.0, 0.5]))
def test_no_two_networks_are_farther_apart_than_is_said(network: Drawn, keep: list[bool], shift: float):
    before, after = network.build(np.ones(6, bool)), network.build(np.array(keep), shift)
    (found,) = bounds(before, after, box(128))
    x = np.random.default_rng(network.seed).random((64, 2, 8, 8))
    gap = np.abs(run(before, x).astype(float) - run(after, x)).max(0)
    assert (gap <= found * (1 + 1e-4) + 1e-3).all()
    if all(keep) and not shift:
        assert not found.any()
    if not all(keep):  # what went may have been 0 anyway
        assert found.any() or gap.max() < 1e-6


@settings(deadline=None, max_examples=20)
@given(drawn, st.sampled_from(["w1", "w2", "b2", "g", "b", "m", "v", "w3"]), st.integers(0, 5))
def test_a_network_with_another_weight_is_not_the_same(network: Drawn, name: str, at: int):
    before = network.build(np.ones(6, bool))
    proto = onnx.ModelProto.FromString(before)
    (place,) = (w for w in proto.graph.initializer if w.name == name)
    array = numpy_helper.to_array(place).copy()
    array.flat[at % array.size] += np.float32(0.25)
    place.CopyFrom(numpy_helper.from_array(array, name))
    after = proto.SerializeToString()
    try:
        (found,) = bounds(before, after, box(128))
    except CheckFailed:
        return
    # Constants may differ, and count; and what is multiplied by nothing but 0.
    assert name in ("b2", "b", "m") or not found.any()
    x = np.random.default_rng(network.seed).random((64, 2, 8, 8))
    gap = np.abs(run(before, x).astype(float) - run(after, x)).max(0)
    assert (gap <= found * (1 + 1e-4) + 1e-3).all()


def test_the_larger_of_entries_is_found_in_the_graph():
    content = Drawn(0, "max", depthwise=False, residual=False).build(np.ones(6, bool))
    graph = read(content, domain=box(128), opaque=True)
    assert sum(maximum(graph, node) is not None for node in graph.nodes) == 2


def test_what_a_relu_does_to_a_difference():
    read_, moved = Span(np.array([-3.0, -3, 1]), np.array([-2.0, 2, 2])), Span(np.full(3, -1.0), np.ones(3))
    found = relu_moved(read_, moved)
    assert found.lo.tolist() == [0, -1, -1]
    assert found.hi.tolist() == [0, 1, 1]


# Nodes that are not known.


def beside(
    middle: list[onnx.NodeProto], outputs: list[str], *, keep: Any = slice(None), **more: Any
) -> bytes:
    """A dead neuron, the third of four, in front of some nodes that make ``e`` of ``d``."""
    weight = np.array([[1, -1], [2, 1], [-1, -1], [0.5, 1]], np.float32)[keep]
    constant = np.array([0.5, 0, -1, 0], np.float32)[keep]
    last = np.array([[1, 2, 3, 4], [-1, 1, 5, 2]], np.float32)[:, keep]
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "v"], ["d"], transB=1),
        *middle,
    ]
    return model(nodes, {"w": weight, "b": constant, "v": last}, ["n", 2], outputs, **more)


KEPT = [0, 1, 3]


def erf(source: str = "d", to: str = "e", **more: Any) -> onnx.NodeProto:
    return helper.make_node("Erf", [source], [to], **more)


def test_no_two_entries_of_out_are_one_of_models():
    """OUT makes 7 where MODEL makes 1: the rows of both groups are like the first of MODEL's only group."""

    def built(groups: int, bias: list[float], taken: list[int]) -> bytes:
        nodes = [
            helper.make_node("Conv", ["x", "w", "b"], ["c"], name="c", group=groups),
            helper.make_node("Gather", ["c", "taken"], ["y"], name="y", axis=1),
        ]
        content = model(nodes, {"w": np.zeros((2, 2 // groups, 1, 1)), "b": bias}, ["N", 2, 1, 1], ["y"])
        proto = onnx.ModelProto.FromString(content)
        proto.graph.initializer.append(numpy_helper.from_array(np.array(taken), "taken"))
        return proto.SerializeToString()

    assert not bounds(built(1, [1, 5], [0, 0]), built(1, [1, 5], [0, 0]), box(2))[0].any()
    with pytest.raises(CheckFailed, match="twice"):
        bounds(built(1, [1, 5], [0, 0]), built(2, [7, 1], [1, 0]), box(2))


def test_what_only_renames_what_is_left_need_not_stand_in_out():
    """Of ``1 a`` and ``2 b`` one is left: the reader passes over ``1 a``, but ``b`` is not ``2 b``."""

    def built(keep: list[int], factor: list[float]) -> bytes:
        nodes = [
            helper.make_node("Conv", ["x", "w", "b"], ["c"]),
            helper.make_node("Mul", ["c", "f"], ["s"]),
            helper.make_node("Relu", ["s"], ["r"]),
            helper.make_node("Conv", ["r", "v"], ["y"]),
        ]
        weights = {"w": np.array([[1], [3]])[keep][..., None], "b": np.array([0, 0])[keep]}
        weights |= {"f": np.array(factor)[:, None], "v": np.array([[1, 1]])[:, keep][..., None]}
        return model(nodes, weights, ["n", 1, 1], ["y"])

    before = built([0, 1], [1, 2])
    assert bounds(before, built([0], [1]), box(1))[0] == pytest.approx(6)
    for other in built([1], [1]), built([0], [2]), built([0, 1], [1, 1]):
        with pytest.raises(CheckFailed):
            bounds(before, other, box(1))


def test_a_node_that_is_not_known_reads_what_has_not_moved():
    (found,) = bounds(beside([erf()], ["e"]), beside([erf()], ["e"], keep=KEPT), box(2))
    assert not found.any()
    with pytest.raises(CheckFailed, match="'e'"):
        bounds(beside([erf("r")], ["e"]), beside([erf("r")], ["e"], keep=KEPT), box(2))
    with pytest.raises(CheckFailed, match="not known"):
        bounds(beside([erf()], ["e"]), beside([erf()], ["e"], keep=[0, 1, 2]), box(2))


def test_behind_a_node_that_is_not_known_slices_may_go():
    def build(keep: Any) -> bytes:
        nodes = [
            erf("x", "e"),
            helper.make_node("Gemm", ["e", "w", "b"], ["h"], transB=1),
            helper.make_node("Relu", ["h"], ["r"]),
            helper.make_node("Gemm", ["r", "v"], ["y"], transB=1),
        ]
        weights = {"w": np.array([[0, 0], [1, 2]])[keep], "b": np.array([-1, 1])[keep]}
        return model(nodes, weights | {"v": np.array([[3, 4]])[:, keep]}, ["n", 2], ["y"])

    assert not bounds(build([0, 1]), build([1]), box(2))[0].any()
    assert np.isinf(bounds(build([0, 1]), build([0]), box(2))[0]).all()


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (helper.make_node("Elu", ["d"], ["e"]), helper.make_node("Elu", ["d"], ["e"], alpha=2.0)),
        (erf(), helper.make_node("Cos", ["d"], ["e"])),
        (erf(), helper.make_node("Erf", ["d"], ["e"], domain="elsewhere")),
        (helper.make_node("Pow", ["d", "b"], ["e"]), helper.make_node("Pow", ["d", "w"], ["e"])),
    ],
)
def test_another_node_that_is_not_known_is_not_the_same(mine: onnx.NodeProto, theirs: onnx.NodeProto):
    opsets = {"opset_imports": [*OPSET, helper.make_opsetid("elsewhere", 1)]}
    with pytest.raises(CheckFailed, match="'e'"):
        bounds(beside([mine], ["e"], **opsets), beside([theirs], ["e"], **opsets), box(2))


def test_two_random_nodes_are_two():
    noise = [helper.make_node("RandomNormalLike", ["d"], [name]) for name in ("n1", "n2")]

    def joined(*names: str) -> list[onnx.NodeProto]:
        return [*noise, helper.make_node("Sub", list(names), ["e"])]

    assert not bounds(beside(joined("n1", "n2"), ["e"]), beside(joined("n1", "n2"), ["e"]), box(2))[0].any()
    with pytest.raises(CheckFailed):
        bounds(beside(joined("n1", "n2"), ["e"]), beside(joined("n1", "n1"), ["e"]), box(2))


def test_what_a_graph_within_a_node_takes_from_around_it_must_stay():
    def choose(name: str) -> list[onnx.NodeProto]:
        arms = [
            helper.make_graph(
                [helper.make_node(kind, [name], [kind])],
                kind,
                [],
                [helper.make_tensor_value_info(kind, 1, None)],
            )
            for kind in ("Neg", "Abs")
        ]
        return [helper.make_node("If", ["sure"], ["e"], then_branch=arms[0], else_branch=arms[1])]

    more = {"inputs": (helper.make_tensor_value_info("sure", onnx.TensorProto.BOOL, []),)}
    of_d, of_r = (beside(choose(name), ["e"], **more) for name in "dr")
    assert not bounds(of_d, beside(choose("d"), ["e"], keep=KEPT, **more), box(2))[0].any()
    with pytest.raises(CheckFailed, match="'e'"):
        bounds(of_r, beside(choose("r"), ["e"], keep=KEPT, **more), box(2))
    with pytest.raises(CheckFailed):
        bounds(of_d, of_r, box(2))


def test_functions_must_be_the_same():
    def with_function(kind: str) -> dict[str, Any]:
        body = [helper.make_node(kind, ["a"], ["b"])]
        made = helper.make_function("own", "F", ["a"], ["b"], body, OPSET)
        return {"functions": [made], "opset_imports": [*OPSET, helper.make_opsetid("own", 1)]}

    call = [helper.make_node("F", ["d"], ["e"], domain="own")]
    one, other = (with_function(kind) for kind in ("Neg", "Abs"))
    assert not bounds(beside(call, ["e"], **one), beside(call, ["e"], keep=KEPT, **one), box(2))[0].any()
    with pytest.raises(CheckFailed, match="functions"):
        bounds(beside(call, ["e"], **one), beside(call, ["e"], **other), box(2))


def test_a_call_of_another_overload_is_not_the_same():
    def called(overload: str) -> bytes:
        functions = []
        for name, kind in (("one", "Neg"), ("other", "Abs")):
            made = helper.make_function(
                "own", "F", ["a"], ["b"], [helper.make_node(kind, ["a"], ["b"])], OPSET
            )
            made.overload = name
            functions.append(made)
        call = helper.make_node("F", ["d"], ["e"], domain="own")
        call.overload = overload
        opsets = [*OPSET, helper.make_opsetid("own", 1)]
        return beside([call], ["e"], functions=functions, opset_imports=opsets, ir_version=10)

    assert not bounds(called("one"), called("one"), box(2))[0].any()
    with pytest.raises(CheckFailed):
        bounds(called("one"), called("other"), box(2))


@pytest.mark.parametrize("in_function", [False, True])
def test_a_shape_that_a_graph_within_a_node_claims_is_not_believed(in_function):
    """It is said to have two columns and has four: what takes the first two of them is no renaming."""

    def branch(name: str) -> onnx.GraphProto:
        made = helper.make_node("Compress", ["x", "all"], [name], axis=1)
        return helper.make_graph([made], name, [], [helper.make_tensor_value_info(name, 1, [1, 2])])

    def taking(*tail: onnx.NodeProto) -> bytes:
        chosen = helper.make_node("If", ["yes"], ["e"], then_branch=branch("p"), else_branch=branch("q"))
        more: dict[str, Any] = {}
        if in_function:
            body = helper.make_function("own", "F", ["x", "all", "yes"], ["e"], [chosen], OPSET)
            more = {"functions": [body], "opset_imports": [*OPSET, helper.make_opsetid("own", 1)]}
            chosen = helper.make_node("F", ["x", "all", "yes"], ["e"], domain="own")
        proto = onnx.ModelProto.FromString(model([chosen, *tail], {}, [1, 4], ["y"], **more))
        stored = {"all": np.ones(4, bool), "yes": np.array(True)}
        stored |= {"zero": np.array([0]), "one": np.array([1]), "two": np.array([2])}
        proto.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in stored.items())
        return proto.SerializeToString()

    first_two = helper.make_node("Slice", ["e", "zero", "two", "one"], ["s"])
    mine = taking(first_two, helper.make_node("ReduceSum", ["s", "one"], ["y"]))
    theirs = taking(helper.make_node("ReduceSum", ["e", "one"], ["y"]))
    with pytest.raises(RelutrimError):
        bounds(mine, theirs, box(4))


def test_a_shape_that_a_file_claims_is_not_believed():
    claimed = onnx.ModelProto.FromString(beside([erf("x", "q"), erf("q", "e")], ["e"]))
    claimed.graph.value_info.append(helper.make_tensor_value_info("q", 1, ["n", 7]))
    graph = read(claimed.SerializeToString(), domain=box(2), opaque=True)
    assert 7 not in graph.sizes


# The whole way.


def dead_module() -> torch.nn.Module:
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm2d(6)
    with torch.no_grad():
        norm.weight[2], norm.bias[2] = 0, -1
        norm.weight[4], norm.bias[4] = 0, 0
        norm.running_var.uniform_(0.5, 2)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 6, 3, padding=1),
        norm,
        torch.nn.ReLU(),
        torch.nn.Conv2d(6, 2, 3),
        torch.nn.Flatten(),
        torch.nn.Linear(72, 2),
    ).eval()


@pytest.mark.parametrize("domain", [relutrim.Everywhere(), relutrim.Box(0, 1)])
def test_a_module_with_batch_norm_is_certified(domain: relutrim.Domain):
    network = relutrim.load(dead_module(), input_shape=(3, 8, 8))
    result = relutrim.compress(network, domain, certificate=True, tolerance=0, time_limit=30)
    proof = result.certificate
    assert proof is not None
    assert result.stored.parameters < result.original.parameters
    assert check(proof.models["model"], proof.models["out"], proof.content()).bound == proof.bound
    assert proof.bound <= 1e-12
    document = json.loads(entries(proof.content())["certificate.json"])
    Draft202012Validator(schema()).validate(document)
    assert document["comparison"] == "cuts" or domain.bounded


def test_the_certificate_of_a_module_is_about_two_files_that_are_written_with_it(tmp_path, capsys):
    module = dead_module()
    result = relutrim.compress(module, relutrim.Box(0, 1, shape=(3, 8, 8)), certificate=True, tolerance=0)
    assert type(result.model) is type(module)
    assert result.certificate is not None
    proof, model, out = result.certificate.save(tmp_path / "C")
    assert [path.name for path in (model, out)] == ["C.model.onnx", "C.out.onnx"]
    assert call(capsys, "check", model, out, proof, "--box", 0, 1).code == 0
    x = torch.rand(4, 3, 8, 8)
    for path, one in ((model, module), (out, result.model)):
        (found,) = onnx.reference.ReferenceEvaluator(str(path)).run(None, {"input": x.numpy()})
        np.testing.assert_allclose(found, one(x).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_a_file_that_is_not_what_the_module_computes_is_not_certified(monkeypatch):
    from relutrim.io.torch.source import TorchSource

    confirm = TorchSource.confirm

    def other(source, content, module):
        with torch.no_grad():
            module[3].bias += 1e-3
        confirm(source, content, module)

    monkeypatch.setattr(TorchSource, "confirm", other)
    with pytest.raises(RelutrimError, match="computes something else"):
        relutrim.compress(dead_module(), relutrim.Box(0, 1, shape=(3, 8, 8)), certificate=True, tolerance=0)


def test_all_real_inputs_are_certified_and_nothing_less(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(beside([erf()], ["e"]))
    result = relutrim.compress(path, relutrim.Box(0, 1), certificate=True)
    proof = result.certificate
    assert proof is not None
    assert proof.bound == 0
    assert result.stored.neurons == 3
    content = proof.models["model"], proof.models["out"], proof.content()
    check(*content, asked=Domain(np.zeros(2), np.full(2, 0.5)))
    with pytest.raises(CheckFailed, match="certified on"):
        check(*content, asked=Domain(np.full(2, -np.inf), np.full(2, np.inf)))


def test_what_only_linear_bounds_prove_is_not_cut_with_such_a_certificate(monkeypatch):
    """``relu(relu(x) - relu(x) - 0.5)`` is 0, and intervals do not see it."""
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "v", "c"], ["g"], transB=1),
        helper.make_node("Relu", ["g"], ["s"]),
        helper.make_node("Gemm", ["s", "u"], ["y"], transB=1),
    ]
    weights = {"w": [[1], [1], [-1]], "v": [[1, -1, 0], [1, 1, 1]], "c": [-0.5, -1], "u": [[1, 1]]}
    content = onnx.ModelProto.FromString(model(nodes, weights, ["n", 1], ["y"]))
    freely = relutrim.compress(content, relutrim.Box(-1, 1), tolerance=0)
    monkeypatch.setattr("relutrim.compression._EXPRESSIONS", 0)
    result = relutrim.compress(content, relutrim.Box(-1, 1), tolerance=0, certificate=True)
    assert result.certificate is not None
    assert result.certificate.bound == 0
    assert result.stored.neurons > freely.stored.neurons
    assert any("only what intervals show" in remark for remark in result.stability.remarks)


def test_an_unknown_way_to_compare_is_refused():
    from certifying import certified, edited, files, small

    contents = files(certified(small()))
    changed = edited(contents[2], lambda document: document.update(comparison="trust"))
    with pytest.raises(RelutrimError, match="trust"):
        check(*contents[:2], changed)
