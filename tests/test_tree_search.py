"""The turns of the last stage: which trees are grown, in which order, and until when."""

from __future__ import annotations

import math
import time
from itertools import pairwise

import numpy as np
import pytest

import relutrim
from relutrim.domain import Box
from relutrim.graph import Linear, Network, Node, Output, Port, Relu
from relutrim.prove import tree_search
from relutrim.prove.cascade import Cascade
from relutrim.prove.deadline import Deadline
from relutrim.prove.hull import layers
from relutrim.prove.hull.tree import Tree
from relutrim.prove.tree_search import ProofGoal, TreeSearch


@pytest.fixture
def stage() -> TreeSearch:
    """A stage with some twenty missing states a layer."""
    rng = np.random.default_rng(0)
    nodes: list[Node] = []
    before = "x"
    for k, (a, b) in enumerate(pairwise([6, 32, 32, 32])):
        linear = Linear(rng.normal(size=(b, a)), rng.normal(size=b) - 2)
        nodes += [Node(f"linear{k}", linear, (before,)), Node(f"relu{k}", Relu(), (f"linear{k}",))]
        before = f"relu{k}"
    network = Network(Port("x", (6,)), tuple(nodes), (Output("y", before),))
    cascade = Cascade(Box(0, 1).fit(network), Deadline())
    cascade.witnesses.observe(cascade.region.sample(4, cascade.generator))
    return TreeSearch(cascade, cascade.deadline)


def _fake_turns(monkeypatch, ends: dict[ProofGoal, int]) -> list[tuple[int, list[ProofGoal]]]:
    """Turns that only write down who takes part; a tree comes to its end in the turn that ``ends`` says."""
    turns: list[tuple[int, list[ProofGoal]]] = []

    def turn(self, trees: list[tuple[ProofGoal, Tree]], nodes: int, *seconds):
        turns.append((nodes, [goal for goal, _ in trees]))
        left = [(goal, tree) for goal, tree in trees if ends.get(goal, math.inf) > nodes]
        for goal, tree in trees:
            if ends.get(goal, math.inf) <= nodes:
                self.cascade.prove(tree.target, tree.neuron, tree.sign, 0.0, None, 0)
        return left

    monkeypatch.setattr(TreeSearch, "turn", turn)
    return turns


def test_of_many_trees_that_do_not_end_only_the_most_promising_grow(stage, monkeypatch):
    turns = _fake_turns(monkeypatch, {})
    goals = [goal for goal in stage.goals() if goal.relu == "relu2"]
    assert len(goals) > 16
    stage.trees_of_layer(goals, Deadline())
    assert turns == [(nodes, goals[:8]) for nodes in (16, 64, 256, 1024)]


def test_as_long_as_short_turns_decide_any_all_others_have_one(stage, monkeypatch):
    goals = [goal for goal in stage.goals() if goal.relu == "relu2"]
    turns = _fake_turns(monkeypatch, {goals[0]: 16, goals[9]: 16, goals[10]: 64})
    stage.trees_of_layer(goals, Deadline())
    left = [goal for i, goal in enumerate(goals) if i not in (0, 9)]
    behind = [goal for goal in left if goal != goals[10]]
    assert turns == [
        (16, goals[:8]),
        (16, goals[8:16]),
        (16, goals[16:24]),
        (64, left[:8]),
        (256, behind[:8]),
        (1024, behind[:8]),
    ]


def test_a_tree_goes_on_where_its_last_turn_left_it(stage, monkeypatch):
    met: dict[ProofGoal, set[int]] = {}

    def turn(self, trees: list[tuple[ProofGoal, Tree]], nodes: int, *seconds):
        for goal, tree in trees:
            met.setdefault(goal, set()).add(id(tree))
        return trees

    monkeypatch.setattr(TreeSearch, "turn", turn)
    goals = [goal for goal in stage.goals() if goal.relu == "relu2"]
    stage.trees_of_layer(goals, Deadline())
    assert len(met) == 8
    assert all(len(trees) == 1 for trees in met.values())


def test_a_layer_has_no_more_than_its_part_of_the_time(stage, monkeypatch):
    turns = _fake_turns(monkeypatch, {})
    goals = [goal for goal in stage.goals() if goal.relu == "relu2"]
    stage.trees_of_layer(goals, Deadline(0.0))
    assert not turns


def test_layers_come_in_order_and_what_is_proved_of_one_reaches_the_next(stage, monkeypatch):
    monkeypatch.setattr(tree_search, "_MANY", math.inf)
    rebound = []
    monkeypatch.setattr(Cascade, "rebound", lambda self, name, **options: rebound.append(name))
    first = next(goal for goal in stage.goals() if goal.relu == "relu1")
    turns = _fake_turns(monkeypatch, {first: 16})
    stage.by_layer()
    order = [part[0].relu for _, part in turns]
    assert order == sorted(order)
    assert {"relu1", "relu2"} <= set(order)
    assert all(len({goal.relu for goal in part}) == 1 for _, part in turns)
    assert rebound == ["linear1"]


