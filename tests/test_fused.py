"""Compiled steps do what the others do; where they cannot be had, the others do it."""

from __future__ import annotations

import builtins
import math
import sys
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import strategies
from relutrim.prove.deadline import Deadline
from relutrim.prove.hull import compiling, thicket
from relutrim.prove.hull.ascent import _RATES, Climb, Start, climb
from relutrim.prove.hull.dual import Dual
from relutrim.prove.hull.packed import packed_bounds
from relutrim.prove.hull.packing import packed
from relutrim.prove.hull.tree import Tree
from relutrim.prove.hull.way import Plain
from relutrim.rounding import require_ieee
from test_hull import bounded, open_ends, slow, true_bound
from test_thicket import any_multipliers, leaves, models, planted, some_states

pytest.importorskip("numba")

from relutrim.prove.hull.fused import Fused

CPU = torch.device("cpu")
NODES = 3


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-8, atol=1e-9)


def both_ways(model, random) -> tuple[Dual, Plain, Fused, list[torch.Tensor]]:
    numbers = np.random.default_rng(random.randrange(2**32))
    dual = Dual(model, CPU, torch.float64)
    dual.scales = [torch.tensor(numbers.uniform(0.5, 2, level.bias.shape)) for level in dual.levels]
    if random.random() < 0.5:  # a goal for each node
        cost = dual.cost * torch.tensor(numbers.uniform(-1, 1, (len(dual.cost), NODES)))
        dual = dual.aimed(cost, torch.tensor(numbers.uniform(-1, 1, NODES)))
    cases = [some_states(model, random) for _ in range(NODES)]
    marks = [torch.as_tensor(level.layer.marks(cases)) for level in dual.levels]
    batch = any_multipliers(dual, NODES, numbers)
    return dual, Plain(dual, batch, marks, _RATES), Fused(dual, batch, marks, _RATES), marks


@slow
@given(strategies.problems(max_layers=3, extreme=False), st.randoms(use_true_random=False))
def test_a_look_and_a_step_are_those_of_the_plain_way(problem, random):
    for model in models(problem):
        dual, plain, fused, marks = both_ways(model, random)
        expected, found = plain.look(), fused.look()
        assert close(found.bound, expected.bound)
        if not torch.equal(found.corner, expected.corner):  # a weight that is 0 but for rounding
            continue
        there = dual.run(plain.batch, marks)
        slopes = dual.slopes(plain.batch, marks, there)
        for other in (plain, fused):
            other.measure(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.3, 0.2, 0.1]))
            other.move()
        for one, own, slope, use in zip(plain.batch, fused.batch, slopes, there.uses, strict=True):
            # A step does not get shorter with its slope: where that is 0 but for rounding, it goes anywhere.
            lean, mix, push = (part.abs() > 1e-6 for part in slope.parts[:3])
            mix = mix.all(0).expand_as(mix)
            assert close(own.lean[lean], one.lean[lean])
            assert close(own.mix[mix], one.mix[mix])
            assert close(own.push[push], one.push[push])
            relaxed = (use.below < 0).any(1)  # shares of other neurons play no part
            assert close(own.share[relaxed], one.share[relaxed])
        assert close(fused.look().bound, dual.run(fused.batch, marks).bound)
        assert close(fused.bound_of(plain.batch), plain.look().bound)


@slow
@given(strategies.problems(max_layers=3))
def test_what_compiled_steps_find_is_proved_and_holds(problem):
    cascade = bounded(problem)
    for relu, neuron, sign, least in islice(open_ends(cascade, problem[1].polytope), 3):
        tree = Tree(cascade.backward, relu.inputs[0], neuron, sign)
        if not tree.model.both or not np.isfinite(tree.model.made_of):
            continue
        for dtype in (torch.float32, torch.float64):
            dual = Dual(tree.model, CPU, dtype)
            batch = [level.middling() for level in dual.levels]
            free = [torch.zeros(len(level.bias), 1, dtype=torch.int8) for level in dual.levels]
            start = Start(batch, free, dual.cost.new_ones(1))
            found = climb(dual, start, 20, math.inf, Deadline(60), compiled=True)
            packs = packed(dual, tuple(level.places for level in dual.levels), found.batch)
            (bound,) = packed_bounds(tree.model, [{}], packs)
            assert true_bound(bound, least)
    assert not compiling._KNOWN.broken  # or they were not compiled


