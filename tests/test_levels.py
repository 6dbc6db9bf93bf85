"""Bounds that units replaced by inequalities prove, compared with the same steps in rational arithmetic.

The relaxation itself would hide an operation whose rounding nobody paid for, so the numbers that the checker
takes as given are taken as given here too, and everything else is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from certifying import packed_leaf
from relutrim.certificate.check import levels as module
from relutrim.certificate.check.domain import Domain
from relutrim.certificate.check.expressions import Expression, Symbols
from relutrim.certificate.check.hull import HEAD, Packed
from relutrim.certificate.check.levels import Level, Levels
from relutrim.errors import CheckFailed, InputError
from test_hull import slow


class Sizes:
    """Numbers of a few sizes between 5e-324 and 1e307, and 0."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.sizes = [
            (random.choice([0.0, 0.0, random.uniform(-323, 300)]), random.choice([0.5, 3, 20])) for _ in "123"
        ]
        if random.random() < 0.4:  # what underflows, and what multiplies it
            self.sizes = [(random.uniform(-323, -310), 6), (random.uniform(-10, 300), 3)]

    def one(self) -> float:
        centre, around = self.random.choice(self.sizes)
        size = min(307.5, centre + self.random.uniform(-around, around))
        tiny = self.random.choice([0.0, 5e-324])
        return self.random.choice([1, -1]) * (10.0**size if size > -323 else tiny)

    def many(self, *shape: int) -> np.ndarray:
        return np.array([self.one() for _ in range(math.prod(shape))]).reshape(shape)


def any_ranges(random: Random) -> tuple[Any, Expression]:
    """Layers whose ranges nobody proved, and something to be bounded: all that a bound looks at."""
    numbers = Sizes(random)
    inputs = random.randint(1, 3)
    lo, hi = np.sort(numbers.many(2, inputs), axis=0)
    domain = Domain(lo, hi, np.zeros((0, inputs)), np.zeros(0), np.zeros(0))
    ranges = SimpleNamespace(symbols=Symbols(lo, hi), domain=domain, layers=[], places=np.arange(inputs))
    ranges.in_time = lambda: None

    def reads(count: int) -> Expression:
        ids = np.array(
            sorted(random.sample(range(len(ranges.places)), random.randint(0, len(ranges.places))))
        )
        radius = np.abs(numbers.many(count)) * random.choice([0, 1e-8])
        return Expression(ids.astype(np.int64), numbers.many(len(ids), count), numbers.many(count), radius)

    for _ in range(random.randint(1, 2)):
        count, start, before = random.randint(1, 3), len(ranges.symbols.lo), 10 * (1 + len(ranges.layers))
        low = np.array([random.choice([abs, lambda x: -abs(x)])(numbers.one()) for _ in range(count)])
        high = np.maximum(low, np.abs(numbers.many(count)))
        layer = SimpleNamespace(inputs=reads(count), lo=low, hi=high, kept=np.flatnonzero(high > 0))
        layer.own = slice(start, start + len(layer.kept))
        ranges.layers.append(layer)
        ranges.places = np.append(ranges.places, before + layer.kept)
        ranges.symbols.add(np.maximum(low, 0)[layer.kept], high[layer.kept])
    return ranges, reads(1)


def any_levels(ranges: Any, random: Random) -> list[tuple[int, np.ndarray, np.ndarray]]:
    found = []
    for number, layer in enumerate(ranges.layers):
        units = random.sample(range(-1, 4), random.randint(0, 5))
        width = random.randint(0, 3)
        known = [*ranges.places[layer.inputs.ids].tolist(), 100, 101, 102]
        places = [random.sample(known, width) for _ in units]
        found.append(
            (number, np.array(units, np.int64), np.array(places, np.int64).reshape(len(units), width))
        )
    return found


def places_of(level: Level) -> list[int]:
    """Which of what is read each entry of ``level.order`` is about."""
    counts = np.diff([*level.starts, len(level.order)])
    return [int(at) for at in np.repeat(level.targets, counts)]


class NotFinite(Exception):
    """There is nothing to compare."""


