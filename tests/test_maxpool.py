"""Max pooling: its relaxation, and what walks through it."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracle
import strategies
from relutrim import Box
from relutrim.analysis import analyze_network
from relutrim.bounds.interval import forward_radius, input_interval, node_interval
from relutrim.bounds.linear import Backward
from relutrim.bounds.maxima import relax_maxima
from relutrim.bounds.relaxation import Slope
from relutrim.graph import Linear, MaxPool, Network, Node, Output, Port, Relu, Reshape, Scale
from relutrim.intervals import Interval
from relutrim.prove.verdict import Verdict
from relutrim.rewrite.draft import passed
from relutrim.rewrite.gains import gains

PAIRS = MaxPool((2,), (2,), ((0, 0),), (1,))
OVERLAPPING = MaxPool((3,), (1,), ((1, 1),), (1,))
QUICK = {"method": "auto", "time_limit": 5.0, "device": "cpu", "seed": 0, "progress": None}


def ends(*pairs: tuple[float, float]) -> Interval:
    lo, hi = torch.tensor(pairs, dtype=torch.float64).T
    return Interval(lo[None, None], hi[None, None])


def pooled(pool: MaxPool, size: int, weights: np.ndarray | None = None) -> Network:
    count = pool.output_shape([(1, size)])[1]
    weights = np.ones((1, count)) if weights is None else weights
    nodes = (
        Node("pool", pool, ("x",)),
        Node("flat", Reshape((1, count), (count,)), ("pool",)),
        Node("sum", Linear(weights, np.zeros(len(weights))), ("flat",)),
        Node("relu", Relu(), ("sum",)),
    )
    return Network(Port("x", (1, size)), nodes, (Output("y", "relu"),))


def backward_of(network: Network, box: Box) -> Backward:
    region = box.fit(network).region()
    values = {"x": input_interval(network, region.box())}
    for node in network.nodes:
        values[node.name] = node_interval(node, values)
    return Backward(network, region, values)


@pytest.mark.parametrize("slope", Slope)
def test_a_sure_winner_takes_the_place_of_the_maximum_exactly(slope):
    maxima = relax_maxima(PAIRS, ends((0.0, 1.0), (1.0, 3.0), (-1.0, 5.0), (-7.0, -2.0)), slope)
    assert maxima.below.tolist() == maxima.above.tolist() == [[[1, 2]]]
    assert maxima.slope.tolist() == [[[1.0, 1.0]]]
    for nothing in (maxima.intercept, maxima.radius):
        assert nothing.tolist() == [[[0.0, 0.0]]]


def test_equal_upper_ends_make_the_constant_and_nothing_rounds():
    maxima = relax_maxima(PAIRS, ends((0.0, 2.0), (-1.0, 2.0)), Slope.ADAPTIVE)
    assert maxima.slope.tolist() == [[[0.0]]]
    assert maxima.intercept.tolist() == [[[2.0]]]
    assert maxima.below.tolist() == [[[0]]]


def test_padding_is_never_chosen_even_if_nothing_is_known():
    pool = MaxPool((2,), (2,), ((1, 1),), (1,))
    unknown = ends((-torch.inf, torch.inf), (float("nan"), float("nan")))
    for slope in Slope:
        maxima = relax_maxima(pool, unknown, slope)
        assert (maxima.below >= 0).all()
        assert (maxima.above >= 0).all()


@given(
    st.lists(st.tuples(strategies.FLOAT32, strategies.FLOAT32), min_size=4, max_size=6),
    st.sampled_from([PAIRS, OVERLAPPING, MaxPool((2,), (1,), ((1, 0),), (2,))]),
    st.sampled_from(Slope),
)
def test_lines_lie_below_and_above_the_maximum(pairs, pool, slope):
    value = ends(*((min(pair), max(pair)) for pair in pairs))
    maxima = relax_maxima(pool, value, slope)
    lo, hi = value.lo.flatten().tolist(), value.hi.flatten().tolist()
    network = pooled(pool, len(pairs))
    for x in oracle.random_points(oracle.Polytope.of(lo, hi), 8):
        truth = oracle.evaluate(network, x)["pool"]
        for top, below, above, rise, t in zip(
            truth,
            *(
                part.flatten().tolist()
                for part in (maxima.below, maxima.above, maxima.slope, maxima.intercept)
            ),
            strict=True,
        ):
            assert x[below] <= top <= Fraction(rise) * x[above] + Fraction(t)


def test_linear_bounds_see_through_a_sure_winner():
    """``max(x0 + 2, x1) - max(x0, x0 - 2) - 2`` is 0, which intervals do not know."""
    shared = Linear(
        np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]]), np.array([2.0, 0.0, 0.0, -2.0])
    )
    nodes = (
        Node("spread", shared, ("x",)),
        Node("row", Reshape((4,), (1, 4)), ("spread",)),
        Node("pool", PAIRS, ("row",)),
        Node("flat", Reshape((1, 2), (2,)), ("pool",)),
        Node("minus", Linear(np.array([[1.0, -1.0]]), np.array([-2.0])), ("flat",)),
        Node("relu", Relu(), ("minus",)),
    )
    network = Network(Port("x", (2,)), nodes, (Output("y", "relu"),))
    bounded = backward_of(network, Box(0, 1)).neurons("minus", torch.tensor([0]), 1.0, Slope.ADAPTIVE)
    assert -1e-12 < float(bounded.lower) <= 0


def test_the_radius_of_a_maximum_is_the_largest_of_its_window():
    nodes = (
        Node("scaled", Scale.exactly(np.array([[0.1, 0.3, 3.0, 0.1]])), ("x",)),
        Node("pool", PAIRS, ("scaled",)),
    )
    network = Network(Port("x", (1, 4)), nodes, (Output("y", "pool"),))
    radius = forward_radius(network, backward_of(network, Box(0, 1)).values)
    assert torch.equal(radius["pool"], PAIRS.forward([radius["scaled"]]))


def test_what_moves_a_maximum_is_what_moves_its_window_most():
    moved = torch.tensor([[[0.0, 1.0, 0.25, 0.5]]], dtype=torch.float64)
    assert passed(PAIRS, [moved]).tolist() == [[[1.0, 0.5]]]


@given(st.lists(strategies.INTEGERS, min_size=10, max_size=10), st.sampled_from([PAIRS, OVERLAPPING]))
def test_gains_bound_what_a_change_before_a_maximum_does(numbers, pool):
    count = pool.output_shape([(1, 4)])[1]
    weights = np.resize(np.array([*numbers[8:], 1.0, -2.0]), (1, count))
    network = pooled(pool, 4, weights).edit(change={})
    found = gains(network, {"relu": np.zeros(1, dtype=bool)}, ["pool"])["pool"]
    assert (found >= torch.as_tensor(np.abs(weights)) / 2).all()
    before = Network(
        Port("z", (1, 4)),
        (Node("x", Scale.exactly(1.0), ("z",)), *network.nodes),
        network.outputs,
    )
    gain = gains(before, {"relu": np.zeros(1, dtype=bool)}, ["x"])["x"]
    x, d = numbers[:4], numbers[4:8]
    one = oracle.outputs(before, [Fraction(v) for v in x])[0]
    other = oracle.outputs(before, [Fraction(v) + Fraction(w) for v, w in zip(x, d, strict=True)])[0]
    assert abs(one - other) <= sum(
        Fraction(g) * abs(Fraction(w)) for g, w in zip(gain[0].tolist(), d, strict=True)
    )


def test_verdicts_behind_a_maximum():
    always = pooled(PAIRS, 4)
    stability = analyze_network(
        always, Box(np.array([[-1.0, 2, -1, 0]]), np.ones((1, 4)) * 3), data=None, **QUICK
    )
    assert Verdict(stability.layers[0].verdict[0]) is Verdict.ACTIVE
    never = pooled(PAIRS, 4, -np.ones((1, 2)))
    stability = analyze_network(
        never, Box(np.array([[-1.0, 2, -1, 0]]), np.ones((1, 4)) * 3), data=None, **QUICK
    )
    assert Verdict(stability.layers[0].verdict[0]) is Verdict.INACTIVE
    both = pooled(PAIRS, 4, np.array([[1.0, -1.0]]))
    stability = analyze_network(both, Box(0, 1), data=None, **QUICK)
    assert Verdict(stability.layers[0].verdict[0]) is Verdict.UNSTABLE
