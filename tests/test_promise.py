"""What is written is never farther from the model than the tolerance, whatever the model is made of."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import oracle
import relutrim
from command_line import call
from onnx_models import model, numbers, op
from relutrim.compression import compress_network
from relutrim.domain import Box
from relutrim.errors import InputError
from relutrim.graph import BatchNorm, Linear, Network, Node
from relutrim.io import load, save
from relutrim.rewrite.rules import Allowance
from relutrim.rewrite.storage import held
from relutrim.wish import allowed_deviation
from rewriting import QUICK, dense, linear, names

Exactly = Callable[[list[Fraction]], list[Fraction]]
EPSILON = 0.25
DEVIATIONS = (3.0, 1.5, 0.75, 5.0, 2.0)
"""Square roots of variance + epsilon: rational, so that the truth is."""
FLOAT32 = st.floats(-3, 3, width=32).map(lambda v: v if abs(v) > 1e-6 else 0.0)


def fractions(array: np.ndarray) -> list[Fraction]:
    return [Fraction(float(v)) for v in array.ravel()]


class Chain:
    """An ONNX model in the making, and what it computes over the rational numbers."""

    def __init__(self, inputs: int) -> None:
        self.inputs = self.size = inputs
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self.steps: list[Exactly] = []
        self.value = "x"

    def add(self, kind: str, arrays: list[Any], compute: Exactly, **attributes: Any) -> None:
        number = len(self.nodes)
        names = [f"w{number}_{k}" for k in range(len(arrays))]
        self.weights |= {
            name: np.asarray(array, np.float32) for name, array in zip(names, arrays, strict=True)
        }
        self.nodes.append(op(kind, [self.value, *names], f"v{number}", **attributes))
        self.steps.append(compute)
        self.value = f"v{number}"

    def gemm(self, weight: np.ndarray, bias: np.ndarray, way: str = "as it is") -> None:
        rows, shifts = [fractions(row) for row in weight], fractions(bias)
        self.size = len(bias)

        def product(x: list[Fraction]) -> list[Fraction]:
            return [sum((w * v for w, v in zip(row, x, strict=True)), Fraction(0)) for row in rows]

        def shifted(x: list[Fraction]) -> list[Fraction]:
            return [v + b for v, b in zip(x, shifts, strict=True)]

        if way == "two nodes":
            self.add("MatMul", [weight.T], product)
            self.add("Add", [bias], shifted)
        else:
            turned = weight.T if way == "turned" else weight
            self.add("Gemm", [turned, bias], lambda x: shifted(product(x)), transB=int(way != "turned"))

    def norm(self, gain: np.ndarray, bias: np.ndarray, mean: np.ndarray, deviation: np.ndarray) -> None:
        parts = list(zip(*(fractions(a) for a in (gain, bias, mean, deviation)), strict=True))
        self.add(
            "BatchNormalization",
            [gain, bias, mean, deviation**2 - EPSILON],
            lambda x: [g * (v - m) / d + b for v, (g, b, m, d) in zip(x, parts, strict=True)],
            epsilon=EPSILON,
        )

    def each(self, kind: str, numbers: np.ndarray) -> None:
        parts = fractions(numbers)
        computed: Exactly = {
            "Mul": lambda x: [a * v for a, v in zip(parts, x, strict=True)],
            "Add": lambda x: [a + v for a, v in zip(parts, x, strict=True)],
        }[kind]
        self.add(kind, [numbers], computed)

    def bend(self, slope: float) -> None:
        if slope == 0:
            self.add("Relu", [], lambda x: [max(v, Fraction(0)) for v in x])
            return
        alpha = Fraction(float(np.float32(slope)))
        self.add("LeakyRelu", [], lambda x: [v if v > 0 else alpha * v for v in x], alpha=slope)

    def proto(self) -> onnx.ModelProto:
        return model(self.nodes, ["batch", self.inputs], self.weights, outputs=(self.value,))

    def __call__(self, x: list[Fraction]) -> list[Fraction]:
        for step in self.steps:
            x = step(x)
        return x


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    """Linear layers with batch norms, products, sums and leaky ReLUs anywhere before, between and behind
    them. Biases are large often enough for many neurons to be stable.
    """

    def drawn(*shape: int, of: st.SearchStrategy[float] = FLOAT32) -> np.ndarray:
        size = math.prod(shape)
        return np.array(draw(st.lists(of, min_size=size, max_size=size)), np.float32).reshape(shape)

    def decorated() -> None:
        size = chain.size
        for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
            kind = draw(st.sampled_from(["norm", "Mul", "Add", "bend"]))
            if kind == "norm":
                chain.norm(drawn(size), drawn(size), drawn(size), drawn(size, of=st.sampled_from(DEVIATIONS)))
            elif kind == "bend":
                chain.bend(draw(st.sampled_from([0.0, 0.1])))
            else:
                chain.each(kind, drawn(size))

    chain = Chain(draw(st.integers(1, 3)))
    decorated()
    for _ in range(draw(st.integers(1, 3))):
        size = draw(st.integers(1, 4))
        bias = drawn(size, of=FLOAT32 | st.sampled_from([-20.0, 20.0, 0.0]))
        chain.gemm(drawn(size, chain.size), bias, draw(st.sampled_from(["as it is", "turned", "two nodes"])))
        decorated()
        chain.bend(draw(st.sampled_from([0.0, 0.0, 0.0, 0.1])))
        decorated()
    chain.gemm(drawn(2, chain.size), drawn(2))
    decorated()
    return chain


def points(inputs: int) -> list[list[Fraction]]:
    corners = [list(map(Fraction, corner)) for corner in itertools.product((0, 1), repeat=inputs)]
    random = np.random.default_rng(0).random((12, inputs)).astype(np.float32)
    return [*corners, *(fractions(row) for row in random)]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(chains(), st.sampled_from([0.0, 1e-9, 1e-6, "exact", "rounding"]))
def test_what_is_saved_is_within_the_tolerance(tmp_path_factory, chain, tolerance):
    folder = tmp_path_factory.mktemp("promise")
    path, out = folder / "model.onnx", folder / "out.onnx"
    onnx.save(chain.proto(), path)
    result = relutrim.compress(path, Box(0, 1), tolerance=tolerance, method="bounds")
    result.save(out)
    proven = result.deviation.proven
    assert proven is not None
    assert result.allowed is not None
    assert proven <= result.allowed
    if not isinstance(tolerance, str):
        assert result.allowed == tolerance
    if out.read_bytes() == path.read_bytes():
        assert result.unchanged
        assert proven == 0
        return
    smaller = load(out)
    assert smaller.parameters <= load(path).parameters
    for x in points(chain.inputs):
        for before, after in zip(chain(x), oracle.outputs(smaller, x), strict=True):
            assert abs(before - after) <= Fraction(proven)


def normed(path: Path, *, dead: bool = False) -> Path:
    """Gemm, BatchNormalization and Relu, where nothing is stable or a neuron is dead. Large parts of the
    output cancel, so that rounding weights would move it by more than it is rounded itself.
    """
    chain = Chain(4)
    weight = numbers(6, 4)
    weight[3:] = weight[:3] * np.float32(1 + 1e-4)
    chain.gemm(weight, np.zeros(6, np.float32))
    bias = np.zeros(6, np.float32)
    bias[[0, 3]] = -100.0 if dead else 0.0
    gain = np.tile(1 + np.abs(numbers(3)), 2)
    chain.norm(gain, bias, np.zeros(6, np.float32), np.full(6, 3.0, np.float32))
    chain.bend(0.0)
    chain.gemm(1e4 * np.array([[1, 1, 1, -1, -1, -1], [2, 1, 3, -2, -1, -3]], np.float32), numbers(2))
    onnx.save(chain.proto(), path)
    return path


TOLERANCES = pytest.mark.parametrize("tolerance", ["0", "exact", "rounding", "1e-30"])


@TOLERANCES
@pytest.mark.parametrize("fold", [False, True])
def test_a_model_without_stable_neurons_comes_back_byte_for_byte_whatever_a_batch_norm_would_round(
    tmp_path, capsys, tolerance, fold
):
    path, out = normed(tmp_path / "model.onnx"), tmp_path / "out.onnx"
    flags = ["--fold-batch-norm"] if fold else []
    done = call(capsys, "compress", path, out, "--box", "-1", "1", "--tolerance", tolerance, *flags)
    assert done.code == 0
    assert out.read_bytes() == path.read_bytes()
    assert "comes back as it was" in done.out.splitlines()[0]


@TOLERANCES
def test_dead_neurons_go_through_a_batch_norm_that_keeps_its_numbers(tmp_path, tolerance):
    path, out = normed(tmp_path / "model.onnx", dead=True), tmp_path / "out.onnx"
    result = relutrim.compress(
        path, Box(-1, 1), tolerance=float(tolerance) if tolerance[0] in "01" else tolerance
    )
    result.save(out)
    assert result.deviation.proven == 0
    before, after = (
        next(node.operator for node in load(file) if isinstance(node.operator, BatchNorm))
        for file in (path, out)
    )
    for field in ("gain", "bias", "mean", "variance"):
        assert np.array_equal(getattr(after, field), np.delete(getattr(before, field), [0, 3]))
    assert after.epsilon == before.epsilon


def test_the_first_line_says_what_did_not_fit_and_why(tmp_path, capsys):
    path, out = normed(tmp_path / "model.onnx"), tmp_path / "out.onnx"
    done = call(capsys, "compress", path, out, "--box", "-1", "1", "--fold-batch-norm")
    first = done.out.splitlines()[0]
    assert "% of the parameters removed an output could move by" in first
    assert "--tolerance exact allows" in first


def test_a_packed_model_without_stable_neurons_comes_back_unpacked(tmp_path):
    import gzip

    path, out = normed(tmp_path / "model.onnx"), tmp_path / "out.onnx"
    packed = tmp_path / "packed.onnx.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    relutrim.compress(packed, Box(-1, 1)).save(out)
    assert out.read_bytes() == path.read_bytes()


def test_a_model_that_changes_while_it_is_compressed_is_not_copied(tmp_path):
    path = normed(tmp_path / "model.onnx")
    result = relutrim.compress(path, Box(-1, 1))
    path.write_bytes(path.read_bytes() + b"\x00")
    with pytest.raises(InputError, match="has changed since it was read"):
        result.save(tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


def with_unused_external_data(folder: Path) -> Path:
    """A model one of whose tensors, which nothing reads, lies in a file beside it."""
    path = normed(folder / "model.onnx")
    proto = onnx.load(path)
    tensor = proto.graph.initializer.add(name="unused", data_type=onnx.TensorProto.FLOAT, dims=[2])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="unused.bin")
    (folder / "unused.bin").write_bytes(b"12345678")
    onnx.save(proto, path)
    return path


def test_external_data_goes_with_a_model_that_is_copied(tmp_path):
    path, folder = with_unused_external_data(tmp_path), tmp_path / "there"
    folder.mkdir()
    relutrim.compress(path, Box(-1, 1)).save(folder / "out.onnx")
    assert (folder / "out.onnx").read_bytes() == path.read_bytes()
    assert (folder / "unused.bin").read_bytes() == b"12345678"
    relutrim.compress(path, Box(-1, 1)).save(tmp_path / "out.onnx")  # the data is there already


def test_external_data_never_replaces_another_file(tmp_path, capsys):
    path, folder = with_unused_external_data(tmp_path), tmp_path / "there"
    folder.mkdir()
    (folder / "unused.bin").write_bytes(b"other")
    done = call(capsys, "compress", path, folder / "out.onnx", "--box", "-1", "1")
    assert done.code == 2
    assert "unused.bin" in done.err
    assert not (folder / "out.onnx").exists()
    assert (folder / "unused.bin").read_bytes() == b"other"


def never(*_, **__):
    raise AssertionError("this was known before")


def test_what_is_in_the_way_of_external_data_is_said_before_the_analysis(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("relutrim.compression.analyze_network", never)
    monkeypatch.setattr("relutrim.io.load", never)
    path, folder = with_unused_external_data(tmp_path), tmp_path / "there"
    folder.mkdir()
    (folder / "unused.bin").write_bytes(b"other")
    done = call(capsys, "compress", path, folder / "out.onnx", "--box", "-1", "1")
    assert done.code == 2
    assert "another file of that name lies beside the output" in done.err


def test_so_is_a_folder_that_is_missing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("relutrim.io.load", never)
    path, folder = with_unused_external_data(tmp_path), tmp_path / "there"
    proto = onnx.load(path, load_external_data=False)
    proto.graph.initializer[-1].external_data[0].value = "data/unused.bin"
    path.write_bytes(proto.SerializeToString())
    (tmp_path / "data").mkdir()
    (tmp_path / "unused.bin").rename(tmp_path / "data" / "unused.bin")
    folder.mkdir()
    done = call(capsys, "compress", path, folder / "out.onnx", "--box", "-1", "1")
    assert done.code == 2
    assert "create it first" in done.err


def test_external_data_that_is_missing_is_said_when_the_model_is_read(tmp_path, capsys):
    path, folder = with_unused_external_data(tmp_path), tmp_path / "there"
    (tmp_path / "unused.bin").unlink()
    folder.mkdir()
    (folder / "unused.bin").write_bytes(b"other")
    done = call(capsys, "compress", path, folder / "out.onnx", "--box", "-1", "1")
    assert done.code == 2
    assert f"{path}: tensor 'unused'" in done.err


@pytest.mark.parametrize("name", ["/etc/passwd", "../unused.bin", "..\\unused.bin"])
def test_external_data_outside_of_the_models_folder_is_not_touched(tmp_path, name):
    path, folder = with_unused_external_data(tmp_path), tmp_path / "there"
    proto = onnx.load(path, load_external_data=False)
    proto.graph.initializer[-1].external_data[0].value = name
    path.write_bytes(proto.SerializeToString())
    folder.mkdir()
    with pytest.raises(InputError, match="not in the model's folder"):
        relutrim.compress(path, Box(-1, 1)).save(folder / "out.onnx")
    assert list(folder.iterdir()) == []


def test_a_module_that_nothing_is_removed_from_comes_back_as_a_copy():
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU())
    module.append(torch.nn.Linear(4, 1)).eval()
    torch.nn.init.zeros_(module[0].bias)  # so that no neuron is stable
    result = relutrim.compress(module, Box(-1, 1), tolerance=0)
    assert result.unchanged
    assert result.model is not module
    assert isinstance(result.model[1], torch.nn.BatchNorm1d)
    for name, tensor in module.state_dict().items():
        assert torch.equal(result.model.state_dict()[name], tensor)


# Another format.


def nnet(path: Path) -> Path:
    """An .nnet whose normalisation no float holds."""
    path.write_text(
        "// a network\n2,1,1,2,\n1,2,1,\n0,\n0.0,\n1.0,\n0.1,0.0,\n3.0,1.0,\n1.0,\n-1.0,\n0.5,\n-0.25,\n"
        "1.0,1.0,\n0.25,\n",
        encoding="ascii",
    )
    return path


def test_a_conversion_is_proved_within_the_tolerance_or_refused(tmp_path, capsys):
    path, out = nnet(tmp_path / "small.nnet"), tmp_path / "out.onnx"
    done = call(capsys, "compress", path, out, "--box", "0", "1", "--tolerance", "0", "--method", "bounds")
    assert done.code == 2, done.out
    assert "another format" in done.err
    assert "larger --tolerance" in done.err
    assert not out.exists()
    done = call(capsys, "compress", path, out, "--box", "0", "1", "--tolerance", "1e-5", "--json")
    assert done.code == 0
    assert out.exists()


# The ceiling of exact.


def test_exact_allows_half_a_unit_in_the_last_place_of_the_largest_output():
    network = dense(linear([[1.0], [-1.0]]), linear([[1.0, 1.0], [8.0, 0.0]]), dtype="float32")
    stability = relutrim.analyze(network, Box(-1, 1))
    limits = allowed_deviation(network, stability, "exact").limits["output"]
    assert limits.flatten().tolist() == pytest.approx([2.0**-24, 2.0**-21], rel=1e-3)


def test_where_an_input_is_unbounded_exact_means_nothing_and_rounding_is_refused(monkeypatch):
    network = dense(linear([[1.0], [-1.0]]), linear([[1.0, 1.0]]), dtype="float32")
    stability = relutrim.analyze(network, Box(-1, 1))
    region = stability.problem.region()
    object.__setattr__(region, "hi", torch.full_like(region.hi, torch.inf))
    monkeypatch.setattr(type(stability.problem), "region", lambda *_: region)
    assert allowed_deviation(network, stability, "exact").nothing
    assert allowed_deviation(network, stability, 1e-3).most == 1e-3
    with pytest.raises(InputError, match="unbounded"):
        allowed_deviation(network, stability, "rounding")


def test_a_rewrite_that_does_not_fit_is_left_out_and_said():
    # Active neurons could be merged, but the difference of what reads them is the output: rounding the two
    # new weights moves it by far more than it is rounded itself. The inactive neuron goes all the same.
    first = linear([[1.0], [3.0], [1.0]], [2.0, 7.0, -9.0])
    second = linear([[0.1, 0.3, 1.0], [0.1001, 0.3, 1.0]], [-2.6, -2.6])
    network = held_in_float32(dense(first, second, linear([[1e6, -1e6]]), dtype="float32"))
    result = compress_network(network, Box(-1, 1), **QUICK)
    assert set(names(result)) <= {"drop-inactive", "straighten"}
    assert result.left_out is not None
    assert result.left_out.parameters < result.stored.parameters
    assert result.left_out.deviation > (result.allowed or 0) > 0
    assert result.deviation.proven == 0
    generous = compress_network(network, Box(-1, 1), tolerance=result.left_out.deviation, **QUICK)
    assert generous.stored.parameters == result.left_out.parameters


def test_what_did_not_fit_is_said_of_the_output_that_it_is_worst_for(capsys, tmp_path):
    # The second output is large and moves by more, but relative to what it may move the first one does.
    first = linear([[1.0], [3.0], [1.0]], [2.0, 7.0, 0.0])
    second = linear([[0.1, 0.3, 1.0], [0.1001, 0.3, 1.0]], [-2.6, -2.6])
    network = held_in_float32(dense(first, second, linear([[1.0, -1.0], [2.0**20, 0.0]]), dtype="float32"))
    result = compress_network(network, Box(-1, 1), **QUICK)
    left = result.left_out
    assert left is not None
    assert left.allowed < left.worst < left.deviation
    assert left.allowed < (result.allowed or 0)
    path = tmp_path / "model.onnx"
    save(network, path)
    done = call(capsys, "compress", path, tmp_path / "out.onnx", "--box", "-1", "1")
    assert f"an output could move by {left.worst:.2e}" in done.out
    assert f"allows it {left.allowed:.2e}" in done.out


def held_in_float32(network: Network) -> Network:
    """The network with its weights as a file would hold them."""
    change = {}
    for node in network.nodes:
        if isinstance(node.operator, Linear):
            weight, bias = (held(array, "float32") for array in (node.operator.weight, node.operator.bias))
            change[node.name] = Node(node.name, Linear(weight, bias), node.inputs)
    return network.edit(change=change)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(chains())
def test_rounding_never_leaves_more_than_exact(chain):
    from relutrim.io.onnx import network_from_proto

    network = network_from_proto(chain.proto())
    left = [
        compress_network(network, Box(0, 1), tolerance=tolerance, **QUICK).stored.parameters
        for tolerance in ("0", "exact", "rounding")
    ]
    assert left[0] >= left[1] >= left[2]


def test_an_allowance_of_nothing_is_one():
    limits = {"y": torch.zeros(1, 2, dtype=torch.float64)}
    assert Allowance(limits).nothing
    assert not Allowance({"y": limits["y"] + 1e-9}).nothing
