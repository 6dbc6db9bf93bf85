"""What counts as a witness, and how witnesses are kept."""

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
from relutrim.bounds.interval import forward_radius, input_interval, node_interval
from relutrim.domain import Box, Domain
from relutrim.graph import Linear, Network, Node, Output, Port, Relu
from relutrim.prove.deadline import Deadline
from relutrim.prove.verdict import Evidence, Verdict
from relutrim.search import witnesses
from relutrim.search.anneal import anneal
from relutrim.search.climb import Targets, climb
from relutrim.search.witnesses import Witnesses

slow = settings(suppress_health_check=list(HealthCheck), max_examples=40)
DATA = {"method": "data", "time_limit": None, "device": "cpu", "seed": 0, "progress": None}


def one_layer(weight, bias) -> Network:
    weight, bias = np.array(weight, float), np.array(bias, float)
    nodes = (Node("linear", Linear(weight, bias), ("x",)), Node("relu", Relu(), ("linear",)))
    return Network(Port("x", (weight.shape[1],)), nodes, (Output("y", "relu"),))


def witnesses_of(network: Network, domain: Domain) -> Witnesses:
    region = domain.fit(network).region()
    values = {network.input.name: input_interval(network, region.box())}
    for node in network.nodes:
        values[node.name] = node_interval(node, values)
    return Witnesses(network, region, forward_radius(network, values))


