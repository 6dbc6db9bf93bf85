"""Sigmoid and its like within a network: their ranges, what bounds make of them, and what rewrites may do."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import oracle
import oracle_barriers
import strategies
from relutrim import Box
from relutrim.analysis import analyze_network
from relutrim.bounds.boxes import bound_boxes
from relutrim.bounds.interval import forward_radius, input_interval, node_interval
from relutrim.bounds.linear import Backward
from relutrim.bounds.relaxation import Slope
from relutrim.compression import compress_network
from relutrim.errors import InputError, NetworkError
from relutrim.graph import (
    Add,
    Barrier,
    Convolution,
    Curve,
    Elu,
    Gelu,
    Linear,
    Network,
    Node,
    Output,
    Port,
    Relu,
    Reshape,
    Scale,
    Sigmoid,
    Softmax,
    Tanh,
)
from relutrim.intervals import Interval
from relutrim.prove.recheck import recheck
from relutrim.prove.verdict import Evidence, Verdict
from relutrim.rewrite.draft import Draft, passed
from relutrim.rewrite.drop_channels import drop_channels
from relutrim.rewrite.gains import gains
from rewriting import compressed, graph, linear, names, start

CURVES = [
    *(kind() for kind in oracle_barriers.CURVES),
    Elu(0.3),
    Elu(2.5),
    Gelu("tanh"),
    Gelu(spelt=("Div", float(np.float32(math.sqrt(2))))),
    Gelu(spelt=("Mul", float(np.float32(math.sqrt(0.5))))),
]
QUICK = {"method": "auto", "time_limit": 5.0, "device": "cpu", "seed": 0, "progress": None}
slow = settings(suppress_health_check=list(HealthCheck))
few = settings(slow, max_examples=60)
NUMBERS = (
    st.floats(-6, 6)
    | st.floats(-800, 800)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([0.0, -0.0, 5e-324, -5e-324, 1e-300, -1.5, -3.0, 3.0, -0.7517915, 1e308, -1e308])
)
curves = st.sampled_from(CURVES)


def label(operator: Barrier) -> str:
    return f"{operator.kind}{getattr(operator, 'alpha', '')}"


def ends(lo, hi) -> Interval:
    return Interval(torch.tensor([lo], dtype=torch.float64), torch.tensor([hi], dtype=torch.float64))


def exact(operator: Barrier, x: list[Fraction], shape: tuple[int, ...] | None = None) -> list[Fraction]:
    return oracle_barriers.barrier(operator, shape or (len(x),), x)


# What is known of the functions.


@pytest.mark.parametrize("operator", CURVES, ids=label)
def test_traits_are_true_to_many_digits(operator):
    """Range and monotony on a wide grid, slopes on a fine one where the functions bend."""

    def f(x: mpmath.mpf) -> mpmath.mpf:
        return oracle_barriers.curve(operator, x)

    traits, (left, right) = operator.traits, operator.traits.bottom
    with mpmath.workdps(40):
        grid = [mpmath.mpf(k) / 32 for k in range(-40 * 32, 40 * 32 + 1)]
        values = [f(x) for x in grid]
        assert all(traits.least <= y <= traits.greatest for y in values)
        for (x, next_), (y, after) in zip(pairwise(grid), pairwise(values), strict=True):
            assert after <= y or next_ > left
            assert after >= y or x < right
        step = mpmath.mpf(10) ** -15
        slopes = [(f(x + step) - f(x)) / step for x in (mpmath.mpf(k) / 512 for k in range(-2048, 2049))]
        assert traits.slopes[0] <= min(slopes) + 1e-12
        assert max(slopes) - 1e-12 <= traits.slopes[1]
        assert traits.steepest <= max(slopes) * 1.02  # and not far from them
        if right > -math.inf:
            assert min(values) - traits.least < 1e-3
            if left < right:
                assert f(mpmath.mpf(left)) - f(mpmath.mpf(left) - step) < 0
                assert f(mpmath.mpf(right) + step) - f(mpmath.mpf(right)) > 0


@slow
@given(curves, NUMBERS)
def test_an_evaluation_is_no_farther_off_than_it_says(operator, x):
    found = operator.forward([torch.tensor([[x]], dtype=torch.float64)])
    if not found.isfinite().all():
        return
    (truth,) = exact(operator, [Fraction(x)])
    size = torch.tensor([[abs(x)]], dtype=torch.float64)
    error = float(operator.rounding(size, found.abs()))
    assert abs(Fraction(float(found)) - truth) <= Fraction(error)


@slow
@given(curves, NUMBERS, NUMBERS, st.fractions(0, 1, max_denominator=100))
def test_intervals_hold_everything_in_between(operator, a, b, share):
    lo, hi = min(a, b), max(a, b)
    image = operator.interval([ends([lo], [hi])])
    for x in (Fraction(lo), Fraction(hi), Fraction(lo) + share * (Fraction(hi) - Fraction(lo))):
        (truth,) = exact(operator, [x])
        low, high = float(image.lo), float(image.hi)
        assert not math.isnan(low)
        assert Fraction(low) <= truth
        assert not math.isfinite(high) or truth <= Fraction(high)


@slow
@given(curves, st.floats(-30, 30))
def test_intervals_of_points_are_next_to_nothing(operator, x):
    image = operator.interval([ends([x], [x])])
    width = float(image.hi - image.lo)
    if not operator.traits.bottom[0] <= x <= operator.traits.bottom[1]:
        assert width <= 4 * operator.traits.precision * (1 + abs(x)) + 1e-300


@pytest.mark.parametrize("operator", CURVES, ids=label)
def test_what_is_unknown_before_is_still_within_the_range_behind(operator):
    for lo, hi in ((math.nan, math.nan), (-math.inf, math.inf), (math.nan, 1.0), (-1.0, math.nan)):
        image = operator.interval([ends([lo], [hi])])
        assert float(image.lo) >= operator.traits.least
        if operator.traits.greatest < math.inf:
            assert float(image.hi) <= operator.traits.greatest


@slow
@given(curves, NUMBERS, NUMBERS)
def test_no_change_is_larger_than_the_spread(operator, x, moved):
    before, after = exact(operator, [Fraction(x)]), exact(operator, [Fraction(x) + Fraction(moved)])
    spread = float(passed(operator, [torch.tensor([[abs(moved)]], dtype=torch.float64)]))
    assert math.isinf(spread) or abs(after[0] - before[0]) <= Fraction(spread) + oracle_barriers.ERROR


def test_a_change_that_nobody_knows_stays_unknown():
    """A weight that the file cannot hold is no matter of a sigmoid's range."""
    for operator in (*CURVES, Softmax(0)):
        assert operator.spread([torch.tensor([[math.nan]], dtype=torch.float64)]).isnan().all()


