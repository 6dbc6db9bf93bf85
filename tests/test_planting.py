"""Trees that are planted again: as they stood, and whatever is said about them, never a bound too much."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strategies
from relutrim.domain import Box
from relutrim.journal.records import Record
from relutrim.journal.trees import TreeReader, TreeWriter
from relutrim.prove.cascade import Cascade
from relutrim.prove.deadline import Deadline
from relutrim.prove.hull.growth import INPUTS, Growth
from relutrim.prove.hull.program import Program
from relutrim.prove.hull.tree import Tree
from test_hull import bounded, open_ends, slow, true_bound
from test_journal import random_network


@settings(slow, max_examples=40)
@given(strategies.problems(max_layers=3), st.integers(0, 6), st.sampled_from([2, 99]))
def test_a_tree_goes_on_where_it_stood(problem, nodes, depth):
    cascade = bounded(problem)
    for relu, neuron, sign, least in open_ends(cascade, problem[1].polytope):
        tree = Tree(cascade.backward, relu.inputs[0], neuron, sign, depth)
        tree.grow(nodes, Deadline(5))
        again = Tree.planted(cascade.backward, tree.growth)
        assert again is not None
        assert again.closed == tree.closed
        assert again.nodes == tree.nodes
        np.testing.assert_equal(again.lower, tree.lower)
        again.grow(nodes + 64, Deadline(5))  # the first ones are there
        assert again.nodes <= tree.nodes + 64
        assert true_bound(again.lower, least)
        if again.closed:
            assert again.proof is not None
            assert again.proof.check(cascade.backward) >= 0


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_a_node_without_a_solution_does_to_it_what_it_would_have_done(nodes, late):
    waiting = 0
    for tree in branching(nodes):
        again = Tree.planted(tree.backward, tree.growth)
        assert again is not None
        again.ahead = 0
        before = tree.growth
        waiting += bool(before.open)
        with mock.patch.object(Program, "solve", unsolved(late)):
            tree.grow(3, Deadline(5))
            again.grow(3, Deadline(5))
        assert (again.growth.open, again.dead) == (tree.growth.open, tree.dead)
        assert (again.nodes, again.growth.failures) == (tree.nodes, tree.growth.failures)
        if late:  # the solver's clock is not ours: nothing is known, so nothing is given up
            assert (tree.growth.open, tree.dead, tree.nodes) == (before.open, before.dead, before.nodes)
    assert waiting


def branching(nodes: int) -> Iterator[Tree]:
    """Trees of a network that takes many nodes, each with so many of them."""
    cascade = Cascade(Box(-1, 1).fit(random_network(10, [8, 8, 8, 6, 2])), Deadline())
    cascade.bound(search=False)
    target = cascade.network.relus[-1].inputs[0]
    for neuron in cascade.loose(target).nonzero()[:, 0].tolist():
        tree = Tree(cascade.backward, target, neuron, 1.0, 99)
        tree.grow(nodes, Deadline(60))
        yield tree


def unsolved(late: bool) -> Callable[..., None]:
    """A solver that has nothing to say, or not in time."""

    def solve(program: Program, *_: float) -> None:
        program.ray, program.late = None, late

    return solve


@settings(slow, max_examples=20)
@given(strategies.problems(max_layers=3), st.lists(st.booleans(), min_size=1, max_size=8))
def test_what_is_written_piece_by_piece_is_the_whole_tree(problem, pieces):
    cascade = bounded(problem)
    for relu, neuron, sign, _ in open_ends(cascade, problem[1].polytope):
        records: list[Record] = []
        key = (relu.inputs[0], neuron, sign, 99, 0)
        tree = Tree(cascade.backward, *key[:-1])
        writer = TreeWriter(key, records.append, lambda ranges: dict.fromkeys(ranges, ""))
        met: list[np.ndarray] = []
        for clear in pieces:
            if clear:
                tree.inputs.clear()
            known = len(tree.inputs)
            tree.grow(1, Deadline(5))
            met += [x.numpy() for x in tree.inputs[known:]]
            writer(tree, True)
        reader = TreeReader.of(records[0])
        for record in records[1:]:
            reader.add(record)
        found = reader.growth(tree.growth.ranges)
        assert found is not None
        np.testing.assert_array_equal(found.inputs, np.concatenate([found.inputs[:0], *met])[-INPUTS:])
        for name in ("open", "nodes", "dead", "ranked", "failures"):
            assert getattr(found, name) == getattr(tree.growth, name)


@settings(slow, max_examples=60)
@given(strategies.problems(max_layers=3), st.integers(1, 9), st.randoms(use_true_random=False))
def test_a_tree_of_lies_proves_nothing_false(problem, nodes, random):
    cascade = bounded(problem)
    for relu, neuron, sign, least in open_ends(cascade, problem[1].polytope):
        tree = Tree(cascade.backward, relu.inputs[0], neuron, sign, 99)
        tree.grow(nodes, Deadline(5))
        again = Tree.planted(cascade.backward, spoilt(tree.growth, random))
        if again is not None:
            assert true_bound(again.lower, least)
            assert not again.closed or least >= 0
            again.grow(16, Deadline(5))
            assert true_bound(again.lower, least)


def spoilt(growth: Growth, random) -> Growth:
    """One lie that would help: nodes that do not wait, leaves that are not there, better multipliers."""
    leaves = list(growth.leaves)
    kind = random.choice(["open", "leaf", "states", "duals", "bounds", "first", "neurons", "cuts", "ranked"])
    if kind == "open":
        return replace(growth, open=growth.open[1:])
    if kind == "neurons":
        return replace(growth, neurons=growth.neurons[::-1])
    if kind == "ranked":
        return replace(growth, ranked=(*growth.ranked, random.choice([-1, 0, 10**9])), failures=-(10**9))
    if kind == "cuts":
        return replace(growth, cuts=tuple(replace(cut, chosen=~cut.chosen) for cut in growth.cuts))
    if kind == "first" and growth.first is not None:
        lie = {row: 1e3 * dual for row, dual in growth.first.rows.items()}
        return replace(growth, first=replace(growth.first, bound=random.choice([9.0, math.inf]), rows=lie))
    if not leaves:
        return replace(growth, open=(), nodes=9)
    at = random.randrange(len(leaves))
    leaf = leaves.pop(at)
    if kind == "states":
        leaves.append(replace(leaf, states=dict(list(leaf.states.items())[1:])))
    elif kind == "duals":
        rows = {row: random.choice([0.0, -dual, 10 * dual, math.nan]) for row, dual in leaf.rows.items()}
        leaves.append(replace(leaf, rows=rows))
    elif kind == "bounds":
        leaves.append(replace(leaf, bound=random.choice([math.inf, -math.inf, 1e9, math.nan])))
    return replace(growth, leaves=tuple(leaves))
