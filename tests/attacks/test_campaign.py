"""A small campaign, and checkers with one test removed: the harness must find each of them out."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.helper import make_node as node

from attacks.forging import accepted, forged, hint_of, onnx_of
from attacks.judge import Tally, attack, judged
from attacks.lies import lies
from attacks.mutations import MUTATIONS, Mutant, move_weight_of_out
from attacks.proof_mutations import NOTHING
from attacks.victims import Victim, random_dense, trees, turned_on, victim
from relutrim.certificate import check as checker
from relutrim.certificate.check import archive, equal, hull, levels, proofs
from relutrim.certificate.check.domain import Domain
from relutrim.certificate.check.expressions import Expression
from relutrim.domain import Box


@pytest.fixture(scope="module")
def some():
    rng = np.random.default_rng(3)
    return [
        victim("turned on", turned_on(), method="bounds"),
        victim("dense", random_dense(rng, 2, [6, 5], 2), method="bounds"),
        victim("tolerant", random_dense(rng, 2, [6, 5], 2), tolerance=0.05, method="bounds"),
    ]


@pytest.fixture(scope="module")
def branched() -> list[Victim]:
    """Proofs with trees of several leaves, packed ones among them, and with parts."""
    return trees(2)


@pytest.fixture(scope="module")
def false(branched) -> list[Victim]:
    return [lie for one in branched for lie in lies(one)]


def test_nothing_false_is_accepted_and_nothing_crashes(some, branched, false):
    tally = attack([*some, *branched, *false], 2 * len(MUTATIONS), seed=1)
    assert (tally.wrong, tally.crashes) == ([], [])
    assert tally.accepted.total() > 0


def test_victims_are_accepted_and_lies_are_not(branched, false):
    assert all(accepted(one.model, one.out, one.certificate) for one in branched)
    assert len(false) >= len(branched)
    assert not any(accepted(one.model, one.out, one.certificate) for one in false)


class Anything(str):
    """A hash that equals every other."""

    __slots__ = ()

    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False

    __hash__ = str.__hash__


def without_files(monkeypatch):
    """MODEL and OUT are not compared with their hashes."""

    monkeypatch.setattr(checker, "_certified", lambda archive, key, name, content, *_, **__: content)


def without_hashes(monkeypatch):
    monkeypatch.setattr(archive, "sha256", lambda content: Anything())


def without_bounds(monkeypatch):
    """The claimed bound is believed."""

    def believed(found, graph, bounds, report):
        claimed = found.arrays["outputs.bound"]
        report.bound, report.bounds = float(claimed.max()), [claimed]

    monkeypatch.setattr(checker, "_claimed_bounds", believed)


def without_slack(monkeypatch):
    monkeypatch.setattr(checker, "_claimed_slack", lambda *_: None)


def without_missing_leaves(monkeypatch):
    """Where a tree has no leaf, there is nothing to prove."""

    def cases(self, ranges):
        path, more = proofs._Path(ranges.domain.lo, ranges.domain.hi), True
        while more:
            kind = self._descend(path, ranges)
            if kind != NOTHING:
                yield path.lo.copy(), path.hi.copy(), dict(path.states), kind
            more = path.advance()

    monkeypatch.setattr(proofs.Proofs, "cases", cases)


def without_second_cases(monkeypatch):
    """Leaves are believed to be about one case each: a state that they have no multipliers for is fixed."""
    whole = hull.Packed.least

    def of(self, target, sign, states, parts):
        units = [(level.number, unit) for level in self.every for unit in level.rows]
        both = [{**states, place: on} for place in (*states, *units)[:1] for on in (False, True)]
        return max(whole(self, target, sign, [(one, parts)]) for one in both or [states])

    def least(self, target, sign, leaves):
        return min(of(self, target, sign, *leaf) for leaf in leaves)

    monkeypatch.setattr(hull.Packed, "least", least)


def without_packed_leaves_that_fail(monkeypatch):
    """Of packed leaves the best is believed to speak for all."""
    whole = hull.Packed.least

    def least(self, target, sign, leaves):
        return max(whole(self, target, sign, [leaf]) for leaf in leaves)

    monkeypatch.setattr(hull.Packed, "least", least)


def without_what_cuts_cost(monkeypatch):
    """Sums with shares are believed to be 0 at worst."""
    whole = levels.Level.replace

    def replace(self, weights, marks, multipliers):
        made = whole(self, weights, marks, multipliers)
        return made[0] + 0.2, *made[1:]

    monkeypatch.setattr(levels.Level, "replace", replace)


def without_distance_of_a_match(monkeypatch):
    """A unit that is said to match does: it reads what the other reads, scaled."""
    whole = equal.Comparison._matched

    def believed(self, inputs, hint, *, opposite):
        at = np.flatnonzero(hint.kind == equal.MATCH)
        if at.size:
            near = self.named(hint.place[at]).inputs
            nothing = Expression(np.zeros(0, np.int64), np.zeros((0, at.size)), *np.zeros((2, at.size)))
            same = nothing.minus(near, -hint.scale[at], self.symbols)
            inputs = Expression.joined(len(inputs.c), (at, same))
        return whole(self, inputs, hint, opposite=opposite)

    monkeypatch.setattr(equal.Comparison, "_matched", believed)


def without_error_symbols(monkeypatch):
    whole = equal.Comparison._errors
    monkeypatch.setattr(equal.Comparison, "_errors", lambda self, lo, hi: whole(self, 0 * lo, 0 * hi))


def without_containment(monkeypatch):
    monkeypatch.setattr(Domain, "contains", lambda *_: None)


def without_tolerance(monkeypatch):
    real = checker.check
    monkeypatch.setattr("attacks.judge.check", lambda *a, **options: real(*a[:4], **options))


CONTROLS = {
    without_files: ["another_file"],
    without_hashes: ["wrong_hash_of_array"],
    without_bounds: ["tighten_bound_away", "move_weight_of_out"],
    without_slack: ["flip_verdict"],
    without_missing_leaves: ["half_a_tree", "a_part_for_the_whole"],
    without_distance_of_a_match: ["move_weight_of_out", "move_place", "swap_neurons", "flip_hint"],
    without_containment: ["ask_for_more", "shrink_certified"],
    without_tolerance: ["ask_for_a_smaller_bound"],
}


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.__name__)
def test_a_checker_without_one_of_its_tests_is_found_out(some, control, monkeypatch):
    control(monkeypatch)
    assert attack(some, 300, 0, CONTROLS[control], first=True).wrong, "the harness did not notice"


TREES = {
    without_missing_leaves: ["drop_leaf", "drop_leaves", "drop_parts"],
    without_second_cases: ["repeat_leaf"],
    without_packed_leaves_that_fail: ["move_bytes_of_a_leaf", "repeat_leaf"],
    without_what_cuts_cost: ["list_fewer"],
}


@pytest.mark.parametrize(
    ("control", "name"), [(control, name) for control, names in TREES.items() for name in names]
)
def test_a_checker_without_one_of_its_tests_believes_a_lie(false, control, name, monkeypatch):
    assert not attack(false, 20, 0, [name]).accepted
    control(monkeypatch)
    assert attack(false, 200, 0, [name], first=True).wrong, "the harness did not notice"


def test_a_checker_without_error_symbols_is_found_out(monkeypatch):
    """A ReLU against none: called linear, with all the slack it needs."""
    relu, none = (
        onnx_of([node("MatMul", ["x", "w"], ["a"]), node(kind, ["a"], ["y"])], [1, 1], {"w": np.ones((1, 1))})
        for kind in ("Relu", "Identity")
    )
    content = forged(relu, none, [-1.0], [1.0], model_hints=[hint_of([1])], bound=0.5)
    assert not accepted(relu, none, content)
    without_error_symbols(monkeypatch)
    assert accepted(relu, none, content)


def test_every_kind_of_mutation_finds_something_to_change(some, branched):
    rng = np.random.default_rng(0)
    bounded = Box(0, 1).sum_between(0.5, 2.0)
    constrained = victim("constrained", random_dense(rng, 3, [5, 4], 2), bounded, method="bounds")
    for name, change in MUTATIONS.items():
        made = [change(rng, one) for one in [*some, *branched, constrained] for _ in range(3)]
        assert any(made), name


def test_a_crash_is_counted(some, monkeypatch):
    def broken(*_, **__):
        raise SystemError("broken")

    monkeypatch.setattr("attacks.judge.check", broken)
    tally = Tally()
    mutant = move_weight_of_out(np.random.default_rng(0), some[0])
    assert isinstance(mutant, Mutant)
    judged(tally, "move_weight_of_out", some[0], mutant)
    assert len(tally.crashes) == 1
