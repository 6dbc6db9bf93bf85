"""Analysing anew what rewriting has left."""

from __future__ import annotations

import itertools

import pytest

import relutrim.compression
from relutrim.again import NAME, mergeable
from relutrim.analysis import analyze_network
from relutrim.domain import Box
from relutrim.graph import Network
from relutrim.rewrite.pipeline import rewrite
from rewriting import QUICK, assert_holds, compressed, dense, linear, names


def hidden_line() -> Network:
    """The first two neurons are relu(x) and relu(-x), which only together are a line: behind them a neuron
    is always 1/2, which no linear bound of the original shows.
    """
    first = linear([[1.0], [-1.0], [1.0]], [0.0, 0.0, 2.0])
    second = linear([[1.0, -1.0, -1.0], [1.0, -1.0, 1.0]], [2.5, -2.0])
    return dense(first, second, linear([[1.0, 1.0], [1.0, -1.0]]))


@pytest.fixture
def analyses(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """The time limits of the analyses that were made."""
    limits: list[float | None] = []

    def counted(network, domain, **options):
        limits.append(options["time_limit"])
        return analyze_network(network, domain, **options)

    monkeypatch.setattr(relutrim.compression, "analyze_network", counted)
    return limits


def test_what_the_original_hides_is_found_after_rewriting(analyses):
    network = hidden_line()
    stability = analyze_network(network, Box(-1, 1), data=None, **QUICK)
    once = rewrite(network, stability).network
    result = compressed(network, -1, 1)
    assert len(analyses) > 1
    assert NAME in names(result)
    assert result.network.parameters < once.parameters < network.parameters
    assert_holds(network, result, -1, 1)


def test_rounds_end_and_share_one_limit(analyses):
    compressed(hidden_line(), -1, 1, time_limit=100.0)
    assert 1 < len(analyses) < 6
    assert all(limit < 100.0 for limit in analyses)
    assert sum(analyses[1:2]) + analyses[0] <= 100.0
    assert all(later < earlier for earlier, later in itertools.pairwise(analyses[1:]))


def test_a_network_with_neurons_to_merge_is_worth_less_time_than_what_is_left_of_it(analyses):
    compressed(hidden_line(), -1, 1, time_limit=100.0)
    assert mergeable(hidden_line())
    assert analyses[0] < analyses[1]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([[1.0], [2.0]], [[1.0, 1.0]], True),  # multiples
        ([[1.0], [-1.0]], [[1.0, 1.0]], True),  # opposites
        ([[1.0], [0.0]], [[1.0, 1.0]], True),  # a constant
        ([[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0]], True),  # read by nobody
        ([[1.0, 0.0], [0.0, 1.0]], [[1.0, 1.0]], False),
    ],
)
def test_what_goes_whatever_the_verdicts_are(first, second, expected):
    assert mergeable(dense(linear(first), linear(second))) == expected


def test_more_effort_is_not_worse_than_bounds_where_time_runs_out(monkeypatch):
    methods = []

    def late(network, domain, **options):
        methods.append(options["method"])
        limit = options["time_limit"] if options["method"] == "bounds" else 0.0
        return analyze_network(network, domain, **{**options, "time_limit": limit})

    monkeypatch.setattr(relutrim.compression, "analyze_network", late)
    thorough = compressed(hidden_line(), -1, 1, method="auto")
    assert methods[:2] == ["auto", "bounds"]
    assert thorough.network.parameters == compressed(hidden_line(), -1, 1).network.parameters
    assert_holds(hidden_line(), thorough, -1, 1)


@pytest.mark.parametrize("options", [{"method": "auto"}, {"time_limit": 0.0}, {"rewrites": "leo++"}])
def test_there_is_no_other_round_without_reason_or_time(analyses, options):
    compressed(hidden_line(), -1, 1, **options)
    assert len(analyses) == 1


def test_an_interrupted_round_is_an_interruption(monkeypatch):
    calls = []

    def interrupted(network, domain, **options):
        calls.append(network)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return analyze_network(network, domain, **options)

    monkeypatch.setattr(relutrim.compression, "analyze_network", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compressed(hidden_line(), -1, 1)
    assert len(calls) == 2
