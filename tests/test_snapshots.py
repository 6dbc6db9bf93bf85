"""Trees that are restored: as they stood, and whatever is said about them, never a bound too much."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import strategies
from relutrim.journal.records import Record
from relutrim.journal.trees import TreeReader, TreeWriter
from relutrim.prove.deadline import Deadline
from relutrim.prove.hull.snapshot import INPUTS, Snapshot
from relutrim.prove.hull.tree import Tree
from test_hull import CPU, bounded, open_ends, slow, spoilt_multipliers, true_bound


def grow(tree: Tree, nodes: int, seconds: float) -> None:
    with suppress(RuntimeError):  # what overflows
        tree.grow(nodes, Deadline(seconds), CPU)


@settings(slow, max_examples=40)
@given(strategies.problems(max_layers=3), st.integers(0, 6), st.sampled_from([2, 99]))
def test_a_tree_goes_on_where_it_stood(problem, nodes, depth):
    cascade = bounded(problem)
    for relu, neuron, sign, least in open_ends(cascade, problem[1].polytope):
        tree = Tree(cascade.backward, relu.inputs[0], neuron, sign, depth)
        grow(tree, nodes, 5)
        again = Tree.restored(cascade.backward, tree.snapshot)
        assert again is not None
        assert again.closed == tree.closed
        assert again.nodes == tree.nodes
        np.testing.assert_equal(again.lower, tree.lower)
        grow(again, nodes + 64, 5)  # the first ones are there
        assert again.nodes <= tree.nodes + 64
        assert true_bound(again.lower, least)
        if again.closed:
            assert again.proof is not None
            assert again.proof.check(cascade.backward) >= 0


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
            grow(tree, 1, 5)
            met += [x.numpy() for x in tree.inputs[known:]]
            writer(tree, True)
        reader = TreeReader.of(records[0])
        for record in records[1:]:
            reader.add(record)
        found = reader.snapshot(tree.snapshot.ranges)
        assert found is not None
        np.testing.assert_array_equal(found.inputs, np.concatenate([found.inputs[:0], *met])[-INPUTS:])
        for name in ("open", "nodes", "dead"):
            assert getattr(found, name) == getattr(tree.snapshot, name)


@settings(slow, max_examples=60)
@given(strategies.problems(max_layers=3), st.integers(1, 9), st.randoms(use_true_random=False))
def test_a_tree_of_lies_proves_nothing_false(problem, nodes, random):
    cascade = bounded(problem)
    for relu, neuron, sign, least in open_ends(cascade, problem[1].polytope):
        tree = Tree(cascade.backward, relu.inputs[0], neuron, sign, 99)
        grow(tree, nodes, 5)
        again = Tree.restored(cascade.backward, spoilt(tree.snapshot, random))
        if again is not None:
            assert true_bound(again.lower, least)
            assert not again.closed or least >= 0
            grow(again, 16, 5)
            assert true_bound(again.lower, least)


def spoilt(snapshot: Snapshot, random) -> Snapshot:
    """One lie that would help: nodes that do not wait, leaves that are not there, better multipliers."""
    leaves = list(snapshot.leaves)
    kind = random.choice(["open", "leaf", "states", "multipliers", "bounds", "first", "neurons"])
    if kind == "open":
        return replace(snapshot, open=snapshot.open[1:])
    if kind == "neurons":
        return replace(snapshot, neurons=snapshot.neurons[::-1])
    if kind == "first" and snapshot.first is not None:
        lie = spoilt_multipliers(snapshot.first.packed, random)
        bound = random.choice([9.0, math.inf])
        return replace(snapshot, first=replace(snapshot.first, bound=bound, packed=lie))
    if not leaves:
        return replace(snapshot, open=(), nodes=9)
    at = random.randrange(len(leaves))
    leaf = leaves.pop(at)
    if kind == "states":
        leaves.append(replace(leaf, states=dict(list(leaf.states.items())[1:])))
    elif kind == "multipliers":
        leaves.append(replace(leaf, packed=spoilt_multipliers(leaf.packed, random)))
    elif kind == "bounds":
        leaves.append(replace(leaf, bound=random.choice([math.inf, -math.inf, 1e9, math.nan])))
    return replace(snapshot, leaves=tuple(leaves))
