"""Functions that are not piecewise linear: read, written and read again by every format, and compressed."""

from __future__ import annotations

import math
import re
from functools import partial

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from torch import nn
from torch.nn import functional as F

import oracle_barriers
import relutrim
from onnx_models import assert_reads, model, numbers, op, opaque, run
from relutrim import Box
from relutrim.graph import (
    Barrier,
    Elu,
    Erf,
    Fresh,
    Gelu,
    Network,
    Node,
    Output,
    Port,
    Relu,
    Scale,
    Softmax,
)
from relutrim.io.gates import gate
from relutrim.io.onnx import network_from_proto, network_to_proto
from relutrim.io.torch.graph_module import module_of
from relutrim.io.torch.module import read_module

ROOT, ONE, HALF = np.float32(np.sqrt(2)), np.float32(1), np.float32(0.5)


def kinds(network: Network) -> list[str]:
    return [node.operator.kind for node in network]


# ONNX.

CALLS = {
    "sigmoid": ([op("Sigmoid", ["x"], "s")], ["Sigmoid"]),
    "tanh": ([op("Tanh", ["x"], "s")], ["Tanh"]),
    "softmax": ([op("Softmax", ["x"], "s", axis=-1)], ["Softmax"]),
    "softmax of channels": ([op("Softmax", ["x"], "s", axis=1)], ["Softmax"]),
    "softplus": ([op("Softplus", ["x"], "s")], ["Softplus"]),
    "elu": ([op("Elu", ["x"], "s", alpha=0.5)], ["Elu"]),
    "selu": ([op("Selu", ["x"], "s")], ["Elu", "Scale"]),
    "selu of its own": ([op("Selu", ["x"], "s", alpha=1.5, gamma=2.0)], ["Elu", "Scale"]),
    "celu": ([op("Celu", ["x"], "s", alpha=0.3)], ["Scale", "Elu", "Scale"]),
    "plain celu": ([op("Celu", ["x"], "s")], ["Elu"]),
    "hard swish": ([op("HardSwish", ["x"], "s")], ["HardSwish"]),
    "erf": ([op("Erf", ["x"], "s")], ["Erf"]),
    "two tails": ([op("Sigmoid", ["x"], "t"), op("Softmax", ["t"], "s", axis=-1)], ["Sigmoid", "Softmax"]),
    "silu": ([op("Sigmoid", ["x"], "t"), op("Mul", ["x", "t"], "s")], ["Silu"]),
    "silu the other way": ([op("Sigmoid", ["x"], "t"), op("Mul", ["t", "x"], "s")], ["Silu"]),
    "mish": ([op("Softplus", ["x"], "a"), op("Tanh", ["a"], "t"), op("Mul", ["x", "t"], "s")], ["Mish"]),
    "gelu": (
        [
            op("Div", ["x", "root"], "a"), op("Erf", ["a"], "b"), op("Add", ["b", "one"], "c"),
            op("Mul", ["x", "c"], "d"), op("Mul", ["d", "half"], "s"),
        ],
        ["Gelu"],
    ),
    "gelu halved first": (
        [
            op("Mul", ["x", "half"], "h"), op("Div", ["x", "root"], "a"), op("Erf", ["a"], "b"),
            op("Add", ["one", "b"], "c"), op("Mul", ["h", "c"], "s"),
        ],
        ["Gelu"],
    ),
    "gelu not halved": (
        [
            op("Mul", ["x", "over"], "a"), op("Erf", ["a"], "b"), op("Add", ["b", "one"], "c"),
            op("Mul", ["c", "x"], "s"),
        ],
        ["Gelu", "Scale"],
    ),
}  # fmt: skip
WEIGHTS = {"root": ROOT, "one": ONE, "half": HALF, "over": np.float32(1 / np.sqrt(2)), "w": numbers(5, 6)}


