"""Affine operators of every kind against rational arithmetic: what is derived, what is written out instead,
and intervals of all sizes with infinite ends.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import spatial
from oracle import operator_value
from relutrim.graph import Add, Affine, BatchNorm, Concat, Linear, Relu, Reshape, Scale, Sigmoid, Silu
from relutrim.graph.operators import Mean
from relutrim.graph.operators.affine import View
from relutrim.intervals import Interval
from relutrim.rounding import ETA, gamma
from test_rounding import WILD

Shape = tuple[int, ...]
Case = tuple[Affine, list[Shape]]

KINDS = ("spatial", "spatial", "linear", "scale", "norm", "reshape", "add", "concat")
CANCELLING = st.builds(math.ldexp, st.integers(2**52, 2**53), st.just(-52)).flatmap(
    lambda v: st.sampled_from([v, -v, v])
)
"""Numbers of one size, whose sums cancel and leave what was rounded."""
RELATIVE = Fraction(1, 2**30)
attack = settings(suppress_health_check=list(HealthCheck), deadline=None)
ENDS = WILD | st.sampled_from([-math.inf, math.inf, math.nan])


def arrays(shape: Shape, numbers: st.SearchStrategy[float]) -> st.SearchStrategy[np.ndarray]:
    size = math.prod(shape)
    return st.lists(numbers, min_size=size, max_size=size).map(lambda v: np.array(v, float).reshape(shape))


@st.composite
def shared(draw: st.DrawFn, shape: Shape) -> Shape:
    """A shape that broadcasts into this one."""
    return tuple(draw(st.sampled_from([1, size])) for size in shape)[draw(st.integers(0, len(shape))) :]


@st.composite
def cases(draw: st.DrawFn, numbers: st.SearchStrategy[float] = WILD) -> Case:
    """Any affine operator and the shapes of what it reads; numbers of any size."""
    shape = draw(spatial.shapes(largest=3))
    match draw(
        st.sampled_from(["spatial", "spatial", "linear", "scale", "norm", "reshape", "add", "concat"])
    ):
        case "linear":
            weight = draw(arrays((draw(st.integers(1, 3)), shape[-1]), numbers))
            return Linear(weight, draw(arrays((len(weight),), numbers))), [shape]
        case "scale":
            scale, shift = (draw(arrays(draw(shared(shape)), numbers)) for _ in range(2))
            return Scale.exactly(scale, shift), [shape]
        case "norm":
            scale, shift = (draw(arrays(draw(shared(shape)), numbers)) for _ in range(2))
            radii = [np.abs(draw(arrays(a.shape, numbers))) for a in (scale, shift)]
            return Scale(scale, shift, *radii), [shape]
        case "reshape":
            return Reshape(shape, (math.prod(shape),)), [shape]
        case "add":
            return Add(count := draw(st.integers(1, 3))), [shape] * count
        case "concat":
            axis, other = draw(st.integers(0, len(shape) - 1)), draw(st.integers(0, 3))
            wide = (*shape[:axis], other, *shape[axis + 1 :])
            return Concat(axis, (shape[axis], other)), [shape, wide]
        case _:
            operator = draw(spatial.affine_operators(shape))
            if hasattr(operator, "weight"):
                fields = {**vars(operator), "weight": draw(arrays(operator.weight.shape, numbers))}
                fields["bias"] = draw(arrays(operator.bias.shape, numbers))
                fields.pop("_cache")
                operator = type(operator)(**fields)
            return operator, [shape]


def exact(values) -> list[Fraction]:
    return [Fraction(float(v)) for v in np.asarray(values).ravel()]


def matrix(case: Case) -> tuple[list[list[Fraction]], list[Fraction]]:
    """Columns of ``A``, one per entry of all inputs, and ``b``: by the oracle, of which nothing is shared."""
    operator, shapes = case
    sizes = [math.prod(shape) for shape in shapes]
    zeros = [[Fraction(0)] * size for size in sizes]
    value = operator_value(operator, shapes)
    b = value(zeros)
    columns = []
    for k, size in enumerate(sizes):
        for i in range(size):
            unit = [list(z) for z in zeros]
            unit[k][i] = Fraction(1)
            columns.append([y - z for y, z in zip(value(unit), b, strict=True)])
    return columns, b


def radii(case: Case) -> tuple[list[list[Fraction]], list[Fraction]]:
    """The radius of each entry of ``A``, by columns, and of ``b``."""
    operator, shapes = case
    columns, b = matrix(case)
    if not isinstance(operator, Scale):
        return [[Fraction(0)] * len(b) for _ in columns], [Fraction(0)] * len(b)
    scale, shift = (
        exact(np.broadcast_to(r, shapes[0])) for r in (operator.scale_radius, operator.shift_radius)
    )
    return [[scale[i] if i == j else Fraction(0) for j in range(len(b))] for i in range(len(columns))], shift


def split(values: Sequence[float] | np.ndarray, shapes: list[Shape]) -> list[torch.Tensor]:
    whole = torch.tensor(np.asarray(values, float))
    parts = torch.split(whole, [math.prod(shape) for shape in shapes])
    return [part.reshape(1, *shape) for part, shape in zip(parts, shapes, strict=True)]


def joined(parts: Sequence[torch.Tensor]) -> list[float]:
    return torch.cat([part.flatten() for part in parts]).tolist()


def size_of(shapes: list[Shape]) -> int:
    return sum(map(math.prod, shapes))


def claims(bound: float) -> bool:
    return not math.isnan(bound) and bound not in (-math.inf, math.inf)


def near(found: float, true: Fraction, magnitude: Fraction, terms: int) -> bool:
    """Whether a computed sum is off by no more than its terms allow; an overflow says nothing."""
    if not math.isfinite(found):
        return magnitude * (1 + Fraction(1, 2**40)) >= Fraction(2) ** 1023
    return abs(Fraction(found) - true) <= Fraction(gamma(terms)) * magnitude + terms * Fraction(ETA)


@attack
@given(st.sampled_from([WILD, CANCELLING]), st.data())
def test_values_and_magnitudes_are_the_exact_ones_within_the_rounding_of_their_terms(numbers, data):
    case = operator, shapes = data.draw(cases(numbers))
    x = data.draw(arrays((size_of(shapes),), numbers))
    columns, b = matrix(case)
    forward = operator.forward(split(x, shapes)).flatten().tolist()
    magnitude = operator.magnitude(split(np.abs(x), shapes)).flatten().tolist()
    spread = operator.spread(split(np.abs(x), shapes)).flatten().tolist()
    terms = operator.terms(shapes)
    for row, shift in enumerate(b):
        products = [c[row] * v for c, v in zip(columns, exact(x), strict=True)]
        moved = sum(map(abs, products), Fraction(0))
        total = moved + abs(shift)
        assert near(forward[row], sum(products, shift), total, terms)
        assert near(magnitude[row], total, total, terms)
        assert near(spread[row], moved, moved, terms)


@attack
@given(cases(), st.data())
def test_adjoints_are_the_exact_ones_and_those_written_out_agree_with_the_derived_ones(case, data):
    operator, shapes = case
    output = operator.output_shape(shapes)
    columns, b = matrix(case)
    fuzzy, _ = radii(case)
    a = data.draw(arrays((2, *output), WILD))
    forms, terms = torch.tensor(a), operator.terms(shapes)
    found = {
        View.VALUE: (operator.adjoint(forms, shapes), columns, forms),
        View.SIZE: (operator.adjoint_spread(forms.abs(), shapes), absolute(columns), forms.abs()),
        View.RADIUS: (operator.adjoint_fuzz(forms.abs(), shapes), fuzzy, forms.abs()),
    }
    for view, (parts, truth, used) in found.items():
        if parts is None:
            assert not any(map(any, truth))
            continue
        derived = Affine.pulled_back(operator, view, used, shapes)
        for k, form in enumerate(used):
            for row, other, column in zip(
                joined([p[k] for p in parts]), joined([p[k] for p in derived]), truth, strict=True
            ):
                products = [c * v for c, v in zip(column, exact(form), strict=True)]
                size = sum(map(abs, products), Fraction(0))
                assert near(row, sum(products, Fraction(0)), size, terms)
                assert near(other, sum(products, Fraction(0)), size, terms)
    constant = operator.constant(forms).tolist()
    for value, form in zip(constant, forms, strict=True):
        products = [c * v for c, v in zip(b, exact(form), strict=True)]
        assert near(value, sum(products, Fraction(0)), sum(map(abs, products), Fraction(0)), len(b) + 1)


def absolute(columns: list[list[Fraction]]) -> list[list[Fraction]]:
    return [[abs(c) for c in column] for column in columns]


@attack
@given(cases(st.sampled_from([0.0, 1.0, -2.0, 0.5])))
def test_views_reads_rows_and_counts_are_those_of_the_matrix(case):
    operator, shapes = case
    output = operator.output_shape(shapes)
    columns, b = matrix(case)
    fuzzy, _ = radii(case)
    unit = torch.eye(len(b), dtype=torch.float64).reshape(-1, *output)
    signed = {View.UP: lambda c: max(c, 0), View.DOWN: lambda c: min(c, 0)}
    if operator.coefficients:
        for view, part in signed.items():
            parts = operator.pulled_back(view, unit, shapes)
            for k in range(len(b)):
                expected = [float(part(column[k])) for column in columns]
                assert joined([p[k] for p in parts]) == expected
    used = [
        [c != 0 or r != 0 for c, r in zip(*pair, strict=True)] for pair in zip(columns, fuzzy, strict=True)
    ]
    for k in range(len(b)):
        masks = operator.reads((unit[k] != 0).numpy(), shapes)
        derived = Affine.reads(operator, (unit[k] != 0).numpy(), shapes)
        for found in (masks, derived):
            assert [mask.shape for mask in found] == shapes
            assert np.concatenate([np.ravel(mask) for mask in found]).tolist() == [u[k] for u in used]
    rows, columns_ = max(map(sum, zip(*used, strict=True)), default=0), max(map(sum, used), default=0)
    for found in (operator.summed(shapes), Affine.summed(operator, shapes)):
        assert found[0] >= rows
        assert found[1] >= columns_
    assert Affine.summed(operator, shapes) == (rows, columns_) or not len(b)
    assert operator.terms(shapes) or max(rows, columns_) <= 1
    if len(shapes) == 1 and not operator.divides:
        index = torch.arange(len(b))
        found, bias = operator.rows(index, unit, shapes)
        for k in range(len(b)):
            assert found[k].flatten().tolist() == [float(column[k]) for column in columns]
        assert bias.tolist() == [float(v) for v in b]


@pytest.mark.parametrize(
    ("operator", "shapes", "terms"),
    [
        (Add(3), [(2,)] * 3, 3),
        (Reshape((2, 2), (4,)), [(2, 2)], 0),
        (Linear(np.ones((2, 5)), np.zeros(2)), [(5,)], 6),
        (Scale.exactly(2.0, 1.0), [(3,)], 2),
    ],
)
def test_terms_of_known_sums(operator, shapes, terms):
    assert operator.terms(shapes) == terms


@st.composite
def boxes(draw: st.DrawFn, size: int, numbers: st.SearchStrategy[float]) -> tuple[list[float], list[float]]:
    """Ends of every size, infinite ones and NaN."""
    lows, highs = [], []
    for _ in range(size):
        a, b = draw(numbers), draw(st.just(0.0) | numbers)
        low, high = min(a, b), max(a, b)
        lows.append(draw(st.sampled_from([low, low, low, -math.inf, math.nan])))
        highs.append(draw(st.sampled_from([high, high, high, math.inf, math.nan])))
    return lows, highs


@attack
@given(st.sampled_from([WILD, CANCELLING]), st.data())
def test_intervals_hold_their_exact_range_and_infinite_ends_reach_only_what_depends_on_them(numbers, data):
    case = operator, shapes = data.draw(cases(numbers))
    lo, hi = data.draw(boxes(size_of(shapes), numbers))
    image = operator.interval(
        [Interval(*pair) for pair in zip(split(lo, shapes), split(hi, shapes), strict=True)]
    )
    columns, b = matrix(case)
    fuzzy, own = radii(case)
    for row, (low, high) in enumerate(
        zip(image.lo.flatten().tolist(), image.hi.flatten().tolist(), strict=True)
    ):
        entries = [(c[row] - r[row], c[row] + r[row]) for c, r in zip(columns, fuzzy, strict=True)]
        least, most = b[row] - own[row], b[row] + own[row]
        size = abs(b[row]) + own[row]
        for (one, other), x, y in zip(entries, lo, hi, strict=True):
            down, up, reach = end(one, other, x, y)
            least = None if least is None or down is None else least + down
            most = None if most is None or up is None else most + up
            size += reach
        for bound, true, sign in ((low, least, 1), (high, most, -1)):
            assert bound != sign * math.inf
            if true is None:
                assert not claims(bound)
            elif claims(bound):
                assert sign * Fraction(bound) <= sign * true
                slack = 4 * Fraction(gamma(operator.terms(shapes) + 2)) * size + 99 * Fraction(ETA)
                slack += own[row] / 2**19  # radii are charged a little more than they are
                if not any(r for column in fuzzy for r in column):
                    assert abs(Fraction(bound) - true) <= slack
            else:
                assert size >= Fraction(2) ** 1000  # nothing but an overflow may hide a finite end


def end(
    one: Fraction, other: Fraction, x: float, y: float
) -> tuple[Fraction | None, Fraction | None, Fraction]:
    """The range of ``p v`` for p from one to other and v from x to y, None for no end; and its size."""
    if not one and not other:
        return Fraction(0), Fraction(0), Fraction(0)
    known = [Fraction(v) for v in (x, y) if math.isfinite(v)]
    products = [p * v for p in (one, other) for v in known] or [Fraction(0)]
    low, high, reach = min(products), max(products), max(map(abs, products))
    if not math.isfinite(x):
        low, high = None if other > 0 else low, None if one < 0 else high
    if not math.isfinite(y):
        low, high = None if one < 0 else low, None if other > 0 else high
    return low, high, reach


@attack
@given(cases(), st.data())
def test_magnitudes_of_unbounded_values_are_infinite_only_where_they_are_read(case, data):
    operator, shapes = case
    m = np.abs(data.draw(arrays((size_of(shapes),), st.sampled_from([0.0, 1.0, 2.5, math.inf, math.nan]))))
    columns, b = matrix(case)
    fuzzy, own = radii(case)
    kinds = (
        (operator.magnitude, columns, [abs(v) for v in b]),
        (operator.spread, columns, [Fraction(0)] * len(b)),
        (operator.fuzz, fuzzy, own),
    )
    for compute, by, add in kinds:
        found = compute(split(m, shapes))
        if found is None:
            assert not any(map(any, by))
            assert not any(add)
            continue
        for row, value in enumerate(found.flatten().tolist()):
            read = [v for c, r, v in zip(columns, fuzzy, m.tolist(), strict=True) if c[row] or r[row]]
            if any(map(math.isnan, read)):
                assert math.isnan(value)
            elif math.inf in read:
                assert value == math.inf
            else:
                total = sum(
                    (abs(c[row]) * Fraction(v) for c, v in zip(by, m.tolist(), strict=True) if c[row]),
                    add[row],
                )
                assert (
                    value == math.inf
                    or Fraction(value) * (1 + Fraction(1, 2**30)) + 9 * Fraction(ETA) >= total
                )


def test_an_infinite_end_poisons_neither_the_other_end_nor_what_does_not_read_it():
    lo, hi = torch.tensor([[0.0, 1.0]]).double(), torch.tensor([[math.inf, 2.0]]).double()
    image = Linear(np.array([[1.0, 1.0], [0.0, 1.0], [-1.0, 0.0]]), np.zeros(3)).interval([Interval(lo, hi)])
    assert image.lo[0].tolist()[:2] == pytest.approx([1.0, 1.0])
    assert image.hi[0].tolist() == [math.inf, pytest.approx(2.0), 0.0]
    assert image.lo[0, 2] == -math.inf
    one = np.ones(2)
    norm = BatchNorm.of(one, 0 * one, 0 * one, 3 * one, 1e-5).interval([Interval(lo, hi)])
    assert norm.hi[0, 0] == math.inf
    assert abs(norm.lo[0, 0]) < 1e-300
    anything = torch.full((1, 2), math.inf).double()
    every = Scale.exactly(np.array([0.0, -3.0]), 1.0).interval([Interval(-anything, anything)])
    assert (every.lo.tolist(), every.hi.tolist()) == ([[1.0, -math.inf]], [[1.0, math.inf]])


@given(ENDS, ENDS, st.sampled_from([Relu(), Sigmoid(), Silu()]))
def test_what_is_not_affine_takes_an_unknown_end_for_infinite(a, b, operator):
    def image(lo: float, hi: float) -> tuple[float, float]:
        found = operator.interval([Interval(torch.tensor([[lo]]).double(), torch.tensor([[hi]]).double())])
        return found.lo.item(), found.hi.item()

    lo, hi = (a, b) if not a > b else (b, a)
    lo, hi = (math.nan if lo == math.inf else lo), (math.nan if hi == -math.inf else hi)
    found = image(lo, hi)
    known = image(-math.inf if math.isnan(lo) else lo, math.inf if math.isnan(hi) else hi)
    assert math.isnan(found[0]) or found[0] <= known[0]
    assert math.isnan(found[1]) or found[1] >= known[1]


def test_gradients_pass_through_derived_adjoints_and_those_of_convolutions():
    draw = np.random.default_rng(0)
    kernel = spatial.Convolution(draw.normal(size=(2, 1, 2)), np.zeros(2), (1,), ((1, 0),), (1,))
    for operator, shapes in ((kernel, [(1, 4)]), (Concat(0, (1, 2)), [(1, 4), (2, 4)])):
        output = operator.output_shape(shapes)
        forms = torch.randn(2, *output, dtype=torch.float64, requires_grad=True)
        parts = operator.adjoint(forms, shapes)
        weights = [torch.randn_like(part) for part in parts]
        total = sum((part * w).sum() for part, w in zip(parts, weights, strict=True))
        (found,) = torch.autograd.grad(total, forms)
        expected = operator.forward([w.detach() for w in weights]).detach()
        assert torch.allclose(found, expected - operator.forward([0 * w for w in weights]))


def test_a_derived_adjoint_of_what_reads_nothing_is_zero():
    nowhere = Mean((0,), keep=True)
    forms = torch.ones(3, 1, 0, dtype=torch.float64)
    (found,) = nowhere.adjoint(forms, [(2, 0)])
    assert found.shape == (3, 2, 0)


def test_adjoints_do_not_load_what_takes_torch_a_second_to_load():
    code = """
import sys, torch
from relutrim.graph.operators import Mean
Mean((0,), True).adjoint(torch.ones(1, 1, dtype=torch.float64), [(3,)])
sys.exit(any(name in sys.modules for name in ("sympy", "torch._dynamo")))
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
