"""Channels that are always 0, or that nobody reads, go wherever they run through the graph."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import oracle
from channelled import channelled
from relutrim.analysis import analyze_network
from relutrim.compression import compress_network
from relutrim.domain import Box, NormalizedBox
from relutrim.graph import Add, Linear, Network, Node, Output, Port, Relu, Reshape, Scale
from relutrim.graph.operators import (
    AveragePool,
    Concat,
    Convolution,
    MaxPool,
    Mean,
    Operator,
    Take,
    Transpose,
)
from relutrim.prove.deadline import Deadline
from relutrim.prove.verdict import Evidence
from relutrim.rewrite.draft import Draft
from relutrim.rewrite.drop_channels import drop_channels
from relutrim.rewrite.pipeline import rewrite
from rewriting import QUICK, start

RNG = np.random.default_rng(0)


def conv(inputs: int, outputs: int, dead: tuple[int, ...] = (), **options: Any) -> Convolution:
    """A 3x3 convolution of random weights; the channels ``dead`` are always below 0 on [0, 1]."""
    groups = options.pop("groups", 1)
    weight = RNG.normal(size=(outputs, inputs // groups, 3, 3))
    bias = RNG.uniform(0.1, 1, outputs)
    for channel in dead:
        weight[channel], bias[channel] = -np.abs(weight[channel]), -1.0
    return Convolution(weight, bias, (1, 1), ((1, 1), (1, 1)), (1, 1), groups)


def linear(inputs: int, outputs: int) -> Linear:
    return Linear(RNG.normal(size=(outputs, inputs)), RNG.normal(size=outputs))


def network(shape: tuple[int, ...], *nodes: tuple[str, Operator, Any]) -> Network:
    made = tuple(Node(n, o, (i,) if isinstance(i, str) else tuple(i)) for n, o, i in nodes)
    return Network(Port("x", shape), made, (Output("y", made[-1].name),))


def dropped(original: Network) -> Network:
    """The network without the channels, which must compute the same, and what is known of it must hold."""
    stability = analyze_network(original, Box(0, 1), data=None, **QUICK)
    draft = drop_channels(Draft.start(original, stability, Evidence.PROOF))
    x = torch.rand(64, original.input.size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    before, after = original.run(x), draft.network.run(x)
    y = original.outputs[0].source
    torch.testing.assert_close(before[y], after[y], rtol=1e-12, atol=1e-12)
    assert draft.realise().proven == 0
    for name, interval in draft.ranges.items():
        assert interval.lo.shape[1:] == draft.network.shapes[name]
        assert (after[name] >= interval.lo - 1e-9).all()
        assert (after[name] <= interval.hi + 1e-9).all()
    for relu in draft.network.relus:
        assert draft.zero[relu.name].size == draft.network.size(relu.name)
    return draft.network


def kernels(smaller: Network) -> list[tuple[int, ...]]:
    found = [n.operator for n in smaller.nodes if isinstance(n.operator, Convolution | Linear)]
    return [operator.weight.shape[:2] for operator in found]


def test_channels_go_through_pooling_batch_norm_and_flattening():
    norm = Scale.exactly(RNG.uniform(0.5, 2, (4, 1, 1)), np.zeros((4, 1, 1)))
    smaller = dropped(
        network(
            (2, 6, 6),
            ("c1", conv(2, 4, dead=(1,)), "x"),
            ("r1", Relu(), "c1"),
            ("n1", norm, "r1"),
            ("p1", MaxPool((2, 2), (2, 2), ((0, 0), (0, 0)), (1, 1)), "n1"),
            ("c2", conv(4, 5, dead=(0, 3)), "p1"),
            ("r2", Relu(), "c2"),
            ("p2", AveragePool((2, 2), (1, 1), ((0, 0), (0, 0))), "r2"),
            ("flat", Reshape((5, 2, 2), (20,)), "p2"),
            ("y", linear(20, 3), "flat"),
        )
    )
    assert kernels(smaller) == [(3, 2), (3, 3), (3, 12)]


def test_a_network_behind_a_normalisation_loses_its_channels_too():
    """The verdicts know the raw input as well, which the network does not have."""
    original = network(
        (2, 4, 4),
        ("c1", conv(2, 4, dead=(1,)), "x"),
        ("r1", Relu(), "c1"),
        ("c2", conv(4, 2), "r1"),
        ("r2", Relu(), "c2"),
        ("y", conv(2, 2), "r2"),
    ).edit(dtype="float64")
    result = compress_network(original, NormalizedBox(0, 1, mean=0.0, std=[1.0, 0.5]), **QUICK)
    assert kernels(result.network)[0] == (3, 2)
    x = torch.rand(16, *original.input.shape, dtype=torch.float64)
    torch.testing.assert_close(original.run(x)["y"], result.network.run(x)["y"], rtol=1e-12, atol=1e-12)


def test_a_shift_behind_a_dead_channel_makes_it_count():
    """Batch norm lifts the zeros to a constant: the channel stays."""
    norm = Scale.exactly(np.ones((3, 1, 1)), np.array([0.5, 0.0, 0.0]).reshape(3, 1, 1))
    smaller = dropped(
        network(
            (1, 4, 4),
            ("c1", conv(1, 3, dead=(0, 1)), "x"),
            ("r1", Relu(), "c1"),
            ("n1", norm, "r1"),
            ("y", conv(3, 2), "n1"),
        )
    )
    assert kernels(smaller) == [(2, 1), (2, 2)]


@pytest.mark.parametrize(("dead", "left"), [((), 4), ((1, 2), 3)])
def test_a_sum_ties_the_channels_of_what_it_adds(dead, left):
    """Only what is dead in both branches goes."""
    smaller = dropped(
        network(
            (1, 4, 4),
            ("c1", conv(1, 4, dead=(0, 1)), "x"),
            ("r1", Relu(), "c1"),
            ("c2", conv(1, 4, dead=dead), "x"),
            ("r2", Relu(), "c2"),
            ("sum", Add(2), ("r1", "r2")),
            ("y", conv(4, 2), "sum"),
        )
    )
    assert kernels(smaller) == [(left, 1), (left, 1), (2, left)]


def test_concatenations_keep_branches_apart():
    smaller = dropped(
        network(
            (1, 4, 4),
            ("c1", conv(1, 3, dead=(2,)), "x"),
            ("r1", Relu(), "c1"),
            ("c2", conv(1, 4, dead=(0, 1)), "x"),
            ("r2", Relu(), "c2"),
            ("join", Concat(0, (3, 4)), ("r1", "r2")),
            ("y", conv(7, 2), "join"),
        )
    )
    assert kernels(smaller) == [(2, 1), (2, 1), (2, 4)]


def test_what_nobody_takes_goes_and_picks_are_counted_anew():
    picks = Take((np.array([3, 1]), None, None))
    smaller = dropped(
        network(
            (1, 4, 4),
            ("c1", conv(1, 5, dead=(3,)), "x"),
            ("r1", Relu(), "c1"),
            ("some", picks, "r1"),
            ("y", conv(2, 2), "some"),
        )
    )
    assert kernels(smaller) == [(1, 1), (2, 1)]


def test_a_kernel_per_channel_ties_what_it_reads_to_what_it_makes():
    smaller = dropped(
        network(
            (1, 4, 4),
            ("c1", conv(1, 4, dead=(1,)), "x"),
            ("r1", Relu(), "c1"),
            ("c2", conv(4, 4, dead=(1, 2), groups=4), "r1"),
            ("r2", Relu(), "c2"),
            ("y", conv(4, 2), "r2"),
        )
    )
    assert kernels(smaller) == [(2, 1), (2, 1), (2, 2)]


def test_channels_last():
    """As TensorFlow exports: transposed before the flattening."""
    smaller = dropped(
        network(
            (1, 4, 4),
            ("c1", conv(1, 3, dead=(1,)), "x"),
            ("r1", Relu(), "c1"),
            ("last", Transpose((1, 2, 0)), "r1"),
            ("flat", Reshape((4, 4, 3), (48,)), "last"),
            ("y", linear(48, 2), "flat"),
        )
    )
    assert kernels(smaller) == [(2, 1), (2, 32)]


def test_channels_last_between_convolutions():
    """As TensorFlow exports: a transpose before the first convolution, and around every ReLU."""
    smaller = dropped(
        network(
            (4, 5, 3),
            ("first", Transpose((2, 0, 1)), "x"),
            ("c1", conv(3, 4, dead=(1, 2)), "first"),
            ("l1", Transpose((1, 2, 0)), "c1"),
            ("r1", Relu(), "l1"),
            ("f1", Transpose((2, 0, 1)), "r1"),
            ("c2", conv(4, 5, dead=(0,)), "f1"),
            ("l2", Transpose((1, 2, 0)), "c2"),
            ("r2", Relu(), "l2"),
            ("y", linear(5, 2), "r2"),
        )
    )
    assert kernels(smaller) == [(2, 3), (4, 2), (2, 4)]


def test_means_over_space_keep_channels_and_means_over_channels_keep_them_all():
    layers = (("c1", conv(1, 3, dead=(1,)), "x"), ("r1", Relu(), "c1"))
    over = network((1, 4, 4), *layers, ("m", Mean((1, 2), keep=False), "r1"), ("y", linear(3, 2), "m"))
    assert kernels(dropped(over)) == [(2, 1), (2, 2)]
    across = network((1, 4, 4), *layers, ("y", Mean((0,), keep=False), "r1"))
    assert kernels(dropped(across)) == [(3, 1)]


def test_a_layer_that_is_dead_as_a_whole_keeps_one_channel():
    smaller = dropped(
        network(
            (1, 4, 4), ("c1", conv(1, 3, dead=(0, 1, 2)), "x"), ("r1", Relu(), "c1"), ("y", conv(3, 2), "r1")
        )
    )
    assert kernels(smaller) == [(1, 1), (2, 1)]


def test_outputs_and_inputs_keep_their_shapes():
    smaller = dropped(network((2, 4, 4), ("c1", conv(2, 3, dead=(1,)), "x"), ("y", Relu(), "c1")))
    assert kernels(smaller) == [(3, 2)]


def test_a_single_number_is_passed_on():
    """Values without axes have one slice, whatever is done with them."""
    smaller = dropped(
        network(
            (1, 4, 4),
            ("c1", conv(1, 3, dead=(1,)), "x"),
            ("r1", Relu(), "c1"),
            ("m", Mean((0, 1, 2), keep=False), "r1"),
            ("t", Take(()), "m"),
            ("y", Transpose(()), "t"),
        )
    )
    assert kernels(smaller) == [(3, 1)]


def silenced(scale: Any, shift: Any = 0.0) -> Scale:
    """A scale per channel."""
    return Scale.exactly(np.array(scale, float).reshape(-1, 1, 1), np.array(shift, float).reshape(-1, 1, 1))


def block(scale: Scale, *more: tuple[str, Operator, Any]) -> Network:
    return network(
        (2, 4, 4),
        ("c0", conv(2, 4), "x"),
        ("r0", Relu(), "c0"),
        ("c1", conv(4, 5), "r0"),
        ("r1", Relu(), "c1"),
        ("c2", conv(5, 4), "r1"),
        ("n2", scale, "c2"),
        ("sum", Add(2), ("r0", "n2")),
        *(more or (("y", conv(4, 2), "sum"),)),
    )


@pytest.mark.parametrize("shift", [0.0, [0.0, 0.5, -1.0, 0.0]])
def test_a_block_that_adds_nothing_that_varies_holds_no_channels_inside(shift):
    """Its last convolution is tied to what it is added to, but nobody reads what that makes."""
    smaller = dropped(block(silenced([0.0] * 4, shift)))
    assert kernels(smaller) == [(4, 2), (1, 4), (4, 1), (2, 4)]


def test_what_only_cuts_leave_of_a_value_is_what_it_was():
    """The checker finds every slice again by its coefficients."""
    original = block(silenced([0.0] * 4))
    found = rewrite(original, analyze_network(original, Box(0, 1), data=None, **QUICK), rewrites="cuts")
    assert kernels(found.stored) == kernels(original)


def test_a_channel_that_only_a_silent_part_of_a_block_reads_goes():
    """The fifth one of the block, which the first two channels of its last convolution weigh."""
    original = block(silenced([0.0, 0.0, 1.0, 1.0]))
    weight = np.array(original["c2"].operator.weight)
    weight[2:, 4] = 0.0
    changed = replace(original["c2"], operator=replace(original["c2"].operator, weight=weight))
    smaller = dropped(original.edit(change={"c2": changed}))
    assert kernels(smaller) == [(4, 2), (4, 4), (4, 4), (2, 4)]


def test_what_is_always_0_stays_that_where_it_is_read():
    """A dead channel that is tied to a live one holds what makes it dead."""
    smaller = dropped(
        network(
            (1, 4, 4),
            ("a", conv(1, 1), "x"),
            ("b", Relu(), "a"),
            ("c", conv(1, 2, dead=(0, 1)), "b"),
            ("r", Relu(), "c"),
            ("d", conv(1, 2), "x"),
            ("sum", Add(2), ("r", "d")),
            ("y", conv(2, 2), "sum"),
            ("z", conv(2, 2), "r"),
            ("w", Add(2), ("y", "z")),
        )
    )
    assert kernels(smaller) == [(1, 1), (2, 1), (2, 1), (2, 2), (2, 2)]


@settings(max_examples=60, suppress_health_check=list(HealthCheck), deadline=None)
@given(channelled(), st.sampled_from([(0.0, 1.0), (-1.0, 1.0)]))
def test_outputs_stay_and_what_is_known_holds_of_every_value(original, ends):
    """In rational arithmetic: slices that stay only because they are tied may be anything, and no range says
    otherwise.
    """
    draft = drop_channels(start(original, *ends))
    assert draft.proven == 0
    draw = np.random.default_rng(0)
    for _ in range(4):
        x = [
            Fraction(ends[0]) + Fraction(int(s), 4) * int(ends[1] - ends[0])
            for s in draw.integers(0, 5, original.input.size)
        ]
        values = oracle.evaluate(draft.network, x)
        assert oracle.outputs(original, x) == [v for s in draft.network.sources for v in values[s]]
        for name, known in draft.ranges.items():
            lo, hi = known.lo.flatten().tolist(), known.hi.flatten().tolist()
            assert all(a <= v <= b for a, v, b in zip(lo, values[name], hi, strict=True)), name
        for relu in draft.network.relus:
            before = values[relu.inputs[0]]
            assert all(v <= 0 for v, off in zip(before, draft.zero[relu.name].ravel(), strict=True) if off)
            assert all(v >= 0 for v, on in zip(before, draft.identity[relu.name].ravel(), strict=True) if on)


def test_what_goes_at_once_goes_even_if_time_is_up():
    nodes = (("c", conv(1, 4, (0, 2)), "x"), ("r", Relu(), "c"), ("p", Mean((1, 2), keep=False), "r"))
    original = network((1, 5, 5), *nodes, ("y", linear(4, 2), "p"))
    stability = analyze_network(original, Box(0, 1), data=None, **QUICK)
    found = rewrite(original, stability, deadline=Deadline(0))
    assert found.stored["c"].operator.weight.shape == (2, 1, 3, 3)
    assert found.deviation == 0