@pytest.mark.parametrize("case", CALLS)
def test_onnx_reads_and_writes_what_onnxruntime_computes(case):
    nodes, expected = CALLS[case]
    network = assert_reads(model([*nodes, op("Relu", ["s"])], ["n", 4, 5], WEIGHTS))
    assert kinds(network) == [*expected, "Relu"]
    again = network_from_proto(network_to_proto(network))
    assert kinds(again) == kinds(network)
    without_batch = assert_reads(model([*nodes, op("Relu", ["s"])], [4, 5], WEIGHTS))
    assert kinds(without_batch) == [*expected, "Relu"]


def test_younger_operators_of_onnx_are_read():
    """onnxruntime of the day may lack them; what they mean is written out."""
    x = np.linspace(-5, 5, 20, dtype=np.float32).reshape(4, 5)
    by_tanh = partial(F.gelu, approximate="tanh")
    cases = [
        ("Gelu", {}, 20, F.gelu),
        ("Gelu", {"approximate": "tanh"}, 20, by_tanh),
        ("Mish", {}, 18, F.mish),
    ]
    for kind, attributes, opset, truth in cases:
        nodes = [op(kind, ["x"], "s", **attributes), op("Relu", ["s"])]
        network = network_from_proto(model(nodes, ["n", 5], opset=opset))
        assert kinds(network) == [kind, "Relu"]
        expected = truth(torch.tensor(x)).relu().numpy()
        np.testing.assert_allclose(run(network_to_proto(network), x)[0], expected, atol=1e-5)


def test_at_the_very_end_it_is_still_a_tail():
    nodes = [op("MatMul", ["x", "w"], "h"), op("Sigmoid", ["h"])]
    network = assert_reads(model(nodes, ["n", 5], WEIGHTS))
    assert kinds(network) == ["Linear"]
    assert [step.kind for step in network.outputs[0].tail] == ["Sigmoid"]


def test_an_output_that_is_read_as_well_is_no_tail():
    nodes = [
        op("MatMul", ["x", "w"], "h"),
        op("Sigmoid", ["h"], "p"),
        op("Identity", ["p"], "q"),
        op("Relu", ["p"], "r"),
        op("Neg", ["q"], "y"),
    ]
    network = assert_reads(model(nodes, ["n", 5], WEIGHTS, outputs=("p", "q", "r", "y")))
    assert kinds(network).count("Sigmoid") == 1
    assert not any(output.tail for output in network.outputs)


def test_products_of_other_values_are_opaque():
    nodes = [op("Neg", ["x"], "n"), op("Sigmoid", ["n"], "t"), op("Mul", ["x", "t"], "s"), op("Relu", ["s"])]
    assert re.search(r"'mul_s'.*two computed values", opaque(model(nodes, ["n", 5], WEIGHTS)))
    off = {**WEIGHTS, "root": np.float32(1.5)}
    proto = model([*CALLS["gelu"][0], op("Relu", ["s"])], ["n", 5], off)
    assert re.search(r"'mul_d'.*two computed values", opaque(proto))


def test_a_softmax_along_a_fixed_batch_is_one_input_as_a_whole():
    network = assert_reads(model([op("Softmax", ["x"], "s", axis=0), op("Relu", ["s"])], [3, 5], WEIGHTS))
    assert network.input.batch is None
    assert network.input.shape == (3, 5)


# PyTorch.


class Forward(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.linear = nn.Linear(5, 5)
        self.function = function

    def forward(self, x):
        return self.function(self.linear(x)).relu()


MODULES = {
    "Sigmoid": nn.Sigmoid,
    "Tanh": nn.Tanh,
    "Softmax": lambda: nn.Softmax(-1),
    "Softplus": nn.Softplus,
    "Softplus of 2": lambda: nn.Softplus(beta=2),
    "ELU": lambda: nn.ELU(0.7),
    "SELU": nn.SELU,
    "CELU": lambda: nn.CELU(0.4),
    "GELU": nn.GELU,
    "GELU by tanh": lambda: nn.GELU(approximate="tanh"),
    "SiLU": nn.SiLU,
    "Hardswish": nn.Hardswish,
    "Mish": nn.Mish,
    "in place": lambda: nn.SiLU(inplace=True),
}
FUNCTIONS = {
    "sigmoid": torch.sigmoid,
    "method": lambda x: x.tanh(),
    "softmax": lambda x: F.softmax(x, dim=1),
    "softplus": F.softplus,
    "elu": lambda x: F.elu(x, alpha=0.2),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.5),
    "gelu": F.gelu,
    "silu": F.silu,
    "spelt out silu": lambda x: x * torch.sigmoid(x),
    "spelt out gelu": lambda x: 0.5 * x * (1 + torch.erf(x / 2**0.5)),
    "halved behind": lambda x: x * (1 + torch.erf(x / 2**0.5)) * 0.5,
    "spelt out mish": lambda x: torch.tanh(F.softplus(x)) * x,
    "hardswish": F.hardswish,
    "mish": F.mish,
    "erf": torch.erf,
}