def tensor(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


# What counts.


def test_where_time_is_limited_few_inputs_are_looked_at_first(monkeypatch):
    monkeypatch.setattr(witnesses, "_FIRST_WORK", 1)

    def sizes(deadline: Deadline | None) -> list[int]:
        kept, found = witnesses_of(one_layer([[1.0]], [0.0]), Box(0, 1)), []
        note = kept._note
        monkeypatch.setattr(kept, "_note", lambda points: (found.append(len(points)), note(points)))
        assert kept.observe(tensor([[0.5]] * 100), deadline) == sum(found)
        return found

    assert sizes(None) == sizes(Deadline()) == [100]
    assert sizes(Deadline(1000))[:3] == [2, 4, 8]
    assert sum(sizes(Deadline(1000))) == 100
    assert sizes(Deadline(0)) == [2]
    monkeypatch.setattr(witnesses, "_FIRST_WORK", 2**27)
    assert sizes(Deadline(1000)) == [100]  # of a small network all, whatever the limit


def test_inputs_outside_of_the_box_are_passed_over():
    kept = witnesses_of(one_layer([[1.0]], [0.0]), Box(0, 1))
    assert kept.observe(tensor([[-1.0], [2.0], [math.nan], [math.inf], [math.nextafter(1.0, 2)]])) == 0
    assert len(kept.inputs()) == 0
    assert kept.observe(tensor([[-1.0], [1.0]])) == 1
    assert kept.seen["relu"].active.tolist() == [0]
    assert kept.seen["relu"].inactive.tolist() == [-1]


def test_corners_of_the_box_that_violate_the_sum_do_not_count():
    network = one_layer([[1.0, 1.0]], [-1.5])  # active at the corner (1, 1) only
    kept = witnesses_of(network, Box(0, 1).sum_between(0.1, 1))
    assert kept.observe(tensor([[1.0, 1.0], [0.0, 0.0], [0.25, 0.25]])) == 1
    assert kept.seen["relu"].active.tolist() == [-1]
    assert kept.inputs().tolist() == [[0.25, 0.25]]


def test_a_sign_within_the_rounding_radius_is_no_state():
    network = one_layer([[0.1, 0.2]], [-0.3])  # at (1, 1): 5e-17 or so, and rounding is as large
    kept = witnesses_of(network, Box(0, 2))
    assert kept.observe(tensor([[1.0, 1.0]])) == 1
    assert kept.seen["relu"].active.tolist() == kept.seen["relu"].inactive.tolist() == [-1]
    assert len(kept.inputs()) == 0
    kept.observe(tensor([[1.0, 1.0 + 1e-12], [1.0, 1.0 - 1e-12]]))
    assert kept.seen["relu"].both.tolist() == [True]


def test_a_zero_is_neither_active_nor_inactive():
    kept = witnesses_of(one_layer([[0.0]], [0.0]), Box(0, 1))
    kept.observe(tensor([[0.0], [1.0]]))
    assert kept.seen["relu"].active.tolist() == kept.seen["relu"].inactive.tolist() == [-1]


def test_overflow_shows_no_state_and_hides_none():
    network = one_layer([[1e308, 1e308], [1.0, 0.0]], [0.0, -0.5])
    kept = witnesses_of(network, Box(0, 10))
    kept.observe(tensor([[10.0, 10.0], [1.0, 0.0], [0.0, 0.0]]))
    assert kept.seen["relu"].active.tolist()[0] == -1
    assert kept.seen["relu"].both.tolist()[1]


# How they are kept.


def test_the_pool_holds_each_useful_input_once_and_indices_point_into_it():
    network = one_layer([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [-1.0, 0.0]], [0.0, 0.0, 0.0, 0.0])
    kept = witnesses_of(network, Box(-1, 1))
    assert kept.observe(tensor([[0.0, 0.0], [1.0, 1.0], [0.5, 0.5]])) == 3
    assert kept.inputs().tolist() == [[1.0, 1.0]]
    assert kept.observe(tensor([[0.5, 0.5]])) == 1
    kept.observe(tensor([[-0.5, 0.5], [0.5, -1.0]]))
    seen, pool = kept.seen["relu"], kept.inputs()
    assert len(pool) == len({tuple(row) for row in pool.tolist()})
    values = network.run(pool)["linear"]
    for witness, sign in ((seen.active, 1), (seen.inactive, -1)):
        for neuron, row in enumerate(witness.tolist()):
            assert row < len(pool)
            if row >= 0:
                assert sign * values[row, neuron] > 0
    assert seen.both.all()


def test_a_first_witness_is_kept_when_better_ones_come():
    kept = witnesses_of(one_layer([[1.0]], [0.0]), Box(-1, 1))
    kept.observe(tensor([[0.5]]))
    kept.observe(tensor([[1.0]]))
    assert kept.seen["relu"].active.tolist() == [0]
    assert kept.inputs().tolist() == [[0.5]]
    assert kept.seen["relu"].highest.tolist() == [1.0]


@slow
@given(strategies.problems(max_neurons=8), st.integers(0, 2**16), st.booleans())
def test_whatever_is_observed_only_true_states_are_noted(problem, seed, by_batch):
    network, random = problem
    domain = Box(random.lo, random.hi)
    if len(random.matrix):
        domain = domain.constrain(random.matrix, random.lower, random.upper)
    with pytest.MonkeyPatch.context() as patch:
        if by_batch:
            patch.setattr(witnesses, "_USELESS", -1.0)
        kept = witnesses_of(network, domain)
    size = network.input.size
    noise = torch.randn(20, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    kept.observe(torch.cat([noise, kept.region.project(noise), tensor([random.point.tolist()])]))
    pool = kept.inputs().tolist()
    exact = [oracle.evaluate(network, [Fraction(v) for v in row]) for row in pool]
    assert all(random.polytope.contains([Fraction(v) for v in row]) for row in pool)
    for relu in network.relus:
        for witness, sign in ((kept.seen[relu.name].active, 1), (kept.seen[relu.name].inactive, -1)):
            for neuron, row in enumerate(witness.tolist()):
                if row >= 0:
                    assert sign * exact[row][relu.inputs[0]][neuron] > 0


def test_where_the_radius_of_the_domain_hides_everything_that_of_the_inputs_does_not():
    # Over the whole box the first layer is as large as 2**60, at these inputs it is 0.
    layers = [([[2.0**60, -(2.0**60)]], [0.0]), ([[1.0]], [1.0])]
    nodes, name = [], "x"
    for place, (weight, bias) in enumerate(layers):
        nodes += [
            Node(f"l{place}", Linear(np.array(weight), np.array(bias)), (name,)),
            Node(f"r{place}", Relu(), (f"l{place}",)),
        ]
        name = f"r{place}"
    network = Network(Port("x", (2,)), tuple(nodes), (Output("y", "r1"),))
    kept = witnesses_of(network, Box(0, 1))
    assert kept.radii["r1"] > 1.0
    kept.observe(tensor([[0.0, 0.0]]))
    assert kept.seen["r1"].active.tolist() == [0]


# Data.


def test_rows_of_data_outside_of_the_domain_are_counted_and_show_nothing():
    network = one_layer([[1.0, -1.0]], [0.0])
    data = np.array([[2.0, 0.0], [0.0, 1.0], [0.0, 0.5]])
    stability = analyze_network(network, Box(0, 1), data=data, **DATA)
    assert (stability.data_rows, stability.data_rows_outside) == (3, 1)
    assert stability["relu"].active_witness.tolist() == [-1]
    assert stability["relu"].which(Verdict.INACTIVE) == [0]
    assert stability["relu"].evidence.tolist() == [Evidence.DATA]


def test_data_that_shows_nothing_at_all_leaves_everything_unknown():
    network = one_layer([[1.0, -1.0]], [0.0])
    for data in (np.full((4, 2), 7.0), np.zeros((0, 2)), np.full((1, 2), np.nan)):
        stability = analyze_network(network, Box(0, 1), data=data, **DATA)
        assert stability["relu"].which(Verdict.UNKNOWN) == [0]
        assert stability["relu"].evidence.tolist() == [Evidence.NONE]


def test_neurons_that_overflow_on_the_data_stay_unknown():
    network = one_layer([[1e308, -1e308], [1.0, -1.0]], [0.0, 0.0])
    stability = analyze_network(network, Box(0, 100), data=np.full((2, 2), 50.0), **DATA)
    assert stability["relu"].which(Verdict.UNKNOWN) == [0]


# Gradient searches.


def missing(size: int, index: int, sign: float) -> Targets:
    return Targets(["relu"], torch.tensor([index]), tensor([sign]), torch.full((1, size), 0.5).double())


def test_searches_find_the_corner_and_stay_in_the_domain():
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(1, 30))
    for domain in (Box(0, 1), Box(0, 1).sum_between(5, 10)):
        network = one_layer(weight, [0.0])
        region = domain.fit(network).region()
        for sign in (1.0, -1.0):
            best = -region.lower(tensor(-sign * weight)).item()
            targets, forever = missing(30, 0, sign), Deadline()
            heat = torch.tensor([0.1]).double()
            for found, share in (
                (climb(network, region, targets, steps=24, deadline=forever), 0.6),
                (anneal(network, region, targets, heat, steps=60, deadline=forever), 0.9),
            ):
                assert region.inside(found).all()
                value = sign * (found @ tensor(weight.T)).item()
                assert value > share * best


def test_searches_stop_at_the_deadline():
    network = one_layer([[1.0, 1.0]], [0.0])
    region = Box(0, 1).fit(network).region()
    targets, over = missing(2, 0, 1.0), Deadline(0)
    assert torch.equal(climb(network, region, targets, steps=10**9, deadline=over), targets.starts)
    heat = torch.tensor([0.1]).double()
    assert torch.equal(anneal(network, region, targets, heat, steps=10**9, deadline=over), targets.starts)


def test_inputs_are_looked_at_one_by_one_where_values_are_long_and_no_longer_than_there_is_time(monkeypatch):
    monkeypatch.setattr(witnesses, "_CHUNK_BYTES", 8)
    found = witnesses_of(one_layer([[1.0]], [-0.5]), Box(0, 1))
    points = tensor([[0.0], [1.0], [0.75]])
    assert found.observe(points, Deadline(0.0)) == 1
    assert found.observe(points) == 3


def test_annealing_ends_when_every_target_has_a_row_that_is_enough():
    """With a billion steps it would not end otherwise; a target of two rows needs only one of them."""
    network = one_layer([[1.0, 1.0], [1.0, -1.0]], [-1.9, -0.5])
    region = Box(0, 1).fit(network).region()
    one, other = missing(2, 0, 1.0), missing(2, 1, 1.0)
    targets = Targets(
        one.relu * 2 + other.relu,
        torch.cat([one.index, one.index, other.index]),
        torch.cat([one.sign, one.sign, other.sign]),
        tensor([[0.0, 0.0], [1.0, 1.0], [0.5, 0.5]]),
    )
    heat, enough = torch.full((3,), 0.1).double(), tensor([0.05, 0.05, 0.05])
    found = anneal(network, region, targets, heat, steps=10**9, deadline=Deadline(), enough=enough)
    values = network.run(found, until=["linear"])["linear"]
    assert values[1, 0] > 0.05
    assert values[2, 1] > 0.05