@dataclass
class Watched:
    """What is proved exactly by the floats that are used, level by level."""

    proved: Fraction
    level: list[Level] = field(default_factory=list)

    def step(self, level: Level, symbols: Symbols, before: Any, after: Any, marks: Any, numbers: Any) -> None:
        above, below, flat, cut, push, share = numbers
        if not all(np.isfinite(part).all() for part in (before, after, *numbers)):
            raise NotFinite
        exact = {j: Fraction(float(before[j, 0])) for j in level.ids.tolist()}
        for row, (symbol, wide) in enumerate(zip(level.symbols, level.weight, strict=True)):
            up, down, off, sum_, pushed = (
                Fraction(float(part[row, 0])) for part in (above, below, flat, cut, push)
            )
            assert min(up, down, off, sum_) >= 0
            lo, hi, c, r = (Fraction(float(end[row, 0])) for end in (level.lo, level.hi, level.c, level.r))
            shares = dict.fromkeys(range(len(wide)), Fraction(1, 2))
            width = share.shape[1]
            for spot, at in zip(level.order.tolist(), places_of(level), strict=True):
                if spot // width == row:
                    assert level.near[row, spot % width] == wide[at]
                    shares[at] = Fraction(float(share[row, spot % width, 0]))
            assert all(0 <= own <= 1 for own in shares.values())
            weights = [Fraction(float(w)) for w in wide]
            ends = [
                sorted((w * Fraction(float(symbols.lo[j])), w * Fraction(float(symbols.hi[j]))))
                for w, j in zip(weights, level.ids, strict=True)
            ]
            m = sum((shares[i] * end[0] for i, end in enumerate(ends)), Fraction(0))
            t = c + r + sum(((1 - shares[i]) * end[1] for i, end in enumerate(ends)), Fraction(0))
            through = Fraction(float((above - below - push)[row, 0]))
            rest = Fraction(float(before[symbol, 0])) - up + down + off + sum_
            on, is_off = marks[row, 0] > 0, marks[row, 0] < 0
            states = [1] if on else [0] if is_off else [0, 1]
            least = Fraction(0) if is_off else Fraction(float(level.least[row, 0]))
            low, high = Fraction(0) if on else lo, Fraction(0) if is_off else hi
            self.proved += min(
                down * lo * (1 - z) - off * hi * z + sum_ * (m * (1 - z) - t * z) for z in states
            )
            self.proved += min(pushed * low, pushed * high) + min(rest * least, rest * high)
            self.proved += through * c - abs(through) * r
            self.proved -= abs(up - down - pushed - through) * max(-lo, hi)
            for i, j in enumerate(level.ids.tolist()):
                exact[j] += weights[i] * (through - sum_ * shares[i])
        for j, value in exact.items():
            reach = Fraction(float(max(abs(symbols.lo[j]), abs(symbols.hi[j]))))
            self.proved -= abs(value - Fraction(float(after[j, 0]))) * reach
        self.last = after


def watched(monkeypatch: Any, ranges: Any, target: Expression, bound: Any) -> tuple[float, Fraction | None]:
    """A bound, and what it may be at most."""
    start = Fraction(float(target.c[0])) * int(bound.sign) - Fraction(float(target.r[0]))
    watch, original = Watched(start), Level.replace
    first = np.zeros((len(ranges.symbols.lo), 1))
    first[target.ids] = bound.sign * target.a
    watch.last = first

    def replace(self: Level, weights: Any, marks: Any, multipliers: Any) -> Any:
        before = weights.copy()
        made = original(self, weights, marks, multipliers)
        watch.step(self, ranges.symbols, before, weights, marks, multipliers)
        watch.last = weights
        return made

    with monkeypatch.context() as patch:
        patch.setattr(Level, "replace", replace)
        try:
            found = bound()
        except NotFinite:
            patch.setattr(Level, "replace", original)
            return bound(), None
    for weight, lo, hi in zip(watch.last[:, 0], ranges.symbols.lo, ranges.symbols.hi, strict=True):
        if not np.isfinite(weight):
            return found, None
        watch.proved += min(Fraction(float(weight)) * Fraction(float(end)) for end in (lo, hi))
    return found, watch.proved


def any_states(levels: Levels, random: Random) -> dict[tuple[int, int], bool]:
    units = [(level.number, unit) for level in levels.every for unit in level.rows]
    return {unit: random.random() < 0.5 for unit in units if random.random() < 0.4}


@slow
@given(st.integers(0, 2**32))
@np.errstate(all="ignore")
def test_every_operation_of_packed_leaves_is_charged(seed):
    for number in range(20):
        random = Random(seed + number)
        ranges, target = any_ranges(random)
        levels = Packed(ranges, any_levels(ranges, random))
        states, raw = any_states(levels, random), packed_leaf(random, levels.shapes)
        leaf, at = [], 0
        for count, width in levels.shapes:
            head = np.frombuffer(raw, np.uint8, HEAD * count, at)
            shares = width * int(np.count_nonzero(head[4 * count : 5 * count]))
            leaf.append((head, np.frombuffer(raw, np.uint8, shares, at + HEAD * count)))
            at += HEAD * count + shares

        def bound(levels=levels, target=target, states=states, leaf=leaf):
            return levels.least(target, bound.sign, [(states, leaf)])

        bound.sign = random.choice([1.0, -1.0])
        found, proved = watched(pytest.MonkeyPatch(), ranges, target, bound)
        assert math.isnan(found) or (proved is not None and Fraction(found) <= proved)


