"""The functions that files stand for, in exact arithmetic: what is written is what was read."""

from __future__ import annotations

import mpmath
import numpy as np
import onnx
import pytest
import torch
from mpmath import mpf
from onnx import numpy_helper
from torch import nn

import relutrim
from onnx_models import assert_reads, model, op
from relutrim import Box
from relutrim.graph import Softplus
from relutrim.intervals import Interval
from relutrim.io.onnx import network_to_proto
from relutrim.io.torch.module import read_module

ROOT = np.float32(np.sqrt(2))
WEIGHTS = {"one": np.float32(1), "half": np.float32(0.5)}
SILU = [op("Sigmoid", ["x"], "t"), op("Mul", ["x", "t"], "s")]


def value(proto: onnx.ModelProto, x: mpf) -> mpf:
    """The output of a file of functions of one number at ``x``, in mpmath's precision."""
    known = {t.name: mpf(float(numpy_helper.to_array(t).reshape(()))) for t in proto.graph.initializer}
    known[proto.graph.input[0].name] = x
    steps = {
        "Add": lambda a, b: a + b,
        "Mul": lambda a, b: a * b,
        "MatMul": lambda a, b: a * b,
        "Gemm": lambda a, b, c: a * b + c,
        "Div": lambda a, b: a / b,
        "Erf": mpmath.erf,
        "Tanh": mpmath.tanh,
        "Sigmoid": lambda a: 1 / (1 + mpmath.exp(-a)),
        "Softplus": lambda a: mpmath.log1p(mpmath.exp(a)),
        "Gelu": lambda a: a * mpmath.erfc(-a / mpmath.sqrt(2)) / 2,
        "Mish": lambda a: a * mpmath.tanh(mpmath.log1p(mpmath.exp(a))),
        "Relu": lambda a: max(a, mpf(0)),
        "Identity": lambda a: a,
    }
    for node in proto.graph.node:
        known[node.output[0]] = steps[node.op_type](*(known[name] for name in node.input))
    return known[proto.graph.output[0].name]


def furthest(one: onnx.ModelProto, other: onnx.ModelProto) -> mpf:
    """The largest difference between two files on a grid."""
    with mpmath.workdps(40):
        return max(abs(value(one, mpf(k) / 16) - value(other, mpf(k) / 16)) for k in range(-64, 65))


def by(kind: str, number: float) -> tuple[list[onnx.NodeProto], dict[str, np.ndarray]]:
    """A GELU that is spelt out with a number of its own."""
    nodes = [
        op(kind, ["x", "n"], "a"),
        op("Erf", ["a"], "b"),
        op("Add", ["b", "one"], "c"),
        op("Mul", ["x", "c"], "d"),
        op("Mul", ["d", "half"], "s"),
    ]
    return nodes, {**WEIGHTS, "n": number}


SPELT = {
    "the operator": (([op("Gelu", ["x"], "s")], {}), 20),
    "divided": (by("Div", ROOT), 17),
    "multiplied": (by("Mul", np.float32(1 / np.sqrt(2))), 17),
    "mish": (([op("Mish", ["x"], "s")], {}), 18),
    "silu": ((SILU, {}), 17),
}


@pytest.mark.parametrize("case", SPELT)
def test_a_function_is_written_as_the_one_that_was_read(case, tmp_path):
    """Whatever stands behind it multiplies the difference: here 1000 times."""
    (nodes, weights), opset = SPELT[case]
    weights = {**weights, "gain": np.array([[1000.0]], np.float32)}
    proto = model([*nodes, op("MatMul", ["s", "gain"])], ["n", 1], weights, opset=opset)
    onnx.save(proto, tmp_path / "model.onnx")
    result = relutrim.compress(tmp_path / "model.onnx", Box(-4, 4))
    result.save(tmp_path / "made.onnx")
    off = furthest(proto, onnx.load(tmp_path / "made.onnx"))
    assert off <= max(result.deviation.proven, 1e-30)
    assert off < 1e-30
    relutrim.save(relutrim.load(tmp_path / "model.onnx"), tmp_path / "through.pt2")
    relutrim.save(relutrim.load(tmp_path / "through.pt2"), tmp_path / "again.onnx")
    assert furthest(proto, onnx.load(tmp_path / "again.onnx")) < 1e-30


def test_a_gelu_of_torch_keeps_its_root(tmp_path):
    relutrim.save(read_module(nn.Sequential(nn.Flatten(), nn.GELU()), (1,)), tmp_path / "made.onnx")
    exact = model([op("Gelu", ["x"])], ["n", 1], opset=20)
    assert furthest(exact, onnx.load(tmp_path / "made.onnx")) < 1e-30


def test_a_mean_beside_a_gelu_is_written_as_its_operator_set_has_it():
    nodes = [op("Gelu", ["x"], "s"), op("ReduceMean", ["s", "axes"], keepdims=0)]
    proto = model(nodes, ["n", 4, 5], {"axes": np.array([1])}, opset=20)
    network = assert_reads(proto)
    assert network_to_proto(network).opset_import[0].version == 20


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_where_torch_cuts_a_softplus_off_is_part_of_the_deviation(dtype, tmp_path):
    """Beyond 20 it is the identity, which is 2e-9 less; a gain of 1000 stands behind it."""
    module = nn.Sequential(nn.Linear(1, 1), nn.Softplus(), nn.Linear(1, 1)).to(dtype)
    for layer, weight in ((module[0], 1.0), (module[2], 1000.0)):
        nn.init.constant_(layer.weight, weight)
        nn.init.zeros_(layer.bias)
    assert relutrim.compress(module, Box(-5, 5)).written_as("made.onnx").deviation.proven == 0
    kept = relutrim.compress(module, Box(-50, 50))
    assert kept.deviation.proven == 0
    result = kept.written_as("made.onnx")
    result.save(tmp_path / "made.onnx")
    made = onnx.load(tmp_path / "made.onnx")
    with mpmath.workdps(40):
        places = [mpf(20) + mpf(k) / 1024 for k in range(-20000, 20000, 7)]
        truth = [1000 * (x if x > 20 else mpmath.log1p(mpmath.exp(x))) for x in places]
        off = max(abs(value(made, x) - y) for x, y in zip(places, truth, strict=True))
    assert 2e-6 < off <= result.deviation.proven < 2.1e-6
    assert read_module(kept.model).nodes[1].operator.threshold == 20


@pytest.mark.parametrize("at", [19.9999, 20.0, 20.0001, 25.0, 50.0])
def test_the_range_of_a_softplus_holds_both_sides_of_a_cut(at):
    end = torch.tensor([[at]], dtype=torch.float64)
    found = Softplus(20.0).interval([Interval(end, end)])
    with mpmath.workdps(40):
        assert mpf(found.lo.item()) <= (mpf(at) if at > 20 else mpmath.log1p(mpmath.exp(mpf(at))))
        assert mpf(found.hi.item()) >= mpmath.log1p(mpmath.exp(mpf(at)))
