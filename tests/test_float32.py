"""The bound on float32 evaluations: never below what some order of summation does."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import oracle
import strategies
from evaluating import Runtime, f32, runtimes
from relutrim.compression import compress_network
from relutrim.domain import Box, NormalizedBox
from relutrim.domain.domain import Problem
from relutrim.float32 import evaluation_error, proven_float32
from relutrim.float32.norms import largest_sum
from relutrim.float32.sensitivity import Slopes, sensitivities
from relutrim.graph import Add, BatchNorm, Network, Node, Relu, Scale, Sigmoid
from relutrim.rewrite.gains import gains
from rewriting import QUICK, dense, graph, linear
from spatial import spatial_networks

slow = settings(suppress_health_check=list(HealthCheck), max_examples=60, deadline=None)


def problem_of(network: Network, lo, hi) -> Problem:
    return Box(np.broadcast_to(lo, network.input.size), np.broadcast_to(hi, network.input.size)).fit(network)


def error_of(network: Network, lo, hi) -> np.ndarray | None:
    found = evaluation_error(problem_of(network, lo, hi), network, {})
    return None if found is None else found.numpy()


def held(lo, hi, size: int, random: np.random.Generator) -> np.ndarray:
    """A float32 input between both ends: random, or at an end."""
    lo, hi = np.broadcast_to(lo, size).astype(float), np.broadcast_to(hi, size).astype(float)
    share = random.random(size) if random.random() < 0.5 else random.integers(0, 2, size).astype(float)
    x = (lo + share * (hi - lo)).astype(f32).astype(float)
    for _ in range(2):
        x = np.where(x > hi, np.nextafter(x.astype(f32), f32(-np.inf)), x).astype(float)
        x = np.where(x < lo, np.nextafter(x.astype(f32), f32(np.inf)), x).astype(float)
    return x


def check(network: Network, lo, hi, *, inputs: int = 3, ways: int = 12) -> None:
    """No evaluation is farther from the real numbers than the bound says."""
    bound = error_of(network, lo, hi)
    if bound is None:
        return
    random = np.random.default_rng(0)
    for _ in range(inputs):
        x = held(lo, hi, network.input.size, random)
        if not ((x >= lo) & (x <= hi)).all():
            continue  # no float32 between both ends
        truth = oracle.outputs(network, [Fraction(v) for v in x])
        for runtime in runtimes(ways):
            found = runtime(network, x)
            assert np.isfinite(found).all()
            off = [abs(Fraction(float(v)) - t) for v, t in zip(found, truth, strict=True)]
            assert all(o <= Fraction(float(b)) for o, b in zip(off, bound, strict=True) if math.isfinite(b))


@slow
@given(strategies.problems(rows=0))
def test_no_order_of_summation_leaves_the_bound(found) -> None:
    network, domain = found
    check(network, domain.lo, domain.hi)


@slow
@given(spatial_networks(), st.sampled_from([(0.0, 1.0), (-1.0, 1.0), (-3.0, -0.25)]))
def test_no_order_leaves_the_bound_with_convolutions_and_pools(network, ends) -> None:
    check(network, *ends, inputs=2, ways=8)


@slow
@given(st.integers(0, 10**6), st.sampled_from(["exact", 1e-4]))
def test_both_networks_stay_within_the_bound_of_each_other(seed, tolerance) -> None:
    random = np.random.default_rng(seed)
    widths = [3, *random.integers(2, 6, random.integers(1, 4)), 2]
    layers = [
        linear(f32(random.normal(size=(n, m))), f32(random.normal(size=n))) for m, n in pairwise(widths)
    ]
    network = dense(*layers, dtype="float32")
    result = compress_network(network, Box(-0.5, 1.0), tolerance=tolerance, **QUICK)
    assert result.deviation.proven is not None
    bound = proven_float32(
        result.stability.problem,
        network,
        result.stored,
        result.stability.ranges,
        result.ranges,
        result.deviation.proven,
    )
    assert bound is not None
    for _ in range(4):
        x = held(-0.5, 1.0, 3, random)
        for one, other in zip(runtimes(6), reversed(runtimes(6)), strict=True):
            gap = one(network, x).astype(float) - other(result.stored, x).astype(float)
            assert np.abs(gap).max() <= bound


def test_a_network_that_cancels_has_a_large_error_and_a_larger_bound() -> None:
    large = np.array([[1e4, 1e4, 1.0], [1.0, 0.0, 0.0]])
    network = dense(linear(large, [-1.5e4, 0]), linear([[1e3, 0.1]]), dtype="float32")
    lo, hi = f32([0.9, 0.9, 0.0]).astype(float), np.ones(3)
    (bound,) = error_of(network, lo, hi)
    check(network, lo, hi, inputs=20)
    x = held(lo, hi, 3, np.random.default_rng(3))
    truth = float(oracle.outputs(network, [Fraction(v) for v in x])[0])
    worst = max(abs(float(way(network, x)[0]) - truth) for way in runtimes(24))
    assert bound / 100 < worst <= bound


def test_long_sums_are_charged_by_their_length() -> None:
    ones = linear(f32(np.full((1, 4000), 0.1)), [0.0])
    network = dense(ones, dtype="float32")
    (bound,) = error_of(network, 0, 1)
    x = np.ones(4000)
    truth = float(oracle.outputs(network, [Fraction(1)] * 4000)[0])
    found = float(Runtime(0, order="given")(network, x)[0])
    assert 1e-6 < abs(found - truth) <= bound
    assert bound == pytest.approx(4000 * 400 * 2**-24, rel=1e-2)


def test_subnormal_products_are_charged() -> None:
    tiny = 2.0**-100
    network = dense(linear([[tiny, tiny]]), linear([[tiny * 2.0**-48]]), linear([[1.0]]), dtype="float32")
    (bound,) = error_of(network, 0, 1)
    assert bound >= 2.0**-150
    check(network, 0, 1)
    lost = dense(linear([[2.0**-80]]), linear([[2.0**-80]]), dtype="float32")
    (bound,) = error_of(lost, 0, 1)
    assert Runtime(0)(lost, [1.0])[0] == 0.0
    assert bound >= 2.0**-160


def test_subnormal_weights_of_a_fused_scale_are_charged() -> None:
    nodes = [("a", linear([[2.0**-75] * 3]), "x"), ("s", Scale.exactly(2.0**-75), "a")]
    network = graph(3, [*nodes, ("y", linear([[2.0**100]]), "s")], "y", dtype="float32")
    check(network, 0, 1, ways=24)
    high = np.array([2.0**20] * 3)
    check(network, -high, high, ways=24)
    assert error_of(network, -high, high)[0] >= 2.0**-30


@pytest.mark.parametrize("size", [3e38, 1e30, 1e20])
def test_what_may_overflow_has_no_bound(size) -> None:
    network = dense(linear([[size, size]]), linear([[size]]), dtype="float32")
    assert error_of(network, 0, 1) is None
    assert error_of(dense(linear([[1e19]]), linear([[1e19]]), dtype="float32"), 0, 1) is not None


def test_partial_sums_may_overflow_where_the_sum_does_not() -> None:
    network = dense(linear([[3e38, 3e38, -3e38]]), dtype="float32")
    point = np.ones(3)
    assert error_of(network, point, point) is None
    mean = graph(2, [("a", linear(np.eye(2) * 3e38), "x"), ("y", linear([[0.5, 0.5]]), "a")], "y")
    assert error_of(mean, 0, 1) is not None


def test_identical_networks_are_apart_unless_nothing_rounds() -> None:
    rounds = dense(linear([[0.1, 0.3]], [0.7]), linear([[1.0]]), dtype="float32")
    moves = dense(linear([[1.0, 0], [0, -1.0]]), linear([[0, 1.0]]), dtype="float32")
    for network, apart in ((rounds, True), (moves, False)):
        problem = problem_of(network, -1, 1)
        bound = proven_float32(problem, network, network, {}, {}, 0.0)
        assert bound is not None
        assert (bound > 0) == apart


def test_an_active_neuron_with_a_margin_below_its_error_is_not_the_identity() -> None:
    # relu(1e6 a - 1e6 b + 1e-3) with a = b: 1e-3 for sure, and in float32 0 in some order.
    weight = [[f32(1e6 / 3), -f32(1e6 / 3)], [1.0, 0.0]]
    first = linear([[1.0], [1.0]])
    network = dense(first, linear(weight, [f32(1e-3), 0.0]), linear([[1.0, 0.0]]), dtype="float32")
    x = held(0.3, 0.9, 1, np.random.default_rng(5))
    bound = error_of(network, x, x)
    errors = [abs(float(way(network, x)[0]) - float(f32(1e-3))) for way in runtimes(40)]
    assert 1e-4 < max(errors) <= bound[0]


def test_a_neuron_is_left_out_only_where_float32_cannot_switch_it_on() -> None:
    def network(bias: float) -> Network:
        return dense(linear([[0.1, 0.3]], [bias]), linear([[1.0]]), dtype="float32")

    assert error_of(network(-0.5), 0, 1)[0] == 0.0
    assert error_of(network(float(-f32(0.4) - f32(3e-8))), 0, 1)[0] > 0


def test_inputs_of_any_sign_and_sums_of_branches() -> None:
    nodes = [
        ("a", linear(f32([[0.3, -0.7], [1.1, 0.2]]), f32([0.1, -0.3])), "x"),
        ("r", Relu(), "a"),
        ("b", linear(f32([[0.9, -0.4], [0.5, 0.6]])), "r"),
        ("c", Add(2), ("b", "a")),
        ("s", Scale.exactly(f32([0.3, 1.7]).astype(float), f32([0.1, 0.0]).astype(float)), "c"),
        ("q", Relu(), "s"),
        ("d", Add(3), ("q", "r", "x")),
        ("y", linear(f32([[0.7, -1.3]])), "d"),
    ]
    check(graph(2, nodes, "y", "c", dtype="float32"), -1, 1, inputs=10, ways=24)


VARIANCES = st.floats(2.0**-10, 10, width=32)
VECTOR = st.lists(st.floats(-4, 4, width=32), min_size=2, max_size=2)


@slow
@given(VECTOR, VECTOR, VECTOR, st.lists(VARIANCES, min_size=2, max_size=2), st.integers(0, 9))
def test_batch_norm_in_all_its_forms(gain, bias, mean, variance, seed) -> None:
    g, b, m, v = (f32(a) for a in (gain, bias, mean, variance))
    eps = f32(1e-5)
    norm = BatchNorm.of(*(a.astype(float) for a in (g, b, m, v)), float(eps))
    first = f32([[0.3, -0.7], [1.1, 0.2]])
    offset = f32([0.1, -0.2])
    network = graph(2, [("a", linear(first, offset), "x"), ("n", norm, "a")], "n", dtype="float32")
    bound = error_of(network, -1, 1)
    deviation = np.sqrt(v + eps)

    def fused(x):
        s = g / deviation
        return (first * s[:, None]) @ x + ((offset - m) * s + b), (first * s[:, None]) @ x + (
            offset * s + (b - m * s)
        )

    forms = [
        lambda y: (y - m) / deviation * g + b,
        lambda y: (y - m) * (g * (f32(1) / deviation)) + b,
        lambda y: (y - m) * g * (f32(1) / deviation) + b,
        lambda y: y * (g / deviation) + (b - m * (g / deviation)),
    ]
    x = held(-1, 1, 2, np.random.default_rng(seed))
    with torch.no_grad():
        precise = network(torch.as_tensor(x)[None])[0].numpy()
    ways = [Runtime(k)(network, x, {"n": form}) for k, form in enumerate(forms)]
    for found in [*ways, *fused(f32(x))]:
        assert (np.abs(found.astype(float) - precise) <= bound + 1e-12).all()


def test_a_normalised_box_speaks_of_the_input_that_the_network_reads() -> None:
    network = dense(linear(f32([[0.3, -0.7]]), [0.0]), linear([[1.0]]), dtype="float32")
    problem = NormalizedBox(0, 1, 0.1, 0.3).fit(network)
    found = evaluation_error(problem, network, {})
    same = evaluation_error(problem_of(network, -0.1 / 0.3, 0.9 / 0.3), network, {})
    assert float(found[0]) == pytest.approx(float(same[0]), rel=1e-9)


def test_what_ieee_does_not_specify_has_no_bound() -> None:
    network = graph(1, [("a", linear([[1.0]]), "x"), ("y", Sigmoid(), "a")], "y", dtype="float32")
    assert error_of(network, 0, 1) is None
    plain = dense(linear([[1.5]]), dtype="float64")
    assert proven_float32(problem_of(plain, 0, 1), plain, plain, {}, {}, 0.0) is None


def test_an_unknown_deviation_is_no_bound() -> None:
    network = dense(linear([[0.1, 0.3]]), dtype="float32")
    problem = problem_of(network, 0, 1)
    assert proven_float32(problem, network, network, {}, {}, math.nan) is None
    assert proven_float32(problem, network, network, {}, {}, math.inf) is None


def test_a_stop_makes_the_bound_looser_not_wrong() -> None:
    random = np.random.default_rng(1)
    layers = [
        linear(f32(random.normal(size=(n, m))), f32(random.normal(size=n)))
        for m, n in [(4, 9), (9, 9), (9, 2)]
    ]
    network = dense(*layers, dtype="float32")
    problem = problem_of(network, -1, 1)
    loose = evaluation_error(problem, network, {}, stopped=lambda: True)
    tight = evaluation_error(problem, network, {})
    assert (tight < loose).all()
    assert (tight > 0).all()


@slow
@given(strategies.problems(rows=0, extreme=False), st.integers(0, 2**16))
def test_sensitivities_hold_for_any_slopes_and_are_below_gains(found, seed) -> None:
    network, _ = found
    random = np.random.default_rng(seed)
    names = [relu.inputs[0] for relu in network.relus if network.size(relu.name)]
    none = {r.name: torch.zeros(1, *network.shapes[r.name], dtype=torch.bool) for r in network.relus}
    count = sum(network.size(source) for source in network.sources)
    found = sensitivities(network, Slopes(none, none), frozenset(names), (0, count))
    fast = {name: rows.size for name, rows, _ in found}
    known = gains(network, {name: mask[0].numpy() for name, mask in none.items()}, names)
    for name in set(names) & set(fast):
        rows = fast[name].reshape(count, -1)
        assert (rows <= known[name] * (1 + 1e-5) + 1e-300).all()
        assert (rows >= _jacobian(network, name, random) * (1 - 1e-9)).all()


@slow
@given(st.integers(0, 2**16), st.integers(1, 6), st.integers(1, 40), st.sampled_from([0, 40, 150, 280]))
def test_sums_of_signed_terms_are_never_above_the_norm(seed, k, n, spread) -> None:
    random = np.random.default_rng(seed)
    matrix = random.normal(size=(2, k, n)) * 2.0 ** random.integers(-spread, spread + 1, size=(2, k, n))
    matrix *= random.random(matrix.shape) < 0.8
    bound = largest_sum(torch.as_tensor(matrix)).numpy()
    signs = np.array(list(product([-1, 1], repeat=k)))
    assert (np.abs(signs @ matrix).sum(2).max(1) <= bound).all()
    assert (bound <= np.abs(matrix).sum((1, 2)) * (1 + 1e-5)).all()


def test_mixed_signs_make_a_sum_smaller() -> None:
    matrix = torch.as_tensor(np.random.default_rng(0).normal(size=(1, 64, 64)))
    assert float(largest_sum(matrix)[0]) < 0.4 * float(matrix.abs().sum())


def _jacobian(network: Network, name: str, random: np.random.Generator) -> torch.Tensor:
    """How the outputs move with a value for some slopes from [0, 1], half of them ends."""
    size = network.size(name)
    slopes = {}
    for relu in network.relus:
        drawn = random.random(network.shapes[relu.name])
        slopes[relu.name] = torch.as_tensor(np.where(random.random(drawn.shape) < 0.7, drawn.round(), drawn))
    values = {network.input.name: torch.zeros(size, *network.input.shape, dtype=torch.float64)}
    for node in network.nodes:
        before = [values[source] for source in node.inputs]
        if node.name == name:
            values[name] = torch.eye(size, dtype=torch.float64).reshape(size, *network.shapes[name])
        elif isinstance(node.operator, Relu):
            values[node.name] = before[0] * slopes[node.name]
        else:
            zero = [torch.zeros_like(b[:1]) for b in before]
            values[node.name] = node.operator.forward(before) - node.operator.forward(zero)
    flat = [values[source].reshape(size, -1) for source in network.sources]
    return torch.cat(flat, 1).T.abs()


def test_a_network_that_only_moves_numbers_has_no_error() -> None:
    network = graph(2, [("y", Scale.exactly(), "x")], "y", dtype="float32")
    assert error_of(network, -1, 1).tolist() == [0.0, 0.0]
    assert isinstance(network.nodes[0], Node)


def test_an_empty_layer_has_no_error() -> None:
    empty = linear(np.zeros((0, 2)), np.zeros(0))
    network = dense(linear(f32([[0.3, -0.7], [1.1, 0.2]])), empty, linear(np.zeros((2, 0)), [1.0, 0.5]))
    assert error_of(network, -1, 1).max() < 1e-40
