"""Verdicts of the cascade: ties, limits, broken numbers, odd graphs."""

from __future__ import annotations

import math
import time
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

import relutrim
import strategies
from relutrim.analysis import analyze_network, with_output_relu
from relutrim.domain import Box, Domain
from relutrim.errors import ContradictionError
from relutrim.graph import Add, Linear, Network, Node, Output, Port, Relu, Reshape, Scale
from relutrim.intervals import Interval
from relutrim.prove.cascade import Cascade
from relutrim.prove.deadline import Deadline
from relutrim.prove.stability import Stability, judge
from relutrim.prove.verdict import Evidence, Verdict

slow = settings(suppress_health_check=list(HealthCheck), max_examples=40)
ACTIVE, INACTIVE, UNSTABLE, UNKNOWN = Verdict.ACTIVE, Verdict.INACTIVE, Verdict.UNSTABLE, Verdict.UNKNOWN


def analyse(network: Network, domain: Domain, **options) -> Stability:
    defaults = {
        "data": None,
        "method": "auto",
        "time_limit": None,
        "device": "cpu",
        "seed": 0,
        "progress": None,
    }
    return analyze_network(network, domain, **(defaults | options))


def layers(*parameters) -> Network:
    """Linear and ReLU by turns, named linear1, relu1, linear2, ..."""
    nodes: list[Node] = []
    before = "x"
    for k, (weight, bias) in enumerate(parameters, start=1):
        linear = Linear(np.array(weight, float), np.array(bias, float))
        nodes += [Node(f"linear{k}", linear, (before,)), Node(f"relu{k}", Relu(), (f"linear{k}",))]
        before = f"relu{k}"
    size = np.array(parameters[0][0], float).shape[1]
    return Network(Port("x", (size,)), tuple(nodes), (Output("y", before),))


def random_network(widths, seed: int = 0) -> Network:
    rng = np.random.default_rng(seed)
    return layers(
        *((rng.normal(size=(b, a)) / math.sqrt(a), rng.normal(size=b) / 4) for a, b in pairwise(widths))
    )


# Ties.


def test_a_minimum_of_exactly_zero_is_active_and_a_maximum_of_exactly_zero_inactive():
    weight = [[-1.0, -1.0], [1.0, 1.0], [-0.1, -0.2], [0.0, 0.0], [1.0, -1.0], [0.5, 0.25]]
    bias = [2.0, -2.0, 0.0, 0.0, 0.0, 0.0]
    layer = analyse(layers((weight, bias)), Box(0, 1))["relu1"]
    assert layer.verdict.tolist() == [ACTIVE, INACTIVE, INACTIVE, INACTIVE, UNSTABLE, ACTIVE]
    assert layer.evidence.tolist() == [Evidence.PROOF] * 4 + [Evidence.WITNESS, Evidence.PROOF]
    assert layer.margin[:4].tolist() == [0, 0, 0, 0]


def test_rows_of_zeros_follow_their_bias():
    layer = analyse(layers((np.zeros((3, 2)), [0.0, 5e-324, -5e-324])), Box(-1, 1))["relu1"]
    assert layer.verdict.tolist() == [INACTIVE, ACTIVE, INACTIVE]


def test_ties_behind_a_relu_are_decided_too():
    first = ([[1.0], [-1.0]], [0.0, 0.0])
    second = ([[1.0, 1.0], [-1.0, -1.0], [-1.0, -1.0]], [0.0, 0.0, 1.0])
    layer = analyse(layers(first, second), Box(-1, 1))["relu2"]
    assert layer.verdict[:2].tolist() == [ACTIVE, INACTIVE]
    # |x| <= 1 is tight at both ends; whatever is said of 1 - |x| >= 0 must not be wrong.
    assert layer.verdict[2] in (ACTIVE, UNKNOWN)