def test_trees_of_compiled_steps_close_and_do_not_depend_on_jobs(monkeypatch):
    monkeypatch.setattr(thicket, "_COMPILED", (0, 0))
    monkeypatch.setattr(thicket, "_NODES", 2)
    used = []
    monkeypatch.setattr(Fused, "move", lambda self, move=Fused.move: (used.append(1), move(self))[1])
    one, three = planted(), planted()
    one.grow(512, Deadline(60), CPU, 1)
    three.grow(512, Deadline(60), CPU, 3)
    assert used
    assert one.nodes == three.nodes > 2
    assert leaves(one) == leaves(three)
    assert one.closed
    assert three.closed
    assert not compiling._KNOWN.broken


@pytest.fixture
def forgetful(monkeypatch):
    monkeypatch.setattr(compiling, "_KNOWN", compiling._Known())


def climbed(compiled: bool, seconds: float = 60) -> Climb:
    dual = Dual(planted().model, CPU, torch.float32)
    batch = [level.middling() for level in dual.levels]
    free = [torch.zeros(len(level.bias), 1, dtype=torch.int8) for level in dual.levels]
    start = Start(batch, free, dual.cost.new_ones(1))
    return climb(dual, start, 10, math.inf, Deadline(seconds), compiled=compiled)


def taken(monkeypatch) -> list[str]:
    """What steps are taken, from here on."""
    seen: list[str] = []
    for kind in (Fused, Plain):
        step = kind.move
        monkeypatch.setattr(
            kind, "move", lambda self, step=step, kind=kind: (seen.append(kind.__name__), step(self))[1]
        )
    return seen


def test_steps_are_compiled_where_that_is_wanted(monkeypatch, forgetful):
    seen = taken(monkeypatch)
    climbed(compiled=True)
    assert {*seen} == {"Fused"}
    seen.clear()
    climbed(compiled=False)
    assert {*seen} == {"Plain"}


@pytest.mark.parametrize("error", [ImportError("no numba"), OSError("no LLVM")])
def test_without_numba_steps_are_taken_one_by_one(monkeypatch, forgetful, error):
    real, seen = builtins.__import__, taken(monkeypatch)

    def refuse(name, *rest):
        if name.endswith("fused"):
            raise error
        return real(name, *rest)

    expected = climbed(compiled=False)
    monkeypatch.delitem(sys.modules, "relutrim.prove.hull.fused")
    monkeypatch.setattr(builtins, "__import__", refuse)
    assert torch.equal(climbed(compiled=True).bound, expected.bound)
    assert {*seen} == {"Plain"}


@pytest.mark.parametrize("where", ["look", "move", "bound_of"])
def test_what_breaks_at_any_time_is_done_one_by_one_and_not_tried_again(monkeypatch, forgetful, where):
    """A full disk where the compiled code is to be kept, say, or a file of it that is damaged."""
    expected, calls = climbed(compiled=False), []

    def broken(self, *given):
        calls.append(1)
        raise OSError("no space left on device")

    monkeypatch.setattr(Fused, where, broken)
    for _ in range(2):
        assert torch.equal(climbed(compiled=True).bound, expected.bound)
    assert len(calls) == 1


def test_with_little_time_nothing_is_compiled_that_was_not_before(monkeypatch, forgetful):
    seen = taken(monkeypatch)
    climbed(compiled=True, seconds=3)
    assert {*seen} == {"Plain"}
    seen.clear()
    climbed(compiled=True)
    climbed(compiled=True, seconds=3)
    assert {*seen} == {"Fused"}


def test_compiled_steps_leave_rounding_and_tiny_numbers_as_they_are(forgetful):
    """What is proved behind them in the same thread counts on both."""
    climbed(compiled=True)
    require_ieee()
    tiny = np.array([2.0**-1074, 2.0**-1040])
    assert (tiny * np.array([1.0, 0.5])).tolist() == [2.0**-1074, 2.0**-1041]


def test_a_bound_that_is_no_number_at_first_gives_way_to_one_that_is(monkeypatch):
    for kind in (Fused, Plain):
        looks, look = [], kind.look

        def first_nan(self, look=look, looks=looks):
            found = look(self)
            looks.append(1)
            return found if len(looks) > 1 else found._replace(bound=found.bound * math.nan)

        monkeypatch.setattr(kind, "look", first_nan)
    for compiled in (True, False):
        assert math.isfinite(float(climbed(compiled).bound))
