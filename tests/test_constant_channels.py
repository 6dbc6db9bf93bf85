"""Constant channels become bias where the border allows, a map where that is less, and otherwise stay."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import relutrim
from relutrim.graph import Linear, Network, Node, Output, Port, Relu, Reshape, Scale
from relutrim.graph.operators import BatchNorm, Convolution
from relutrim.rewrite.constant_channels import NAME, constant_channels, mapped_constants, pair_constants
from relutrim.rewrite.merge_channels import merge_constants, merge_exact_constants
from relutrim.rewrite.pipeline import rewrite
from rewriting import compressed, start
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


def several(constants: list[float], *, seed: int = 0, digits: int | None = None) -> Network:
    """Two channels that vary and constant ones in front of a padded convolution, as float32 stores them."""
    draw = np.random.default_rng(seed)
    weight = np.zeros((2 + len(constants), 1, 3))
    weight[:2] = draw.normal(size=(2, 1, 3))
    second = draw.normal(size=(2, 2 + len(constants), 3))
    if digits is not None:
        second = np.round(second * 2**digits) / 2**digits
    single = [np.float32(array).astype(float) for array in (weight, [1.0, 1.0, *constants], second)]
    nodes = (
        ("c", Convolution(single[0], single[1], (1,), ((1, 1),), (1,)), "x"),
        ("r", Relu(), "c"),
        ("y", Convolution(single[2], np.zeros(2), (1,), ((1, 1),), (1,)), "r"),
    )
    return network((1, 12), *nodes).edit(dtype="float32")


def test_one_of_several_constant_channels_stays_before_padding():
    original = several([0.1, 0.2, 0.7])
    draft = merge_constants(start(original, -1, 1))
    holds(original, draft)
    assert kernels(draft.network) == [(3, 1), (2, 3)]
    assert 0 < draft.stored().proven < 1e-6


@pytest.mark.parametrize("constants", [[0.1, 0.1, 0.1], [0.3, 0.6, 0.15]])
def test_that_moves_nothing_where_the_new_weights_are_exact(constants):
    original = several(constants, digits=8)
    draft = merge_exact_constants(start(original, -1, 1))
    holds(original, draft)
    assert kernels(draft.network) == [(3, 1), (2, 3)]
    assert draft.stored().proven == 0


def test_two_constant_channels_hold_what_one_cannot():
    """What storing rounds off the first one's weights is for the second one's."""
    original = several([0.1, 0.2, 0.7, 1.1])
    single, pair = (apply(start(original, -1, 1)) for apply in (merge_constants, pair_constants))
    holds(original, pair)
    assert kernels(pair.network) == [(4, 1), (2, 4)]
    assert pair.stored().proven < 1e-13 < single.stored().proven


def test_two_constant_channels_are_as_few_as_a_pair():
    draft = start(several([0.1, 0.2]), -1, 1)
    assert pair_constants(draft) is draft


def test_as_many_constant_channels_stay_as_the_tolerance_asks_for():
    """One where storing its weights takes little enough, and otherwise two."""
    original = several([0.1, 0.2, 0.7, 1.1])
    result = compressed(original, -1, 1, tolerance=1e-10)
    assert kernels(result.stored) == [(4, 1), (2, 4)]
    assert result.deviation.proven is not None
    assert result.deviation.proven < 1e-13
    loosely = compressed(original, -1, 1, tolerance=1e-3)
    assert kernels(loosely.stored) == [(3, 1), (2, 3)]


def test_a_batch_norm_takes_the_constant_of_a_convolution_that_has_no_bias():
    """Into its mean: the convolution stays without."""
    draw = np.random.default_rng(0)
    second = Convolution(draw.normal(size=(2, 3, 3)), np.zeros(2), (1,), ((0, 0),), (1,))
    parts = (draw.uniform(0.5, 2, (2, 1)) for _ in range(4))
    original = network(
        (1, 6),
        ("c", with_constant(), "x"),
        ("r", Relu(), "c"),
        ("d", second, "r"),
        ("n", BatchNorm.of(*parts, 2.0**-10), "d"),
        ("y", Relu(), "n"),
    )
    draft = constant_channels(start(original, -1, 1))
    assert kernels(draft.network) == [(2, 1), (2, 2)]
    assert not draft.network["d"].operator.bias.any()
    assert draft.proven < 1e-13
    x = torch.as_tensor(draw.uniform(-1, 1, (200, 6)))
    before, after = original.run(x), draft.network.run(x)
    assert float((before["y"] - after["y"]).abs().max()) <= draft.proven + 1e-13
    for name, known in draft.ranges.items():
        assert (known.lo - 1e-12 <= after[name]).all()
        assert (after[name] <= known.hi + 1e-12).all()


def unbiased(*behind: nn.Module) -> nn.Sequential:
    """A module whose first convolution has a constant channel, and whose second has no bias."""
    torch.manual_seed(0)
    module = nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, bias=False), *behind, nn.ReLU()),
        *(nn.Flatten(), nn.Linear(8 * 16, 4)),
    ).eval()
    with torch.no_grad():
        module[0].weight[0], module[0].bias[0] = 0, 0.1
    return module


def test_a_module_stays_of_its_class_where_a_batch_norm_takes_the_constant():
    module = unbiased(nn.BatchNorm2d(8))
    result = relutrim.compress(module, relutrim.Box(-1, 1), input_shape=(3, 8, 8), tolerance=1e-4)
    assert type(result.model) is nn.Sequential
    assert result.remark is None
    assert tuple(result.model[2].weight.shape[:2]) == (8, 7)
    assert result.model[2].bias is None
    x = torch.rand(8, 3, 8, 8)
    assert float((module(x) - result.model(x)).abs().max()) < 1e-4


def test_a_module_stays_of_its_class_where_nothing_takes_the_constant():
    """One channel of eight is no tenth of the parameters."""
    result = relutrim.compress(unbiased(), relutrim.Box(-1, 1), input_shape=(3, 8, 8), tolerance=1e-4)
    assert type(result.model) is nn.Sequential
    assert tuple(result.model[0].weight.shape[:2]) == (8, 3)
