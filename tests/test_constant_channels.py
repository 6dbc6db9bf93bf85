"""Constant channels become bias where the border allows, a map where that is less, and otherwise stay."""

from __future__ import annotations

import numpy as np
import pytest

import relutrim
from relutrim.graph import Linear, Network, Node, Output, Port, Relu, Reshape, Scale
from relutrim.graph.operators import Convolution
from relutrim.rewrite.constant_channels import NAME, constant_channels, mapped_constants
from relutrim.rewrite.pipeline import rewrite
from rewriting import start
from test_merge_channels import analysed, conv, holds, kernels, network

RNG = np.random.default_rng(1)


def with_constant(inputs: int = 1, outputs: int = 3, value: float = 0.7) -> Convolution:
    """A convolution whose last channel is a number."""
    kernel = conv(inputs, outputs)
    weight, bias = kernel.weight.copy(), kernel.bias.copy()
    weight[-1], bias[-1] = 0.0, value
    return Convolution(weight, bias, (1,), kernel.padding, (1,))


def one_layer(second: Convolution, size: int = 6) -> Network:
    return network((1, size), ("c", with_constant(), "x"), ("r", Relu(), "c"), ("y", second, "r"))


def test_without_padding_a_constant_becomes_bias():
    original = one_layer(conv(3, 2, padding=0))
    draft = constant_channels(start(original, -1, 1))
    holds(original, draft)
    assert kernels(draft.network) == [(2, 1), (2, 2)]
    assert draft.proven < 1e-14
    assert [step.rewrite for step in draft.steps] == [NAME, "drop-channels"]


def test_with_padding_the_border_differs_and_the_channel_stays():
    draft = start(one_layer(conv(3, 2, padding=1)), -1, 1)
    assert constant_channels(draft) is draft


def test_padding_that_no_weight_sees_does_no_harm():
    """The outer taps of the constant channel are 0; those of the others are not."""
    second = conv(3, 2, padding=1)
    weight = second.weight.copy()
    weight[:, 2, [0, 2]] = 0
    original = one_layer(Convolution(weight, second.bias, (1,), ((1, 1),), (1,)))
    draft = constant_channels(start(original, -1, 1))
    holds(original, draft)
    assert kernels(draft.network) == [(2, 1), (2, 2)]


def test_a_map_takes_the_place_of_a_channel_only_if_it_is_less():
    """Six weights and four of the constant's own against two numbers for each position."""
    for size, smaller in ((2, True), (12, False)):
        original = one_layer(conv(3, 2, padding=1), size)
        (draft,) = mapped_constants(start(original, -1, 1))
        holds(original, draft)
        assert kernels(draft.network) == [(2, 1), (2, 2)]
        assert draft.proven < 1e-14
        result = rewrite(original, analysed(original, -1, 1))
        assert (NAME in [step.rewrite for step in result.steps]) == smaller


def test_a_map_survives_a_file(tmp_path):
    original = one_layer(conv(3, 2, padding=1), 2)
    (draft,) = mapped_constants(start(original, -1, 1))
    relutrim.save(draft.network, tmp_path / "m.onnx")
    again = relutrim.load(tmp_path / "m.onnx")
    x = RNG.uniform(-1, 1, (5, 2))
    import torch

    rows = torch.as_tensor(x)
    torch.testing.assert_close(again(rows), original(rows), rtol=1e-12, atol=1e-12)


def test_channels_that_were_inactive_and_shifted_are_constant():
    dead = conv(1, 3)
    bias = dead.bias.copy()
    bias[1] = -100.0
    dead = Convolution(dead.weight, bias, (1,), ((1, 1),), (1,))
    norm = Scale.exactly(np.array([[1.0], [2.0], [0.5]]), np.array([[0.1], [-0.3], [0.0]]))
    original = network(
        (1, 5), ("c", dead, "x"), ("r", Relu(), "c"), ("n", norm, "r"), ("y", conv(3, 2, padding=0), "n")
    )
    draft = constant_channels(start(original, -1, 1))
    holds(original, draft)
    assert kernels(draft.network) == [(2, 1), (2, 2)]


def test_a_constant_channel_goes_from_what_is_flattened():
    head = Linear(RNG.normal(size=(2, 15)), np.zeros(2))
    original = network(
        (1, 5),
        ("c", with_constant(), "x"),
        ("r", Relu(), "c"),
        ("f", Reshape((3, 5), (15,)), "r"),
        ("y", head, "f"),
    )
    draft = constant_channels(start(original, -1, 1))
    holds(original, draft)
    assert kernels(draft.network) == [(2, 1), (2, 10)]


def test_one_reader_that_cannot_keeps_the_channel_for_all():
    original = network(
        (1, 5),
        ("c", with_constant(), "x"),
        ("r", Relu(), "c"),
        ("a", conv(3, 2, padding=0), "r"),
        ("b", conv(3, 2, padding=1), "r"),
        outputs=("a", "b"),
    )
    draft = start(original, -1, 1)
    assert constant_channels(draft) is draft


@pytest.mark.parametrize("padding", [0, 1])
def test_a_constant_that_an_output_shows_stays(padding):
    original = network(
        (1, 5),
        ("c", with_constant(), "x"),
        ("r", Relu(), "c"),
        ("y", conv(3, 2, padding=padding), "r"),
        outputs=("y", "r"),
    )
    draft = start(original, -1, 1)
    assert constant_channels(draft).network is original
    assert not mapped_constants(draft)


def test_a_value_of_constants_keeps_one_channel():
    kernel = Convolution(np.zeros((3, 1, 1)), np.array([0.5, 1.0, 2.0]), (1,), ((0, 0),), (1,))
    nodes = (
        Node("c", kernel, ("x",)),
        Node("r", Relu(), ("c",)),
        Node("y", conv(3, 2, padding=0), ("r",)),
    )
    original = Network(Port("x", (1, 4)), nodes, (Output("y", "y"),), dtype="float64")
    draft = constant_channels(start(original, -1, 1))
    holds(original, draft)
    assert kernels(draft.network) == [(1, 1), (2, 1)]
