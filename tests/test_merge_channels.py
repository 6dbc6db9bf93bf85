"""Channels that others stand for go: multiples, and combinations of active ones."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import oracle
from channelled import channelled
from relutrim.analysis import analyze_network
from relutrim.compression import compress_network
from relutrim.domain import Box, Everywhere
from relutrim.graph import Add, Linear, Network, Node, Output, Port, Relu, Reshape, Scale
from relutrim.graph.operators import (
    AveragePool,
    BatchNorm,
    Concat,
    Convolution,
    MaxPool,
    Mean,
    Operator,
    Take,
    Tanh,
    Transpose,
)
from relutrim.prove.stability import Stability
from relutrim.rewrite.cost import Cost
from relutrim.rewrite.draft import Draft
from relutrim.rewrite.merge_channels import NAME, merge_combinations, merge_kernels
from relutrim.rewrite.pipeline import rewrite
from rewriting import QUICK, start

RNG = np.random.default_rng(0)
slow = settings(max_examples=60, suppress_health_check=list(HealthCheck))


def conv(
    inputs: int,
    outputs: int,
    like: dict[int, tuple[int, float]] | None = None,
    *,
    padding: int = 1,
    bias: Any = None,
    groups: int = 1,
    size: int = 3,
) -> Convolution:
    """A convolution over one axis; ``like`` says which kernels are which multiple of which others."""
    weight = RNG.normal(size=(outputs, inputs // groups, size))
    bias = RNG.normal(size=outputs) / 10 if bias is None else np.array(bias, dtype=float)
    for one, (other, factor) in (like or {}).items():
        weight[one], bias[one] = factor * weight[other], factor * bias[other]
    return Convolution(weight, bias, (1,), ((padding, padding),), (1,), groups)


def network(
    shape: tuple[int, ...], *nodes: tuple[str, Operator, Any], outputs: tuple[str, ...] = ()
) -> Network:
    made = tuple(Node(n, o, (i,) if isinstance(i, str) else tuple(i)) for n, o, i in nodes)
    ends = outputs or (made[-1].name,)
    return Network(Port("x", shape), made, tuple(Output(f"y{n}", n) for n in ends), dtype="float64")


def holds(original: Network, draft: Draft, *, rng: int = 0, points: int = 12) -> None:
    """What is proven of a draft, in memory and as stored, is true at random points of [-1, 1], exactly."""
    draw = np.random.default_rng(rng)
    for final in (draft.realise(), draft.stored().realise()):
        for _ in range(points):
            x = [Fraction(int(v), 8) for v in draw.integers(-8, 9, original.input.size)]
            gaps = [
                abs(a - b)
                for a, b in zip(oracle.outputs(original, x), oracle.outputs(final.network, x), strict=True)
            ]
            assert max(gaps) <= Fraction(final.proven)


def analysed(original: Network, lo: float, hi: float) -> Stability:
    ends = (np.full(original.input.shape, end) for end in (lo, hi))
    return analyze_network(original, Box(*ends), data=None, **QUICK)


def merged(original: Network, *, lo: float = -1.0) -> Network:
    draft = start(original, lo, 1)
    found = merge_kernels(draft)
    holds(original, found)
    assert found.proven < 1e-12
    return found.network


def kernels(smaller: Network) -> list[tuple[int, ...]]:
    found = [n.operator for n in smaller.nodes if isinstance(n.operator, Convolution | Linear)]
    return [operator.weight.shape[:2] for operator in found]


POOL = AveragePool((2,), (1,), ((1, 0),), True)
MAXIMUM = MaxPool((2,), (1,), ((0, 1),), (1,))


@pytest.mark.parametrize("factor", [1.0, 2.0, 0.3, -1.0, -0.7])
def test_multiples_become_one_channel_and_opposites_stay(factor):
    """Behind a ReLU. Biases are multiples too, so padding does no harm."""
    smaller = merged(
        network((1, 5), ("c", conv(1, 4, {2: (0, factor)}), "x"), ("r", Relu(), "c"), ("y", conv(4, 2), "r"))
    )
    left = 3 if factor > 0 else 4
    assert kernels(smaller) == [(left, 1), (2, left)]


def test_without_a_relu_opposites_are_multiples():
    smaller = merged(network((1, 5), ("c", conv(1, 3, {2: (0, -0.7)}), "x"), ("y", conv(3, 2), "c")))
    assert kernels(smaller) == [(2, 1), (2, 2)]


def test_a_maximum_keeps_opposites_apart():
    smaller = merged(
        network(
            (1, 5),
            ("c", conv(1, 3, {1: (0, -1.0), 2: (0, 2.0)}), "x"),
            ("m", MAXIMUM, "c"),
            ("y", conv(3, 2), "m"),
        )
    )
    assert kernels(smaller) == [(2, 1), (2, 2)]


def test_other_biases_are_other_channels():
    kernel = conv(1, 3, {2: (0, 2.0)})
    bias = kernel.bias + np.array([0, 0, 1e-6])
    other = Convolution(kernel.weight, bias, (1,), ((1, 1),), (1,))
    original = network((1, 5), ("c", other, "x"), ("r", Relu(), "c"), ("y", conv(3, 2), "r"))
    assert merge_kernels(start(original, -1, 1)).network is original


@pytest.mark.parametrize(
    "between",
    [
        [POOL],
        [MAXIMUM],
        [Scale.exactly(np.array([[2.0], [-1.0], [4.0]]))],
        [Take((np.array([0, 1, 2]), np.array([-1, 0, 1, 2, -1])))],
        [Take((np.array([2, 0, 1, 2]), None))],
        [Transpose((1, 0)), Transpose((1, 0))],
    ],
)
def test_multiples_pass_through(between):
    nodes = [("c", conv(1, 3, {2: (0, 2.0)}), "x"), ("r", Relu(), "c")]
    for k, operator in enumerate(between):
        nodes.append((f"b{k}", operator, nodes[-1][0]))
    outputs = 4 if isinstance(between[0], Take) and len(between[0].picks[0]) == 4 else 3
    smaller = merged(network((1, 5), *nodes, ("y", conv(outputs, 2), nodes[-1][0])))
    assert kernels(smaller) == [(2, 1), (2, 2)]


def test_multiples_go_from_what_is_flattened_or_averaged():
    layers = (("c", conv(1, 3, {2: (0, 2.0)}), "x"), ("r", Relu(), "c"))
    head = Linear(RNG.normal(size=(2, 15)), np.zeros(2))
    flat = network((1, 5), *layers, ("f", Reshape((3, 5), (15,)), "r"), ("y", head, "f"))
    assert kernels(merged(flat)) == [(2, 1), (2, 10)]
    last = network(
        (1, 5), *layers, ("t", Transpose((1, 0)), "r"), ("f", Reshape((5, 3), (15,)), "t"), ("y", head, "f")
    )
    assert kernels(merged(last)) == [(2, 1), (2, 10)]
    mean = network(
        (1, 5),
        *layers,
        ("m", Mean((1,), False), "r"),
        ("y", Linear(RNG.normal(size=(2, 3)), np.zeros(2)), "m"),
    )
    assert kernels(merged(mean)) == [(2, 1), (2, 2)]


@pytest.mark.parametrize(("other", "left"), [(2.0, 2), (1.0, 3)])
def test_a_sum_keeps_multiples_if_both_terms_are_the_same_ones(other, left):
    smaller = merged(
        network(
            (1, 5),
            ("c", conv(1, 3, {2: (0, 2.0)}), "x"),
            ("r", Relu(), "c"),
            ("d", conv(1, 3, {2: (0, other)}), "x"),
            ("s", Add(2), ("r", "d")),
            ("y", conv(3, 2), "s"),
        )
    )
    assert kernels(smaller) == [(left, 1), (left, 1), (2, left)]


def test_multiples_in_a_concatenation_go_from_their_branch():
    smaller = merged(
        network(
            (1, 5),
            ("c", conv(1, 3, {2: (0, 2.0)}), "x"),
            ("r", Relu(), "c"),
            ("j", Concat(0, (3, 1)), ("r", "x")),
            ("y", conv(4, 2), "j"),
        )
    )
    assert kernels(smaller) == [(2, 1), (2, 3)]


def test_a_kernel_per_channel_passes_multiples_on_if_it_is_the_same_one():
    same = np.repeat(RNG.normal(size=(1, 1, 3)), 3, axis=0)
    for weight, left in ((same, 2), (RNG.normal(size=(3, 1, 3)), 3)):
        own = Convolution(weight, np.zeros(3), (1,), ((1, 1),), (1,), 3)
        smaller = merged(
            network(
                (1, 5),
                ("c", conv(1, 3, {2: (0, 2.0)}), "x"),
                ("r", Relu(), "c"),
                ("d", own, "r"),
                ("y", conv(3, 2), "d"),
            )
        )
        assert kernels(smaller) == [(left, 1), (left, 1), (2, left)]


def test_what_an_output_shows_stays():
    layers = (("c", conv(1, 3, {2: (0, 2.0)}), "x"), ("r", Relu(), "c"), ("y", conv(3, 2), "r"))
    for outputs in (("y", "r"), ("c", "y")):
        original = network((1, 5), *layers, outputs=outputs)
        assert merge_kernels(start(original, -1, 1)).network is original


def test_channels_that_are_stable_at_different_positions_are_not_merged():
    """One stands for the identity where the other is a ReLU: their drafts differ by what rounding moves."""
    original = network(
        (1, 5), ("c", conv(1, 3, {2: (0, 2.0)}), "x"), ("r", Relu(), "c"), ("y", conv(3, 2), "r")
    )
    draft = start(original, -1, 1)
    identity = draft.identity["r"].copy()
    identity[10] = not identity[10]
    changed = draft.rewritten(draft.network, None, identity={"r": identity})
    assert merge_kernels(changed).network is original


def norm(gain: Any, bias: Any, mean: Any, variance: Any) -> BatchNorm:
    parts = (np.array(part, dtype=float).reshape(-1, 1) for part in (gain, bias, mean, variance))
    return BatchNorm.of(*parts, 2.0**-10)


@pytest.mark.parametrize("also", [Relu(), Tanh()])
def test_channels_that_are_the_same_stay_the_same_behind_the_same_batch_norm(also):
    """Whose scales are no floats; the third channel has another variance."""
    same = norm([0.7, 0.7, 0.7, 1.0], [0.3, 0.3, 0.3, 0.0], [0.1, 0.1, 0.1, 0.2], [1.3, 1.3, 1.4, 1.0])
    original = network(
        (1, 5),
        ("c", conv(1, 4, {1: (0, 1.0), 2: (0, 1.0)}), "x"),
        ("n", same, "c"),
        ("r", also, "n"),
        ("y", conv(4, 2), "r"),
    )
    draft = merge_kernels(start(original, -1, 1))
    assert kernels(draft.network) == [(3, 1), (2, 3)]
    assert draft.proven < 1e-12
    x = torch.as_tensor(RNG.uniform(-1, 1, (50, 5)))
    torch.testing.assert_close(draft.network(x), original(x), rtol=1e-12, atol=1e-12)


def test_multiples_are_no_multiples_behind_a_batch_norm():
    same = norm([0.7] * 3, [0.3] * 3, [0.1] * 3, [1.3] * 3)
    original = network(
        (1, 5), ("c", conv(1, 3, {1: (0, 2.0)}), "x"), ("n", same, "c"), ("y", conv(3, 2), "n")
    )
    assert merge_kernels(start(original, -1, 1)).network is original


@pytest.mark.parametrize("domain", [Everywhere(), Box(0, 1)])
def test_duplicates_go_one_by_one_where_the_new_weights_are_exact(domain):
    """Three channels are the fourth; of the weights of one of them the sums with the fourth's would round."""
    weight = np.float32(RNG.normal(size=(2, 4, 3))).astype(float)
    weight[:, [0, 2, 3]] = np.round(weight[:, [0, 2, 3]] * 64) / 64
    weight[0, 1, 0] = 2.0**-40
    nodes = (
        ("c", Convolution(np.full((4, 1, 1), 0.3125), np.zeros(4), (1,), ((0, 0),), (1,)), "x"),
        ("n", norm([0.75] * 4, [0.25] * 4, [0.5] * 4, [1.5] * 4), "c"),
        ("r", Relu(), "n"),
        ("y", Convolution(weight, np.zeros(2), (1,), ((1, 1),), (1,)), "r"),
    )
    original = network((1, 5), *nodes).edit(dtype="float32")
    result = compress_network(original, domain, tolerance=0, **QUICK)
    assert kernels(result.stored) == [(2, 1), (2, 2)]
    assert result.deviation.proven == 0
    left = result.stored["y"].operator.weight
    np.testing.assert_array_equal(left.sum(1), weight.sum(1))


