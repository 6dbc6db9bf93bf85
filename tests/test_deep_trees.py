"""Trees of proofs that are deeper than Python's stack, written and read as any other."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from certifying import certified, files, proof_of, small, with_array
from relutrim.certificate.check import check
from relutrim.certificate.check.proofs import _DEEPEST, PART, UNIT, Proofs
from relutrim.certificate.trees import Leaf, Split, Tree, UnitProof, of_boxes, of_states, stream_of, streams
from relutrim.errors import CheckFailed

DEPTH = 20_000


@contextmanager
def little_stack() -> Iterator[None]:
    """A stack that is soon full, so that not so deep a tree is deep."""
    before, depth, frame = sys.getrecursionlimit(), 0, sys._getframe()
    while frame := frame.f_back:
        depth += 1
    sys.setrecursionlimit(depth + 60)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def cases(proofs: Proofs, lo: Any, hi: Any) -> Iterator[Any]:
    """The leaves of a tree, as the checker sees them."""
    domain = SimpleNamespace(lo=np.array(lo, float), hi=np.array(hi, float))
    return proofs.cases(SimpleNamespace(domain=domain, in_time=lambda: None))


def read_again(tree: Tree, lo: Any, hi: Any) -> list[Any]:
    proofs = stream_of(streams([UnitProof(0, 0, 1, tree)]))
    proofs.words(4)
    found = []
    for low, high, states, kind in cases(proofs, lo, hi):
        found.append((low.tolist(), high.tolist(), states, kind))
        assert kind == PART
    assert proofs.layer() == -1
    return found


def expected(tree: Tree, lo: list[float], hi: list[float], states: dict[Any, bool]) -> list[Any]:
    """The same, by recursion."""
    if isinstance(tree, Leaf):
        return [(lo, hi, states, PART)]
    if isinstance(tree.place, tuple):
        sides = ((tree.first, False), (tree.second, True))
        return [leaf for side, on in sides for leaf in expected(side, lo, hi, {**states, tree.place: on})]
    axis = tree.place
    at = min(max(tree.at, lo[axis]), hi[axis])
    below, above = [*hi[:axis], at, *hi[axis + 1 :]], [*lo[:axis], at, *lo[axis + 1 :]]
    return expected(tree.first, lo, below, states) + expected(tree.second, above, hi, states)


places = st.one_of(st.integers(0, 1), st.tuples(st.integers(0, 1), st.integers(0, 2)))
trees = st.recursive(
    st.builds(Leaf),
    lambda inner: st.builds(Split, places, inner, inner, st.sampled_from([-1.0, 0.25, 0.5, 0.75, 2.0])),
    max_leaves=12,
)


@given(trees)
def test_a_tree_is_read_as_recursion_would_read_it(tree):
    assert read_again(tree, [0, 0], [1, 1]) == expected(tree, [0.0, 0.0], [1.0, 1.0], {})


@pytest.mark.parametrize("second", [False, True])
def test_a_deep_tree_is_written_and_read(second):
    tree: Tree = Leaf()
    for at in range(DEPTH):
        sides = (Leaf(), tree) if second else (tree, Leaf())
        tree = Split((0, at) if at % 2 else 0, *sides, 0.5)
    assert len(read_again(tree, [0.0], [1.0])) == DEPTH + 1


def test_states_and_boxes_in_a_chain_make_a_deep_tree():
    depth = 120
    chain = [
        ({**dict.fromkeys(((0, k) for k in range(at)), True), (0, at): False}, Leaf()) for at in range(depth)
    ]
    chain.append((dict.fromkeys(((0, k) for k in range(depth)), True), Leaf()))
    ends = np.arange(depth + 1, dtype=float)[:, None]
    with little_stack():
        by_states, by_boxes = of_states(chain), of_boxes(np.zeros(1), np.full(1, depth), ends[:-1], ends[1:])
        none = of_states(chain[:-1])
    assert none is None
    for tree, count in ((by_states, depth + 1), (by_boxes, depth)):
        assert tree is not None
        assert len(read_again(tree, [0.0], [float(depth)])) == count


@pytest.mark.parametrize(("depth", "whole"), [(2000, True), (_DEEPEST + 1, False)])
def test_a_certificate_with_a_deep_tree_is_checked_or_refused(depth, whole):
    model, out, content = files(result := certified(small()))
    unit = [UNIT, 0, 0]
    words = [0, 0, 1, 0, *unit * depth, *[PART] * (depth + 1)]
    assert not len(proof_of(result).arrays["proof.words"])
    deep = with_array(content, "proof.words", np.array(words, "<i4"))
    if whole:
        check(model, out, deep)
    else:
        with pytest.raises(CheckFailed, match="splits in a row"):
            check(model, out, deep)
