"""Inputs without ends and values from nowhere, through everything: nothing that is said is ever wrong."""

from __future__ import annotations

from fractions import Fraction
from math import prod

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import relutrim
import spatial
from endless import NUMBERS, batch_norms, clamped, evaluate, half_open, opened, points
from relutrim.analysis import analyze_network
from relutrim.bounds.interval import image
from relutrim.bounds.relaxation import Slope
from relutrim.domain import Box
from relutrim.errors import InputError, UnsupportedError
from relutrim.graph import Add, Concat, Fresh, Linear, Network, Node, Output, Port, Relu
from relutrim.intervals import Interval
from relutrim.prove.cascade import Cascade
from relutrim.prove.deadline import Deadline
from strategies import linears

QUICK = {"data": None, "method": "auto", "time_limit": 20.0, "device": "cpu", "seed": 0, "progress": None}
SLOW = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@SLOW
@given(st.data())
def test_verdicts_hold_whatever_comes_from_nowhere(data):
    network = data.draw(opened())
    domain = data.draw(half_open(network.input.size))
    found = analyze_network(network, domain, **QUICK)
    for _ in range(3):
        values = evaluate(network, data.draw(points(network, domain)))
        for name, known in found.ranges.items():
            for value, low, high in zip(
                values[name], known.lo.flatten().tolist(), known.hi.flatten().tolist(), strict=True
            ):
                assert not value < low
                assert not value > high
    for layer in found.layers:
        pre = network[layer.name].inputs[0]
        for state, sign in ((layer.active_witness, 1), (layer.inactive_witness, -1)):
            for neuron, row in enumerate(state.tolist()):
                if row >= 0:
                    x = [Fraction(v) for v in found.witnesses[row].tolist()]
                    rest = data.draw(points(network, domain))[len(x) :]
                    assert sign * evaluate(network, [*x, *rest])[pre][neuron] > 0


@SLOW
@given(st.data(), st.sampled_from([0.0, "exact", 1e-3, 10.0]), st.sampled_from(["all", "leo++"]))
def test_what_is_pinned_does_not_move_and_outputs_stay_within_what_is_proven(data, tolerance, rewrites):
    network = data.draw(opened())
    domain = data.draw(half_open(network.input.size))
    tolerance = "exact" if rewrites == "leo++" else tolerance
    result = relutrim.compress(network, domain, tolerance=tolerance, rewrites=rewrites, time_limit=20.0)
    assert result.deviation.proven is not None
    assert result.stored.pinned == network.pinned
    for _ in range(3):
        x = data.draw(points(network, domain))
        before, after = evaluate(network, x), evaluate(result.stored, x, network)
        for name in network.pinned:
            assert before[name] == after[name]
        for output in network.outputs:
            for one, other in zip(before[output.source], after[output.source], strict=True):
                assert abs(one - other) <= Fraction(result.deviation.proven)


# Bounds.


def _ranges(draw, shape: tuple[int, ...]) -> Interval:
    sides = st.sampled_from([(-np.inf, np.inf), (0.0, np.inf), (-np.inf, 2.0), (-1.0, 1.0), (0.0, 0.0)])
    ends = np.array([draw(sides) for _ in range(prod(shape))]).reshape(-1, 2)
    lo, hi = (torch.as_tensor(end.reshape(1, *shape)) for end in ends.T)
    return Interval(lo, hi)


def _inside(draw, known: Interval) -> list[Fraction]:
    """A point between the ends."""
    pairs = zip(known.lo.flatten().tolist(), known.hi.flatten().tolist(), strict=True)
    return [clamped(Fraction(draw(st.sampled_from(NUMBERS))), low, high) for low, high in pairs]


@SLOW
@given(st.data())
def test_the_image_of_ranges_without_ends_holds_every_value(data):
    shape = data.draw(spatial.shapes(largest=3))
    count, operator = 1, data.draw(spatial.affine_operators(shape) | batch_norms(shape))
    if data.draw(st.integers(0, 3)) == 0:
        operator, count = data.draw(
            st.sampled_from([(Add(2), 2), (Concat(0, (shape[0], shape[0])), 2), (Relu(), 1)])
        )
    names = [f"x{k}" for k in range(count)]
    known = [_ranges(data.draw, shape) for _ in names]
    found = image(operator, known)
    parts = [Fresh(shape) for _ in names]
    nodes = [*(Node(n, p, ()) for n, p in zip(names, parts, strict=True)), Node("y", operator, tuple(names))]
    network = Network(Port("x", (1,)), tuple(nodes), (Output("y", "y"),))
    assert not bool((found.lo.isnan() | found.hi.isnan()).any())
    for _ in range(3):
        points = [v for one in known for v in _inside(data.draw, one)]
        values = evaluate(network, [Fraction(0), *points])["y"]
        for value, low, high in zip(
            values, found.lo.flatten().tolist(), found.hi.flatten().tolist(), strict=True
        ):
            assert low <= value <= high


@given(st.data())
def test_an_end_is_missing_just_where_a_weight_leads_to_one_that_is(data):
    layer = data.draw(linears(3, 4))
    known = _ranges(data.draw, (4,))
    found = image(layer, [known])
    lo, hi = (end[0].numpy() for end in (known.lo, known.hi))
    for row, low, high in zip(layer.weight, found.lo[0].tolist(), found.hi[0].tolist(), strict=True):
        falls = np.isinf(np.where(row > 0, lo, hi))[row != 0].any()
        rises = np.isinf(np.where(row > 0, hi, lo))[row != 0].any()
        assert (low == -np.inf, high == np.inf) == (falls, rises)