def test_weights_that_overflow_on_the_way_are_left_as_they_are():
    """Their difference would be a number, but not what bounds its rounding."""
    first = Convolution(np.array([[[1.0]], [[3.0]], [[-1.0]]]), np.zeros(3), (1,), ((0, 0),), (1,))
    second = Convolution(np.array([[[1e308], [-5e307], [1.0]]]), np.zeros(1), (1,), ((0, 0),), (1,))
    original = network((1, 3), ("c", first, "x"), ("r", Relu(), "c"), ("y", second, "r"))
    with np.errstate(over="ignore"):
        assert merge_kernels(start(original, -1, 1)).network is original


def active(count: int, inputs: int, **options: Any) -> Convolution:
    """Kernels whose last is the sum of the others, active on [-1, 1]."""
    kernel = conv(inputs, count, **options)
    weight, bias = kernel.weight.copy(), np.full(count, 20.0)
    weight[-1], bias[-1] = weight[:-1].sum(0), bias[:-1].sum()
    return Convolution(weight, bias, (1,), kernel.padding, (1,))


@pytest.mark.parametrize("between", [[], [POOL], [Scale.exactly(-2.0)], [Take((None, np.array([-1, 0, 1])))]])
def test_active_channels_that_depend_on_others_go(between):
    nodes = [("c", active(4, 2), "x"), ("r", Relu(), "c")]
    for k, operator in enumerate(between):
        nodes.append((f"b{k}", operator, nodes[-1][0]))
    original = network((2, 5), *nodes, ("y", conv(4, 2), nodes[-1][0]))
    draft = merge_combinations(start(original, -1, 1), "c")
    holds(original, draft)
    assert kernels(draft.network) == [(3, 2), (2, 3)]
    assert draft.proven < 1e-11
    assert NAME in [step.rewrite for step in draft.steps]


