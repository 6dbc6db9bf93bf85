"""Which neuron to split: what splits gained before counts as much as what a relaxation costs."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from relutrim.prove.hull.branching import Experience, Origin

COSTS = np.array([[1.0, 1.0], [1.0, 2.0], [-1.0, -1.0]])


def both(bound: float, neuron: int, cost: float = 1.0) -> list[Origin]:
    return [Origin(bound, neuron, on, cost) for on in (False, True)]


def test_without_experience_costs_decide():
    assert np.array_equal(Experience(3).scores(COSTS), COSTS)


def test_splits_that_paid_are_made_again():
    known = Experience(3)
    for _ in range(20):
        known.note(zip(both(-1.0, 0), [-0.5, -0.5], strict=True))
        known.note(zip(both(-1.0, 1), [-0.99, -0.99], strict=True))
    scores = known.scores(COSTS)
    assert scores[0, 0] > scores[1, 0]
    assert scores[0, 1] > scores[1, 1], "twice the cost, a fiftieth of the gain"
    assert (scores[2] < 0).all(), "there is nothing to split"


def test_a_split_that_helps_one_side_only_is_worth_less_than_one_that_helps_both():
    known = Experience(2)
    for _ in range(50):
        known.note(zip(both(-1.0, 0), [-1.0, 0.0], strict=True))
        known.note(zip(both(-1.0, 1), [-0.5, -0.5], strict=True))
    first, second = known.scores(np.ones((2, 1)))[:, 0]
    assert second > first


def test_a_gain_counts_up_to_where_the_node_is_closed():
    one, other = Experience(2), Experience(2)
    one.note(zip(both(-1.0, 0), [0.0, 1e30], strict=True))
    other.note(zip(both(-1.0, 0), [5.0, 0.0], strict=True))
    assert np.array_equal(one.scores(np.ones((2, 1))), other.scores(np.ones((2, 1))))


@given(
    st.lists(st.tuples(st.floats(), st.integers(0, 3), st.booleans(), st.floats(0, 1e300), st.floats())),
    st.lists(st.floats(-1, 1e6), min_size=4, max_size=4),
)
def test_no_bound_whatever_makes_a_score_of_nothing_or_of_a_neuron_that_is_split(found, costs):
    known = Experience(4)
    known.note([(Origin(bound, neuron, on, cost), after) for bound, neuron, on, cost, after in found])
    known.note([(None, -1.0), (Origin(math.nan, 0, True, 1.0), 1.0)])
    with np.errstate(all="ignore"):
        scores = known.scores(np.array(costs)[:, None])[:, 0]
    for score, cost in zip(scores, costs, strict=True):
        assert not (cost < 0 and score >= 0)
