"""Sums lose the terms that are 0, and add numbers in the place of those that are constant."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import nn

import oracle
import relutrim
from channelled import channelled
from relutrim.graph import Add, Network, Output, Relu, Scale
from relutrim.rewrite.drop_terms import NAME, drop_terms
from rewriting import start
from test_merge_channels import conv, holds, kernels, network


def block(scale: Any, shift: Any = 0.0, *, then: str = "sum") -> Network:
    norm = Scale.exactly(np.reshape(scale, (-1, 1)), np.reshape(shift, (-1, 1)))
    return network(
        (1, 5),
        ("c0", conv(1, 3), "x"),
        ("r0", Relu(), "c0"),
        ("c1", conv(3, 4), "r0"),
        ("r1", Relu(), "c1"),
        ("c2", conv(4, 3), "r1"),
        ("n2", norm, "c2"),
        ("sum", Add(2), ("r0", "n2")),
        ("r", Relu(), "sum"),
        ("y", conv(3, 2), then),
    )


def test_a_block_that_is_0_goes():
    original = block([0.0] * 3)
    draft = drop_terms(start(original, -1, 1))
    holds(original, draft)
    assert draft.proven == 0
    assert [node.name for node in draft.network.nodes] == ["c0", "r0", "y"]
    assert [step.rewrite for step in draft.steps] == [NAME]


def test_a_block_that_is_constant_becomes_numbers_that_are_added():
    original = block([0.0] * 3, [0.5, 0.0, -1.0])
    draft = drop_terms(start(original, -1, 1))
    holds(original, draft)
    assert draft.proven == 0
    operator = draft.network["sum"].operator
    assert isinstance(operator, Scale)
    assert operator.shift.tolist() == [[0.5], [0.0], [-1.0]]
    assert kernels(draft.network) == [(3, 1), (2, 3)]


def test_a_constant_that_the_file_does_not_hold_stays():
    original = block([0.0] * 3, 0.1).edit(dtype="float32")
    draft = start(original, -1, 1)
    assert drop_terms(draft) is draft


def test_a_block_that_adds_to_one_channel_stays():
    draft = start(block([0.0, 1.0, 0.0]), -1, 1)
    assert drop_terms(draft) is draft


def test_a_sum_of_more_terms_loses_those_that_are_0():
    original = network(
        (1, 5),
        ("a", conv(1, 2), "x"),
        ("b", conv(1, 2), "x"),
        ("z", Scale.exactly(0.0), "b"),
        ("sum", Add(3), ("a", "z", "b")),
        ("y", conv(2, 2), "sum"),
    )
    draft = drop_terms(start(original, -1, 1))
    holds(original, draft)
    assert draft.network["sum"].inputs == ("a", "b")


def test_a_sum_that_an_output_shows_loses_its_block(tmp_path):
    original = block([0.0] * 3)
    shown = original.edit(outputs=(Output("s", "sum"), *original.outputs))
    draft = drop_terms(start(shown, -1, 1))
    holds(shown, draft)
    assert draft.proven == 0
    assert kernels(draft.network) == [(3, 1), (2, 3)]
    relutrim.save(draft.network, tmp_path / "m.onnx")
    x = torch.rand(4, 5, dtype=torch.float64)
    torch.testing.assert_close(relutrim.load(tmp_path / "m.onnx")(x), shown(x), rtol=0, atol=0)


def test_a_sum_that_is_fixed_stays():
    draft = start(block([0.0] * 3), -1, 1)
    assert drop_terms(draft, frozenset({"sum"})) is draft


@settings(max_examples=60, suppress_health_check=list(HealthCheck), deadline=None)
@given(channelled())
def test_no_sum_of_a_random_network_changes(original):
    """In rational arithmetic, whatever is 0 or constant."""
    draft = drop_terms(start(original, 0, 1))
    assert draft.proven == 0
    draw = np.random.default_rng(0)
    for _ in range(4):
        x = [Fraction(int(v), 4) for v in draw.integers(0, 5, original.input.size)]
        assert oracle.outputs(original, x) == oracle.outputs(draft.network, x)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 3, 3, padding=1)
        self.inner, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 3, 3, padding=1, bias=False)
        self.norm, self.head = nn.BatchNorm2d(3), nn.Linear(3 * 16, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        x = x + self.norm(self.last(torch.relu(self.inner(x))))
        return self.head(x.flatten(1))


def silent(bias: float) -> Residual:
    torch.manual_seed(0)
    module = Residual().eval()
    with torch.no_grad():
        module.norm.weight[:], module.norm.bias[:] = 0, bias
    return module


def test_a_module_keeps_its_sum_and_loses_what_is_inside():
    module = silent(0.0)
    result = relutrim.compress(module, relutrim.Box(-1, 1), input_shape=(1, 4, 4))
    assert type(result.model) is Residual
    assert tuple(result.model.inner.weight.shape[:2]) == (1, 3)
    assert tuple(result.model.last.weight.shape[:2]) == (3, 1)
    assert result.deviation.proven == 0
    x = torch.rand(8, 1, 4, 4)
    torch.testing.assert_close(module(x), result.model(x), rtol=0, atol=0)


@pytest.mark.parametrize("bias", [0.0, 0.25])
def test_a_file_loses_the_block(bias, tmp_path):
    module = silent(bias)
    relutrim.save(relutrim.load(module, input_shape=(1, 4, 4)), tmp_path / "m.onnx")
    result = relutrim.compress(tmp_path / "m.onnx", relutrim.Box(-1, 1), certificate=True)
    result.save(tmp_path / "s.onnx")
    kinds = [node.op_type for node in onnx.load(tmp_path / "s.onnx").graph.node]
    assert kinds.count("Conv") == 1
    assert kinds.count("Relu") == 1
    assert "BatchNormalization" not in kinds
    assert result.deviation.proven == 0
