"""Merging active neurons whose rows depend on each other."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relutrim.rewrite.merge_active import dependent_rows, merge_active
from rewriting import assert_holds, assert_true, compressed, dense, layer_of, linear, names, start

UNSTABLE = [1.0, 0.0], -0.5
"""A row and a bias that keep a layer of the unit square from being folded."""


def layer(*neurons):
    """Rows with biases, and an unstable neuron at the end."""
    rows, biases = zip(*neurons, UNSTABLE, strict=True)
    return linear(rows, biases)


def merged(network, lo=0, hi=1):
    draft = start(network, lo, hi)
    return merge_active(draft, layer_of(draft, "relu1"))


def test_the_readers_take_over_what_the_merged_neuron_said():
    # y3 = 3/4 y1 + 1/2 y2 + (b3 - 3/4 b1 - 1/2 b2), and the readers' OLD weight 8 multiplies that offset.
    network = dense(layer(([1, 0], 1), ([0, 1], 2), ([0.75, 0.5], 3)), linear([[3, 5, 8, 11]], [13]))
    after = merged(network).network
    np.testing.assert_array_equal(after["linear1"].operator.weight, [[1, 0], [0, 1], [1, 0]])
    np.testing.assert_allclose(after["output"].operator.weight, [[9, 9, 11]], rtol=1e-15)
    np.testing.assert_allclose(after["output"].operator.bias, [13 + 8 * (3 - 0.75 - 1)], rtol=1e-15)


@pytest.mark.parametrize(
    ("neurons", "left"),
    [
        ([([1, 1], 1), ([1, 1], 1)], 1),
        ([([1, 1], 1), ([-1, -1], 2)], 1),
        ([([1, 1], 1), ([3, 3], 0), ([0.1, 0.1], 5)], 1),
        ([([1, 0], 1), ([0, 1], 1), ([1, 1], 1), ([1, -1], 3), ([2, 5], 1)], 2),
        ([([0, 0], 4), ([1, 0], 1)], 1),
        ([([0, 0], 4)], 0),
        ([([1, 0], 1), ([0, 1], 1)], 2),
        ([([1, 0], 1), ([1, 1e-9], 1)], 2),
    ],
    ids=["copies", "negatives", "multiples", "rank 2", "constant", "constant alone", "independent", "nearly"],
)
def test_as_many_active_neurons_stay_as_their_rows_have_rank(neurons, left):
    network = dense(layer(*neurons), linear([[*[1.5, -2, 3, 0.25, 7][: len(neurons)], 1]], [1]))
    draft = merged(network)
    assert draft.network.widths == [2, left + 1, 1]
    assert assert_true(network, draft, 0, 1) < 1e-12


def test_neurons_that_are_not_active_are_no_part_of_it():
    network = dense(linear([[1.0], [1.0], [-1.0], [-2.0]], [-0.5, -0.5, 0, 0]), linear([[1, 1, 1, 1]]))
    draft = start(network, 0, 1)
    assert merge_active(draft, layer_of(draft, "relu1")) is draft


def test_the_last_hidden_layer_is_merged_too():
    network = dense(
        linear([[1.0], [-1.0]], [-0.5, 0.5]), layer(([1, 1], 1), ([2, 2], 0)), linear([[1, 1, 1]])
    )
    result = compressed(network, 0, 1, rewrites="leo++")
    assert result.network.widths == [1, 2, 2, 1]
    assert_holds(network, result, 0, 1)


def test_a_layer_of_constants_that_may_not_fold_keeps_one_value():
    network = dense(linear(np.zeros((2, 30)), [1, 2]), linear(np.ones((20, 2))))
    result = compressed(network, 0, 1, rewrites="all")
    assert names(result) == ["merge-collinear", "straighten"]  # 2 is twice 1, so that is exact
    assert result.network.parameters == 30 + 1 + 20 + 20


def test_a_tiny_row_with_a_large_bias_is_no_basis_for_others():
    # 1 * y2 would be 2**33 * y1 - 2**33: float32 does not hold that, and the result would be off by 1.
    network = dense(linear([[2.0**-33], [1.0], [1.0]], [1, 0, -0.5]), linear([[1, 1, 1]]), dtype="float32")
    result = compressed(network, 0, 1)
    assert result.network.widths == [1, 2, 1]
    assert result.deviation.proven < 1e-9
    assert_holds(network, result, 0, 1)


def test_coefficients_that_overflow_leave_the_layer_as_it_is():
    network = dense(layer(([1, 1], 1), ([1, 1], 1)), linear([[1.7e308, 1.7e308, 1]]))
    assert compressed(network, 0, 1).network is network


def test_the_bound_holds_where_products_underflow():
    network = dense(linear([[1.1e-200], [3.3e-200], [1.0]], [0, 0, -5e-201]), linear([[1.3e300, 1.1e300, 1]]))
    draft = merged(network, 0, 1e-200)
    assert draft.network.widths == [1, 2, 1]
    assert_true(network, draft, 0, 1e-200)


# Which rows depend on which.


@pytest.mark.parametrize("exponent", [0, 500, -500, 990, -1060])
@pytest.mark.parametrize("other", [0, 30, -400])
def test_rows_of_any_length_are_compared_by_direction(exponent, other):
    rows = np.ldexp([[1.0, 2, 3], [4, 5, 6], [5, 7, 9]], [[exponent], [other], [other]])
    basis, rest, factors = dependent_rows(rows)
    assert len(basis) == 2 or abs(exponent - other) > 1000  # there no float holds the factors
    np.testing.assert_allclose(factors @ rows[basis], rows[rest], rtol=1e-13)


def test_the_smallest_rows_there_are():
    basis, rest, factors = dependent_rows(np.array([[5e-324, 0], [1e-323, 0], [0, 0]]))
    assert (len(basis), len(rest)) == (1, 2)
    assert np.isfinite(factors).all()


def test_no_rows_and_no_columns():
    assert [len(part) for part in dependent_rows(np.zeros((0, 3)))[:2]] == [0, 0]
    assert [len(part) for part in dependent_rows(np.zeros((2, 0)))[:2]] == [0, 2]


def test_factors_that_no_float_holds_are_not_used():
    basis, rest, factors = dependent_rows(np.array([[1e-300, 0], [0, 1e-300], [1e300, 1e300]]))
    assert np.isfinite(factors).all()
    assert len(basis) + len(rest) == 3


def test_hilbert_rows_that_are_independent_but_hardly_so_stay():
    size = 12
    rows = 1.0 / (1 + np.arange(size)[:, None] + np.arange(size))
    basis, rest, factors = dependent_rows(rows)
    residual = np.abs(rows[rest] - factors @ rows[basis])
    assert (residual <= 1e-11).all()
    assert (np.abs(factors) <= 1e3 * 4).all()


def rank(rows: np.ndarray) -> int:
    """In rational arithmetic."""
    matrix = [[Fraction(v) for v in row] for row in rows.tolist()]
    found = 0
    for column in range(rows.shape[1]):
        pivot = next((r for r in range(found, len(matrix)) if matrix[r][column]), None)
        if pivot is None:
            continue
        matrix[found], matrix[pivot] = matrix[pivot], matrix[found]
        for r in range(found + 1, len(matrix)):
            factor = matrix[r][column] / matrix[found][column]
            matrix[r] = [a - factor * b for a, b in zip(matrix[r], matrix[found], strict=True)]
        found += 1
    return found


@given(
    st.integers(1, 4).flatmap(
        lambda n: st.lists(st.lists(st.integers(-3, 3), min_size=n, max_size=n), min_size=1, max_size=7)
    )
)
def test_integer_rows_have_the_rank_that_rational_arithmetic_gives(rows):
    rows = np.array(rows, dtype=float)
    basis, rest, factors = dependent_rows(rows)
    assert len(basis) == rank(rows)
    assert sorted([*basis, *rest]) == list(range(len(rows)))
    np.testing.assert_allclose(factors @ rows[basis], rows[rest], atol=1e-13)