def one_unit(weight: float, bias: float, top: float, ends: tuple[float, float]) -> Any:
    """``x = max(0, weight v + bias)`` with ``v`` between 0 and ``top``."""
    domain = Domain(np.zeros(1), np.array([top]), np.zeros((0, 1)), np.zeros(0), np.zeros(0))
    inputs = Expression(np.zeros(1, np.int64), np.array([[weight]]), np.array([bias]), np.zeros(1))
    low, high = (np.array([end]) for end in ends)
    layer = SimpleNamespace(inputs=inputs, lo=low, hi=high, kept=np.zeros(1, np.int64), own=slice(1, 2))
    symbols = Symbols(np.array([0.0, 0.0]), np.array([top, ends[1]]))
    found = SimpleNamespace(symbols=symbols, domain=domain, layers=[layer], places=np.arange(2))
    found.in_time = lambda: None
    return found


def leaf_of(lean: int, mix: list[int], push: float, *shares: int) -> tuple[np.ndarray, np.ndarray]:
    head = np.array([lean, *mix, *np.array([push], "<f4").tobytes()], np.uint8)
    return head, np.array(shares, np.uint8)


def by_a_cut(
    weight: float, bias: float, top: float, heavy: float, share: int, state: bool | None, high: float = 0.0
) -> None:
    """``-heavy * max(0, weight v + bias)`` by a cut alone, against its value where ``v`` is largest."""
    ends = weight * top + abs(bias)
    ranges = one_unit(weight, bias, top, (-ends, high or ends))
    target = Expression(np.ones(1, np.int64), np.array([[-heavy]]), np.zeros(1), np.zeros(1))
    levels = Packed(ranges, [(0, np.zeros(1, np.int64), np.zeros((1, 1), np.int64))])
    states = {} if state is None else {(0, 0): state}
    with np.errstate(all="ignore"):
        bound = levels.least(target, 1.0, [(states, [leaf_of(0, [0, 0, 0, 255], 0.0, share)])])
    value = Fraction(weight) * Fraction(top) + Fraction(bias)
    assert math.isnan(bound) or Fraction(bound) <= -Fraction(heavy) * max(Fraction(0), value)


@slow
@given(st.integers(1, 2000), st.integers(0, 255), st.integers(250, 300), st.integers(0, 20))
@example(3, 128, 300, 6)
def test_a_product_that_underflows_is_charged_for_what_multiplies_it(units, share, size, weight):
    """The weights are so small that their part of a cut has few digits left, or none."""
    top, tiny = 10.0**size, units * 5e-324
    by_a_cut(tiny, -tiny * top / 2, top, 10.0**weight, share, True)


@slow
@given(st.integers(1, 5), st.integers(0, 255), st.floats(0.1, 2), st.integers(0, 307))
@example(1, 0, 0.4, 300)
def test_ends_that_underflow_are_charged_for_the_cut_that_multiplies_them(units, share, top, size):
    by_a_cut(units * 5e-324, 0.0, top, 10.0**size, share, True)
    by_a_cut(units * 5e-324, 0.0, top, 10.0**size, share, None)


@slow
@given(st.integers(1, 9), st.integers(0, 255), st.integers(800, 1000), st.integers(0, 20))
@example(1, 100, 1000, 20)
def test_shares_of_a_cut_that_underflow_are_charged_for_the_weight(units, share, weight, size):
    """The weight and the input are so large that the cut, which is next to nothing, counts."""
    for state in (None, True):
        by_a_cut(2.0**weight, -(2.0 ** (weight + size)), 2.0**size, units * 5e-324, share, state, 1.0)