def test_as_many_active_channels_as_a_kernel_has_numbers_and_a_bias_are_enough():
    kernel = Convolution(RNG.normal(size=(9, 1, 2)), np.full(9, 20.0), (1,), ((1, 1),), (1,))
    original = network((1, 4), ("c", kernel, "x"), ("r", Relu(), "c"), ("y", conv(9, 2), "r"))
    draft = merge_combinations(start(original, -1, 1), "c")
    holds(original, draft)
    assert kernels(draft.network) == [(3, 1), (2, 3)]


def test_active_channels_behind_a_maximum_stay():
    original = network(
        (2, 5), ("c", active(4, 2), "x"), ("r", Relu(), "c"), ("m", MAXIMUM, "r"), ("y", conv(4, 2), "m")
    )
    draft = start(original, -1, 1)
    assert merge_combinations(draft, "c") is draft


def test_active_channels_that_someone_else_picks_stay():
    """The last one is weighed where the others are not."""
    original = network(
        (2, 5),
        ("c", active(4, 2), "x"),
        ("r", Relu(), "c"),
        ("t", Take((np.array([3]), None)), "r"),
        ("a", conv(1, 2), "t"),
        ("b", conv(4, 2), "r"),
        ("y", Add(2), ("a", "b")),
    )
    draft = start(original, -1, 1)
    assert merge_combinations(draft, "c") is draft