def test_no_search_for_a_state_that_rounding_would_hide(monkeypatch):
    """0.1 + 0.2 - 0.3 is 2.8e-17 in float64: more than 0, but no forward pass could tell."""
    searched = set()

    def search(network, region, targets, *args, **options):
        searched.update(zip(targets.relu, targets.index.tolist(), targets.sign.tolist(), strict=True))
        return targets.starts

    monkeypatch.setattr("relutrim.prove.hunt.anneal", search)
    monkeypatch.setattr("relutrim.prove.hunt.climb", search)
    first = ([[1.0, 1.0]] * 3, [1.0] * 3)
    second = ([[0.1, 0.2, -0.3], [0.1, 0.2, -0.6]], [0.0, 0.6])
    stability = analyse(layers(first, second), Box(0, 1))
    assert stability["relu2"].verdict.tolist() == [UNKNOWN, UNSTABLE]
    assert ("relu2", 0) not in {(name, neuron) for name, neuron, _ in searched}


def _restarts(monkeypatch, cascade: Cascade):
    """The targets and starts of one round of restarts."""
    found = []

    def search(network, region, targets, *args, **options):
        found.append(targets)
        return targets.starts

    with monkeypatch.context() as patch:
        patch.setattr("relutrim.prove.hunt.anneal", search)
        cascade.hunt.again("again")
    return found