@pytest.mark.parametrize("push", [math.nan, math.inf, -math.inf, 3e38, -3e38])
@pytest.mark.parametrize("state", [None, False, True])
def test_pushes_that_are_no_numbers_prove_nothing_false(push, state):
    ranges = one_unit(1.0, -0.5, 1.0, (-0.5, 0.5))
    target = Expression(np.ones(1, np.int64), np.array([[-1.0]]), np.zeros(1), np.zeros(1))
    levels = Packed(ranges, [(0, np.zeros(1, np.int64), np.zeros((1, 0), np.int64))])
    states = {} if state is None else {(0, 0): state}
    with np.errstate(all="ignore"):
        bound = levels.least(target, 1.0, [(states, [leaf_of(255, [255, 0, 0, 0], push)])])
    assert math.isnan(bound) or bound <= (0.0 if state is False else -0.5)


def test_a_bound_is_no_worse_than_it_has_to_be():
    """``-max(0, v - 0.5)`` is least at ``v = 1``, and by the chord through both ends, or where it is on."""
    ranges = one_unit(1.0, -0.5, 1.0, (-0.5, 0.5))
    target = Expression(np.ones(1, np.int64), np.array([[-1.0]]), np.zeros(1), np.zeros(1))
    levels = Packed(ranges, [(0, np.zeros(1, np.int64), np.zeros((1, 1), np.int64))])
    leaves = {
        "chord": leaf_of(0, [1, 1, 0, 0], 0.0),
        "end": leaf_of(0, [0, 0, 1, 0], 0.0),
        "nothing": leaf_of(0, [0, 0, 0, 0], 0.0),
    }
    for leaf in leaves.values():
        assert levels.least(target, 1.0, [({}, [leaf])]) == pytest.approx(-0.5, abs=1e-12)
    half = leaf_of(0, [0, 0, 0, 9], 0.0, 128)  # x <= v / 2, in both states
    assert levels.least(target, 1.0, [({}, [half])]) == pytest.approx(-0.5, abs=3e-3)
    off = levels.least(target, 1.0, [({(0, 0): False}, [leaves["nothing"]])])
    assert off == pytest.approx(0.0, abs=1e-12)


def test_a_case_is_bounded_by_its_weakest_leaf():
    ranges = one_unit(1.0, -0.5, 1.0, (-0.5, 0.5))
    target = Expression(np.ones(1, np.int64), np.array([[-1.0]]), np.zeros(1), np.zeros(1))
    levels = Packed(ranges, [(0, np.zeros(1, np.int64), np.zeros((1, 0), np.int64))])
    cases = [({(0, 0): on}, [leaf_of(0, [0, 0, 1, 0], 0.0)]) for on in (False, True, False)]
    assert levels.least(target, 1.0, cases) == pytest.approx(-0.5)
    assert math.isnan(levels.least(target, 1.0, [*cases, ({}, [leaf_of(0, [0, 0, 1, 0], math.nan)])]))


def units_of(*units: int) -> np.ndarray:
    return np.array(units, np.int64)


@pytest.mark.parametrize(
    "listed",
    [
        [(0, units_of(0, 0), np.zeros((2, 1), np.int64))],
        [(0, units_of(0), np.zeros((1, 2), np.int64))],
        [(0, units_of(0), np.zeros((1, 1), np.int64)), (0, units_of(0), np.zeros((1, 1), np.int64))],
        [(1, units_of(0), np.zeros((1, 1), np.int64))],
        [(-1, units_of(0), np.zeros((1, 1), np.int64))],
    ],
)
def test_what_is_listed_twice_or_is_not_there_is_refused(listed):
    with pytest.raises(InputError):
        Packed(one_unit(1.0, -0.5, 1.0, (-0.5, 0.5)), listed)


def test_units_and_places_that_are_not_there_count_for_nothing():
    ranges = one_unit(1.0, -0.5, 1.0, (-0.5, 0.5))
    target = Expression(np.ones(1, np.int64), np.array([[-1.0]]), np.zeros(1), np.zeros(1))
    levels = Packed(ranges, [(0, units_of(-7, 3), np.full((2, 2), -1))])
    leaf = (np.full(2 * HEAD, 63, np.uint8), np.full(4, 99, np.uint8))
    assert levels.least(target, 1.0, [({(0, 3): True}, [leaf])]) == pytest.approx(-0.5)


def test_very_many_units_are_refused_before_they_take_memory(monkeypatch):
    ranges = one_unit(1.0, -0.5, 1.0, (-0.5, 0.5))
    with pytest.raises(CheckFailed, match="coefficients"):
        Packed(ranges, [(0, np.zeros(0, np.int64), np.zeros((0, 2**30), np.int64))])
    monkeypatch.setattr(module, "MOST", 3)
    with pytest.raises(CheckFailed, match="coefficients"):
        Packed(ranges, [(0, units_of(0), np.zeros((1, 1), np.int64))])