@SLOW
@given(st.data())
def test_linear_bounds_hold_over_ranges_without_ends(data):
    network = data.draw(opened())
    domain = data.draw(half_open(network.input.size))
    cascade = Cascade(domain.fit(network), Deadline(20.0))
    values = [evaluate(network, data.draw(points(network, domain))) for _ in range(3)]
    for node in network.nodes:
        index = torch.arange(network.size(node.name))
        for sign in (1.0, -1.0):
            for slope in Slope:
                lower = cascade.backward.neurons(node.name, index, sign, slope).lower.tolist()
                for entry, low in enumerate(lower):
                    assert not any(sign * one[node.name][entry] < low for one in values)


def test_what_does_not_depend_on_a_value_from_nowhere_is_bounded_beside_it():
    both = Linear(np.array([[1.0, -1.0, 0.0], [0.0, 0.0, 1.0]]), np.array([0.5, 0.0]))
    nodes = (
        Node("other", Fresh((1,)), ()),
        Node("joined", Concat(0, (1, 1)), ("x", "other")),
        Node("wide", Linear(np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), np.zeros(3)), ("joined",)),
        Node("relu", Relu(), ("wide",)),
        Node("both", both, ("relu",)),
        Node("last", Relu(), ("both",)),
    )
    network = Network(Port("x", (1,)), nodes, (Output("y", "last"),))
    low = analyze_network(network, Box(-1, 1), **QUICK).ranges["both"].lo[0].tolist()
    assert low[0] > -1e-9  # intervals say -0.5
    assert low[1] == 0
    backward = Cascade(Box(-1, 1).fit(network), Deadline(20.0)).backward
    assert not backward.neurons("both", torch.tensor([1]), -1.0, Slope.CHORD).lower > -np.inf


# Rewrites.


def test_two_values_from_nowhere_are_two():
    """Whatever they are called and however alike what reads them is."""
    same = Linear(np.array([[1.0, 2.0]]), np.array([1.0]))
    nodes = [Node("a", Fresh((2,)), ()), Node("b", Fresh((2,)), ())]
    for name in "ab":
        nodes += [Node(f"{name}1", same, (name,)), Node(f"{name}2", Relu(), (f"{name}1",))]
    nodes += [
        Node("joined", Concat(0, (1, 1)), ("a2", "b2")),
        Node("y", Linear(np.array([[1.0, -1.0]]), np.zeros(1)), ("joined",)),
    ]
    network = Network(Port("x", (1,)), tuple(nodes), (Output("y", "y"),))
    for tolerance in (0.0, "exact", 0.5):
        result = relutrim.compress(network, tolerance=tolerance)
        values = evaluate(result.stored, [Fraction(v) for v in (0, 1, 2, 3, 5)])
        assert values["y"] == [Fraction(6 - 14)]


def test_a_pinned_value_keeps_its_neurons_and_their_channels():
    weight = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    nodes = (
        Node("first", Linear(weight, np.array([0.0, -1.0, 0.0])), ("x",)),
        Node("kept", Relu(), ("first",)),
        Node("y", Linear(np.ones((1, 3)), np.zeros(1)), ("kept",)),
    )
    network = Network(Port("x", (2,)), nodes, (Output("y", "y"),))
    assert relutrim.compress(network).stored.neurons == 2
    for tolerance in (0.0, "exact", 0.5):
        pinned = Network(Port("x", (2,)), nodes, (Output("y", "y"),), pinned=("kept",))
        assert relutrim.compress(pinned, tolerance=tolerance).unchanged


def test_a_number_is_spent_on_outputs_that_nothing_pinned_depends_on():
    """Beside a value that must stay, another part of the network may still move."""
    weight = np.array([[1.0, 1.0], [1e-6, -1e-6]])
    nodes = (
        Node("first", Linear(weight, np.array([0.0, 1e-7])), ("x",)),
        Node("relu", Relu(), ("first",)),
        Node("y", Linear(np.ones((1, 2)), np.zeros(1)), ("relu",)),
        Node("pinned", Linear(np.eye(2), np.zeros(2)), ("x",)),
    )
    network = Network(Port("x", (2,)), nodes, (Output("y", "y"),), dtype="float64", pinned=("pinned",))
    result = relutrim.compress(network, Box(-1, 1), tolerance=1e-3)
    assert result.stored.neurons == 1
    assert 0 < result.deviation.proven <= 1e-3


def test_an_output_that_only_the_model_can_tell_is_not_observed():
    nodes = (Node("other", Fresh((2,)), ()), Node("y", Add(2), ("x", "other")))
    network = Network(Port("x", (2,)), nodes, (Output("y", "y"),), pinned=("x",))
    result = relutrim.compress(network)
    assert result.unchanged
    assert result.report["deviation"]["observed"] is None
    assert result.report["deviation"]["proven"] == 0
    assert result.accuracy(np.zeros((3, 2)), np.zeros(3, int)) is None
    assert result.latency().remark is not None
    with pytest.raises(UnsupportedError, match="only the model itself knows how it is computed"):
        relutrim.compress(network, Box(0, 1), certificate=True)
    with pytest.raises(InputError, match="mixed-integer programs"):
        relutrim.analyze(network, Box(0, 1), method="isa")