def test_an_elu_that_falls_and_rises_is_refused():
    for alpha in (-1.0, math.inf, math.nan):
        with pytest.raises(NetworkError, match="alpha"):
            Elu(alpha)


# Softmax.

FIVE = st.lists(st.floats(-3, 3), min_size=5, max_size=5)
LISTS = st.lists(st.tuples(st.floats(-30, 30) | NUMBERS, st.floats(0, 10)), min_size=1, max_size=5)


@slow
@given(LISTS, st.randoms(use_true_random=False))
def test_the_range_of_a_softmax(pairs, random):
    lo = [a for a, _ in pairs]
    hi = [a + w if math.isfinite(a + w) else a for a, w in pairs]
    image = Softmax(0).interval([ends(lo, hi)])
    for _ in range(3):
        x = [Fraction(random.choice([a, b])) for a, b in zip(lo, hi, strict=True)]
        truth = exact(Softmax(0), x)
        for low, p, high in zip(image.lo[0].tolist(), truth, image.hi[0].tolist(), strict=True):
            assert 0 <= low <= high <= 1
            assert Fraction(low) <= p <= Fraction(high)


@slow
@given(LISTS)
def test_a_softmax_is_no_farther_off_than_it_says(pairs):
    x = [a for a, _ in pairs]
    found = Softmax(0).forward([torch.tensor([x], dtype=torch.float64)])
    error = Softmax(0).rounding(found, found)
    for value, truth, allowed in zip(
        found[0].tolist(), exact(Softmax(0), [Fraction(v) for v in x]), error[0].tolist(), strict=True
    ):
        assert abs(Fraction(value) - truth) <= Fraction(allowed)


