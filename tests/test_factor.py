"""Linear nodes joined and factored: the fewest numbers, whatever the stack looked like."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import oracle
import strategies
from relutrim.analysis import analyze_network
from relutrim.compression import compress_network
from relutrim.domain import Box
from relutrim.graph import Add, Linear, Network, Node, Output, Port, Relu
from relutrim.prove.verdict import Evidence
from relutrim.rewrite.budget import Budget
from relutrim.rewrite.carry_linear import carry_linear
from relutrim.rewrite.cost import Cost
from relutrim.rewrite.draft import Draft
from relutrim.rewrite.drop_unread import drop_unread
from relutrim.rewrite.factor import factor, siblings
from relutrim.rewrite.fold_stable import fold_stable
from relutrim.rewrite.layers import straight_layer
from relutrim.rewrite.merge_active import merge_active
from relutrim.rewrite.negligible import drop_negligible
from rewriting import QUICK, assert_holds, assert_true, compressed, gap, graph, linear, names, start

slow = settings(suppress_health_check=list(HealthCheck))
COSTS = [cost.value for cost in Cost]


def chain(*layers, relus=(), dtype="float64"):
    """a0, a1, ...: linear nodes in a row, those named in ``relus`` with a ReLU behind them."""
    nodes, current = [], "x"
    for k, operator in enumerate(layers):
        nodes.append((f"a{k}", operator, current))
        current = f"a{k}"
        if k in relus:
            nodes.append((f"r{k}", Relu(), current))
            current = f"r{k}"
    return graph(layers[0].weight.shape[1], nodes, current, dtype=dtype)


def integers(rows, columns, seed=0):
    return np.random.default_rng(seed).integers(-3, 4, size=(rows, columns)).astype(float)


def low_rank(rows, columns, rank, seed=0):
    return integers(rows, rank, seed) @ integers(rank, columns, seed + 1)


def allowing(draft, amount):
    return Budget({source: torch.full_like(d, amount) for source, d in draft.deviation.items()})


@st.composite
def stacks(draw):
    """Linear nodes in rows and branches, with a few ReLUs and sums between them, of low rank more often than
    not.
    """
    flavour = draw(strategies.flavours())
    inputs = draw(st.integers(1, 3))
    sizes, nodes, neurons = {"x": inputs}, [], 8
    for k in range(draw(st.integers(1, 6))):
        before = draw(st.sampled_from(sorted(sizes)))
        width = draw(st.integers(1, 6))
        operator = draw(strategies.linears(width, sizes[before], flavour))
        if draw(st.booleans()):
            operator = Linear(operator.weight, operator.bias + 4.0)  # more of them active
        nodes.append(Node(f"a{k}", operator, (before,)))
        sizes[f"a{k}"] = width
        if width <= neurons and draw(st.integers(0, 2)) == 2:
            nodes.append(Node(f"r{k}", Relu(), (f"a{k}",)))
            sizes[f"r{k}"], neurons = width, neurons - width
        if draw(st.integers(0, 4)) == 4:
            other = draw(st.sampled_from([n for n in sorted(sizes) if sizes[n] == width]))
            nodes.append(Node(f"s{k}", Add(2), (f"a{k}", other)))
            sizes[f"s{k}"] = width
    last = nodes[-1].name
    outputs = [last, *draw(st.lists(st.sampled_from(sorted(sizes)), max_size=1))]
    network = Network(
        Port("x", (inputs,)),
        tuple(nodes),
        tuple(Output(f"y{i}", source) for i, source in enumerate(dict.fromkeys(outputs))),
        dtype=draw(st.sampled_from(["float32", "float64"])) if flavour in strategies.TAME else "float64",
    )
    return network, draw(strategies.domains(inputs))


def drafted(network, random):
    box = Box(random.lo, random.hi)
    if len(random.matrix):
        box = box.constrain(random.matrix, random.lower, random.upper)
    return Draft.start(network, analyze_network(network, box, data=None, **QUICK), Evidence.PROOF), box


def assert_proven(network, after, random):
    for final in (after.realise(), after.stored().realise()):
        if math.isfinite(final.proven):
            largest = oracle.largest_deviations(network, final.network, random.polytope)
            assert all(distance <= Fraction(final.proven) for distance in largest)


@settings(slow, max_examples=150)
@given(stacks(), st.sampled_from([None, 1e-3, 1.0]))
def test_what_is_proven_of_factors_is_true(problem, amount):
    network, random = problem
    draft, _ = drafted(network, random)
    with np.errstate(over="ignore", invalid="ignore"):
        for group in siblings(network):
            share = None if amount is None else allowing(draft, amount).share(draft, list(group), 0.5)
            if amount is None or share is not None:
                after = factor(draft, group, share)
                assert after is draft or len(after.steps) == 1
                assert_proven(network, after, random)


@pytest.mark.parametrize("rewrite", [carry_linear, merge_active, fold_stable, drop_unread, drop_negligible])
@settings(slow, max_examples=60)
@given(problem=stacks())
def test_what_is_proven_of_layers_without_relus_is_true(rewrite, problem):
    network, random = problem
    draft, _ = drafted(network, random)
    with np.errstate(over="ignore", invalid="ignore"):
        for node in network:
            layer = straight_layer(network, node.name)
            if layer is not None:
                more = (allowing(draft, 0.5), 0.5) if rewrite is drop_negligible else ()
                after = rewrite(draft, layer, *more)
                assert all(step.neurons == 0 for step in after.steps)
                assert_proven(network, after, random)


@settings(slow, max_examples=150)
@given(stacks(), st.sampled_from(["exact", 0.0, 1e-6, 0.1, 3.0]), st.sampled_from(COSTS))
def test_what_the_pipeline_makes_of_stacks_holds_and_costs_no_more(problem, tolerance, cost):
    network, random = problem
    _, box = drafted(network, random)
    result = compress_network(network, box, tolerance=tolerance, cost=cost, **QUICK)
    for smaller, claimed in (
        (result.network, result.deviation.proven_float64),
        (result.stored, result.deviation.proven),
    ):
        assert Cost(cost).of(smaller) <= Cost(cost).of(network)
        if claimed is not None:
            largest = oracle.largest_deviations(network, smaller, random.polytope)
            assert all(distance <= Fraction(claimed) for distance in largest)
            if tolerance != "exact" and names(result) != ["none"]:
                assert claimed <= tolerance


# What comes out.


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("rows", [6, 9])
def test_a_node_of_low_rank_becomes_two(rows, cost):
    network = chain(linear(low_rank(rows, 8, 2), np.arange(rows)))
    result = compressed(network, 0, 1, cost=cost)
    assert names(result) == ["factor"]
    assert [node.operator.weight.shape for node in result.network] == [(2, 8), (rows, 2)]
    assert result.network.parameters == 2 * 8 + 2 + rows * 2 + rows < network.parameters
    assert [node.name for node in result.network] == ["a0.inner", "a0"]
    x = torch.rand(100, 8, dtype=torch.float64)
    assert (network(x) - result.network(x)).abs().max() <= result.deviation.proven_float64 <= 1e-12


def test_a_node_of_full_rank_stays():
    network = chain(linear(integers(6, 8)))
    assert compressed(network, 0, 1).network is network


def test_a_layer_of_unstable_neurons_reads_fewer_numbers():
    network = chain(linear(low_rank(6, 8, 2)), linear(integers(2, 6, 5)), relus=[0])
    result = compressed(network, -1, 1)
    assert names(result) == ["factor"]
    assert result.network.widths == [8, 6, 2]
    assert result.network["a0.inner"].operator.weight.shape == (2, 8)


def test_what_read_one_value_together_is_factored_together():
    """Each has full rank, but they have their rows in common."""
    rows = integers(3, 8)
    nodes = [(name, linear(integers(3, 3, k) @ rows), "x") for k, name in enumerate("abc")]
    nodes += [(f"r{name}", Relu(), name) for name in "abc"]
    network = graph(8, [*nodes, ("y", Add(3), ("ra", "rb", "rc"))], "y")
    assert siblings(network)[0] == ("a", "b", "c")
    result = compressed(network, -1, 1)
    assert names(result) == ["factor"]
    assert result.network["a.inner"].operator.weight.shape == (3, 8)
    x = torch.rand(100, 8, dtype=torch.float64) * 2 - 1
    assert (network(x) - result.network(x)).abs().max() <= result.deviation.proven_float64 <= 1e-11


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("relus", [(), (0, 1, 2)], ids=["linear", "active"])
@pytest.mark.parametrize(
    ("widths", "narrowest"),
    [([9, 8, 3, 7, 9], 3), ([9, 3, 2, 9], 2), ([9, 2, 3, 9], 2), ([9, 7, 8, 6, 9], 9), ([9, 1, 9, 1, 9], 1)],
)
def test_a_stack_ends_at_its_narrowest_place_or_in_one_node(widths, narrowest, relus, cost):
    layers = []
    for k, (inputs, outputs) in enumerate(pairwise(widths)):
        weight = np.random.default_rng(k).uniform(0.1, 1, size=(outputs, inputs))
        layers.append(linear(weight, np.ones(outputs)))
    network = chain(*layers, relus=[k for k in relus if k < len(layers) - 1])
    result = compressed(network, 0, 1, cost=cost)
    shapes = [node.operator.weight.shape for node in result.network]
    assert shapes == ([(9, 9)] if narrowest == 9 else [(narrowest, 9), (9, narrowest)])
    x = torch.rand(100, 9, dtype=torch.float64)
    assert (network(x) - result.network(x)).abs().max() <= result.deviation.proven_float64 <= 1e-10


def test_within_a_tolerance_nearly_low_rank_is_enough():
    random = np.random.default_rng(0)
    nearly = low_rank(8, 8, 2) + 1e-6 * random.normal(size=(8, 8))
    network = chain(linear(nearly), dtype="float32")
    assert names(compressed(network, 0, 1)) == []
    result = compressed(network, 0, 1, tolerance=1e-3)
    assert "factor" in names(result)
    assert result.network.parameters < network.parameters
    x = torch.rand(1000, 8, dtype=torch.float64)
    assert (network(x) - result.stored(x)).abs().max() <= result.deviation.proven <= 1e-3


def test_what_rounding_factors_takes_never_costs_the_rest_of_the_result():
    """In float32 factors of these numbers are off by more than is allowed; dropping a neuron is not."""
    weight = np.vstack([low_rank(6, 8, 2) / 3, -np.ones((1, 8))])
    network = chain(linear(weight), linear(integers(2, 7, 5)), relus=[0], dtype="float32")
    stored = start(network, 0, 1).stored().network.edit(dtype="float32")
    result = compressed(stored, 0, 1, tolerance=1e-9)
    assert "drop-inactive" in names(result)
    assert "factor" not in names(result)
    assert result.network.parameters < network.parameters


# Adversaries: it ends, it does not grow, and what is claimed is true.


def adversaries():
    random = np.random.default_rng(7)
    tall = random.normal(size=(6, 2)) * 10.0 ** random.integers(-10, 11, size=(6, 2))
    wide = random.normal(size=(2, 6)) * 10.0 ** random.integers(-10, 11, size=(2, 6))
    hilbert = 1 / (np.add.outer(np.arange(6), np.arange(6)) + 1.0)
    yield "zero", chain(linear(np.zeros((6, 2)), np.ones(6)))
    yield "zero product", chain(linear([[1.0, 1], [1, 1]]), linear([[1.0, -1]] * 5), linear(integers(5, 5)))
    yield (
        "constant",
        chain(linear(np.zeros((3, 2)), np.ones(3)), linear(integers(6, 3)), relus=[0]),
    )
    yield "one neuron each", chain(*(linear([[1.5]], [0.1 * k]) for k in range(6)), relus=range(5))
    yield "one value each", chain(*(linear([[-1.5]], [0.1 * k]) for k in range(6)))
    yield "20 orders", chain(linear(tall), linear(wide), linear(tall))
    yield (
        "20 orders, active",
        chain(linear(np.abs(tall)), linear(np.abs(wide)), linear(np.abs(tall)), relus=[0, 1]),
    )
    yield "hilbert", chain(linear(hilbert[:, :2]), linear(hilbert), linear(hilbert))
    yield "hilbert, active", chain(linear(hilbert[:, :2]), linear(hilbert), linear(hilbert), relus=[0, 1])
    yield "underflow", chain(linear([[1e-200], [3e-200]]), linear([[1e-200, 1e-200]] * 4, [1.0] * 4))
    yield "smallest", chain(linear([[5e-324, 1e-323]] * 4), linear(integers(4, 4)))
    yield "overflow", chain(linear([[1e200], [-1e200]]), linear([[1e200, 1e200]] * 4))
    yield "values overflow", chain(linear([[1e308, 1e308]] * 4), linear(integers(5, 4)))
    yield "multiples", chain(linear(np.outer([1, 1 / 3, -7, 1e-8, 1e8], [0.1, 0.7])), linear(integers(2, 5)))
    yield "unread values", chain(linear(integers(5, 2)), linear(integers(5, 5) * [0, 1, 0, 0, 0]))
    yield "no values", chain(Linear(np.zeros((0, 2)), np.zeros(0)), Linear(np.zeros((3, 0)), np.ones(3)))
    yield (
        "an inner value is an output",
        graph(2, [("a", linear(integers(4, 2)), "x"), ("b", linear(integers(4, 4)), "a")], "b", "a"),
    )
    yield (
        "an inner value is added",
        graph(
            2,
            [
                ("a", linear(low_rank(4, 2, 1), [20.0] * 4), "x"),
                ("r", Relu(), "a"),
                ("b", linear(low_rank(4, 4, 1)), "r"),
                ("c", linear(low_rank(4, 4, 1, 3)), "r"),
                ("s", Add(3), ("b", "c", "r")),
                ("y", linear(low_rank(4, 4, 2)), "s"),
            ],
            "y",
            "c",
        ),
    )


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("tolerance", ["exact", 1e-6, 1.0])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("network", [pytest.param(network, id=name) for name, network in adversaries()])
def test_adversaries(network, dtype, tolerance, cost):
    network = network.edit(dtype=dtype)
    result = compressed(network, 0, 1, tolerance=tolerance, cost=cost)
    for smaller, claimed in (
        (result.network, result.deviation.proven_float64),
        (result.stored, result.deviation.proven),
    ):
        assert Cost(cost).of(smaller) <= Cost(cost).of(network)
        if claimed is None:  # the file's type cannot hold the weights
            assert dtype == "float32"
            continue
        assert gap(network, smaller, 0, 1) <= Fraction(claimed)
        if tolerance != "exact" and names(result) != ["none"]:
            assert claimed <= tolerance
    again = compressed(result.network, 0, 1, tolerance=tolerance, cost=cost)
    assert Cost(cost).of(again.network) <= Cost(cost).of(result.network)


def test_a_constant_bottleneck_stays_small():
    network = chain(linear(np.zeros((1, 6)), [-1.0]), linear(np.ones((8, 1)), np.arange(1, 9)), relus=[0])
    result = compressed(network, 0, 1)
    assert result.network.parameters <= network.parameters
    assert result.network.neurons == 0
    assert (result.network(torch.rand(3, 6, dtype=torch.float64)) == torch.arange(1, 9)).all()


def test_products_that_overflow_are_not_made_and_the_rest_still_is():
    large = 2.0**70
    first, second = linear([[large], [large], [-1.0]], [1, 1, -1]), linear([[large, 1, 1]])
    network = chain(first, second, relus=[0], dtype="float32")
    result = compressed(network, 0, 1)
    assert "drop-inactive" in names(result)
    assert_holds(network, result, 0, 1)


def test_ranges_without_end_move_nothing():
    network = chain(linear(low_rank(4, 2, 1) + 1), linear(low_rank(4, 4, 1)), linear(low_rank(4, 4, 2)))
    draft = start(network, 0, 1)
    for name in network.shapes:
        draft.ranges[name].lo[:] = -np.inf
        draft.ranges[name].hi[:] = np.inf
    with np.errstate(over="ignore", invalid="ignore"):
        for group in siblings(network):
            after = factor(draft, group)
            assert after is draft or not math.isfinite(after.proven)
        share = allowing(draft, 1.0).share(draft, ["a0"], 0.5)
        after = factor(draft, ("a0",), share)
        assert after is draft or not math.isfinite(after.proven)


def test_names_that_are_taken():
    network = graph(
        2,
        [("a.inner", linear(integers(6, 2)), "x"), ("a", linear(low_rank(6, 6, 1)), "a.inner"),
         ("r", Relu(), "a.inner"), ("y", Add(2), ("a", "r"))],
        "y",
    )  # fmt: skip
    draft = start(network, -1, 1)
    after = factor(draft, ("a",))
    assert "a.inner_" in after.network
    assert_true(network, after, -1, 1)
