"""How large a graph may become is known before anything is allocated: few bytes can ask for much memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from onnx_models import model, numbers, op
from relutrim.certificate.check import call
from relutrim.certificate.check.read import read
from relutrim.errors import CheckFailed, RelutrimError, UnsupportedError
from relutrim.io import sizes
from relutrim.io.exported import read_exported
from relutrim.io.onnx import network_from_proto
from relutrim.io.torch.module import read_module

MEGA = 2**20


@pytest.fixture
def small(monkeypatch):
    """Limits a hundred times as small, so that what comes near them takes no time."""
    monkeypatch.setattr(sizes, "LARGEST_VALUE", MEGA // 2)
    monkeypatch.setattr(sizes, "LARGEST_GRAPH", MEGA * 3 // 4)
    monkeypatch.setattr(sizes, "LARGEST_ARRAYS", MEGA * 3 // 4)
    monkeypatch.setattr(call, "MOST", MEGA // 4)


def refused(read: Callable[[], Any], match: str, kind: type[RelutrimError] = UnsupportedError) -> None:
    """Refused with less memory than three of the largest graphs would take in float64."""
    tracemalloc.start()
    try:
        with pytest.raises(kind, match=match):
            read()
        assert tracemalloc.get_traced_memory()[1] < 3 * 8 * MEGA
    finally:
        tracemalloc.stop()


def chain(kind: str, count: int, more: tuple[str, ...] = (), **attributes: Any) -> list[onnx.NodeProto]:
    names = ["x", *(f"t{k}" for k in range(1, count)), "y"]
    return [
        op(kind, [before, *(more or (before,))], after, **attributes) for before, after in pairwise(names)
    ]


def transposed(stride: int, length: int) -> onnx.ModelProto:
    nodes = [op("ConvTranspose", ["x", "w"], strides=[stride])]
    return model(nodes, ["n", 1, length], {"w": numbers(1, 1, 1)})


FEW_BYTES = {
    "a transposed convolution": (transposed(1000, 400), "'convtranspose_y'.*together"),
    "a chain of concatenations": (model(chain("Concat", 19, axis=1), ["n", 1]), "'concat_.*together"),
    "a chain of pads": (
        model(chain("Pad", 4, ("p",)), ["n", 1], {"p": np.array([0, 0, 0, MEGA // 8])}), "'pad_t.*together",
    ),
    "pads that are no zeros": (
        model([op("Pad", ["x", "p", "c"])], ["n", 1], {
            "p": np.array([0, 0, 0, MEGA * 3 // 8]), "c": np.array(1, np.float32)}),
        "'pad_y'.*together",
    ),
    "constants gathered": (
        model([op("Gather", ["w", "i"], "g", axis=0), op("Add", ["x", "g"])], ["n", 5],
              {"w": numbers(1, 2000), "i": np.zeros(1000, np.int64)}),
        "'gather_g'.*1000 x 2000",
    ),
    "constants joined": (
        model([op("Concat", ["w"] * 400, "g", axis=0), op("Add", ["x", "g"])], ["n", 5],
              {"w": numbers(1000, 5)}),
        "'concat_g'.*400000 x 5",
    ),
    "weights that are used again and again": (
        model(chain("MatMul", 20, ("w",)), ["n", 300], {"w": numbers(300, 300)}), "'matmul_t.*weights again",
    ),
    "an input": (model([op("Relu", ["x"])], ["n", MEGA]), "the input is a value"),
}  # fmt: skip


@pytest.mark.parametrize("case", FEW_BYTES)
def test_a_file_cannot_ask_for_more_than_a_graph_may_hold(case, small):
    proto, match = FEW_BYTES[case]
    refused(lambda: network_from_proto(proto), match)


@pytest.mark.parametrize("case", FEW_BYTES)
def test_the_checker_holds_no_more_either(case, small):
    proto, _ = FEW_BYTES[case]
    content = proto.SerializeToString()
    refused(lambda: read(content), "beyond|too large|read", RelutrimError)


class Doubling(nn.Module):
    def forward(self, x):
        for _ in range(19):
            x = torch.cat([x, x], 1)
        return x


class Wide(nn.Module):
    """A table of sums of two short lists."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(2000, 1)), nn.Parameter(torch.ones(2000))

    def forward(self, x):
        return x @ (self.a + self.b)


