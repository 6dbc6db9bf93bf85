"""Every bound against rational arithmetic, on numbers of every size float64 has."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import oracle
import strategies
from relutrim.bounds.interval import forward_radius, input_interval, node_interval, settle_ties
from relutrim.bounds.linear import Backward
from relutrim.bounds.relaxation import Slope, relax
from relutrim.domain.domain import Problem
from relutrim.errors import NetworkError
from relutrim.graph import Add, BatchNorm, Linear, Network, Node, Output, Port, Relu, Reshape, Scale
from relutrim.intervals import Interval
from relutrim.rounding import ETA, gamma, widen_down, widen_up

slow = settings(suppress_health_check=list(HealthCheck), max_examples=60)

ANY = st.floats(allow_nan=False, allow_infinity=False)
WILD = st.builds(
    lambda mantissa, exponent, sign: sign * math.ldexp(mantissa, exponent),
    st.sampled_from([1.0, 1.5, 1 + 2.0**-52, 1.1, 1.7]) | st.floats(1, 2, exclude_max=True),
    st.integers(-1074, 1023) | st.integers(-1074, -1000) | st.integers(950, 1023) | st.integers(-4, 4),
    st.sampled_from([1.0, -1.0]),
) | st.just(0.0)
"""All binary exponents alike: tiny numbers meet huge ones, products underflow and overflow."""


def tensor(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def at_most(bound: float, value: Fraction) -> bool:
    """Whether a lower bound is true; NaN and -inf claim nothing."""
    return math.isnan(bound) or bound == -math.inf or (math.isfinite(bound) and Fraction(bound) <= value)


def at_least(bound: float, value: Fraction) -> bool:
    return at_most(-bound, -value)


def ranges(ends) -> Interval:
    """A batch of one from pairs of numbers in any order."""
    return Interval(tensor([[min(p) for p in ends]]), tensor([[max(p) for p in ends]]))


def problem_of(network: Network, lo, hi):
    """The region and the interval bounds of every value, as the cascade starts."""
    lo, hi = np.array(lo, float), np.array(hi, float)
    region = Problem(network, lo, hi, np.zeros((0, lo.size)), np.zeros(0), np.zeros(0)).region()
    values = {network.input.name: input_interval(network, region.box())}
    for node in network.nodes:
        values[node.name] = settle_ties(node, values, node_interval(node, values))
    return region, values


def chain(*operators, inputs: int = 1) -> Network:
    """Operators one behind the other; nodes are named n1, n2, ..."""
    names = ["x", *(f"n{k}" for k in range(1, len(operators) + 1))]
    nodes = [
        Node(after, operator, (before,))
        for operator, (before, after) in zip(operators, pairwise(names), strict=True)
    ]
    return Network(Port("x", (inputs,)), tuple(nodes), (Output("y", names[-1]),))


def lower_bounds(network: Network, lo, hi, target: str, sign: float, slope: Slope) -> list[float]:
    region, values = problem_of(network, lo, hi)
    index = torch.arange(network.size(target))
    return Backward(network, region, values).neurons(target, index, sign, slope).lower.tolist()


# Widening.


@given(ANY, st.floats(0, allow_nan=False, allow_infinity=False))
def test_widening_is_outward(value, radius):
    down = widen_down(tensor([value]), tensor([radius])).item()
    up = widen_up(tensor([value]), tensor([radius])).item()
    assert at_most(down, Fraction(value) - Fraction(radius))
    assert at_least(up, Fraction(value) + Fraction(radius))
    if radius == 0:
        assert down == up == value


def test_an_overflow_bounds_nothing():
    infinite, one = tensor([math.inf]), tensor([1.0])
    assert widen_down(infinite, one).isnan().all()
    assert widen_down(infinite, 0 * one).isnan().all()
    assert widen_up(-infinite, one).isnan().all()
    assert widen_down(-infinite, one).item() == -math.inf
    assert widen_up(infinite, one).item() == math.inf
    assert widen_down(one, tensor([math.nan])).isnan().all()


def test_gamma_covers_the_textbook_constant_and_gives_up_on_endless_sums():
    for terms in (0, 1, 10, 2**20, 2**30):
        exact = Fraction(terms, 2**53) / (1 - Fraction(terms, 2**53))
        assert Fraction(gamma(terms)) >= exact * (1 + Fraction(1, 2**11))
    assert gamma(2**30 + 1) == math.inf


def test_unknown_bounds_give_way_to_known_ones():
    nothing, known = Interval(tensor([math.nan]), tensor([math.nan])), Interval(tensor([1.0]), tensor([2.0]))
    for met in (nothing.meet(known), known.meet(nothing)):
        assert (met.lo.item(), met.hi.item()) == (1.0, 2.0)
    assert nothing.meet(nothing).lo.isnan().all()


# Operators.


@st.composite
def linears_and_ranges(draw: st.DrawFn):
    inputs, outputs = draw(st.integers(0, 4)), draw(st.integers(1, 3))
    weight = np.array([draw(WILD) for _ in range(inputs * outputs)]).reshape(outputs, inputs)
    bias = np.array([draw(WILD) for _ in range(outputs)])
    return Linear(weight, bias), [sorted((draw(WILD), draw(WILD))) for _ in range(inputs)]


@given(linears_and_ranges())
def test_the_image_of_a_linear_layer_holds_its_exact_range(case):
    linear, ends = case
    lo, hi = (np.array([pair[k] for pair in ends], float) for k in (0, 1))
    image = linear.interval([Interval(tensor([lo.tolist()]), tensor([hi.tolist()]))])
    for row in range(len(linear.bias)):
        low, high = linear.exact_extremes(row, lo, hi)
        assert at_most(image.lo[0, row].item(), low)
        assert at_least(image.hi[0, row].item(), high)


@given(st.lists(st.tuples(WILD, WILD), min_size=2, max_size=4))
def test_the_image_of_a_sum_holds_its_exact_range(ends):
    image = Add(len(ends)).interval([ranges([pair]) for pair in ends])
    assert at_most(image.lo.item(), sum(Fraction(min(pair)) for pair in ends))
    assert at_least(image.hi.item(), sum(Fraction(max(pair)) for pair in ends))


def extremes(scale: Fraction, shift: Fraction, ends) -> tuple[Fraction, Fraction]:
    values = [scale * Fraction(end) + shift for end in ends]
    return min(values), max(values)


@given(WILD, WILD, st.tuples(WILD, WILD))
def test_the_image_of_an_exact_scale_holds_its_exact_range(scale, shift, ends):
    image = Scale.exactly(scale, shift).interval([ranges([ends])])
    low, high = extremes(Fraction(scale), Fraction(shift), ends)
    assert at_most(image.lo.item(), low)
    assert at_least(image.hi.item(), high)


@given(WILD, WILD.filter(bool), st.tuples(WILD, WILD))
def test_normalisation_and_division_hold_their_exact_range(mean, std, ends):
    std = abs(std)
    for make, shift in (
        (lambda: Scale.normalise(np.array([mean]), np.array([std])), -Fraction(mean) / Fraction(std)),
        (lambda: Scale.divide(np.array([std])), Fraction(0)),
    ):
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                operator = make()
        except NetworkError:
            continue  # 1 / std overflows
        scale = 1 / Fraction(std)
        assert abs(scale - Fraction(operator.scale.item())) <= Fraction(operator.scale_radius.item())
        assert abs(shift - Fraction(operator.shift.item())) <= Fraction(operator.shift_radius.item())
        image = operator.interval([ranges([ends])])
        low, high = extremes(scale, shift, ends)
        assert at_most(image.lo.item(), low)
        assert at_least(image.hi.item(), high)


def root(value: Fraction) -> tuple[Fraction, Fraction]:
    """A very narrow bracket of a square root."""
    shift = 4**1200
    below = math.isqrt(value.numerator * shift // value.denominator)
    return Fraction(below, 2**1200), Fraction(below + 1, 2**1200)


@slow
@given(
    WILD,
    WILD,
    WILD,
    st.floats(0, 1e300),
    st.sampled_from([0.0, 1e-5, 1e-3, 1e-310]),
    st.tuples(WILD, WILD),
)
def test_batch_norm_holds_its_exact_range(gain, bias, mean, variance, epsilon, ends):
    assume(variance + epsilon > 0)
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            arrays = (np.array([value]) for value in (gain, bias, mean, variance))
            operator = BatchNorm.of(*arrays, epsilon)
    except NetworkError:
        return
    image = operator.interval([ranges([ends])])
    for deviation in root(Fraction(variance) + Fraction(epsilon)):
        scale = Fraction(gain) / deviation
        low, high = extremes(scale, Fraction(bias) - Fraction(mean) * scale, ends)
        assert at_most(image.lo.item(), low)
        assert at_least(image.hi.item(), high)


def test_a_scale_of_uncertain_sign_is_bounded_at_both_ends():
    # -5e-324 / 10 underflows to -0, and the true scale is negative: the minimum is at the upper end.
    arrays = (np.array([value]) for value in (-5e-324, 0.0, 0.0, 100.0))
    image = BatchNorm.of(*arrays, 0.0).interval([ranges([(0.0, 1e300)])])
    assert at_most(image.lo.item(), -Fraction(5e-324) * Fraction(1e300) / 10)


def test_exact_results_keep_no_radius():
    zero = ranges([(0.0, 0.0), (0.0, 1.0)])
    image = Linear(np.array([[3.0, 0.0], [0.0, 2.0], [0.0, -2.0]]), np.array([0.1, 0.0, 0.0])).interval(
        [zero]
    )
    assert image.lo[0, 0] == image.hi[0, 0] == 0.1
    assert image.lo[0, 1] == 0
    assert image.hi[0, 2] == 0
    assert (Scale.exactly(-1.0).interval([zero]).hi == 0).all()
    assert (Add(2).interval([zero, zero]).lo == 0).all()


def test_ties_are_settled_in_rational_arithmetic():
    thirds = np.array([[0.1, 0.2, -0.3]])
    network = chain(Linear(np.array([[-1.0, -1.0]]), np.array([2.0])), inputs=2)
    assert problem_of(network, [0, 0], [1, 1])[1]["n1"].lo.item() == 0
    # 0.1 + 0.2 - 0.3 is not 0 in rational arithmetic, and the tie is settled on the right side.
    exact = sum(Fraction(w) for w in thirds[0].tolist())
    network = chain(Linear(thirds, np.zeros(1)), inputs=3)
    values = problem_of(network, [1, 1, 1], [1, 1, 1])[1]["n1"]
    assert Fraction(values.lo.item()) <= exact <= Fraction(values.hi.item())
    assert (
        math.copysign(1, values.lo.item()) == math.copysign(1, values.hi.item()) == (1 if exact > 0 else -1)
    )


def test_ties_of_sums_that_overflow_stay_unknown():
    network = chain(Linear(np.array([[1e308, 1e308, -1e308, -1e308]]), np.zeros(1)), inputs=4)
    values = problem_of(network, [1] * 4, [1] * 4)[1]["n1"]
    assert at_most(values.lo.item(), Fraction(0))
    assert at_least(values.hi.item(), Fraction(0))


# Relaxations.


@given(WILD, WILD, st.floats(0, 1))
def test_lines_of_a_relaxation_enclose_relu(a, b, chosen):
    lo, hi = min(a, b), max(a, b)
    pre = Interval(tensor([[lo]]), tensor([[hi]]))
    for rule in Slope:
        lines = relax(pre, rule)
        numbers = [t.item() for t in (lines.upper_slope, lines.intercept, lines.lower_slope)]
        if not all(math.isfinite(v) for v in numbers):
            continue
        upper, intercept, lower = (Fraction(v) for v in numbers)
        if lines.unstable.item():
            lower = min(lower, Fraction(chosen))  # any other slope will do as well
        for y in (Fraction(lo), Fraction(hi), Fraction(min(max(0.0, lo), hi))):
            assert lower * y <= max(y, Fraction(0)) <= upper * y + intercept


def test_unknown_ranges_are_bounded_by_the_end_that_is_known_and_stable_ones_are_exact():
    lo, hi = tensor([[math.nan, math.nan, 1.0]]), tensor([[1.0, -1.0, math.inf]])
    lines = relax(Interval(lo, hi), Slope.ONE)
    assert lines.upper_slope[0, 0] == 0
    assert 1 <= lines.intercept[0, 0] < 1 + 1e-14
    assert lines.upper_slope[0].tolist()[1:] == [0.0, 1.0]
    assert lines.intercept[0].tolist()[1:] == lines.radius[0].tolist()[1:] == [0.0, 0.0]


# Backward bounds.


@pytest.mark.parametrize("slope", list(Slope))
def test_radii_that_underflow_are_not_lost_before_huge_coefficients(slope):
    # The hidden values are near 1e-310, so their rounding radius underflows; the coefficients are 1e301, so
    # it matters.
    first = Linear(np.array([[1.43323834825337e-310], [1.65220468430384e-310]]), np.zeros(2))
    second = Linear(np.array([[1.1928097726969357e301, -1.0347269467529528e301]]), np.zeros(1))
    network = chain(first, Relu(), second)
    true = oracle.evaluate(network, [Fraction(1)])["n3"][0]
    assert true < 0
    assert at_most(lower_bounds(network, [1.0], [1.0], "n3", 1.0, slope)[0], true)


@pytest.mark.parametrize("slope", list(Slope))
def test_coefficients_that_underflow_are_charged(slope):
    first = Linear(np.array([[6.953355807835e-310]]), np.array([-4.2721418083338267e-306]))
    network = chain(first, Scale.exactly(6.295496e-317, 5.34498901417e-313))
    exact = oracle.exact_value_ranges(network, oracle.Polytope.of([-14.0], [-4.0]), ["n2"])["n2"][0]
    assert at_most(lower_bounds(network, [-14.0], [-4.0], "n2", 1.0, slope)[0], exact[0])
    assert at_most(lower_bounds(network, [-14.0], [-4.0], "n2", -1.0, slope)[0], -exact[1])


def test_slopes_that_underflow_a_coefficient_are_charged():
    # 5e-324 times the chord's slope of 1/2 rounds to 0 before a value of 1e200.
    network = chain(Linear(np.array([[1.0]]), np.zeros(1)), Relu(), Linear(np.array([[-ETA]]), np.zeros(1)))
    low = lower_bounds(network, [-1e200], [1e200], "n3", 1.0, Slope.CHORD)[0]
    assert at_most(low, -Fraction(ETA) * Fraction(1e200))


@st.composite
def wild_networks(draw: st.DrawFn) -> Network:
    """Up to two layers of any weights, with a Scale and a branch now and then."""
    inputs = size = draw(st.integers(1, 2))
    nodes: list[Node] = []
    current = "x"
    for k in range(draw(st.integers(1, 2))):
        width = draw(st.integers(1, 2))

        def linear(before: int, width: int = width) -> Linear:
            weight = [[draw(WILD) for _ in range(before)] for _ in range(width)]
            return Linear(np.array(weight), np.array([draw(WILD) for _ in range(width)]))

        nodes.append(Node(f"linear{k}", linear(size), (current,)))
        current, size = f"linear{k}", width
        if draw(st.booleans()):
            nodes.append(Node(f"branch{k}", linear(inputs), ("x",)))
            nodes.append(Node(f"join{k}", Add(2), (current, f"branch{k}")))
            current = f"join{k}"
        if draw(st.booleans()):
            nodes.append(Node(f"scale{k}", Scale.exactly(draw(WILD), draw(WILD)), (current,)))
            current = f"scale{k}"
        nodes.append(Node(f"relu{k}", Relu(), (current,)))
        current = f"relu{k}"
    return Network(Port("x", (inputs,)), tuple(nodes), (Output("y", current),))


@st.composite
def wild_problems(draw: st.DrawFn):
    network = draw(wild_networks())
    ends = [
        sorted((a, draw(st.sampled_from([a, -a]) | WILD)))
        for a in (draw(WILD) for _ in range(network.input.size))
    ]
    return network, [pair[0] for pair in ends], [pair[1] for pair in ends]


@slow
@given(wild_problems())
def test_no_bound_of_any_value_is_ever_wrong(problem):
    network, lo, hi = problem
    names = [node.name for node in network.nodes]
    exact = oracle.exact_value_ranges(network, oracle.Polytope.of(lo, hi), names)
    region, values = problem_of(network, lo, hi)
    backward = Backward(network, region, values)
    for name in names:
        bounds = [(values[name].lo.flatten().tolist(), 1), (((-values[name].hi).flatten()).tolist(), -1)]
        for slope in Slope:
            for sign in (1, -1):
                index = torch.arange(network.size(name))
                bounds.append((backward.neurons(name, index, sign, slope).lower.tolist(), sign))
        for lower, sign in bounds:
            for bound, (low, high) in zip(lower, exact[name], strict=True):
                assert at_most(bound, low if sign > 0 else -high)


@slow
@given(wild_problems(), st.lists(st.floats(0, 1), min_size=2, max_size=2))
def test_forward_passes_stay_within_their_radius(problem, shares):
    network, lo, hi = problem
    _, values = problem_of(network, lo, hi)
    radii = forward_radius(network, values)
    point = [
        min(max(low + share * (high / 2 - low / 2) * 2, low), high)
        for low, high, share in zip(lo, hi, shares, strict=False)
    ]
    computed = network.run(tensor([point]))
    exact = oracle.evaluate(network, [Fraction(v) for v in point])
    for node in network.nodes:
        for y, radius, true in zip(
            computed[node.name].flatten().tolist(),
            radii[node.name].flatten().tolist(),
            exact[node.name],
            strict=True,
        ):
            if math.isfinite(y) and math.isfinite(radius):
                assert abs(Fraction(y) - true) <= Fraction(radius)


@slow
@given(strategies.networks(), st.data())
def test_bounds_of_forms_over_several_values_are_true(network, data):
    size = network.input.size
    lo, hi = [-1.0] * size, [1.0] * size
    region, values = problem_of(network, lo, hi)
    names = [node.name for node in network.nodes][:3]
    forms = {
        name: tensor([[data.draw(strategies.INTEGERS) for _ in range(network.size(name))]]).reshape(
            1, *network.shapes[name]
        )
        for name in names
    }
    bound = Backward(network, region, values).forms(forms, Slope.CHORD).lower.item()
    for x in oracle.random_points(oracle.Polytope.of(lo, hi), 6):
        exact = oracle.evaluate(network, x)
        total = sum(
            Fraction(c) * v
            for name in names
            for c, v in zip(forms[name].flatten().tolist(), exact[name], strict=True)
        )
        assert at_most(bound, Fraction(total))


def test_layers_on_the_last_axis_of_a_longer_value_are_bounded():
    rng = np.random.default_rng(0)
    first, second = (Linear(rng.normal(size=(3, 3)), rng.normal(size=3)) for _ in range(2))
    network = Network(
        Port("x", (6,)),
        (
            Node("n0", Reshape((6,), (2, 3)), ("x",)),
            Node("n1", first, ("n0",)),
            Node("n2", Relu(), ("n1",)),
            Node("n3", second, ("n2",)),
        ),
        (Output("y", "n3"),),
    )
    low = lower_bounds(network, [-0.1] * 6, [0.1] * 6, "n3", 1.0, Slope.CHORD)
    for x in oracle.random_points(oracle.Polytope.of([-0.1] * 6, [0.1] * 6), 20):
        for bound, true in zip(low, oracle.evaluate(network, x)["n3"], strict=True):
            assert at_most(bound, true)
            assert bound > true - 3
