"""Many nodes of a tree at once: bounds that hold, leaves that are what they say, and nothing lost when time
is up or something breaks.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracle
import strategies
from relutrim.domain import Box
from relutrim.graph import Linear, Network, Node, Output, Port, Relu
from relutrim.prove.cascade import Cascade
from relutrim.prove.deadline import Deadline
from relutrim.prove.hull import thicket as module
from relutrim.prove.hull.ascent import Start, climb
from relutrim.prove.hull.dual import Dual, Multipliers
from relutrim.prove.hull.model import Goal, Model
from relutrim.prove.hull.packed import fits, packed_bounds
from relutrim.prove.hull.packing import packed
from relutrim.prove.hull.proof import covers, evaluate
from relutrim.prove.hull.tree import Tree
from test_hull import bounded, open_ends, open_neurons, slow, true_bound

CPU = torch.device("cpu")


def grown(tree: Tree, nodes: int = 256, seconds: float = 5, jobs: int = 1) -> Tree:
    with suppress(RuntimeError):  # what overflows
        tree.grow(nodes, Deadline(seconds), CPU, jobs)
    return tree


@slow
@given(strategies.problems(max_layers=3), st.sampled_from([1, 2, 99]))
def test_bounds_never_exceed_the_exact_minimum_and_are_proved_again(problem, depth):
    cascade = bounded(problem)
    for relu, neuron, sign, least in open_ends(cascade, problem[1].polytope):
        tree = grown(Tree(cascade.backward, relu.inputs[0], neuron, sign, depth))
        assert true_bound(tree.lower, least)
        if tree.closed:
            assert tree.proof.check(cascade.backward) >= 0


@slow
@given(strategies.problems(max_layers=2, max_neurons=6))
def test_many_nodes_prove_what_has_a_margin(problem):
    cascade = bounded(problem)
    for relu, neuron, sign, least in open_ends(cascade, problem[1].polytope):
        tree = Tree(cascade.backward, relu.inputs[0], neuron, sign)
        if least > 1e-3 and tree.model.slack < 1e-9 and not problem[1].matrix.size:
            grown(tree, 512)
            assert tree.closed


def any_multipliers(dual: Dual, nodes: int, numbers: np.random.Generator) -> list[Multipliers]:
    """Leans, mixtures, pushes and shares as they come."""
    batch = []
    for level in dual.levels:
        count, shape = len(level.layer.numbers), level.places.shape
        mix = torch.tensor(numbers.uniform(size=(4, count, nodes)) ** 4)
        batch.append(
            Multipliers(
                torch.tensor(numbers.uniform(size=(count, nodes))),
                mix / mix.sum(0),
                torch.tensor(numbers.uniform(size=(count, nodes))),
                torch.tensor(numbers.uniform(size=(*shape, nodes)).round(1).clip(0, 1)),
            )
        )
    return batch


def models(problem) -> list[Model]:
    cascade = bounded(problem)
    goals = [
        Goal.of(cascade.backward, relu.inputs[0], neuron, 1.0, 99)
        for relu, neuron in open_neurons(cascade)[:3]
    ]
    return [model for model in (Model(cascade.backward, goal) for goal in goals) if model.both]


@slow
@given(strategies.problems(max_layers=3), st.integers(0, 2**16))
def test_steps_end_no_worse_than_with_leans_at_their_ends_and_without_pushes(problem, seed):
    for model in models(problem):
        dual = Dual(model, CPU, torch.float64)
        batch = any_multipliers(dual, 3, np.random.default_rng(seed))
        marks = [torch.zeros(len(level.layer.numbers), 3) for level in dual.levels]
        found = climb(dual, Start(batch, marks, torch.ones(3)), 5, math.inf, Deadline(60))
        again = dual.run(found.batch, marks).bound
        assert torch.equal(found.bound, again.nan_to_num(-math.inf, math.inf, -math.inf))
        for layers in (1, len(dual.levels)):
            ends = [
                own
                if number < len(dual.levels) - layers
                else replace(own, lean=own.lean.round(), push=0 * own.push)
                for number, own in enumerate(found.batch)
            ]
            least = dual.run(ends, marks).bound - 1e-12 * found.bound.abs()
            assert not (found.bound < least).any()  # what overflows is neither


def some_states(model: Model, random) -> dict[int, bool]:
    return {number: bool(random.getrandbits(1)) for number in model.both if random.random() < 0.4}


@slow
@given(strategies.problems(max_layers=3, extreme=False), st.randoms(use_true_random=False))
def test_packed_multipliers_prove_what_they_had_before(problem, random):
    """Up to what is lost in packing: with any states, leans, mixtures, pushes and shares."""
    numbers = np.random.default_rng(random.randrange(2**32))
    for model in models(problem):
        dual = Dual(model, CPU, torch.float64)
        batch, states = any_multipliers(dual, 3, numbers), [some_states(model, random) for _ in range(3)]
        places = tuple(level.places for level in dual.levels)
        leaves = packed(dual, places, batch)
        assert fits(model, leaves)
        for own, *parts in zip(batch, *(leaf.parts for leaf in leaves), strict=True):
            own.lean, own.mix, own.push, own.share = (
                torch.tensor(np.stack([getattr(part, kind) for part in parts], axis=-1).astype(np.float64))
                for kind in ("lean", "mix", "push", "share")
            )
            own.lean, own.share, own.mix = own.lean / 255, own.share / 255, own.mix / own.mix.sum(0)
        marks = [torch.from_numpy(level.layer.marks(states)) for level in dual.levels]
        bound = dual.run(batch, marks).bound.numpy()
        again = np.array(packed_bounds(model, states, leaves))
        size = float(np.abs(model.cost).sum()) + np.abs(bound) + abs(model.offset)
        largest = max(np.abs(model.ends[0]).max(), np.abs(model.ends[1]).max(), 1.0)
        room = 1e-9 * size * largest**2 + 100 * (model.slack + sum(n.radius for n in model.neurons))
        assert (again <= bound + room).all()
        assert (again >= bound - 1e3 * room).all()


@slow
@given(strategies.problems(max_layers=3), st.randoms(use_true_random=False))
def test_what_packed_multipliers_prove_holds_at_every_input_with_those_states(problem, random):
    """The bound against the goal itself, in exact arithmetic, at inputs that have the states."""
    network, domain = problem
    numbers = np.random.default_rng(random.randrange(2**32))
    for model in models(problem):
        dual = Dual(model, CPU, torch.float64)
        places = tuple(level.places for level in dual.levels)
        for x in oracle.random_points(domain.polytope, 4, random.randrange(2**16)):
            values = oracle.evaluate(network, x)
            chosen = [number for number in model.both if random.random() < 0.5]
            before = {number: values[network[model.neurons[number].relu].inputs[0]] for number in chosen}
            states = {
                number: bool(value[model.neurons[number].entry] > 0)
                or (value[model.neurons[number].entry] == 0 and bool(random.getrandbits(1)))
                for number, value in before.items()
            }
            leaves = packed(dual, places, any_multipliers(dual, 1, numbers))
            (bound,) = packed_bounds(model, [states], leaves)
            assert math.isnan(bound) or Fraction(bound) <= values[model.goal.target][model.goal.neuron]


def over_sums(bias: float) -> Network:
    """``bias - max(0, x0 - 0.1) - max(0, x1 - 0.1) - max(0, x2 - 0.1)``: on the unit box ``bias - 2.7``."""
    nodes = (
        Node("a", Linear(np.eye(3), np.full(3, -0.1)), ("x",)),
        Node("r", Relu(), ("a",)),
        Node("b", Linear(-np.ones((1, 3)), np.array([bias])), ("r",)),
        Node("s", Relu(), ("b",)),
    )
    return Network(Port("x", (3,)), nodes, (Output("y", "s"),))


@slow
@given(strategies.problems(max_layers=3, extreme=False), st.integers(0, 2**16))
def test_steps_never_come_above_the_exact_minimum(problem, seed):
    """With constraints or without, from anywhere: but for rounding, which only leaves are charged for."""
    cascade = bounded(problem)
    for relu, neuron, sign, least in open_ends(cascade, problem[1].polytope):
        model = Model(cascade.backward, Goal.of(cascade.backward, relu.inputs[0], neuron, sign, 99))
        if not model.both or not math.isfinite(model.made_of):
            continue
        dual = Dual(model, CPU, torch.float64)
        marks = [torch.zeros(len(level.layer.numbers), 3, dtype=torch.int8) for level in dual.levels]
        batch = any_multipliers(dual, 3, np.random.default_rng(seed))
        found = climb(dual, Start(batch, marks, torch.ones(3)), 12, math.inf, Deadline(60))
        room = 1e-9 * (1 + model.made_of) + model.slack + sum(n.radius for n in model.neurons)
        assert found.bound.max().item() <= float(least) + 1e2 * room


CHAINED = Box(0, 1).constrain([[1.0, 1, 0], [0, 1, 1]], [-9, -9], [1, 1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("domain", "least"),
    [
        (Box(0, 1).sum_between(0, 1), -0.7),
        (Box(0, 1).sum_between(-9, 2), -1.7),
        (CHAINED, -1.6),  # where all are on, the second input is at least 0.1
    ],
)
def test_steps_and_leaves_see_the_domains_constraints(domain, least, dtype):
    cascade = Cascade(domain.fit(over_sums(0.0)), Deadline())
    cascade.bound(search=False)
    model = Model(cascade.backward, Goal.of(cascade.backward, "b", 0, 1.0, 99))
    dual = Dual(model, CPU, dtype)
    marks = [torch.ones(3, 1, dtype=torch.int8)]  # all on: the goal is linear
    first = [level.middling() for level in dual.levels]
    found = climb(dual, Start(first, marks, dual.cost.new_ones(1)), 60, math.inf, Deadline(60))
    packs = packed(dual, tuple(level.places for level in dual.levels), found.batch)
    (bound,) = packed_bounds(model, [dict.fromkeys(range(3), True)], packs)
    assert least - 0.11 < found.bound.item() <= least + 1e-6
    assert least - 0.11 < bound <= least


@pytest.mark.parametrize(
    ("domain", "most"),
    [
        (Box(0, 1).sum_between(0, 1), 0.9),
        (Box(0, 1).constrain([[1.0, 1, 0], [0, 1, 1]], [-9] * 2, [1] * 2), 1.8),
    ],
)
def test_what_only_the_domains_constraints_make_true_is_proved(domain, most):
    """No split helps: where all are on, the box has a corner far below."""
    for margin in (0.01, -0.01):
        cascade = Cascade(domain.fit(over_sums(most + margin)), Deadline())
        cascade.bound(search=False)
        tree = grown(Tree(cascade.backward, "b", 0, 1.0))
        assert tree.closed == (margin > 0)
        assert margin < 0 or tree.proof.check(cascade.backward) >= 0


def planted() -> Tree:
    """A tree of a neuron that is almost stable, so that some of its leaves close and others do not."""
    random = np.random.default_rng(3)
    first = Linear(random.normal(size=(8, 4)), random.normal(size=8) / 4)
    second = Linear(random.normal(size=(8, 8)), random.normal(size=8) / 4)
    third = Linear(random.normal(size=(1, 8)), np.zeros(1))
    network = Network(
        Port("x", (4,)),
        (
            Node("a", first, ("x",)),
            Node("r", Relu(), ("a",)),
            Node("b", second, ("r",)),
            Node("s", Relu(), ("b",)),
            Node("c", third, ("s",)),
            Node("t", Relu(), ("c",)),
        ),
        (Output("y", "t"),),
    )
    cascade = Cascade(Box(-1, 1).fit(network), Deadline())
    cascade.bound(search=False)
    tree = Tree(cascade.backward, "c", 0, 1.0)
    # No longer this network's, but a tree all the same.
    tree.model.offset -= min(neuron.lo for neuron in tree.model.neurons)
    return tree


def leaves(tree: Tree) -> list[dict[int, bool]]:
    return [dict(leaf.states) for leaf in tree._leaves]


def test_the_tree_does_not_depend_on_jobs(monkeypatch):
    monkeypatch.setattr(module, "_NODES", 2)
    one, three = planted(), planted()
    one.grow(64, Deadline(20), CPU, 1)
    three.grow(64, Deadline(20), CPU, 3)
    assert one.nodes == three.nodes > 2
    assert leaves(one) == leaves(three)
    assert one._open == three._open


@pytest.mark.parametrize("missing", [1e-15, 1e-3])
def test_what_misses_0_by_no_more_than_rounding_gets_a_few_nodes_only(monkeypatch, missing):
    monkeypatch.setattr(module, "_NODES", 2)
    tree = planted()
    tree.model.offset -= 10  # so that steps get nowhere
    tree.lower = -missing * tree.model.made_of
    tree.grow(100, Deadline(60), CPU)
    assert tree.tied == (missing < 1e-3)
    assert tree.dead or not tree.tied
    assert (tree.nodes < 24) == tree.tied


@pytest.mark.parametrize("calls", [0, 1, 2, 3, 5])
def test_time_that_is_up_leaves_every_case_to_somebody(monkeypatch, calls):
    monkeypatch.setattr(module, "_NODES", 2)
    tree, deadline, seen = planted(), Deadline(1e9), []
    original = module.climb

    def climb(*arguments, **options):
        seen.append(1)
        if len(seen) > calls:
            deadline.call_off()
        return original(*arguments, **options)

    monkeypatch.setattr(module, "climb", climb)
    tree.grow(64, deadline, CPU)
    assert covers([*leaves(tree), *tree._open])


@pytest.mark.parametrize("calls", [0, 1, 3])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_what_breaks_off_leaves_every_case_to_somebody(monkeypatch, calls, error):
    monkeypatch.setattr(module, "_NODES", 2)
    tree, seen = planted(), []
    original = module.climb

    def climb(*arguments, **options):
        seen.append(1)
        if len(seen) > calls:
            raise error
        return original(*arguments, **options)

    monkeypatch.setattr(module, "climb", climb)
    with pytest.raises(error):
        tree.grow(64, Deadline(20), CPU)
    assert covers([*leaves(tree), *tree._open])
    assert tree._thicket is None


def test_a_bound_that_is_only_claimed_closes_nothing(monkeypatch):
    """Steps that pretend to have reached any bound: what counts is the bound with rounding."""
    original = module.climb

    def climb(*arguments, **options):
        found = original(*arguments, **options)
        return found._replace(bound=torch.full_like(found.bound, 1e9))

    tree = planted()
    monkeypatch.setattr(module, "climb", climb)
    tree.grow(8, Deadline(20), CPU)
    assert all(leaf.bound >= 0 for leaf in tree._leaves)
    assert not leaves(tree) or min(evaluate(tree.model, tree._leaves)) >= 0