@slow
@given(channelled(), st.sampled_from(list(Cost)), st.sampled_from([(0.0, 1.0), (-1.0, 1.0), (-0.5, 0.25)]))
def test_networks_full_of_such_channels_stay_what_they_are(original, cost, ends):
    """All rewrites together, several outputs and tied channels among them, in rational arithmetic; and what
    is said to be always 0 is.
    """
    result = rewrite(original, analysed(original, *ends), cost=cost)
    assert cost.of(result.stored) <= cost.of(original)
    draw = np.random.default_rng(0)
    for k in range(6):
        share = (
            draw.integers(0, 9, original.input.size)
            if k % 2
            else 8 * draw.integers(0, 2, original.input.size)
        )
        x = [Fraction(ends[0]) + Fraction(int(s), 8) * Fraction(ends[1] - ends[0]) for s in share]
        before = oracle.outputs(original, x)
        for smaller, claimed in (
            (result.network, result.deviation),
            (result.stored, result.deviation_stored),
        ):
            values = oracle.evaluate(smaller, x)
            after = [value for source in smaller.sources for value in values[source]]
            assert all(abs(a - b) <= Fraction(claimed) for a, b in zip(before, after, strict=True))
        for name, mask in result.inactive.items():
            assert all(v == 0 for v, off in zip(values[name], mask.ravel(), strict=True) if off)


@settings(slow, max_examples=40)
@given(channelled(steps=4, neurons=9, largest=2))
def test_nothing_is_missed_between_points(original):
    """The largest deviation over the whole box, where that is small enough to be found."""
    assume(original.input.size <= 3)
    result = rewrite(original, analysed(original, -1.0, 1.0))
    box = oracle.Polytope.of(np.full(original.input.size, -1.0), np.full(original.input.size, 1.0))
    for smaller, claimed in ((result.network, result.deviation), (result.stored, result.deviation_stored)):
        largest = max(oracle.largest_deviations(original, smaller, box), default=Fraction(0))
        assert largest <= Fraction(claimed)