@slow
@given(
    LISTS,
    st.lists(st.floats(-3, 3), min_size=5, max_size=5),
    st.lists(st.floats(-3, 3), min_size=5, max_size=5),
)
def test_no_change_of_a_softmax_is_larger_than_its_spread_and_its_gains(pairs, moved, weights):
    x = [Fraction(a) for a, _ in pairs]
    moved, weights = moved[: len(x)], weights[: len(x)]
    before = exact(Softmax(0), x)
    after = exact(Softmax(0), [v + Fraction(d) for v, d in zip(x, moved, strict=True)])
    sizes = torch.tensor([[abs(d) for d in moved]], dtype=torch.float64)
    for one, other, most in zip(before, after, Softmax(0).spread([sizes])[0].tolist(), strict=True):
        assert abs(one - other) <= Fraction(most) + oracle_barriers.ERROR
    middle = torch.tensor([weights], dtype=torch.float64)
    centre, radius = Softmax(0).pulled(middle, torch.zeros_like(middle))
    total = sum(Fraction(w) * (b - a) for w, a, b in zip(weights, before, after, strict=True))
    most = sum(
        (abs(Fraction(c)) + Fraction(r)) * abs(Fraction(d))
        for c, r, d in zip(centre[0].tolist(), radius[0].tolist(), moved, strict=True)
    )
    assert abs(total) <= most + oracle_barriers.ERROR


def test_a_softmax_along_an_axis_reads_that_axis():
    wanted = np.zeros((2, 3), dtype=bool)
    wanted[0, 1] = True
    assert Softmax(1).reads(wanted, [(2, 3)])[0].tolist() == [[True] * 3, [False] * 3]
    assert Softmax(0).reads(wanted, [(2, 3)])[0].tolist() == [[False, True, False]] * 2
    with pytest.raises(NetworkError, match="axis 2"):
        Softmax(2).output_shape([(2, 3)])


def test_along_a_long_axis_a_softmax_is_anything_between_0_and_1():
    image = Softmax(0).interval([Interval(torch.zeros(1, 1000), torch.ones(1, 1000))])
    assert image.lo.unique().tolist() == [0]
    assert image.hi.unique().tolist() == [1]


# Networks with barriers within.


@st.composite
def networks(draw: st.DrawFn, *, extreme: bool = False) -> Network:
    """Linear, ReLU, linear, a barrier, linear, ReLU, linear; branches may go around the barrier."""
    flavour = draw(strategies.flavours(extreme=extreme))
    inputs, width, inner, last = (draw(st.integers(1, most)) for most in (3, 4, 3, 4))
    nodes = [
        Node("linear1", draw(strategies.linears(width, inputs, flavour)), ("x",)),
        Node("relu1", Relu(), ("linear1",)),
        Node("linear2", draw(strategies.linears(inner, width, flavour)), ("relu1",)),
        Node("barrier", draw(curves | st.just(Softmax(0))), ("linear2",)),
        Node("linear3", draw(strategies.linears(last, inner, flavour)), ("barrier",)),
    ]
    before = "linear3"
    if draw(st.booleans()):
        nodes.append(Node("around", draw(strategies.linears(last, width, flavour)), ("relu1",)))
        nodes.append(Node("join", Add(2), ("linear3", "around")))
        before = "join"
    nodes.append(Node("relu2", Relu(), (before,)))
    nodes.append(Node("output", draw(strategies.linears(2, last, flavour)), ("relu2",)))
    outputs = [Output("y", "output")]
    if draw(st.integers(0, 3)) == 3:
        nodes.append(Node("second", draw(curves), ("output",)))
        outputs.append(Output("z", "second"))
    dtype = strategies._dtype(nodes)
    return Network(Port("x", (inputs,)), tuple(nodes), tuple(outputs), dtype=dtype)


@st.composite
def problems(draw: st.DrawFn, **options) -> tuple[Network, strategies.RandomDomain]:
    network = draw(networks(**options))
    return network, draw(strategies.domains(network.input.size, rows=0, extreme=False))


def box(random: strategies.RandomDomain) -> Box:
    return Box(random.lo, random.hi)


