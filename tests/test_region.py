"""Domains: what a linear form is at least, where, and which inputs count."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import oracle
import strategies
from relutrim.analysis import analyze_network
from relutrim.domain import Ball, Box, Everywhere, NormalizedBox
from relutrim.domain.domain import Problem
from relutrim.domain.nonempty import check_nonempty
from relutrim.domain.region import Region
from relutrim.errors import DomainError
from relutrim.graph import Linear, Network, Node, Output, Port, Relu, Reshape, Scale

slow = settings(suppress_health_check=list(HealthCheck), max_examples=60)
QUICK = {
    "data": None,
    "method": "auto",
    "time_limit": None,
    "device": "cpu",
    "seed": 0,
    "progress": None,
}
NUMBERS = strategies.INTEGERS | strategies.FLOAT32 | strategies.TINY | strategies.HUGE


def region_of(lo, hi, rows=(), lower=(), upper=()) -> Region:
    lo, hi = np.array(lo, float), np.array(hi, float)
    rows = np.array(rows, float).reshape(len(rows), lo.size)
    network = Network(Port("x", (lo.size,)), (), (Output("y", "x"),))
    return Problem(network, lo, hi, rows, np.array(lower, float), np.array(upper, float)).region()


def tensor(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def dot(form, x) -> Fraction:
    return sum((Fraction(c) * Fraction(v) for c, v in zip(form, x, strict=True)), Fraction(0))


@st.composite
def regions_and_forms(draw: st.DrawFn, rows: int = 3):
    size = draw(st.integers(1, 3))
    domain = draw(strategies.domains(size, rows=rows))
    forms = draw(st.lists(st.lists(NUMBERS, min_size=size, max_size=size), min_size=1, max_size=4))
    return domain, forms


# The smallest value of a linear form.


@slow
@given(regions_and_forms())
def test_no_form_falls_below_its_bound(case):
    domain, forms = case
    region = region_of(domain.lo, domain.hi, domain.matrix, domain.lower, domain.upper)
    corners = oracle.vertices(domain.polytope)
    for form, bound in zip(forms, region.lower(tensor(forms)).tolist(), strict=True):
        if not math.isnan(bound):
            assert bound == -math.inf or Fraction(bound) <= min(dot(form, x) for x in corners)


@slow
@given(st.data())
def test_with_one_constraint_the_bound_is_the_knapsack_optimum(data):
    size = data.draw(st.integers(1, 4))
    domain = data.draw(strategies.domains(size, rows=1, extreme=False))
    form = data.draw(st.lists(strategies.INTEGERS | strategies.DYADIC, min_size=size, max_size=size))
    region = region_of(domain.lo, domain.hi, domain.matrix, domain.lower, domain.upper)
    exact = min(dot(form, x) for x in oracle.vertices(domain.polytope))
    bound = Fraction(region.lower(tensor([form])).item())
    # Coefficients of 1e-38 or so in the row make multipliers of 1e38, and with them rounding of that size.
    if all(abs(v) > 1e-3 for v in domain.matrix.flatten() if v):
        assert exact - Fraction(1, 10**6) <= bound <= exact


def test_multipliers_of_rows_without_an_end_are_no_use_but_harmless():
    region = region_of([0, 0], [1, 1], [[1, 1], [1, -1]], [-np.inf, -np.inf], [np.inf, 0.5])
    assert region.lower(tensor([[-1.0, 0.0]])).item() == pytest.approx(-1)
    assert region.lower(tensor([[-1.0, 1.0]])).item() == pytest.approx(-0.5)


def test_forms_that_hold_nan_or_overflow_are_bounded_by_nothing():
    region = region_of([1, 1], [2, 2], [[1, 1]], [2.5], [3.5])
    bounds = region.lower(tensor([[math.nan, 1.0], [math.inf, 1.0], [1e308, 1e308], [0.0, math.nan]]))
    for value in bounds.tolist():
        assert math.isnan(value) or value <= 2.5e308


def test_a_form_of_zeros_is_exactly_zero():
    for region in (region_of([-1, -1], [1, 1]), region_of([-1, -1], [1, 1], [[1, 1]], [0.5], [1])):
        assert region.lower(torch.zeros(1, 2, dtype=torch.float64)).item() == 0


# Where it is small, and what counts as inside.


@slow
@given(st.data())
def test_minimisers_of_one_constraint_lie_inside_and_are_nearly_optimal(data):
    size = data.draw(st.integers(1, 5))
    numbers = st.floats(-4, 4, width=16)
    row = np.array(data.draw(st.lists(numbers, min_size=size, max_size=size)))
    row[np.abs(row) < 1e-2] = 0.0
    least, most = np.minimum(row, 0).sum(), np.maximum(row, 0).sum()
    share = data.draw(st.floats(0.05, 0.9))
    lower = least + share * (most - least) - 0.01
    region = region_of(np.zeros(size), np.ones(size), [row], [lower], [lower + 0.02])
    form = data.draw(st.lists(numbers, min_size=size, max_size=size))
    point = region.minimisers(tensor([form]))
    assert bool(region.inside(point))
    value = dot(form, point[0].tolist())
    assert float(value) <= region.lower(tensor([form])).item() + 1e-6


@slow
@given(regions_and_forms(rows=2))
def test_only_inputs_of_the_domain_count_as_inside(case):
    domain, forms = case
    region = region_of(domain.lo, domain.hi, domain.matrix, domain.lower, domain.upper)
    points = torch.cat(
        [
            tensor(np.array([domain.point, domain.lo, domain.hi]).tolist()),
            tensor(forms),
            region.minimisers(tensor(forms)),
            region.sample(8, torch.Generator().manual_seed(0)),
        ]
    )
    for point, inside in zip(points.tolist(), region.inside(points).tolist(), strict=True):
        if inside:
            assert domain.polytope.contains([Fraction(v) for v in point])


def test_nan_lies_nowhere_and_ends_belong_to_the_box():
    region = region_of([0, 0], [1, 1])
    points = tensor([[0.0, 1.0], [math.nan, 0.5], [0.5, math.nextafter(1.0, 2)], [-5e-324, 0.0]])
    assert region.inside(points).tolist() == [True, False, False, False]


def test_a_row_of_zeros_excludes_nothing():
    region = region_of([0, 0], [1, 1], [[0, 0]], [0], [0])
    assert region.inside(tensor([[0.3, 0.7]])).all()
    assert region.lower(tensor([[1.0, -1.0]])).item() == pytest.approx(-1)
    assert region.inside(region.project(tensor([[2.0, -2.0]]))).all()
    assert region.project(tensor([[math.nan, 1.0]])).isnan().any()  # and is no error


def test_projection_reaches_the_domain():
    region = region_of(np.zeros(20), np.ones(20), [np.ones(20)], [3], [4])
    generator = torch.Generator().manual_seed(0)
    far = 10 * torch.randn(50, 20, generator=generator, dtype=torch.float64)
    assert region.inside(region.project(far)).all()
    assert region.inside(region.sample(50, generator)).all()
    inside = tensor([[0.175] * 20])
    assert torch.equal(region.project(inside), inside)


@slow
@given(st.data())
def test_projection_onto_one_constraint_reaches_it_along_its_row(data):
    size = data.draw(st.integers(1, 4))
    numbers = st.lists(strategies.INTEGERS | strategies.DYADIC, min_size=size, max_size=size)
    lo, width, row, start = (np.array(data.draw(numbers)) for _ in range(4))
    hi = lo + abs(width)
    inner = (lo + hi) / 2 @ row
    lower, upper = data.draw(st.sampled_from([(-0.25, 0.25), (-0.25, math.inf), (-math.inf, 0.25)]))
    region = region_of(lo, hi, [row], [inner + lower], [inner + upper])
    begun = tensor(start[None]).clamp(region.lo, region.hi)
    ended = region.project(tensor(start[None]))
    assert region.inside(ended).all()
    moved = (ended - begun)[0].numpy() * row
    assert (moved >= 0).all() or (moved <= 0).all()
    # Coordinates that are not at an end have gone the same way along the row.
    free = (row != 0) & ((ended[0] > region.lo) & (ended[0] < region.hi)).numpy()
    steps = (ended - begun)[0].numpy()[free] / row[free]
    assert not len(steps) or np.ptp(steps) <= 1e-9 * (1 + abs(steps).max())


def test_projection_ends_even_where_constraints_exclude_each_other():
    region = region_of([0, 0], [1, 1], [[1, 1], [-1, -1], [1, -1]], [1.5, -0.5, 0], [2, 0, 0])
    points = region.project(tensor([[0.0, 0.0], [1.0, 0.0]]))
    assert not region.inside(points).any()
    assert ((points >= 0) & (points <= 1)).all()


# Balls.


@given(st.floats(-1e300, 1e300), st.floats(0, 1e300))
def test_a_ball_is_rounded_outward_and_hardly_so(center, radius):
    ball = Ball([center], radius)
    for end, exact, outward in (
        (ball.lo.item(), Fraction(center) - Fraction(radius), -math.inf),
        (ball.hi.item(), Fraction(center) + Fraction(radius), math.inf),
    ):
        inner = math.nextafter(end, -outward)
        assert Fraction(end) <= exact if outward < 0 else Fraction(end) >= exact
        assert Fraction(inner) >= exact if outward < 0 else Fraction(inner) <= exact or inner == exact


def test_a_ball_that_leaves_float64_is_refused():
    with np.errstate(over="ignore", invalid="ignore"), pytest.raises(DomainError, match="not finite"):
        Ball([1.7e308], 1e308)
    for radius in (-1.0, math.nan, math.inf):
        with pytest.raises(DomainError, match="radius"):
            Ball([0.0], radius)


# Empty domains.


def identity(size: int) -> Network:
    return Network(
        Port("x", (size,)),
        (Node("linear", Linear(np.eye(size), np.zeros(size)), ("x",)), Node("relu", Relu(), ("linear",))),
        (Output("y", "relu"),),
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: Box([0.0, 1.0], [1.0, 0.0]),
        lambda: Box(0, 1).constrain([[1.0, 1.0]], [3.0], [2.0]),
        lambda: Box(0, 1).constrain([[1.0, 1.0]], [np.inf], [np.inf]),
        lambda: Box(0, 1).sum_between(2.5, 3).fit(identity(2)),
        lambda: Box(0, 1).constrain([[0.0, 0.0]], [1.0], [2.0]).fit(identity(2)),
        lambda: Box(0, 1).constrain([[1, 1], [1, -1]], [1.9, 0.5], [np.inf, np.inf]).fit(identity(2)),
        lambda: Box(0, 1).sum_between(0, 0.9).sum_between(1, 2).fit(identity(2)),
    ],
)
def test_an_empty_domain_is_an_error(make):
    with pytest.raises(DomainError, match="domain is empty"):
        make()


def test_domains_without_a_number_are_errors():
    for lo, hi in ((np.inf, np.inf), (-np.inf, -np.inf), (0, np.nan), (np.nan, 0)):
        with pytest.raises(DomainError, match="where no input is"):
            Box(lo, hi)
    with pytest.raises(DomainError, match="NaN"):
        Box(0, 1).constrain([[np.nan]], [0], [1])
    with pytest.raises(DomainError, match="standard deviation"):
        NormalizedBox(0, 1, 0.5, 0.0)


@slow
@given(st.data())
def test_a_domain_that_holds_a_point_is_never_called_empty(data):
    domain = data.draw(strategies.domains(data.draw(st.integers(1, 4)), rows=4))
    check_nonempty(domain.lo, domain.hi, domain.matrix, domain.lower, domain.upper)


def test_a_solver_that_drops_small_coefficients_does_not_empty_a_domain():
    rows = np.array([[1e-10, 0.0], [0.0, 1e-10]])
    check_nonempty(np.zeros(2), np.full(2, 1e12), rows, np.ones(2), np.full(2, 2.0))
    check_nonempty(np.full(2, 1e20), np.full(2, 1e20), np.eye(2), np.zeros(2), np.full(2, 1e21))


# Normalisation.


def test_a_normalised_box_is_the_box_of_a_network_that_normalises():
    rng = np.random.default_rng(1)
    linear = Linear(rng.normal(size=(12, 6)), rng.normal(size=12))
    nodes = (
        Node("flat", Reshape((2, 3), (6,)), ("x",)),
        Node("linear", linear, ("flat",)),
        Node("relu", Relu(), ("linear",)),
    )
    network = Network(Port("x", (2, 3)), nodes, (Output("y", "relu"),))
    mean, std = np.array([0.1307, 0.4]), np.array([0.3081, 0.2])
    per_input = [np.broadcast_to(v[:, None], (2, 3)) for v in (mean, std)]
    normalises = Network(
        Port("raw", (2, 3)),
        (Node("x", Scale.normalise(*per_input), ("raw",)), *nodes),
        (Output("y", "relu"),),
    )
    constrained = [d.sum_between(1, 4) for d in (NormalizedBox(0, 1, mean, std), Box(0, 1))]
    for seen_by, raw in ((NormalizedBox(0, 1, mean, std), Box(0, 1)), constrained):
        one = analyze_network(network, seen_by, **QUICK)
        other = analyze_network(normalises, raw, **QUICK)
        for name in ("verdict", "lower", "upper", "active_witness", "inactive_witness"):
            assert np.array_equal(getattr(one["relu"], name), getattr(other["relu"], name), equal_nan=True)
        assert np.array_equal(one.witnesses, other.witnesses)


@slow
@given(
    st.floats(-3, 3), st.sampled_from([0.1, 0.3081, 3.0, 1e-5]), st.floats(-2, 2), st.sampled_from([-1, 1])
)
def test_verdicts_on_a_normalised_box_are_true_of_the_exact_quotient(mean, std, bias, sign):
    linear = Linear(np.array([[float(sign)]]), np.array([bias]))
    network = Network(
        Port("x", (1,)),
        (Node("linear", linear, ("x",)), Node("relu", Relu(), ("linear",))),
        (Output("y", "relu"),),
    )
    layer = analyze_network(network, NormalizedBox(0, 1, mean, std), **QUICK)["relu"]
    ends = [sign * (Fraction(raw) - Fraction(mean)) / Fraction(std) + Fraction(bias) for raw in (0, 1)]
    assert Fraction(layer.lower[0]) <= min(ends)
    assert Fraction(layer.upper[0]) >= max(ends)
    if layer.active_witness[0] >= 0:
        assert max(ends) > 0
    if layer.inactive_witness[0] >= 0:
        assert min(ends) < 0


# Boxes without ends.


@st.composite
def endless(draw: st.DrawFn) -> tuple[Region, np.ndarray]:
    """A box of which some ends are missing, and linear forms, exact zeros among their coefficients."""
    size = draw(st.integers(1, 4))
    sides = st.sampled_from([(-np.inf, np.inf), (0.0, np.inf), (-np.inf, 2.0), (-1.0, 1.0), (0.0, 0.0)])
    ends = [draw(sides) for _ in range(size)]
    numbers = st.sampled_from([0.0, 0.0, 1.0, -2.0, 1e-300, -1e-300])
    forms = np.array(draw(st.lists(numbers, min_size=2 * size, max_size=2 * size))).reshape(2, size)
    return region_of(*np.array(ends).T), forms


@given(endless())
def test_a_form_has_no_lower_bound_just_where_it_goes_on_without_end(drawn):
    region, forms = drawn
    found = region.lower(torch.as_tensor(forms)).tolist()
    for form, low in zip(forms.tolist(), found, strict=True):
        ends = [
            lo if w > 0 else hi
            for w, lo, hi in zip(form, region.lo.tolist(), region.hi.tolist(), strict=True)
        ]
        used = [(Fraction(w), end) for w, end in zip(form, ends, strict=True) if w]
        if any(math.isinf(end) for _, end in used):
            assert low == -math.inf
        else:
            least = sum((w * Fraction(end) for w, end in used), Fraction(0))
            assert Fraction(low) <= least
            assert abs(Fraction(low) - least) <= Fraction(1e-12)


@given(endless())
def test_samples_and_minimisers_of_a_box_without_ends_are_finite_and_lie_in_it(drawn):
    region, forms = drawn
    points = torch.cat(
        [region.sample(20, torch.Generator().manual_seed(0)), region.minimisers(torch.as_tensor(forms))]
    )
    assert bool(region.inside(points).all())
    assert bool(points.isfinite().all())
    assert not bool(region.inside(torch.full((1, region.size), torch.inf, dtype=torch.float64)).any())
    if bool((region.lo == -torch.inf).any()):
        assert float(points.abs().max()) > 1e6


def test_constraints_are_for_bounded_domains():
    for domain in (Everywhere(), Box([0, -np.inf], 1)):
        with pytest.raises(DomainError, match="bounded domain"):
            domain.sum_between(0, 1)


def test_everywhere_is_described_without_infinities():
    found = Everywhere().describe()
    assert found == {"kind": "everywhere", "lower": None, "upper": None, "constraints": []}
    assert Box([0, -np.inf], [1, np.inf]).describe()["upper"] == [1.0, None]
    assert not Everywhere().bounded
    assert Box(0, 1).bounded