def assert_agrees(network: Network, module: nn.Module, dtype: torch.dtype = torch.float32) -> None:
    x = 4 * torch.randn(50, *network.input.shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    with torch.no_grad():
        expected = module(x)
        (found,) = (network.run(x.double())[output.source] for output in network.outputs)
        tolerance = 1e-5 if dtype == torch.float32 else 1e-8
        assert torch.allclose(found.to(dtype), expected, rtol=tolerance, atol=tolerance)
        assert torch.allclose(module_of(network)(x), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", [*MODULES, *FUNCTIONS])
def test_torch_reads_writes_and_exports(case, dtype, tmp_path):
    torch.manual_seed(1)
    if case in MODULES:
        module = nn.Sequential(nn.Linear(5, 5), MODULES[case](), nn.Linear(5, 3), nn.ReLU())
    else:
        module = Forward(FUNCTIONS[case])
    module = module.to(dtype)
    network = read_module(module)
    assert sum(isinstance(node.operator, Barrier) for node in network) == 1
    assert_agrees(network, module, dtype)
    assert kinds(read_module(module_of(network))) == kinds(network)
    if dtype == torch.float64:
        return  # exporting takes long, and nothing in it depends on the type
    relutrim.save(network, tmp_path / "model.pt2")
    again = relutrim.load(tmp_path / "model.pt2")
    assert kinds(again) == kinds(network)
    assert_agrees(again, module, dtype)
    program = torch.export.export(module, (torch.zeros(2, 5, dtype=dtype),))
    torch.export.save(program, tmp_path / "theirs.pt2")
    assert kinds(relutrim.load(tmp_path / "theirs.pt2")) == kinds(network)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Softplus(threshold=1),
        nn.Softplus(beta=-1),
        nn.CELU(-0.5),
        nn.ELU(-0.5),
    ],
)
def test_what_has_no_known_range_is_opaque(layer):
    network = read_module(nn.Sequential(nn.Linear(3, 3), layer, nn.ReLU()))
    assert isinstance(network["1"].operator, Fresh)
    assert network.pinned == ("0",)


# All operators, written.

OPERATORS = [*(kind() for kind in oracle_barriers.CURVES), Elu(0.25), Gelu("tanh"), Softmax(1)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.kind)
def test_every_operator_is_written_to_every_format(operator, dtype, tmp_path):
    shape = (2, 4)
    nodes = (
        Node("double", Scale.exactly(2.0), ("x",)),
        Node("b", operator, ("double",)),
        Node("r", Relu(), ("b",)),
    )
    network = Network(Port("x", shape), nodes, (Output("y", "r"),), dtype=dtype)
    kind = getattr(torch, dtype)
    x = 3 * torch.randn(20, *shape, dtype=kind, generator=torch.Generator().manual_seed(0))
    expected = network.run(x.double())["r"]
    for suffix in ("onnx", "pt2"):
        relutrim.save(network, tmp_path / f"model.{suffix}")
        again = relutrim.load(tmp_path / f"model.{suffix}")
        assert kinds(again) == ["Scale", operator.kind, "Relu"]
        assert torch.allclose(again.run(x.double())["r" if suffix == "onnx" else again.sources[0]], expected)
    try:
        session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
        (found,) = session.run(None, {"x": x.numpy()})
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented:
        return  # some are missing in float64
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)