def test_restarts_begin_where_a_state_is_nearest_and_go_further_every_time(monkeypatch):
    network = random_network([10, 40, 40, 40])
    cascade = Cascade(Box(0, 1).fit(network), Deadline())
    cascade.witnesses.observe(cascade.region.sample(300, cascade.generator))
    kept = cascade.witnesses.inputs()
    for turn in range(3):
        rounds = _restarts(monkeypatch, cascade)
        assert rounds
        for targets in rounds:
            assert len(targets)
            values = network.run(kept, until=["linear1", "linear2", "linear3"])
            for name, index, sign, start in zip(
                targets.relu, targets.index.tolist(), targets.sign.tolist(), targets.starts, strict=True
            ):
                order = (sign * values[name.replace("relu", "linear")][:, index]).argsort(descending=True)
                first = int((kept == start).all(1).nonzero()[0, 0])
                each = max(1, 128 // len(set(zip(targets.relu, targets.index.tolist(), strict=True))))
                assert turn * each <= order.tolist().index(first) < (turn + 1) * each


def test_restarts_need_something_to_find_and_somewhere_to_begin(monkeypatch):
    network = random_network([10, 40, 40])
    cascade = Cascade(Box(0, 1).fit(network), Deadline())
    assert not _restarts(monkeypatch, cascade)
    cascade.run()
    assert not cascade.missing()
    assert not _restarts(monkeypatch, cascade)


def test_restarts_find_what_only_a_narrow_part_of_the_domain_shows():
    """Hidden neurons measure how far each of 30 inputs is from some 0.7, and the target
    is on where their sum is small. From a neighbour that is on around the same point it is near.
    """
    rng = np.random.default_rng(0)
    centre = rng.uniform(0.6, 0.8, 30)
    away = np.concatenate([np.eye(30), -np.eye(30)]), np.concatenate([-centre, centre])
    near = np.stack([-np.ones(60), -np.ones(60)]), np.array([3.0, 0.05])
    cascade = Cascade(Box(0, 1).fit(layers(away, near)), Deadline())
    cascade.witnesses.observe(torch.from_numpy(np.clip(centre + 0.05 * rng.choice([-1, 1], (4, 30)), 0, 1)))
    seen = cascade.witnesses.seen["relu2"]
    assert seen.active[0] >= 0
    assert seen.active[1] < 0
    cascade.hunt.again("again")
    assert seen.active[1] >= 0


# Limits.


@pytest.mark.parametrize("domain", [Box(-1, 1), Box(-1, 1).sum_between(-1, 1)])
@pytest.mark.parametrize("method", ["auto", "bounds"])
def test_without_time_neurons_stay_unknown_and_nothing_hangs(domain, method):
    network = random_network([10, 20, 20, 20])
    started = time.monotonic()
    stability = analyse(network, domain, time_limit=0.0, method=method)
    assert time.monotonic() - started < 10
    assert stability.count(UNKNOWN) > 0
    assert not stability.complete
    full = analyse(network, domain, method=method)
    assert full.complete or method == "bounds"
    for cut, whole in zip(stability.layers, full.layers, strict=True):
        known = (cut.verdict != UNKNOWN) & (whole.verdict != UNKNOWN)
        assert (cut.verdict[known] == whole.verdict[known]).all()
        assert whole.count(UNKNOWN) <= cut.count(UNKNOWN)


def test_without_time_data_call_nothing_stable():
    network = layers(([[1.0, -1.0]], [0.0]))
    stability = analyse(network, Box(0, 1), data=np.array([[1.0, 0.0]]), method="data", time_limit=0.0)
    assert stability["relu1"].verdict.tolist() == [UNKNOWN]


def test_a_limit_ends_a_hard_search_soon():
    network = random_network([30, 100, 100, 100, 100, 100])
    started = time.monotonic()
    analyse(network, Box(-1, 1).sum_between(-2, 2), time_limit=1.0)
    assert time.monotonic() - started < 8


def test_a_limit_ends_a_layer_of_nothing_but_ties():
    weight = np.random.default_rng(0).normal(size=(3000, 300))
    network = layers((weight, -np.maximum(weight, 0).sum(1)))
    started = time.monotonic()
    stability = analyse(network, Box(0, 1), time_limit=0.2)
    assert time.monotonic() - started < 6
    assert stability.count(ACTIVE) == 0


def test_an_interruption_leaves_true_partial_verdicts():
    network = random_network([4, 8, 8])

    def interrupt(stage: str, done: int, total: int) -> None:
        if stage == "bounds":
            raise KeyboardInterrupt

    stability = analyse(network, Box(-1, 1), progress=interrupt)
    assert stability.interrupted
    full = analyse(network, Box(-1, 1))
    for cut, whole in zip(stability.layers, full.layers, strict=True):
        known = cut.verdict != UNKNOWN
        assert (cut.verdict[known] == whole.verdict[known]).all()


# Broken numbers, failing helpers.


def test_bounds_that_are_not_numbers_leave_neurons_unknown():
    nan, none = math.nan, torch.tensor([-1, -1, -1])
    pre = Interval(torch.tensor([[nan, -1.0, nan]]), torch.tensor([[nan, nan, -1.0]]))
    assert judge("relu", (3,), pre, none, none).verdict.tolist() == [UNKNOWN, UNKNOWN, INACTIVE]


def test_a_proof_and_a_witness_against_it_are_never_reported_together():
    pre = Interval(torch.tensor([[1.0]]), torch.tensor([[2.0]]))
    none, some = torch.tensor([-1]), torch.tensor([0])
    with pytest.raises(ContradictionError):
        judge("relu", (1,), pre, none, some)


def test_overflow_leaves_neurons_unknown_and_others_alone():
    first = ([[1e308, 1e308], [1.0, 1.0]], [0.0, 1.0])
    second = ([[1.0, 0.0], [1e-300, -1e300], [0.0, 1.0]], [0.0, 0.0, 0.0])
    stability = analyse(layers(first, second), Box(-8, 8))
    assert stability["relu1"].verdict.tolist() == [UNKNOWN, UNSTABLE]
    assert stability["relu2"].verdict[1] == UNKNOWN
    assert not any(np.isposinf(layer.lower).any() for layer in stability.layers)


@pytest.mark.parametrize("broken", ["error", "nan", "infinite"])
def test_a_bound_that_fails_makes_nothing_stable(monkeypatch, broken):
    """The reference implementation called every candidate stable when its solver failed."""
    from relutrim.bounds.linear import Backward, Bounded

    real = Backward.neurons

    def fail(self, *arguments):
        if broken == "error":
            raise RuntimeError("out of memory")
        bounded = real(self, *arguments)
        lost = math.nan if broken == "nan" else -math.inf
        return Bounded(torch.full_like(bounded.lower, lost), bounded.forms)

    network = random_network([3, 6, 6, 6])
    good = analyse(network, Box(-1, 1))
    monkeypatch.setattr(Backward, "neurons", fail)
    if broken == "error":
        with pytest.raises(RuntimeError):
            analyse(network, Box(-1, 1))
        return
    bad = analyse(network, Box(-1, 1))
    for layer, whole in zip(bad.layers, good.layers, strict=True):
        decided = layer.verdict != UNKNOWN
        assert (layer.verdict[decided] == whole.verdict[decided]).all()


# Order, repetition, determinism.


def test_twelve_layers_come_in_their_own_order():
    network = random_network([2] + [3] * 12)
    shuffled = Network(network.input, network.nodes[::-1], network.outputs)
    for given_as in (network, shuffled):
        stability = analyse(given_as, Box(-1, 1))
        assert [layer.name for layer in stability.layers] == [f"relu{k}" for k in range(1, 13)]


@pytest.mark.parametrize("domain", [Box(-1, 1), Box(-1, 1).sum_between(0, 1)])
def test_the_same_seed_gives_the_same_answer(domain):
    network = random_network([6, 12, 12], seed=3)
    one, other = (analyse(network, domain, seed=5) for _ in range(2))
    assert np.array_equal(one.witnesses, other.witnesses)
    for a, b in zip(one.layers, other.layers, strict=True):
        for name in ("verdict", "evidence", "lower", "upper", "active_witness", "inactive_witness"):
            assert np.array_equal(getattr(a, name), getattr(b, name), equal_nan=True)


@settings(slow, max_examples=10)
@given(strategies.problems(max_neurons=8))
def test_seeds_and_methods_never_contradict_each_other(problem):
    network, random = problem
    domain = Box(random.lo, random.hi)
    if len(random.matrix):
        domain = domain.constrain(random.matrix, random.lower, random.upper)
    runs = [
        analyse(network, domain, seed=0),
        analyse(network, domain, seed=1),
        analyse(network, domain, method="bounds"),
    ]
    for layers_ in zip(*(run.layers for run in runs), strict=True):
        for verdicts in zip(*(layer.verdict for layer in layers_), strict=True):
            assert len({int(v) for v in verdicts} - {int(UNKNOWN)}) <= 1


@settings(slow, max_examples=20)
@given(strategies.problems(extreme=False))
def test_bounds_stay_in_order_at_every_step(problem):
    network, random = problem
    domain = Box(random.lo, random.hi)
    cascade = Cascade(domain.fit(network), Deadline())
    before = dict(cascade.values)
    cascade.run()
    for name, known in cascade.values.items():
        assert not (known.lo > known.hi).any()
        assert (known.lo >= before[name].lo).all()
        assert (known.hi <= before[name].hi).all()


# Odd graphs.


def test_a_relu_may_read_the_input_or_another_relu():
    nodes = (
        Node("relu1", Relu(), ("x",)),
        Node("relu2", Relu(), ("relu1",)),
        Node("linear", Linear(np.array([[1.0, -1.0]]), np.zeros(1)), ("relu2",)),
        Node("relu3", Relu(), ("linear",)),
    )
    network = Network(Port("x", (2,)), nodes, (Output("y", "relu3"),))
    stability = analyse(network, Box([-1.0, 0.0], [1.0, 1.0]))
    assert stability["relu1"].verdict.tolist() == [UNSTABLE, ACTIVE]
    assert stability["relu2"].verdict.tolist() == [ACTIVE, ACTIVE]
    assert stability["relu3"].verdict.tolist() == [UNSTABLE]
    # The box alone does not say that x0 >= 0.2.
    cut = Box([-1.0, 0.0], [1.0, 1.0]).sum_between(1.2, 2)
    assert analyse(network, cut)["relu1"].verdict.tolist() == [ACTIVE, ACTIVE]
    assert analyse(network, cut, method="bounds")["relu1"].verdict.tolist() == [ACTIVE, ACTIVE]


def test_two_relus_on_one_value_agree_and_outputs_may_repeat():
    linear = Linear(np.array([[1.0, 1.0], [1.0, -1.0]]), np.array([2.0, 0.0]))
    nodes = (
        Node("linear", linear, ("x",)),
        Node("a", Relu(), ("linear",)),
        Node("b", Relu(), ("linear",)),
        Node("twice", Add(2), ("a", "a")),
        Node("minus", Scale.exactly(-1.0), ("b",)),
        Node("sum", Add(3), ("twice", "minus", "minus")),
        Node("c", Relu(), ("sum",)),
    )
    outputs = (Output("y", "c"), Output("z", "c"), Output("again", "linear"))
    stability = analyse(Network(Port("x", (2,)), nodes, outputs), Box(-1, 1))
    assert stability["a"].verdict.tolist() == stability["b"].verdict.tolist() == [ACTIVE, UNSTABLE]
    # 2 relu(u) - 2 relu(u) is 0; proving that is not asked for, but nothing else may be said.
    assert set(stability["c"].verdict.tolist()) <= {INACTIVE, ACTIVE, UNKNOWN}


def test_empty_layers_make_constants():
    empty = (np.zeros((0, 2)), np.zeros(0))
    network = layers(empty, (np.zeros((3, 0)), [1.0, -1.0, 0.0]), ([[1.0, 1.0, 1.0]], [-0.5]))
    for domain in (Box(0, 1), Box(0, 1).sum_between(0.5, 1)):
        stability = analyse(network, domain)
        assert stability["relu1"].size == 0
        assert stability["relu2"].verdict.tolist() == [ACTIVE, INACTIVE, INACTIVE]
        assert stability["relu3"].verdict.tolist() == [ACTIVE]
        assert stability.complete


def test_a_network_without_neurons_is_complete():
    network = Network(Port("x", (2,)), (), (Output("y", "x"),))
    stability = analyse(network, Box(0, 1))
    assert stability.complete
    assert stability.layers == ()


def test_a_box_of_one_point_is_decided_by_one_evaluation():
    network = random_network([5, 20, 20])
    stability = analyse(network, Box(np.full(5, 0.3), np.full(5, 0.3)))
    values = network.run(torch.full((1, 5), 0.3, dtype=torch.float64))
    for k, layer in enumerate(stability.layers, start=1):
        expected = [ACTIVE if v > 0 else INACTIVE for v in values[f"linear{k}"][0].tolist()]
        assert layer.verdict.tolist() == expected


def test_a_relu_behind_an_output_takes_no_other_nodes_name():
    nodes = (
        Node("y", Linear(np.eye(1), np.zeros(1)), ("x",)),
        Node("y.relu", Linear(-np.eye(1), np.zeros(1)), ("x",)),
    )
    network = Network(Port("x", (1,)), nodes, (Output("one", "y"), Output("two", "y")))
    longer = with_output_relu(network)
    assert len(longer.relus) == 1
    assert all(longer[output.source].operator.kind == "Relu" for output in longer.outputs)
    assert longer.relus[0].inputs == ("y",)
    assert analyse(longer, Box(-1, 1)).count(UNSTABLE) == 1


def test_values_without_axes_are_analysed_like_any_other():
    network = Network(
        Port("x", (1,)),
        (
            Node("s", Reshape((1,), ()), ("x",)),
            Node("t", Scale.exactly(-2.0, 1.0), ("s",)),
            Node("r", Relu(), ("t",)),
            Node("u", Scale.exactly(1.0, 0.5), ("r",)),
            Node("v", Relu(), ("u",)),
        ),
        (Output("y", "v"),),
    )
    stability = relutrim.analyze(network, Box(0, 1))
    assert [Verdict(layer.verdict[0]) for layer in stability.layers] == [Verdict.UNSTABLE, Verdict.ACTIVE]
