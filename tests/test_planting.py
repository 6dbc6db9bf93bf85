"""Trees that are planted again: as they stood, and whatever is said about them, never a bound too much."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import strategies
from relutrim.prove.deadline import Deadline
from relutrim.prove.hull.growth import Growth
from relutrim.prove.hull.tree import Tree
from test_hull import bounded, open_ends, slow, true_bound


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
    kind = random.choice(["open", "leaf", "states", "duals", "bounds", "first", "neurons", "cuts"])
    if kind == "open":
        return replace(growth, open=growth.open[1:])
    if kind == "neurons":
        return replace(growth, neurons=growth.neurons[::-1])
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
