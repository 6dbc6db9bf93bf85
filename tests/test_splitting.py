"""Splitting the inputs: what is proved on parts that fill the box is true of the box."""

from __future__ import annotations

import math
import signal
import threading
import time
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import oracle
import strategies
from relutrim.analysis import analyze_network
from relutrim.bounds.boxes import bound_boxes
from relutrim.domain import Box
from relutrim.prove import splitting
from relutrim.prove.cascade import Cascade
from relutrim.prove.deadline import Deadline
from relutrim.prove.parallel import spread
from relutrim.prove.parts import fills
from relutrim.prove.splitting import Splitting, applies
from relutrim.prove.verdict import Verdict
from test_hull import hard
from test_soundness import QUICK, as_domain

slow = settings(suppress_health_check=list(HealthCheck), max_examples=40)


def cut_up(lo: torch.Tensor, hi: torch.Tensor, count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A box cut in pieces at random places."""
    rng = np.random.default_rng(seed)
    boxes = [(lo.clone(), hi.clone())]
    while len(boxes) < count:
        low, high = boxes.pop(rng.integers(len(boxes)))
        axis = int(rng.integers(len(lo)))
        at = low[axis] + float(rng.random()) * (high[axis] - low[axis])
        left, right = high.clone(), low.clone()
        left[axis], right[axis] = at, at
        boxes += [(low, left), (right, high)]
    return torch.stack([low for low, _ in boxes]), torch.stack([high for _, high in boxes])


@slow
@given(strategies.problems(max_layers=3), st.integers(0, 99))
def test_bounds_on_boxes_hold_for_every_input_of_the_box(problem, seed):
    network, random = problem
    cascade = Cascade(Box(random.lo, random.hi).fit(network), Deadline())
    region = cascade.region
    lo, hi = cut_up(region.lo, region.hi, 5, seed)
    if not bool(torch.isfinite(hi - lo).all()):
        return
    last = cascade.network.nodes[-1].name
    values, _ = bound_boxes(cascade.network, region, cascade.values, lo, hi, last)
    rng = np.random.default_rng(seed)
    for part in range(len(lo)):
        for share in (0.0, 1.0, rng.random()):
            low = [Fraction(v) for v in lo[part].tolist()]
            high = [Fraction(v) for v in hi[part].tolist()]
            x = [a + Fraction(share) * (b - a) for a, b in zip(low, high, strict=True)]
            exact = oracle.evaluate(cascade.network, x)
            for name, ends in values.items():
                for value, a, b in zip(
                    exact[name],
                    ends.lo[part].flatten().tolist(),
                    ends.hi[part].flatten().tolist(),
                    strict=True,
                ):
                    assert not a > value
                    assert not b < value


@slow
@given(strategies.problems(max_layers=3, extreme=False))
def test_verdicts_by_parts_are_true(problem):
    network, random = problem
    cascade = Cascade(as_domain(random).fit(network), Deadline(3))
    cascade.bound(search=False)
    if not applies(cascade):
        return
    Splitting(cascade, cascade.deadline).run()
    exact = oracle.exact_ranges(network, random.polytope)
    for proof in cascade.proofs:
        relu = next(r for r in network.relus if r.inputs[0] == proof.target)
        low, high = exact[relu.name][proof.neuron]
        least = low if proof.sign > 0 else -high
        again = proof.check(cascade.backward)
        assert Fraction(proof.bound) <= least
        assert math.isnan(again) or Fraction(again) <= least
        assert again >= 0
        if len(proof.lo) > 1:
            assert math.isnan(replace(proof, lo=proof.lo[1:], hi=proof.hi[1:]).check(cascade.backward))


def test_splitting_proves_a_case_distinction():
    cascade = Cascade(Box(0, 1).fit(hard()), Deadline())
    cascade.bound(search=True)
    assert bool(cascade.undecided(cascade.network.relus[1]).any())
    Splitting(cascade, Deadline()).run()
    assert not bool(cascade.undecided(cascade.network.relus[1]).any())
    (proof,) = cascade.proofs
    assert proof.check(cascade.backward) >= 0


@given(st.integers(1, 12), st.integers(0, 10**6), st.integers(1, 3))
def test_boxes_fill_a_box_exactly_if_none_is_missing(count, seed, inputs):
    lo, hi = torch.zeros(inputs).double(), torch.ones(inputs).double()
    lows, highs = cut_up(lo, hi, count, seed)
    assert fills(lo, hi, lows, highs)
    assert not fills(lo, hi, lows[1:], highs[1:])
    assert not fills(lo, hi + 0.5, lows, highs)


# Several at once.


def test_the_outcome_does_not_depend_on_how_many_work():
    found = [
        analyze_network(hard(), Box(0, 1), data=None, **{**QUICK, "time_limit": math.inf}, jobs=jobs)
        for jobs in (1, 2, 5)
    ]
    for other in found[1:]:
        for one, two in zip(found[0].layers, other.layers, strict=True):
            assert np.array_equal(one.verdict, two.verdict)
            assert np.array_equal(one.lower, two.lower)
            assert np.array_equal(one.upper, two.upper)


@pytest.mark.parametrize("jobs", [1, 3])
def test_work_is_handed_over_in_order(jobs):
    got: list[tuple[int, int]] = []

    def work(item: int) -> int:
        time.sleep(0.001 * (7 - item % 7))
        return item * item

    spread(work, list(range(20)), jobs, Deadline(), lambda item, found: got.append((item, found)))
    assert got == [(item, item * item) for item in range(20)]


@pytest.mark.parametrize("jobs", [1, 3])
def test_nothing_is_begun_after_the_deadline(jobs):
    begun: list[int] = []
    spread(begun.append, list(range(9)), jobs, Deadline(0), lambda *_: None)
    assert not begun


def test_an_error_reaches_the_caller_and_what_was_finished_is_kept():
    got: list[int] = []

    def work(item: int) -> int:
        if item == 3:
            raise ValueError("three")
        return item

    with pytest.raises(ValueError, match="three"):
        spread(work, list(range(6)), 2, Deadline(), lambda item, _: got.append(item))
    assert set(got) >= {0, 1, 2}
    assert 3 not in got


def test_an_interruption_keeps_what_was_finished_and_waits_for_what_runs():
    deadline, got, ended = Deadline(), [], []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background processes

    def work(item: int) -> int:
        if item == 1:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            while not deadline.passed:
                time.sleep(0.001)
            time.sleep(0.1)
            ended.append(item)
        return item

    try:
        with pytest.raises(KeyboardInterrupt):
            spread(work, [0, 1, 2], 2, deadline, lambda item, _: got.append(item))
    finally:
        signal.signal(signal.SIGINT, before)
    assert {0, 1} <= set(got)
    assert ended == [1]


def test_unknown_is_all_that_a_passed_deadline_makes():
    stability = analyze_network(hard(), Box(0, 1), data=None, **{**QUICK, "time_limit": 0.0})
    assert stability.layers[1].which(Verdict.UNKNOWN) == [0]
    assert not stability.proofs


def test_parts_that_are_left_when_time_is_up_prove_nothing(monkeypatch):
    cascade = Cascade(Box(0, 1).fit(hard()), Deadline())
    cascade.bound(search=True)
    monkeypatch.setattr(splitting, "_PARTS", 1)
    Splitting(cascade, Deadline()).run()
    assert not cascade.proofs
    assert bool(cascade.undecided(cascade.network.relus[1]).any())
