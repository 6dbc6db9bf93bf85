"""Gates (clips, leaky ReLUs, absolute values and any other sums of ReLUs of one value) against rational
arithmetic, on ranges with and without ends; and what knowing them is good for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import nn

import relutrim
from relutrim.bounds.gates import gates
from relutrim.bounds.interval import forward_radius, input_interval, value_interval
from relutrim.graph import Add, Linear, Network, Node, Output, Port, Relu, Scale
from relutrim.graph.operators import Operator
from relutrim.intervals import Interval
from relutrim.io import piecewise
from relutrim.prove.by_intervals import by_intervals

slow = settings(suppress_health_check=list(HealthCheck), max_examples=150)
Build = Callable[["Graph", str], str]


class Graph:
    """A graph of values of one shape in the making; its input is ``x``."""

    def __init__(self, size: int = 1) -> None:
        self.size, self.nodes = size, list[Node]()

    def emit(self, operator: Operator, /, *inputs: str) -> str:
        self.nodes.append(Node(f"n{len(self.nodes)}", operator, inputs))
        return self.nodes[-1].name

    def network(self) -> Network:
        return Network(
            Port("x", (self.size,)), tuple(self.nodes), (Output("y", self.nodes[-1].name),), "float64"
        )


KNOWN: dict[str, Build] = {
    "relu6": lambda g, x: piecewise.clip(g.emit, x, 0.0, 6.0),
    "hard tanh": lambda g, x: piecewise.clip(g.emit, x, -1.0, 1.0),
    "clip without a round number": lambda g, x: piecewise.clip(g.emit, x, -0.1, 0.7),
    "clip with limits far apart": lambda g, x: piecewise.clip(g.emit, x, -3.4e38, 3.4e38),
    "leaky relu": lambda g, x: piecewise.leaky_relu(g.emit, x, 0.1),
    "opposite slope": lambda g, x: piecewise.leaky_relu(g.emit, x, -0.3),
    "absolute": lambda g, x: piecewise.absolute(g.emit, x),
    "residual": lambda g, x: g.emit(Add(2), x, g.emit(Relu(), x)),
    "larger of both signs": lambda g, x: piecewise.larger(g.emit, x, g.emit(Scale.exactly(-1.0), x)),
    "smaller of two lines": lambda g, x: piecewise.smaller(g.emit, x, g.emit(Scale.exactly(0.3, 0.2), x)),
    "divided inside": lambda g, x: g.emit(
        Add(2),
        g.emit(Relu(), g.emit(Scale.divide(np.asarray(3.0)), x)),
        g.emit(Scale.exactly(-1.0, 0.5), g.emit(Relu(), x)),
    ),
}
"""Every one reads its argument several times."""

NUMBERS = st.one_of(
    st.integers(-9, 9).map(float),
    st.floats(-10, 10),
    st.floats(allow_nan=False, allow_infinity=False),
)
ENDS = st.one_of(NUMBERS, st.sampled_from([-math.inf, math.inf, math.nan, 0.0, 6.0, -1.0]))


@st.composite
def sums(draw: st.DrawFn) -> Build:
    """Sums of scaled ReLUs of scaled arguments."""
    scalars = st.one_of(st.sampled_from([0.0, 1.0, -1.0, 6.0]), st.floats(-3, 3), NUMBERS)
    pairs = draw(st.lists(st.tuples(scalars, scalars, scalars, scalars), min_size=1, max_size=3))
    straight = draw(st.booleans())

    def build(g: Graph, x: str) -> str:
        terms = [
            g.emit(Scale.exactly(factor, plus), g.emit(Relu(), g.emit(Scale.exactly(scale, shift), x)))
            for scale, shift, factor, plus in pairs
        ]
        terms += [x] * (straight or len(terms) == 1)
        return g.emit(Add(len(terms)), *terms)

    return build


def ranges(network: Network, lo: float, hi: float) -> dict[str, Interval]:
    """Of every value, where the input lies between two ends."""
    ends = (torch.full((1, network.input.size), end, dtype=torch.float64) for end in (lo, hi))
    values = {"x": Interval(*ends)}
    for node in network.nodes:
        values[node.name] = value_interval(network, node, values)
    return values


def exact(network: Network, x: Fraction, part: Fraction) -> dict[str, Fraction]:
    """Every value; a scale that is known up to a radius is a part of that away from where it is stored."""
    values = {"x": x}
    for node in network.nodes:
        read = [values[name] for name in node.inputs]
        match node.operator:
            case Scale() as by:
                ends = [(by.scale, by.scale_radius), (by.shift, by.shift_radius)]
                scale, shift = (Fraction(float(a)) + part * Fraction(float(r)) for a, r in ends)
                values[node.name] = scale * read[0] + shift
            case Relu():
                values[node.name] = max(Fraction(0), read[0])
            case _:
                values[node.name] = sum(read, Fraction(0))
    return values


def is_within(value: Fraction, lo: float, hi: float) -> bool:
    assert not math.isnan(lo)
    assert not math.isnan(hi)
    return (lo == -math.inf or Fraction(lo) <= value) and (hi == math.inf or value <= Fraction(hi))


@slow
@given(st.sampled_from(sorted(KNOWN)).map(KNOWN.__getitem__) | sums(), ENDS, ENDS, st.data())
def test_a_range_holds_every_exact_value(build: Build, lo: float, hi: float, data: st.DataObject) -> None:
    """At the ends, at kinks, beside them and anywhere between."""
    g = Graph()
    last = build(g, "x")
    network = g.network()
    assert last in gates(network)
    assume(not (lo > hi or lo == math.inf or hi == -math.inf))
    found = ranges(network, lo, hi)
    first = -1e300 if not math.isfinite(lo) else lo
    final = 1e300 if not math.isfinite(hi) else hi
    first, final = min(first, final), max(first, final)
    kinks = [float(end) for term in gates(network)[last].terms for end in (term.kink.lo, term.kink.hi)]
    near = [k for end in kinks for k in (end, math.nextafter(end, -math.inf), math.nextafter(end, math.inf))]
    points = [first, final, *(k for k in near if first <= k <= final)]
    points += data.draw(st.lists(st.floats(first, final), max_size=5))
    part = Fraction(data.draw(st.sampled_from([-1, 0, 1])))
    for point in points:
        for name, value in exact(network, Fraction(point), part).items():
            assert name == "x" or is_within(value, float(found[name].lo), float(found[name].hi)), (
                name,
                point,
            )


def test_a_kink_counts_where_no_float_holds_its_coefficients() -> None:
    """``2 x - relu(1e400 x + 1e400)`` is largest at -1."""
    g = Graph()
    steep = g.emit(Scale.exactly(1e200), g.emit(Scale.exactly(1e200, 1e200), "x"))
    bend = g.emit(Scale.exactly(-1.0), g.emit(Relu(), steep))
    last = g.emit(Add(2), g.emit(Scale.exactly(2.0), "x"), bend)
    network = g.network()
    found = ranges(network, -2.0, 1.0)[last]
    assert is_within(exact(network, Fraction(-1), Fraction(0))[last], float(found.lo), float(found.hi))


@pytest.mark.parametrize(
    ("name", "lo", "hi", "expected"),
    [
        ("relu6", -141.9, 147.9, (0, 6)),
        ("relu6", -math.inf, math.inf, (0, 6)),
        ("relu6", math.nan, math.nan, (0, 6)),
        ("relu6", 7.3, math.inf, (6, 6)),
        ("relu6", -math.inf, -0.1, (0, 0)),
        ("relu6", 2.5, 100.1, (2.5, 6)),
        ("hard tanh", -math.inf, math.inf, (-1, 1)),
        ("hard tanh", 1.7, 33.3, (1, 1)),
        ("hard tanh", -33.3, -1.7, (-1, -1)),
        ("absolute", -2.0, 5.0, (0, 5)),
        ("absolute", -math.inf, 5.0, (0, math.inf)),
        ("absolute", -7.1, -2.3, (2.3, 7.1)),
        ("larger of both signs", -7.1, 2.3, (0, 7.1)),
        ("clip with limits far apart", -0.5, 0.25, (-0.5, 0.25)),
        ("leaky relu", -math.inf, 0.0, (-math.inf, 0)),
        ("opposite slope", -math.inf, math.inf, (0, math.inf)),
    ],
)
def test_a_range_is_the_exact_hull_where_nothing_rounds(
    name: str, lo: float, hi: float, expected: tuple[float, float]
) -> None:
    g = Graph()
    last = KNOWN[name](g, "x")
    found = ranges(g.network(), lo, hi)[last]
    assert (float(found.lo), float(found.hi)) == expected


def test_a_scale_has_a_range_where_no_float_holds_its_largest_factor() -> None:
    """It is known up to a radius, and its argument has no end."""
    g, largest = Graph(), np.asarray(np.finfo(np.float64).max)
    last = g.emit(Scale(largest, np.asarray(0.0), largest * 2.0**-52, np.asarray(0.0)), "x")
    found = ranges(g.network(), 1.0, math.inf)[last]
    assert 0 < float(found.lo) <= float(largest)
    assert float(found.hi) == math.inf


@slow
@given(st.floats(-50, 50), st.floats(-50, 50), st.floats(-2, 2))
def test_the_range_of_a_leaky_relu_is_its_hull_up_to_rounding(a: float, b: float, slope: float) -> None:
    g, lo, hi = Graph(), min(a, b), max(a, b)
    last = piecewise.leaky_relu(g.emit, "x", slope)
    found = ranges(g.network(), lo, hi)[last]
    ends = [x if x > 0 else slope * x for x in (lo, hi, min(max(0.0, lo), hi))]
    room = 1e-13 * max(abs(lo), abs(hi)) + 1e-300
    assert float(found.lo) >= min(ends) - room
    assert float(found.hi) <= max(ends) + room


@pytest.mark.parametrize("name", ["relu6", "hard tanh", "leaky relu", "absolute"])
def test_ranges_of_a_deep_stack_are_those_of_the_functions_alone(name: str) -> None:
    """Ten layers: what a sum of independent terms gives away would double in each."""
    functions: dict[str, Callable[[float], float]] = {
        "relu6": lambda x: min(max(x, 0.0), 6.0),
        "hard tanh": lambda x: min(max(x, -1.0), 1.0),
        "leaky relu": lambda x: x if x > 0 else 0.1 * x,
        "absolute": abs,
    }
    g, random, last = Graph(4), np.random.default_rng(3), "x"
    lo, hi = -np.ones(4), np.ones(4)
    for _ in range(10):
        weight, bias = random.normal(size=(4, 4)), random.normal(size=4)
        last = KNOWN[name](g, g.emit(Linear(weight, bias), last))
        up, down = np.maximum(weight, 0), np.minimum(weight, 0)
        lo, hi = up @ lo + down @ hi + bias, up @ hi + down @ lo + bias
        within = (lo <= 0) & (hi >= 0)
        ends = [np.array([functions[name](x) for x in end]) for end in (lo, hi)]
        lo, hi = np.minimum(*ends), np.maximum(*ends)
        if name == "absolute":
            lo = np.where(within, 0.0, lo)
    found = ranges(g.network(), -1.0, 1.0)[last]
    np.testing.assert_allclose(found.lo[0], lo, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.hi[0], hi, rtol=1e-9, atol=1e-9)


@slow
@given(
    st.sampled_from(sorted(KNOWN)).map(KNOWN.__getitem__) | sums(),
    st.floats(-20, 20),
    st.floats(-20, 20),
    st.floats(0, 1),
    st.sampled_from([-1, 0, 1]),
)
def test_a_computed_value_is_within_its_radius(
    build: Build, a: float, b: float, share: float, part: int
) -> None:
    """Of a gate of a gate, so that the argument of the second is off already."""
    g = Graph()
    build(g, g.emit(Scale.exactly(0.7, 0.1), build(g, "x")))
    network, (lo, hi) = g.network(), sorted([a, b])
    radius = forward_radius(network, ranges(network, lo, hi))
    point = min(max(lo + share * (hi - lo), lo), hi)
    computed = network.run(torch.tensor([[point]], dtype=torch.float64))
    for name, value in exact(network, Fraction(point), Fraction(part)).items():
        far = float(radius[name])
        if math.isfinite(far) and not bool(computed[name].isnan()):  # NaN, 0 times inf, decides nothing
            assert abs(Fraction(float(computed[name])) - value) <= Fraction(far), name


def test_radii_do_not_grow_through_clips() -> None:
    """As if the two ReLUs of a clip could be off in opposite directions."""
    g, last = Graph(), "x"
    for _ in range(20):
        last = KNOWN["relu6"](g, last)
    network = g.network()
    radius = forward_radius(network, ranges(network, -100.0, 100.0))
    assert float(radius[last]) < 1e-12


def test_what_is_known_of_a_shifted_argument_counts() -> None:
    """A solver, say, may know more of ``x - 6`` than of ``x``."""
    g = Graph()
    last = KNOWN["relu6"](g, "x")
    network = g.network()
    found = ranges(network, 1.0, 100.0)
    (shifted,) = (term.before for term in gates(network)[last].terms if term.before != "x")
    found[shifted] = Interval(found[shifted].lo, torch.full_like(found[shifted].hi, -2.0))
    narrowed = gates(network)[last].range(found)
    assert (float(narrowed.lo), float(narrowed.hi)) == (1, 4)


def test_a_sum_of_two_values_is_no_gate() -> None:
    g = Graph(2)
    one, other = (g.emit(Linear(np.eye(2), np.zeros(2)), "x") for _ in range(2))
    g.emit(Add(2), g.emit(Relu(), one), g.emit(Scale.exactly(-1.0), g.emit(Relu(), other)))
    assert not gates(g.network())


def _clipped(gate: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    first, second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 8, 3)
    return nn.Sequential(first, gate, second, nn.ReLU6(), nn.Flatten(), nn.Linear(8 * 36, 10)).eval()


def test_a_channel_that_a_clip_alone_keeps_below_zero_goes() -> None:
    """Its inputs are at most 6, however large their arguments."""
    model = _clipped(nn.ReLU6())
    with torch.no_grad():
        model[0].weight *= 100
        model[2].weight[:4] = model[2].weight[:4].abs() * 0.01
        model[2].bias[:4] = -7  # 16 * 9 * 6 * 0.01 / 12 is less
    for domain in (relutrim.Box(-1, 1), None):
        stability = relutrim.analyze(model, domain, input_shape=(3, 8, 8), method="bounds")
        shown = by_intervals(stability).layers[2]
        assert (shown.upper.reshape(8, -1)[:4] < 0).all()
        result = relutrim.compress(model, domain, input_shape=(3, 8, 8), time_limit=60)
        assert result.model[2].out_channels == 4


@pytest.mark.parametrize("domain", [None, relutrim.Box(-1, 1)], ids=["everywhere", "box"])
@pytest.mark.parametrize(
    ("gate", "bias"), [(nn.ReLU6(), 7.0), (nn.Hardtanh(), 3.0), (nn.Hardtanh(), -3.0)], ids=str
)
def test_channels_that_are_fixed_at_a_limit_go(
    gate: nn.Module, bias: float, domain: relutrim.Box | None
) -> None:
    """What reads them without padding makes a constant of each, whatever the inputs are."""
    model = _clipped(gate)
    with torch.no_grad():
        model[0].weight[:4] = 0
        model[0].bias[:4] = bias
    result = relutrim.compress(model, domain, input_shape=(3, 8, 8), tolerance=1e-5, time_limit=15)
    assert result.model[0].out_channels == 12
    x = 3 * torch.randn(16, 3, 8, 8)
    assert torch.allclose(model(x), result.model(x), atol=1e-4)


def test_one_that_clips_in_two_calls_is_bounded_alike() -> None:
    """A network without a word for it: two ReLUs and their difference."""

    class Capped(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x) - torch.relu(x - 6)

    network = relutrim.load(_clipped(Capped()), input_shape=(3, 8, 8))
    region = relutrim.Box(-100, 100).fit(network).region()
    values = {network.input.name: input_interval(network, region.box())}
    for node in network.nodes:
        values[node.name] = value_interval(network, node, values)
    (first, *_) = gates(network)
    assert float(values[first].hi.max()) <= 6
