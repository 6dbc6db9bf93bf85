"""Convolutions, poolings and moves, one operator at a time, against plain loops in rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import spatial
import strategies
from oracle_spatial import spatial as exact
from relutrim.errors import NetworkError
from relutrim.graph import (
    Affine,
    AveragePool,
    Concat,
    Convolution,
    MaxPool,
    Mean,
    Network,
    Node,
    Operator,
    Output,
    Port,
    Take,
)
from relutrim.intervals import Interval, flat


@st.composite
def operators(draw: st.DrawFn, flavour: str = "integers") -> tuple[Operator, tuple[int, ...]]:
    shape = draw(spatial.shapes())
    pools = spatial.max_pools(shape).filter(lambda pool: spatial.fits(pool, shape))
    return draw(st.one_of(spatial.affine_operators(shape, flavour), pools)), shape


def tensors(shape: tuple[int, ...], numbers: st.SearchStrategy[float], rows: int = 1):
    size = rows * math.prod(shape)
    return st.lists(numbers, min_size=size, max_size=size).map(
        lambda entries: torch.tensor(entries, dtype=torch.float64).reshape(rows, *shape)
    )


def fractions(x: torch.Tensor) -> list[Fraction]:
    return [Fraction(v) for v in x.flatten().tolist()]


@given(st.data())
def test_forward_on_small_integers_is_the_exact_value(data):
    operator, shape = data.draw(operators())
    x = data.draw(tensors(shape, strategies.INTEGERS))
    truth = exact(operator, [shape])([fractions(x)])
    found = operator.forward([x])
    assert tuple(found.shape[1:]) == operator.output_shape([shape])
    for value, true in zip(found.flatten().tolist(), truth, strict=True):
        # Means divide, and no more than that rounds.
        assert value == float(true)


@given(st.data())
def test_the_adjoint_moves_a_form_from_the_output_to_the_input(data):
    """``a . (W x + b) = (a W) . x + a . b``, exactly, where nothing rounds."""
    shape = data.draw(spatial.shapes())
    operator = data.draw(spatial.affine_operators(shape))
    output = operator.output_shape([shape])
    whole = 5040.0 if isinstance(operator, AveragePool | Mean) else 1.0  # divisible by every count
    x = data.draw(tensors(shape, strategies.INTEGERS, 2)) * whole
    forms = data.draw(tensors(output, strategies.INTEGERS, 2)) * whole
    (pulled,) = operator.adjoint(forms, [shape])
    assert pulled.shape == x.shape
    one = flat(forms * operator.forward([x])).sum(1)
    other = flat(pulled * x).sum(1) + operator.constant(forms)
    assert torch.equal(one, other)


@given(st.data())
def test_spread_and_adjoint_spread_are_those_of_absolute_weights(data):
    shape = data.draw(spatial.shapes())
    operator = data.draw(spatial.affine_operators(shape))
    output = operator.output_shape([shape])
    r, s = (data.draw(tensors(which, st.integers(0, 3).map(float))) for which in (shape, output))
    (back,) = operator.adjoint_spread(s, [shape])
    assert torch.allclose((s * operator.spread([r])).sum(), (back * r).sum())
    x = data.draw(tensors(shape, strategies.INTEGERS))
    moved = (operator.forward([x + r]) - operator.forward([x])).abs()
    assert (moved <= operator.spread([r]) + 1e-12).all()


@given(st.data())
def test_reads_are_the_entries_that_matter(data):
    operator, shape = data.draw(operators("float32"))
    output = operator.output_shape([shape])
    flags = data.draw(st.lists(st.booleans(), min_size=math.prod(output), max_size=math.prod(output)))
    wanted = np.array(flags).reshape(output)
    (read,) = operator.reads(wanted, [shape])
    assert read.shape == shape
    if isinstance(operator, Affine):
        (back,) = operator.adjoint_spread(torch.as_tensor(wanted[None]).double(), [shape])
        assert (read == (back[0] != 0).numpy()).all()
    else:
        x = torch.zeros(1, *shape, dtype=torch.float64)
        moved = torch.where(torch.as_tensor(~read), 7.0, x)
        assert (operator.forward([moved])[0][wanted] == 0).all()


@given(st.data())
def test_intervals_hold_every_value_at_corners_and_inside(data):
    flavour = data.draw(strategies.flavours())
    operator, shape = data.draw(operators(flavour))
    a, b = (data.draw(tensors(shape, strategies.FLAVOURS[flavour])) for _ in range(2))
    box = Interval(torch.minimum(a, b), torch.maximum(a, b))
    image = operator.interval([box])
    draw = data.draw(st.randoms(use_true_random=False))
    for _ in range(6):
        x = [
            Fraction(draw.choice([lo, hi, lo])) if draw.random() < 0.7 else (Fraction(lo) + Fraction(hi)) / 2
            for lo, hi in zip(box.lo.flatten().tolist(), box.hi.flatten().tolist(), strict=True)
        ]
        for low, value, high in zip(
            image.lo.flatten().tolist(),
            exact(operator, [shape])([x]),
            image.hi.flatten().tolist(),
            strict=True,
        ):
            assert not math.isfinite(low) or Fraction(low) <= value
            assert not math.isfinite(high) or value <= Fraction(high)
            assert low != math.inf
            assert high != -math.inf


@given(st.data())
def test_intervals_of_nothing_but_zeros_are_exact(data):
    operator, shape = data.draw(operators("float32"))
    zero = torch.zeros(1, *shape, dtype=torch.float64)
    image = operator.interval([Interval(zero, zero)])
    value = operator.forward([zero])
    assert torch.equal(image.lo, value)
    assert torch.equal(image.hi, value)


@given(st.data())
def test_many_rows_and_none_are_computed_like_one(data):
    operator, shape = data.draw(operators("float32"))
    x = data.draw(tensors(shape, strategies.FLOAT32, 3))
    together = operator.forward([x])
    assert torch.allclose(together, torch.cat([operator.forward([row[None]]) for row in x]))
    assert operator.forward([x[:0]]).shape == (0, *operator.output_shape([shape]))
    if isinstance(operator, Affine):
        (none,) = operator.adjoint(together[:0], [shape])
        assert none.shape == (0, *shape)


def test_a_large_batch_is_unfolded_in_parts(monkeypatch):
    from relutrim.graph.operators import correlate

    kernel = Convolution(np.ones((2, 1, 2, 2)), np.zeros(2), (1, 1), ((1, 0), (0, 1)), (1, 1))
    x = torch.arange(5 * 9.0, dtype=torch.float64).reshape(5, 1, 3, 3)
    whole = kernel.forward([x])
    monkeypatch.setattr(correlate, "_UNFOLDED_BYTES", 1)
    assert torch.equal(kernel.forward([x]), whole)


@given(st.data())
def test_exact_extremes_of_a_convolution(data):
    shape = data.draw(spatial.shapes(largest=3))
    kernel = data.draw(spatial.convolutions(shape, "float32").filter(lambda c: spatial.fits(c, shape)))
    a, b = (data.draw(tensors(shape, strategies.FLOAT32)) for _ in range(2))
    lo, hi = torch.minimum(a, b), torch.maximum(a, b)
    row = data.draw(st.integers(0, math.prod(kernel.output_shape([shape])) - 1))
    form = torch.zeros(1, *kernel.output_shape([shape]), dtype=torch.float64)
    form.flatten()[row] = 1.0
    (weights,) = kernel.adjoint(form, [shape])
    low, high = kernel.exact_extremes(row, lo[0].numpy(), hi[0].numpy())
    at_low, at_high = torch.where(weights > 0, lo, hi), torch.where(weights > 0, hi, lo)
    truth = exact(kernel, [shape])
    assert low == truth([fractions(at_low)])[row]
    assert high == truth([fractions(at_high)])[row]


@given(st.data())
def test_rows_of_a_convolution_are_what_the_adjoint_makes_of_unit_forms(data):
    shape = data.draw(spatial.shapes())
    kernel = data.draw(spatial.convolutions(shape, "float32").filter(lambda c: spatial.fits(c, shape)))
    output = kernel.output_shape([shape])
    unit = torch.eye(math.prod(output), dtype=torch.float64).reshape(-1, *output)
    rows, bias = kernel.rows(torch.arange(len(unit)), unit, [shape])
    assert torch.equal(rows, kernel.adjoint(unit, [shape])[0])
    assert torch.equal(bias, kernel.constant(unit))


def test_concat_joins_and_its_adjoint_takes_apart():
    operator, shapes = Concat(1, (1, 3)), [(2, 1), (2, 3)]
    parts = [torch.arange(2.0).reshape(1, 2, 1), torch.arange(6.0).reshape(1, 2, 3)]
    joined = operator.forward(parts)
    assert operator.output_shape(shapes) == (2, 4)
    assert fractions(joined) == exact(operator, shapes)([fractions(part) for part in parts])
    back = operator.adjoint(joined, shapes)
    assert all(torch.equal(one, other) for one, other in zip(back, parts, strict=True))
    masks = operator.reads(np.array([[True, False, False, False], [False, False, True, False]]), shapes)
    assert [mask.tolist() for mask in masks] == [[[True], [False]], [[False] * 3, [False, True, False]]]


def test_windows_of_nothing_but_padding_are_refused():
    with pytest.raises(NetworkError, match="nothing but padding"):
        MaxPool((2,), (1,), ((2, 0),), (1,)).output_shape([(1, 3)])
    with pytest.raises(NetworkError, match="nothing but padding"):
        AveragePool((1,), (1,), ((1, 0),)).output_shape([(1, 3)])
    assert AveragePool((1,), (1,), ((1, 0),), True).output_shape([(1, 3)]) == (1, 4)


@pytest.mark.parametrize(
    ("operator", "shape"),
    [
        (Convolution(np.ones((1, 2, 3)), np.zeros(1), (1,), ((0, 0),), (1,)), (2, 2)),
        (Convolution(np.ones((1, 2, 3)), np.zeros(1), (1,), ((0, 0),), (1,)), (3, 5)),
        (Convolution(np.ones((1, 2, 3)), np.zeros(1), (0,), ((0, 0),), (1,)), (2, 5)),
        (MaxPool((2, 2), (1, 1), ((0, 0), (0, 0)), (1, 1)), (2, 5)),
        (Take((np.array([3]),)), (3,)),
        (Take((np.array([-2]),)), (3,)),
        (Mean((2,), True), (3, 3)),
        (Mean((0,), True), (0, 3)),
    ],
)
def test_what_does_not_fit_is_refused(operator, shape):
    with pytest.raises(NetworkError):
        operator.output_shape([shape])


def test_connections_count_a_kernel_at_every_position_and_zeros_once():
    kernel = np.array([1.0, 0.0, 2.0, 0.0]).reshape(2, 1, 2)
    network = Network(
        Port("x", (1, 4)),
        (Node("y", Convolution(kernel, np.zeros(2), (1,), ((0, 0),), (1,)), ("x",)),),
        (Output("y", "y"),),
    )
    assert network.connections == 4 * 3
    assert network.zeros == 2
    assert network.parameters == 6
