"""What once broke the rewrites, or would have: each test is one attack."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

import oracle
from relutrim.analysis import analyze_network
from relutrim.compression import compress_network
from relutrim.domain import Box
from relutrim.graph import Add, Linear, Relu, Scale
from relutrim.prove.verdict import Evidence
from relutrim.rewrite.budget import Budget
from relutrim.rewrite.carry_linear import carry_linear
from relutrim.rewrite.collapse import collapse
from relutrim.rewrite.collinear import split_opposites
from relutrim.rewrite.gains import gains
from relutrim.rewrite.layers import dense_layer
from relutrim.rewrite.negligible import drop_connections, drop_negligible
from relutrim.rewrite.pipeline import rewrite
from relutrim.rewrite.rules import Allowance
from rewriting import QUICK, assert_holds, assert_true, compressed, dense, gap, graph, layer_of, linear, start

TOLERANCES = (0, 1e-12, 1e-6, 1e-2, 1.0, "rounding", "exact")
TINIEST = 5e-324


def allowing(draft, amount):
    return Budget({source: torch.full_like(d, amount) for source, d in draft.deviation.items()})


# Inactive neurons that stay in the network are 0 only until something moves them.


def mixed_output(slope=1e-3):
    """Outputs relu(r0 - r1 - 0.01), which is 0, and one that is unstable."""
    return dense(
        linear([[1.0], [1.0]], [-0.5, 0.0]),
        linear([[1.0, -1.0], [slope, 1.0]], [-0.01, -0.5]),
        output_relu=True,
    )


def test_an_inactive_output_is_not_free_to_move():
    network = mixed_output()
    draft = start(network, 0, 1)
    assert draft.zero["relu2"].tolist() == [True, False]
    after = drop_negligible(draft, layer_of(draft, "relu1"), allowing(draft, 1e-2), 0.5)
    assert_true(network, after, 0, 1)
    after = drop_negligible(draft, layer_of(draft, "relu1"), allowing(draft, 3.0), 0.5)
    assert after is not draft
    assert_true(network, after, 0, 1)


@pytest.mark.parametrize("seed", [32, 43, 51])
@pytest.mark.parametrize("tolerance", [0.3, 0.03])
def test_inactive_outputs_on_a_constrained_domain(seed, tolerance):
    """Claimed once: 1e-14. True: 0.6. The middle of the ranges lies outside of the domain."""
    random = np.random.default_rng(seed)
    first = linear(random.normal(size=(4, 2)), random.normal(size=4) * 0.3)
    row = random.normal(size=2)
    least = 0.8 * np.abs(row).sum()
    network = dense(first, linear(random.normal(size=(3, 4)), random.normal(size=3) - 0.8), output_relu=True)
    box = Box([-1, -1], [1, 1]).constrain(row[None], [least], [np.inf])
    domain = oracle.Polytope.of([-1, -1], [1, 1], row[None], [least], [np.inf])
    result = compress_network(network, box, tolerance=tolerance, **QUICK)
    for smaller, claimed in (
        (result.network, result.deviation.proven_float64),
        (result.stored, result.deviation.proven),
    ):
        largest = max(oracle.largest_deviations(network, smaller, domain))
        assert largest <= Fraction(claimed) <= Fraction(tolerance)


def test_an_inactive_neuron_that_a_sum_reads_is_not_free_to_move():
    network = graph(
        1,
        [
            ("a", linear([[1.0], [1.0]], [-0.5, 0.0]), "x"),
            ("r", Relu(), "a"),
            ("b", linear([[1.0, -1.0]], [-0.01]), "r"),
            ("s", Relu(), "b"),
            ("t", Add(2), ("s", "x")),
        ],
        "t",
    )
    draft = start(network, 0, 1)
    assert draft.zero["s"].all()
    after = drop_connections(draft, "b", allowing(draft, 10.0), 0.5)
    after = drop_negligible(after, layer_of(after, "r"), allowing(draft, 10.0), 0.5)
    assert after is not draft
    assert_true(network, after, 0, 1)


# What is left alone consists of ReLUs, not of what they are on the domain.


def test_a_network_left_alone_claims_no_cancellation_that_its_relus_do_not_have():
    """Stored in float32, an active neuron that touches 0 dips below it; as the identity it would cancel."""
    tip = 1 / 3
    network = graph(
        1,
        [
            ("a", linear([[1.0]], [-tip]), "x"),
            ("r", Relu(), "a"),
            ("b", linear([[1.0]]), "r"),
            ("c", linear([[-1.0]]), "a"),
            ("y", Add(2), ("b", "c")),
        ],
        "y",
        dtype="float32",
    )
    draft = start(network, tip, 1)
    assert draft.identity["r"].all()
    stability = analyze_network(network, Box([tip], [1]), data=None, **QUICK)
    nothing = Allowance({"y": torch.full((1, 1), -1.0, dtype=torch.float64)})
    result = rewrite(network, stability, weakest=Evidence.PROOF, allowed=nothing)
    assert result.stored is network
    stored = result.elsewhere(None)
    assert stored is not None
    true = gap(network, stored.stored, tip, 1)
    assert 0 < true <= Fraction(stored.deviation_stored)


# Layers that are none.


def test_a_chain_of_linear_nodes_is_not_lifted_into():
    nodes = [
        ("a", linear([[1.0, 1.0], [1.0, -1.0]], [1.0, 0.0]), "x"),
        ("r", Relu(), "a"),
        ("b", linear([[1.0, 0.0], [0.0, 1.0]]), "r"),
    ]
    last = ("d", linear([[1.0, 1.0]]), "c")
    for middle in (
        ("c", linear([[1.0, 1.0], [2.0, 1.0]]), "b"),
        ("c", Add(2), ("b", "x")),
        ("c", Add(2), ("b", "b")),
    ):
        network = graph(2, [*nodes, middle, last], "d")
        assert dense_layer(network, "c") is None
        for tolerance in ("exact", 0.1):
            assert_holds(network, compressed(network, 0, 1, tolerance=tolerance), 0, 1)


@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_a_layer_that_nobody_reads(tolerance):
    network = graph(
        2,
        [
            ("a", linear([[1.0, 1.0], [1.0, -1.0]], [1.0, 0.0]), "x"),
            ("r", Relu(), "a"),
            ("d", linear([[1.0, 1.0]]), "x"),
        ],
        "d",
    )
    assert_holds(network, compressed(network, 0, 1, tolerance=tolerance), 0, 1)


# Numbers that overflow are no reason to give up.


def test_carriers_that_overflow_the_files_type_are_not_made():
    network = dense(
        linear([[1e30, 1e30], [1e30, 2e30], [1.0, -1.0]], [1.0, 1.0, 0.0]),
        linear([[1e30, 1e29, 1.0]]),
        dtype="float32",
    )
    draft = start(network, 0, 1)
    share = allowing(draft, 1e50).share(draft, ["output"], 0.5)
    assert share is not None
    assert carry_linear(draft, layer_of(draft, "relu1"), share) is draft


def test_biases_that_overflow_are_not_made():
    """The middle of the first neuron, times its weight, is beyond float64 with the bias on top."""
    network = dense(linear([[1.0], [4.0]], [1.0, 0.0]), linear([[1.6e308, 1e308]], [1.6e308]))
    draft = start(network, -0.5, 0.5)
    large = allowing(draft, 1.7e308)
    with np.errstate(over="ignore"):
        assert drop_connections(draft, "output", large, 1.0) is draft
        assert drop_negligible(draft, layer_of(draft, "relu1"), large, 1.0) is draft


# Whoever calls: no gradients are needed.


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode):
    network = mixed_output()
    with mode():
        network(torch.zeros(1, network.input.size))
        assert_holds(network, compressed(network, 0, 1, tolerance=0.1), 0, 1)
        assert_holds(network, compressed(network, 0, 1, method="auto"), 0, 1)


# Ranges of neurons that stand for the identity.


def test_the_range_of_a_neuron_that_stands_for_the_identity_is_not_cut_at_0():
    """Far from 0 the bias of the linear part rounds by more than its distance from 0."""
    network = dense(linear([[1.0], [-1.0]], [-1e13, 1e13]), linear([[1.0, 2.0], [5.0, 0.0]]))
    lo, hi = 1e13 - 1, 1e13 + 1
    draft = start(network, lo, hi)
    after = split_opposites(draft, layer_of(draft, "relu1"))
    assert after is not draft
    linear1 = after.ranges["linear1"]
    exact = oracle.exact_value_ranges(after.network, oracle.Polytope.of([lo], [hi]), ["linear1"])["linear1"]
    for k, (low, high) in enumerate(exact):
        assert Fraction(float(linear1.lo[0, k])) <= low
        assert high <= Fraction(float(linear1.hi[0, k]))
    identity = torch.as_tensor(after.identity["relu1"])[None]
    assert (after.ranges["relu1"].lo <= linear1.lo)[identity].all()
    assert_true(network, after, lo, hi)


def test_carriers_among_the_smallest_numbers_of_the_files_type():
    tiny = float(np.float32(1e-45))
    network = dense(
        linear([[tiny, 0.0], [0.0, tiny], [1.0, -1.0]], [tiny, tiny, 0.0]),
        linear([[1.0, 1.0, 1.0]]),
        dtype="float32",
    )
    draft = start(network, 0, 1)
    share = allowing(draft, 1.0).share(draft, ["output"], 1e-50)
    after = carry_linear(draft, layer_of(draft, "relu1"), share)
    identity = torch.as_tensor(after.identity["relu1"])[None]
    assert (after.ranges["relu1"].lo <= after.ranges["linear1"].lo)[identity].all()
    assert_true(network, after, 0, 1)


def test_a_collapse_takes_neurons_behind_it_for_what_they_stand_for():
    network = graph(
        1,
        [
            ("a", linear([[1.0]], [-3.0]), "x"),
            ("r", Relu(), "a"),
            ("b", linear([[1.0]], [-0.25]), "r"),
            ("s", Relu(), "b"),
            ("y", linear([[1.0]]), "s"),
        ],
        "y",
    )
    draft = start(network, 0, 1)
    # As if the second neuron had been active, and moved by a quarter since.
    moved = replace(
        draft, identity={**draft.identity, "s": np.array([True])}, zero={**draft.zero, "s": np.array([False])}
    )
    after = collapse(moved, network["r"])
    assert after.network["y"].operator.bias.tolist() == [-0.25]


# Gains.


def test_gains_hold_where_numbers_underflow():
    for outward, behind in ((TINIEST, 1.0), (3 * TINIEST, 1e300), (1e-310, 1e300)):
        network = dense(linear([[1.0]]), linear([[behind]]), linear([[outward]]))
        none = {relu.name: np.zeros(1, dtype=bool) for relu in network.relus}
        found = gains(network, none, ["linear1", "output"])
        assert Fraction(float(found["linear1"][0, 0])) >= Fraction(outward) * Fraction(behind)
        assert float(found["output"][0, 0]) >= 1


def test_gains_of_fuzzy_scales_and_of_values_that_are_read_more_than_once():
    """The derivative for every sign pattern of the ReLUs, and for both ends of the fuzzy parameters."""
    first, side = np.array([[1.0, -2.0], [0.5, 3.0]]), np.array([[2.0, 1.0], [-1.0, 1.0]])
    fuzzy = Scale(np.array([1.5, -0.25]), np.zeros(2), np.array([0.125, 0.5]), np.zeros(()))
    network = graph(
        2,
        [
            ("a", linear(first), "x"),
            ("f", fuzzy, "a"),
            ("r", Relu(), "f"),
            ("b", linear(side), "a"),
            ("s", Add(3), ("r", "b", "r")),
        ],
        "s",
        "a",
    )
    masks = {"r": np.array([False, True])}
    found = gains(network, masks, ["a", "r"])
    worst = np.zeros((4, 2))
    for slope, ends in itertools.product((0.0, 1.0), itertools.product((-1, 1), repeat=2)):
        scale = fuzzy.scale + np.array(ends) * fuzzy.scale_radius
        jacobian = np.vstack([2 * np.diag([slope, 1.0]) * scale + side, np.eye(2)])
        worst = np.maximum(worst, np.abs(jacobian))
    assert (found["a"].numpy() >= worst).all()
    assert (found["r"].numpy()[:2] >= 2 * np.eye(2)).all()
    assert (found["r"].numpy()[2:] < 1e-300).all()


def test_a_fuzzy_scale_is_stored_within_its_claim():
    """Whatever the true numbers are."""
    fuzzy = Scale(
        np.array([1.5, -0.25]), np.array([0.1, 0.3]), np.array([2.0**-7, 0.1]), np.array([0.0, 2.0**-9])
    )
    network = graph(
        2,
        [
            ("a", linear([[1.0, -2.0], [0.5, 3.0]], [0.25, 0.0]), "x"),
            ("f", fuzzy, "a"),
            ("r", Relu(), "f"),
            ("y", linear([[1.0, 1.0], [2.0, -1.0]]), "r"),
        ],
        "y",
        "a",
    )
    for tolerance in (1.0, 2.0, 5.0):
        result = compressed(network, -1, 1, tolerance=tolerance)
        for s, t, u in itertools.product((-1, 1), repeat=3):
            true = Scale.exactly(
                fuzzy.scale + np.array([s, t]) * fuzzy.scale_radius, fuzzy.shift + u * fuzzy.shift_radius
            )
            node = replace(network["f"], operator=true)
            distance = gap(network.edit(change={"f": node}), result.stored, -1, 1)
            # The ends of the fuzzy parameters are rounded themselves.
            assert distance <= Fraction(result.deviation.proven) + Fraction(1, 10**12)


# A corpus.


def hilbert(n):
    return 1 / (np.add.outer(np.arange(n), np.arange(n)) + 1.0)


def corpus():
    third = 1 / 3
    wide = np.array([[1e-12, 1e10, 1.0], [1.0, -1e-10, 1e12], [1e10, -1e10, 1e-8], [-1e-20, 1.0, -1.0]])
    ties = np.array([[1.0, -1.0], [1.0, -1.0], [-third, third], [-0.1, 0.1], [7.0, -7.0], [1.0, 1.0]])
    yield "one neuron", dense(linear([[1.0, -1.0]]), linear([[2.0]])), 0, 1
    yield (
        "no neuron",
        dense(Linear(np.zeros((0, 2)), np.zeros(0)), Linear(np.zeros((2, 0)), np.ones(2))),
        0,
        1,
    )
    yield (
        "constant",
        dense(linear([[0.0], [0.0]], [1.0, -1.0]), linear([[1.0, 1.0]]), linear([[third]])),
        0,
        1,
    )
    yield "all active", dense(linear(hilbert(3), [0, 0, 0]), linear(hilbert(3)), linear([[1.0, -1, 1]])), 0, 1
    yield (
        "ill-conditioned",
        dense(linear(hilbert(5)[:, :3]), linear(hilbert(5) - 0.3), linear([[1.0] * 5])),
        0,
        1,
    )
    yield (
        "ties",
        dense(
            linear(ties, [0.25, 0.25, -third / 4, -0.025, 1.75, -1.0]), linear([[1, 2, 3, -1, third, 1.0]])
        ),
        0,
        1,
    )
    yield (
        "cancelling",
        dense(linear([[third], [-0.1]], [0, 0]), linear([[0.3, -1.0], [0.3, 1]]), linear([[1.0, -1]])),
        -1,
        1,
    )
    yield (
        "margins",
        dense(linear([[1.0, 1.0], [-1, -1], [1, -1]], [1e-12, -1e-12, 0]), linear([[1.0, 1, 1]])),
        0,
        1,
    )
    yield (
        "point",
        dense(linear([[third, -1.0], [1.0, 2.0]], [0.1, -0.9]), linear([[1.0, -1], [1, 0]])),
        0.3,
        0.3,
    )
    yield (
        "wide",
        dense(linear(wide, [1e-9, 0, 1, 0]), linear(wide.T, [0, 1e5, 0]), linear([[1e-5, 1, 1e8]])),
        -1,
        1,
    )
    yield (
        "denormal",
        dense(linear([[TINIEST], [-3 * TINIEST], [1e-310]], [0, 0, TINIEST]), linear([[1e300, 1, 1.0]])),
        -1,
        1,
    )
    yield (
        "huge factors",
        dense(linear([[1.0, -1], [-1e150, 1e150], [1e-300, -1e-300]]), linear([[1e-150, 1e-160, 1e300]])),
        0,
        1,
    )
    yield (
        "far away",
        dense(linear([[1.0], [-third]], [-1e13, 1e13 / 3]), linear([[1.0, 1], [-1, 2]])),
        1e13 - 1,
        1e13 + 1,
    )
    yield "mixed output", mixed_output(0.1), 0, 1
    yield "residual", graph(
        2,
        [
            ("a", linear([[1.0, -1], [2, -2]], [0.1, 0.2]), "x"),
            ("r", Relu(), "a"),
            ("b", linear([[1.0, third], [0, -1]], [-0.1, 0.0]), "r"),
            ("c", Add(2), ("b", "x")),
            ("s", Relu(), "c"),
            ("y", linear([[1.0, -1]]), "s"),
        ],
        "y",
        "c",
    ), 0, 1  # fmt: skip


@pytest.mark.parametrize("tolerance", TOLERANCES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("network", "lo", "hi"), [pytest.param(*case, id=name) for name, *case in corpus()])
def test_claims_hold(network, lo, hi, dtype, tolerance):
    network = network.edit(dtype=dtype)
    before = [node.operator.weight.copy() for node in network.nodes if isinstance(node.operator, Linear)]
    result = compressed(network, lo, hi, tolerance=tolerance)
    after = [node.operator.weight for node in network.nodes if isinstance(node.operator, Linear)]
    assert all((one == other).all() for one, other in zip(before, after, strict=True))
    assert result.network.parameters <= network.parameters
    alone = [step.rewrite for step in result.steps] == ["none"]
    for smaller, claimed in (
        (result.network, result.deviation.proven_float64),
        (result.stored, result.deviation.proven),
    ):
        if claimed is None:  # the file's type cannot hold the weights
            assert dtype == "float32"
            continue
        assert math.isfinite(claimed)
        assert gap(network, smaller, lo, hi) <= Fraction(claimed)
        if not alone and not isinstance(tolerance, str):
            assert claimed <= tolerance
