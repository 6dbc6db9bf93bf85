"""The ends of many ranges at once: bounds that hold and proofs that say the same, whatever models share."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import relutrim
import strategies
from relutrim.domain import Box
from relutrim.graph import Linear, Network, Node, Output, Port, Relu
from relutrim.prove import tree_search
from relutrim.prove.cascade import Cascade
from relutrim.prove.deadline import Deadline
from relutrim.prove.hull import sweep as module
from relutrim.prove.hull.model import Goal, Model
from relutrim.prove.hull.packed import fits
from relutrim.prove.hull.sweep import sweep
from relutrim.prove.hull.tree import Tree
from relutrim.prove.recheck import recheck
from relutrim.prove.tree_search import TreeSearch
from relutrim.prove.verdict import Verdict
from test_hull import bounded, open_ends, slow, true_bound

CPU = torch.device("cpu")


def deep(seed: int = 0, sparse: float = 0.0, sizes: tuple[int, ...] = (12, 24, 24, 24, 24)) -> Network:
    """Most neurons of the later layers are off, which linear bounds do not see."""
    rng = np.random.default_rng(seed)
    nodes: list[Node] = []
    before = "x"
    for k, (a, b) in enumerate(pairwise(sizes)):
        weight = rng.normal(size=(b, a)) / math.sqrt(a * (1 - sparse)) * (rng.random((b, a)) >= sparse)
        linear = Linear(weight, rng.normal(size=b) / 4 - (0.3 if k else 0))
        nodes += [Node(f"linear{k}", linear, (before,)), Node(f"relu{k}", Relu(), (f"linear{k}",))]
        before = f"relu{k}"
    return Network(Port("x", (sizes[0],)), tuple(nodes), (Output("y", before),))


def loose_trees(network: Network, layer: int, depth: int = 2) -> tuple[Cascade, list[Tree]]:
    cascade = Cascade(Box(0, 1).fit(network), Deadline())
    cascade.bound(search=False)
    target = f"linear{layer}"
    neurons = cascade.loose(target).nonzero()[:, 0].tolist()
    return cascade, [Tree(cascade.backward, target, n, s, depth) for n in neurons for s in (1.0, -1.0)]


@slow
@given(strategies.problems(max_layers=3), st.sampled_from([1, 2, 99]))
def test_bounds_never_exceed_the_exact_minimum(problem, depth):
    cascade = bounded(problem)
    ends = open_ends(cascade, problem[1].polytope)
    for relu in cascade.network.relus:
        own = [(neuron, sign, least) for other, neuron, sign, least in ends if other.name == relu.name]
        trees = [Tree(cascade.backward, relu.inputs[0], neuron, sign, depth) for neuron, sign, _ in own]
        sweep(trees, CPU, Deadline(5))
        for tree, (_, _, least) in zip(trees, own, strict=True):
            assert true_bound(tree.lower, least)
            if tree.proof is not None:
                assert tree.proof.check(cascade.backward) == tree.lower


@pytest.mark.parametrize("sparse", [0.0, 0.3])
def test_ranges_get_smaller_and_proofs_prove_them_again(sparse):
    cascade, trees = loose_trees(deep(sparse=sparse), 2)
    known = cascade.values["linear2"]
    assert len(trees) > 20
    sweep(trees, CPU, Deadline())
    better = 0
    for tree in trees:
        before = float((known.lo if tree.sign > 0 else -known.hi).flatten()[tree.neuron])
        better += tree.lower > before
        assert tree.proof.check(cascade.backward) == tree.lower
    assert better > 0.5 * len(trees)


def test_multipliers_found_on_another_model_do_nearly_as_well(monkeypatch):
    carried = []
    before = module._part
    monkeypatch.setattr(module, "_part", lambda *given: carried.append(1) or before(*given))
    _, trees = loose_trees(deep(sparse=0.7), 2)
    layers = {tuple(len(layer.numbers) for layer in module.layers_of(tree.model)) for tree in trees}
    assert len(layers) > 1
    sweep(trees, CPU, Deadline())
    assert carried
    for tree in trees[::5]:
        alone = Tree(tree.backward, tree.target, tree.neuron, tree.sign, tree.depth)
        sweep([alone], CPU, Deadline())
        assert tree.lower > alone.lower - 0.05


def test_what_is_carried_over_fits_and_shares_its_places_where_it_can():
    _, trees = loose_trees(deep(), 2)
    sweep(trees, CPU, Deadline())
    packs = [tree.proof.leaves[0].packed for tree in trees]
    assert all(fits(tree.model, [pack]) for tree, pack in zip(trees, packs, strict=True))
    assert len({id(pack.places) for pack in packs}) < len(packs) / 4


def test_the_number_of_jobs_does_not_matter(monkeypatch):
    monkeypatch.setattr(module, "width_of", lambda dual: 4)
    bounds = []
    for jobs in (1, 3):
        _, trees = loose_trees(deep(), 3)
        assert len(trees) > 8
        sweep(trees, CPU, Deadline(), jobs)
        bounds.append([tree.lower for tree in trees])
    assert bounds[0] == bounds[1]


def test_a_tree_whose_root_is_enough_is_closed():
    network = deep()
    pushed = Linear(np.eye(24)[:2], np.array([-20.0, 20.0]))
    nodes = (*network.nodes, Node("linear4", pushed, ("relu3",)), Node("relu4", Relu(), ("linear4",)))
    cascade = Cascade(Box(0, 1).fit(Network(network.input, nodes, (Output("y", "relu4"),))), Deadline())
    trees = [Tree(cascade.backward, "linear4", n, s, 2) for n, s in ((0, -1.0), (0, 1.0), (1, 1.0))]
    sweep(trees, CPU, Deadline())
    assert [tree.closed for tree in trees] == [True, False, True]
    assert all(tree.proof.check(cascade.backward) == tree.lower for tree in trees)


def test_without_time_or_trees_nothing_happens():
    _, trees = loose_trees(deep(), 2)
    sweep([], CPU, Deadline())
    sweep(trees, CPU, Deadline(0.0))
    assert all(math.isnan(tree.lower) and not tree.closed for tree in trees)


def test_where_few_neurons_are_open_no_layer_is_swept(monkeypatch):
    swept = []
    monkeypatch.setattr(tree_search, "sweep", lambda trees, *rest: swept.append(len(trees)))
    cascade, _ = loose_trees(deep(), 2)
    stage = TreeSearch(cascade, Deadline())
    relu = cascade.network.relus[2]
    loose, wanted = int(cascade.loose("linear2").sum()), stage.goals()
    behind = sum(want.relu in ("relu2", "relu3") for want in wanted)
    monkeypatch.setattr(tree_search, "_MANY", (behind + 1) / loose)
    stage.sweep(relu, Deadline())
    assert not swept
    monkeypatch.setattr(tree_search, "_MANY", behind / loose)
    stage.sweep(relu, Deadline())
    assert sum(swept) >= loose


def test_verdicts_of_a_network_that_is_swept_are_true_and_proved_again(monkeypatch):
    swept = []
    before = tree_search.sweep
    monkeypatch.setattr(tree_search, "sweep", lambda trees, *rest: swept.append(before(trees, *rest)))
    monkeypatch.setattr(tree_search, "_MANY", 0.05)
    network = deep(1)
    found = relutrim.analyze(network, Box(0, 1), time_limit=60)
    assert swept
    assert not recheck(found).lost
    values = network.run(torch.rand(4096, 12, dtype=torch.float64))
    for layer in found.layers:
        pre = values[network[layer.name].inputs[0]].numpy()
        assert (pre[:, layer.verdict == Verdict.INACTIVE] <= 0).all()
        assert (pre[:, layer.verdict == Verdict.ACTIVE] >= 0).all()


def test_a_device_without_memory_leaves_the_ranges_as_they_are(monkeypatch):
    def broken(*given):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(tree_search, "sweep", broken)
    monkeypatch.setattr(tree_search, "_MANY", 0.0)
    cascade, _ = loose_trees(deep(), 2)
    before = cascade.values["linear2"]
    TreeSearch(cascade, Deadline()).sweep(cascade.network.relus[2], Deadline())
    after = cascade.values["linear2"]
    assert bool((after.lo >= before.lo).all())
    assert not cascade.proofs


def test_when_time_is_up_no_more_trees_begin(monkeypatch):
    own, begun = Deadline(), []
    before = TreeSearch.tree_for

    def counted(self, *given):
        begun.append(given)
        if len(begun) == 3:
            own.call_off()
        return before(self, *given)

    monkeypatch.setattr(TreeSearch, "tree_for", counted)
    monkeypatch.setattr(tree_search, "_MANY", 0.0)
    cascade, _ = loose_trees(deep(), 2)
    TreeSearch(cascade, Deadline()).sweep(cascade.network.relus[2], own)
    assert len(begun) == 3
    assert not cascade.proofs


def alike(one: object, other: object) -> bool:
    """Whether two numbers or arrays are the same; what is no number is the same as itself."""
    return np.array_equal(one, other, equal_nan=np.asarray(one).dtype.kind == "f")


def same(one: object, other: object) -> bool:
    """Whether two records of numbers and arrays are the same, field by field."""
    return all(alike(part, getattr(other, name)) for name, part in vars(one).items())


def same_models(one: Model, other: Model) -> bool:
    return (
        one.goal == other.goal
        and all(map(alike, (*one.ends, one.cost), (*other.ends, other.cost)))
        and alike([one.offset, one.slack], [other.offset, other.slack])
        and all(map(same, one.neurons, other.neurons))
        and len(one.neurons) == len(other.neurons)
        and one.columns.keys() == other.columns.keys()
        and all(alike(own, other.columns[name]) for name, own in one.columns.items())
        and all(own is other.ranges[name] for name, own in one.ranges.items())
    )


@slow
@given(
    strategies.problems(max_layers=3),
    st.sampled_from([1, 2, 99]),
    st.sampled_from([0.0, 1e-5, 1e9]),
)
def test_a_model_made_from_one_like_it_is_the_same(problem, depth, droppable):
    cascade = bounded(problem)
    for relu in cascade.network.relus:
        target, like = relu.inputs[0], None
        for neuron in range(cascade.network.size(target)):
            for sign in (1.0, -1.0):
                goal = Goal(target, neuron, sign, depth, droppable)
                like, fresh = Model(cascade.backward, goal, like), Model(cascade.backward, goal)
                assert same_models(like, fresh)


def test_dense_layers_are_gone_through_once_for_all_neurons(monkeypatch):
    built, before = [], Model._build
    monkeypatch.setattr(Model, "_build", lambda self, forms: (built.append(1), before(self, forms))[1])
    monkeypatch.setattr(tree_search, "_MANY", 0.0)
    cascade, trees = loose_trees(deep(), 2)
    built.clear()
    TreeSearch(cascade, Deadline()).sweep(cascade.network.relus[2], Deadline())
    assert len(built) == 1 < len(trees)


def test_a_model_over_other_ranges_or_with_other_reads_is_made_anew(monkeypatch):
    cascade, trees = loose_trees(deep(sparse=0.6), 2)
    built, before = [], Model._build
    monkeypatch.setattr(Model, "_build", lambda self, forms: (built.append(1), before(self, forms))[1])
    like, other = trees[0].model, trees[2].model
    assert like._reads != other._reads
    goal = other.goal
    assert same_models(Model(cascade.backward, goal, like), other)
    again = replace(cascade.backward, values=dict(cascade.values))
    Model(again, like.goal, like)
    Model(cascade.backward, replace(like.goal, depth=1), like)
    assert len(built) == 3
    Model(cascade.backward, replace(like.goal, sign=-like.goal.sign), like)
    assert len(built) == 3