def _slack(margin: float) -> Network:
    """Of 300 inputs, ``max(0, a) + max(0, b) - max(0, a + b)`` three times and the margin, which is all that
    is left at some input.
    """
    rng = np.random.default_rng(0)
    one, other = rng.integers(-8, 9, (2, 3, 300)) / 64
    readers = np.concatenate([np.ones(6), -np.ones(3)])[None]
    nodes = (
        Node("linear0", Linear(np.concatenate([one, other, one + other]), np.zeros(9)), ("x",)),
        Node("relu0", Relu(), ("linear0",)),
        Node("linear1", Linear(readers, np.array([margin])), ("relu0",)),
        Node("relu1", Relu(), ("linear1",)),
    )
    return Network(Port("x", (300,)), nodes, (Output("y", "relu1"),))


@pytest.mark.parametrize("margin", [1e-2, 1e-3])
def test_small_margins_are_proved(margin):
    cascade = Cascade(Box(-1, 1).fit(_slack(margin)), Deadline(60))
    cascade.run()
    assert not cascade.missing()
    assert 0 <= float(cascade.values["linear1"].lo) <= margin


def test_without_a_limit_searches_end_with_the_last_stage(monkeypatch):
    monkeypatch.setattr("relutrim.prove.cascade.LAST_SECONDS", 0.5)
    asked = []
    monkeypatch.setattr("relutrim.prove.tree_search.TreeSearch.run", lambda self: asked.append(self))
    cascade = Cascade(Box(-1, 1).fit(_slack(1e-5)), Deadline())
    cascade.run()
    assert asked[0].deadline.left <= 0.5
    assert asked[0].cascade.deadline.left <= 0.5


def test_the_last_stages_own_limit_is_not_that_of_the_analysis(monkeypatch):
    """Without a limit: the seconds are those of all of it, and every row of data was looked at."""
    monkeypatch.setattr("relutrim.prove.cascade.LAST_SECONDS", 0.0)
    monkeypatch.setattr("relutrim.prove.hunt.Hunt.thoroughly", lambda self: time.sleep(0.3))
    data = np.zeros((5, 300))
    data[3:] = 7.0
    found = relutrim.analyze(_slack(1e-5), Box(-1, 1), data=data)
    assert not found.complete
    assert found.seconds >= 0.3
    assert found.data_rows_outside == 2


def test_without_time_no_tree_begins(stage, monkeypatch):
    turns = _fake_turns(monkeypatch, {})
    stage.deadline.call_off()
    stage.by_layer()
    assert not turns


def test_where_layers_take_too_much_memory_trees_have_fewer(stage, monkeypatch):
    goal = next(goal for goal in stage.goals() if goal.relu == "relu2")
    whole = stage.tree_for(stage.frozen(), goal, 4)
    assert {neuron.relu for neuron in whole.model.neurons} == {"relu0", "relu1"}
    entries = sum(layer.weight.size for layer in layers.layers_of(whole.model))
    monkeypatch.setattr(layers, "_LARGEST", entries - 1)
    smaller = stage.tree_for(stage.frozen(), goal, 4)
    assert {neuron.relu for neuron in smaller.model.neurons} == {"relu1"}
    monkeypatch.setattr(layers, "_LARGEST", 0)
    assert stage.turn([(goal, stage.tree_for(stage.frozen(), goal, 4))], 8) == []


def test_what_no_tree_can_prove_ends_before_time_does():
    """1.3 - max(0, x + 0.3 y) - max(0, -x - 0.3 y) is 0 at two corners, but for rounding."""
    nodes = (
        Node("linear0", Linear(np.array([[1.0, 0.3], [-1.0, -0.3]]), np.zeros(2)), ("x",)),
        Node("relu0", Relu(), ("linear0",)),
        Node("linear1", Linear(np.array([[1.0, -1.0], [0.0, 1.0]]), np.zeros(2)), ("relu0",)),
        Node("relu1", Relu(), ("linear1",)),
        Node("linear2", Linear(np.array([[-1.0, -1.0]]), np.array([1.3])), ("relu1",)),
        Node("relu2", Relu(), ("linear2",)),
    )
    domain = Box(-1, 1).sum_between(-9, 9)  # no box, so its inputs are not split
    cascade = Cascade(domain.fit(Network(Port("x", (2,)), nodes, (Output("y", "relu2"),))), Deadline(300))
    cascade.run()
    assert len(cascade.missing())
    assert cascade.deadline.left > 200