@pytest.mark.parametrize("alpha", [0.1, 1.6732632423543772, 0.25])
def test_the_factor_of_an_elu_is_not_rounded_to_the_type_of_attributes(alpha, tmp_path):
    network = Network(Port("x", (3,)), (Node("e", Elu(alpha), ("x",)),), (Output("y", "e"),), dtype="float64")
    relutrim.save(network, tmp_path / "model.onnx")
    again = relutrim.load(tmp_path / "model.onnx")
    assert [node.operator.alpha for node in again if isinstance(node.operator, Elu)] == [alpha]
    assert kinds(again) == ["Elu"]
    x = np.array([[-5.0, -0.3, 2.0]])
    (found,) = ReferenceEvaluator(onnx.load(tmp_path / "model.onnx")).run(None, {"x": x})
    np.testing.assert_allclose(found, np.where(x > 0, x, alpha * np.expm1(x)), rtol=1e-14)


def test_what_a_file_takes_from_the_factor_of_an_elu_is_part_of_the_deviation():
    network = Network(Port("x", (1,)), (Node("e", Elu(0.1), ("x",)),), (Output("y", "e"),), dtype="float32")
    result = relutrim.compress(network, Box(-9, 1))
    x = torch.full((1, 1), -9.0, dtype=torch.float64)
    off = float((network.run(x)["e"] - result.stored.run(x)["e"]).abs())
    assert 1e-9 < off <= result.deviation.proven < 1e-8


# Compression, as a user sees it.


@pytest.mark.parametrize("case", MODULES)
def test_compressing_a_module_keeps_what_it_computes(case, tmp_path):
    torch.manual_seed(3)
    sizes = [nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 6), MODULES[case](), nn.Linear(6, 16), nn.ReLU()]
    module = nn.Sequential(*sizes, nn.Linear(16, 3))
    with torch.no_grad():
        for at in (0, 4):
            module[at].bias += torch.linspace(-3, 3, 16)
    result = relutrim.compress(module, Box(0, 1), time_limit=20, tolerance=1e-5)
    assert result.network.neurons < result.original.neurons
    assert result.deviation.proven is not None
    assert result.deviation.proven < 1e-5
    assert result.deviation.found <= result.deviation.proven
    x = torch.rand(500, 6, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert float((module(x) - result.model(x)).abs().max()) < 1e-5
    relutrim.save(result.original, tmp_path / "before.onnx")
    result.save(tmp_path / "after.onnx")
    before, after = (
        onnxruntime.InferenceSession(str(tmp_path / name)) for name in ("before.onnx", "after.onnx")
    )
    name = before.get_inputs()[0].name
    found = [session.run(None, {name: x.numpy()})[0] for session in (before, after)]
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)


def test_a_convolutional_network_with_a_sigmoid_within():
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.Sigmoid(), nn.Conv2d(4, 6, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(24, 3),
    )  # fmt: skip
    with torch.no_grad():
        module[0].bias += torch.linspace(-3, 3, 6)
        module[4].bias += torch.linspace(-3, 3, 6)
    result = relutrim.compress(module, Box(0, 1, shape=(1, 8, 8)), time_limit=20)
    assert result.network.parameters < result.original.parameters
    x = torch.rand(200, 1, 8, 8)
    with torch.no_grad():
        assert float((module(x) - result.model(x)).abs().max()) < 1e-5


@pytest.mark.parametrize(("root", "known"), [(math.sqrt(2), True), (float(np.float32(math.sqrt(2))), False)])
def test_a_root_rounded_to_float32_makes_no_gelu_of_a_float64_model(root, known):
    nodes = {
        "divided": Node("divided", Scale.divide(np.asarray(root)), ("x",)),
        "erf": Node("erf", Erf(), ("divided",)),
        "shifted": Node("shifted", Scale.exactly(1.0, 1.0), ("erf",)),
    }
    assert (gate(nodes.get, "x", "shifted", "float64") is not None) == known
    assert (gate(nodes.get, "x", "shifted", "float32") is not None) != known