@pytest.mark.parametrize(
    ("module", "shape", "match"),
    [
        (nn.ConvTranspose1d(1, 1, 1, stride=1000), (1, 400), "together"),
        (nn.ConstantPad1d((0, MEGA * 3 // 8), 1.0), (1, 1), "together"),
        (Doubling(), (1,), "'cat.*together"),
    ],
)
def test_nor_can_a_module_or_its_program(module, shape, match, small, tmp_path):
    read_module(nn.Linear(1, 1))  # torch.export imports much when it is first called
    refused(lambda: read_module(module, shape), match)
    torch.export.save(torch.export.export(module, (torch.zeros(1, *shape),)), tmp_path / "m.pt2")
    refused(lambda: read_exported(tmp_path / "m.pt2"), match)


def test_constants_of_a_program_that_grow_are_counted(small, tmp_path):
    torch.export.save(torch.export.export(Wide(), (torch.zeros(1, 2000),)), tmp_path / "m.pt2")
    refused(lambda: read_exported(tmp_path / "m.pt2"), "'add'.*2000 x 2000")


RELUS = 12


def relus(weights: dict[str, np.ndarray] | None = None) -> onnx.ModelProto:
    names = ["x", *(f"t{k}" for k in range(1, RELUS)), "y"]
    return model([op("Relu", [one], other) for one, other in pairwise(names)], ["n", 1000], weights)


def test_a_file_may_ask_for_more_the_larger_it_is(monkeypatch):
    monkeypatch.setattr(sizes, "FREE", 10_000)
    monkeypatch.setattr(sizes, "PER_BYTE", 0)
    refused(
        lambda: network_from_proto(relus()), "node 'relu_t10' .Relu.*1000.*10000.*together where .* bytes"
    )
    monkeypatch.setattr(sizes, "PER_BYTE", 1)
    with pytest.raises(UnsupportedError, match=r"bytes are stored; .* or cut the network into smaller parts"):
        network_from_proto(relus())
    stored = relus({"unused": numbers(1000)})
    assert len(network_from_proto(stored).nodes) == RELUS


def test_so_may_a_module_and_its_program(monkeypatch, tmp_path):
    monkeypatch.setattr(sizes, "FREE", 10_000)
    monkeypatch.setattr(sizes, "PER_BYTE", 0)
    module = nn.Sequential(*(nn.ReLU() for _ in range(RELUS)), nn.Linear(1000, 10))
    read_module(nn.Linear(1, 1))
    refused(lambda: read_module(module, (1000,)), "node '9'.*together where 40040 bytes are stored")
    torch.export.save(torch.export.export(module, (torch.zeros(1, 1000),)), tmp_path / "m.pt2")
    refused(lambda: read_exported(tmp_path / "m.pt2"), "together where .* bytes are stored")
    monkeypatch.setattr(sizes, "PER_BYTE", 1)
    assert len(read_module(module, (1000,)).nodes) == RELUS + 1
    assert len(read_exported(tmp_path / "m.pt2").nodes) == RELUS + 1


def test_what_is_not_left_in_the_end_is_not_counted(monkeypatch):
    """Weights that only the model itself can tell make an opaque node, and are no value of the network."""
    monkeypatch.setattr(sizes, "FREE", 1000)
    monkeypatch.setattr(sizes, "PER_BYTE", 0)
    proto = model([op("MatMul", ["x", "w"], "a"), op("Relu", ["a"])], ["n", 100])
    proto.graph.input.append(onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [100, 100]))
    network = network_from_proto(proto)
    assert sum(map(network.size, network.shapes)) < 1000


def test_weights_that_a_file_stores_are_not_counted(small):
    """A file pays for them itself; values of an ordinary network are far below the limit."""
    weights = {f"w{k}": numbers(600, 600) for k in range(6)}
    nodes = [op("MatMul", [f"t{k}" if k else "x", f"w{k}"], f"t{k + 1}" if k < 5 else "y") for k in range(6)]
    assert sum(array.size for array in weights.values()) > sizes.LARGEST_GRAPH
    assert len(network_from_proto(model(nodes, ["n", 600], weights)).nodes) == 6


@pytest.mark.parametrize(
    ("nodes", "shape"),
    [
        ([op("Concat", ["x"] * 600, axis=1)], ["n", 400]),
        ([op("Sum", ["x"] * 600)], ["n", 2000]),
        ([op("Concat", ["x"] * 100, "t", axis=1), op("Sum", ["t"] * 100)], ["n", 1000]),
    ],
)
def test_the_checker_counts_what_one_node_makes_before_it_makes_it(nodes, shape, small):
    content = model(nodes, shape).SerializeToString()
    refused(lambda: read(content), "too large", CheckFailed)