def points(random: strategies.RandomDomain, count: int) -> list[list[Fraction]]:
    draw = np.random.default_rng(0)
    shares = [draw.integers(0, 2, len(random.lo)) * 4 for _ in range(count // 2)]
    shares += [draw.integers(0, 5, len(random.lo)) for _ in range(count - count // 2)]
    return [
        [
            Fraction(a) + Fraction(int(t), 4) * (Fraction(b) - Fraction(a))
            for a, b, t in zip(random.lo.tolist(), random.hi.tolist(), share, strict=True)
        ]
        for share in shares
    ]


def slack(values: dict[str, list[Fraction]]) -> Fraction:
    """What the oracle's own rounding may come to."""
    return oracle_barriers.ERROR * (1 + max(abs(v) for value in values.values() for v in value)) ** 2


def no_lie(low: float, value: Fraction, high: float, off: Fraction) -> bool:
    return (not math.isfinite(low) or Fraction(low) <= value + off) and (
        not math.isfinite(high) or value - off <= Fraction(high)
    )


@slow
@given(problems(extreme=True), st.sampled_from(Slope))
def test_interval_and_linear_bounds_hold_at_points(problem, slope):
    network, random = problem
    region = box(random).fit(network).region()
    values = {"x": input_interval(network, region.box())}
    for node in network.nodes:
        values[node.name] = node_interval(node, values)
    backward = Backward(network, region, values)
    radii = forward_radius(network, values)
    truths = [(x, oracle.evaluate(network, x)) for x in points(random, 6)]
    for node in network.nodes:
        index = torch.arange(network.size(node.name))
        lower = backward.neurons(node.name, index, 1.0, slope).lower.tolist()
        upper = (-backward.neurons(node.name, index, -1.0, slope).lower).tolist()
        box_ = values[node.name]
        for x, truth in truths:
            off = slack(truth)
            run = network.run(torch.tensor([[float(v) for v in x]], dtype=torch.float64))[node.name][0]
            rows = (
                lower,
                upper,
                box_.lo[0].tolist(),
                box_.hi[0].tolist(),
                run.tolist(),
                radii[node.name][0].tolist(),
            )
            for value, low, high, least, most, seen, radius in zip(truth[node.name], *rows, strict=True):
                assert no_lie(low, value, high, off)
                assert no_lie(least, value, most, off)
                if math.isfinite(seen) and math.isfinite(radius):
                    assert abs(Fraction(seen) - value) <= Fraction(radius) + off


@few
@given(problems())
def test_bounds_on_parts_of_the_box_hold_there(problem):
    network, random = problem
    region = box(random).fit(network).region()
    middle = region.lo / 2 + region.hi / 2
    lo, hi = torch.stack([region.lo, middle]), torch.stack([middle, region.hi])
    values, _ = bound_boxes(network, region, {}, lo, hi, "output")
    for part in (0, 1):
        for end in (lo, hi):
            truth = oracle.evaluate(network, [Fraction(v) for v in end[part].tolist()])
            for name in ("barrier", "linear3", "output"):
                pairs = zip(
                    truth[name], values[name].lo[part].tolist(), values[name].hi[part].tolist(), strict=True
                )
                assert all(no_lie(low, value, high, slack(truth)) for value, low, high in pairs)


@few
@given(problems(extreme=True))
def test_verdicts_are_never_wrong_and_can_be_proved_again(problem):
    network, random = problem
    stability = analyze_network(network, box(random), data=None, **QUICK)
    truths = [oracle.evaluate(network, x) for x in points(random, 40)]
    for layer in stability.layers:
        pre = network[layer.name].inputs[0]
        for neuron, verdict in enumerate(layer.verdict):
            seen = [(truth[pre][neuron], slack(truth)) for truth in truths]
            if verdict == Verdict.ACTIVE:
                assert all(y >= -off for y, off in seen)
            elif verdict == Verdict.INACTIVE:
                assert all(y <= off for y, off in seen)
            for y, off in seen:
                assert no_lie(layer.lower[neuron], y, layer.upper[neuron], off)
        for rows, sign in ((layer.active_witness, 1), (layer.inactive_witness, -1)):
            for neuron, row in enumerate(rows):
                if row >= 0:
                    x = [Fraction(float(v)) for v in stability.witnesses[row]]
                    assert sign * oracle.evaluate(network, x)[pre][neuron] > 0
    assert recheck(stability).lost == ()


@few
@given(problems())
def test_compressed_networks_stay_within_the_proven_deviation(problem):
    network, random = problem
    truths = [(x, oracle.evaluate(network, x)) for x in points(random, 10)]
    for options in ({}, {"rewrites": "leo++"}, {"tolerance": 1e-3}):
        result = compress_network(network, box(random), **{**QUICK, "method": "bounds"}, **options)
        for smaller, claimed in (
            (result.network, result.deviation.proven_float64),
            (result.stored, result.deviation.proven),
        ):
            assert claimed is not None
            assert math.isfinite(claimed)
            for x, before in truths:
                after = oracle.evaluate(smaller, x)
                off = slack(before) + slack(after)
                for source in network.sources:
                    for a, b in zip(before[source], after[source], strict=True):
                        assert abs(a - b) <= Fraction(claimed) + off
        assert sum(isinstance(node.operator, Barrier) for node in result.network) <= sum(
            isinstance(node.operator, Barrier) for node in network
        )


def around(barrier: Barrier, *, first: Linear, last: Linear) -> Network:
    """Linear, barrier, linear, ReLU, linear."""
    return graph(
        first.weight.shape[1],
        [
            ("first", first, "x"),
            ("barrier", barrier, "first"),
            ("last", last, "barrier"),
            ("relu", Relu(), "last"),
            ("output", linear(np.eye(len(last.bias))), "relu"),
        ],
        "output",
    )


def test_neurons_behind_a_barrier_are_decided_by_its_range():
    """No interval of the input tells; that of a sigmoid's result does."""
    network = around(
        Sigmoid(), first=linear([[1e6]]), last=linear([[1.0], [-1.0], [1.0], [1.0]], [0.0, 0.0, -0.5, -1.0])
    )
    stability = analyze_network(network, Box(-1, 1, shape=(1,)), data=None, **QUICK)
    found = [Verdict(v) for v in stability.layers[0].verdict]
    assert found == [Verdict.ACTIVE, Verdict.INACTIVE, Verdict.UNSTABLE, Verdict.INACTIVE]


def test_linear_bounds_before_a_barrier_make_its_box_smaller():
    """``relu(x) - relu(x)`` is 0, which intervals do not know, so its sigmoid is nearly a half."""
    network = graph(
        1,
        [
            ("up", linear([[1.0], [1.0]]), "x"),
            ("relu1", Relu(), "up"),
            ("minus", linear([[1.0, -1.0]]), "relu1"),
            ("barrier", Sigmoid(), "minus"),
            ("last", linear([[1.0]], [-0.4]), "barrier"),
            ("relu2", Relu(), "last"),
        ],
        "relu2",
    )
    for method in ("auto", "bounds"):
        stability = analyze_network(network, Box(0, 1, shape=(1,)), data=None, **{**QUICK, "method": method})
        assert Verdict(stability.layers[1].verdict[0]) is Verdict.ACTIVE
        assert Evidence(stability.layers[1].evidence[0]) is Evidence.PROOF
        assert recheck(stability).lost == ()


@pytest.mark.parametrize("method", ["isa", "layer", "neuron"])
def test_mixed_integer_programs_refuse_a_barrier_by_name(method):
    network = around(Tanh(), first=linear([[1.0]]), last=linear([[1.0]]))
    with pytest.raises(InputError, match=r"'barrier' is a Tanh.*--method auto"):
        analyze_network(network, Box(0, 1, shape=(1,)), data=None, **{**QUICK, "method": method})


def test_linear_programs_behind_a_barrier_take_it_for_a_box():
    """Two layers of ReLUs behind a tanh, undecided by bounds alone."""
    rng = np.random.default_rng(5)
    sizes = [(8, 8), (8, 8), (4, 8)]
    mats = [Linear(rng.normal(size=s), 0.3 * rng.normal(size=s[0])) for s in sizes]
    network = graph(
        8,
        [
            ("first", Linear(rng.normal(size=(8, 8)), np.zeros(8)), "x"),
            ("barrier", Tanh(), "first"),
            ("a", mats[0], "barrier"),
            ("ra", Relu(), "a"),
            ("b", mats[1], "ra"),
            ("rb", Relu(), "b"),
            ("c", mats[2], "rb"),
            ("rc", Relu(), "c"),
        ],
        "rc",
    )
    stability = analyze_network(network, Box(0, 0.5, shape=(8,)), data=None, **QUICK)
    x = torch.rand(4000, 8, dtype=torch.float64) * 0.5
    values = network.run(x)
    for layer in stability.layers:
        y = values[network[layer.name].inputs[0]]
        assert not (y[:, layer.verdict == Verdict.ACTIVE] < 0).any()
        assert not (y[:, layer.verdict == Verdict.INACTIVE] > 0).any()
    assert recheck(stability).lost == ()


# Rewrites around barriers.


@slow
@given(curves, st.lists(strategies.INTEGERS | strategies.FLOAT32, min_size=6, max_size=6))
def test_gains_bound_what_a_change_before_a_barrier_does(operator, numbers):
    network = graph(
        2,
        [
            ("x0", Scale.exactly(1.0), "x"),
            ("barrier", operator, "x0"),
            ("output", linear([numbers[4:]]), "barrier"),
        ],
        "output",
    )
    gain = gains(network, {}, ["x0"])["x0"]
    x, moved = [Fraction(v) for v in numbers[:2]], [Fraction(v) for v in numbers[2:4]]
    one = oracle.outputs(network, x)[0]
    other = oracle.outputs(network, [v + d for v, d in zip(x, moved, strict=True)])[0]
    most = sum(Fraction(g) * abs(d) for g, d in zip(gain[0].tolist(), moved, strict=True))
    assert abs(one - other) <= most + oracle_barriers.ERROR


def test_both_sides_of_a_barrier_are_rewritten_and_it_stays():
    rng = np.random.default_rng(0)
    network = graph(
        4,
        [
            ("first", Linear(rng.normal(size=(12, 4)), np.linspace(-6, 6, 12)), "x"),
            ("relu1", Relu(), "first"),
            ("second", Linear(rng.normal(size=(5, 12)), np.zeros(5)), "relu1"),
            ("barrier", Sigmoid(), "second"),
            ("third", Linear(rng.normal(size=(12, 5)), np.linspace(-6, 6, 12)), "barrier"),
            ("relu2", Relu(), "third"),
            ("output", Linear(rng.normal(size=(3, 12)), np.zeros(3)), "relu2"),
        ],
        "output",
    )
    result = compressed(network, 0, 1)
    sizes = {node.name: result.network.size(node.name) for node in result.network.relus}
    assert sizes["relu1"] < 12
    assert sizes["relu2"] < 12
    assert type(result.network["barrier"].operator) is Sigmoid
    assert result.network.size("barrier") == 5
    x = torch.rand(1000, 4, dtype=torch.float64)
    assert float((network(x) - result.network(x)).abs().max()) <= result.deviation.proven_float64 + 1e-12


def test_what_is_constant_before_a_barrier_collapses_with_it():
    network = graph(
        2,
        [
            ("first", linear([[-1.0, -1.0]], [-1.0]), "x"),
            ("relu1", Relu(), "first"),
            ("second", linear([[3.0], [2.0]], [1.0, -1.0]), "relu1"),
            ("barrier", Softmax(0), "second"),
            ("output", linear([[1.0, 2.0]]), "barrier"),
        ],
        "output",
    )
    result = compressed(network, 0, 1)
    assert names(result) == ["collapse"]
    (truth,) = oracle.outputs(network, [Fraction(0), Fraction(1, 2)])
    (found,) = oracle.outputs(result.network, [Fraction(0), Fraction(1, 2)])
    assert abs(truth - found) <= Fraction(result.deviation.proven_float64)


def with_channels(barrier: Barrier) -> Draft:
    """Two channels, the second inactive, through a barrier into a convolution."""
    first = Convolution(np.ones((2, 1, 1)), np.array([1.0, -5.0]), (1,), ((0, 0),), (1,), 1)
    second = Convolution(np.ones((1, 2, 1)), np.zeros(1), (1,), ((0, 0),), (1,), 1)
    nodes = (
        Node("first", first, ("x",)),
        Node("relu", Relu(), ("first",)),
        Node("barrier", barrier, ("relu",)),
        Node("second", second, ("barrier",)),
        Node("flat", Reshape((1, 3), (3,)), ("second",)),
    )
    return start(Network(Port("x", (1, 3)), nodes, (Output("y", "flat"),), dtype="float64"), 0, 1)


@pytest.mark.parametrize("operator", [*CURVES, Softmax(0), Softmax(1)], ids=label)
def test_a_channel_of_zeros_goes_only_if_the_barrier_leaves_it_zero(operator):
    draft = with_channels(operator)
    cut = drop_channels(draft)
    zero_at_zero = isinstance(operator, Curve) and exact(operator, [Fraction(0)]) == [0]
    assert cut.network.size("relu") == (3 if zero_at_zero else 6)
    x = torch.rand(50, 1, 3, dtype=torch.float64)
    assert torch.allclose(draft.network(x), cut.network(x), rtol=0, atol=1e-12)
