"""Verdicts, bounds and rewrites against exact rational arithmetic, on small networks made to be nasty."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from hypothesis import HealthCheck, given, settings

import oracle
import relutrim
import strategies
from relutrim.analysis import analyze_network
from relutrim.compression import compress_network
from relutrim.domain import Box, Domain
from relutrim.prove.verdict import Evidence, Verdict

QUICK = {"method": "auto", "time_limit": 5.0, "device": "cpu", "seed": 0, "progress": None}
slow = settings(suppress_health_check=list(HealthCheck))


def as_domain(random: strategies.RandomDomain) -> Domain:
    domain = Box(random.lo, random.hi)
    if len(random.matrix):
        domain = domain.constrain(random.matrix, random.lower, random.upper)
    return domain


def holds(bound: float, value: Fraction, *, below: bool) -> bool:
    """Whether a proven bound is true of the exact extreme value; NaN and infinity claim nothing false."""
    if math.isnan(bound):
        return True
    if math.isinf(bound):
        return (bound < 0) == below
    return Fraction(bound) <= value if below else Fraction(bound) >= value


@slow
@given(strategies.problems())
def test_verdicts_and_bounds_are_never_wrong(problem):
    network, random = problem
    stability = analyze_network(network, as_domain(random), data=None, **QUICK)
    exact = oracle.exact_ranges(network, random.polytope)
    for layer in stability.layers:
        for neuron, (low, high) in enumerate(exact[layer.name]):
            verdict, evidence = Verdict(layer.verdict[neuron]), Evidence(layer.evidence[neuron])
            if verdict is Verdict.ACTIVE:
                assert low >= 0
                assert evidence is Evidence.PROOF
            elif verdict is Verdict.INACTIVE:
                assert high <= 0
                assert evidence is Evidence.PROOF
            elif verdict is Verdict.UNSTABLE:
                assert low < 0 < high
                assert evidence is Evidence.WITNESS
            assert holds(layer.lower[neuron], low, below=True)
            assert holds(layer.upper[neuron], high, below=False)


@slow
@given(strategies.problems())
def test_witnesses_lie_in_the_domain_and_show_what_they_claim(problem):
    network, random = problem
    stability = analyze_network(network, as_domain(random), data=None, **QUICK)
    for layer in stability.layers:
        pre = network[layer.name].inputs[0]
        for rows, sign in ((layer.active_witness, 1), (layer.inactive_witness, -1)):
            for neuron, row in enumerate(rows):
                if row >= 0:
                    x = [Fraction(float(v)) for v in stability.witnesses[row]]
                    assert random.polytope.contains(x)
                    assert sign * oracle.evaluate(network, x)[pre][neuron] > 0


@settings(slow, max_examples=60)
@given(strategies.problems())
def test_compressed_networks_stay_within_the_proven_deviation(problem):
    network, random = problem
    for rewrites in ("leo++", "all"):
        result = compress_network(network, as_domain(random), rewrites=rewrites, **QUICK)
        for smaller, claimed in (
            (result.network, result.deviation.proven_float64),
            (result.stored, result.deviation.proven),
        ):
            assert claimed is not None
            assert math.isfinite(claimed)
            largest = oracle.largest_deviations(network, smaller, random.polytope)
            assert all(gap <= Fraction(claimed) for gap in largest)
        if rewrites == "all":
            assert result.network.parameters <= network.parameters


@slow
@given(strategies.problems(extreme=False))
def test_exact_compression_agrees_to_1e9_relative(problem):
    network, random = problem
    result = compress_network(network, as_domain(random), rewrites="leo++", **QUICK)
    for x in oracle.random_points(random.polytope, 5):
        before = oracle.evaluate(network, x)
        after = oracle.evaluate(result.network, x)
        scale = max([1, *(abs(v) for values in before.values() for v in values)])
        for source in network.sources:
            for a, b in zip(before[source], after[source], strict=True):
                assert abs(a - b) <= scale * Fraction(1, 10**9)


def test_a_box_of_one_point_decides_everything_that_is_not_a_tie():
    network = relutrim.load(relutrim.demo_model())
    stability = relutrim.analyze(network, Box(np.full(784, 0.5), np.full(784, 0.5)))
    assert stability.complete
    assert stability.count(Verdict.UNSTABLE) == 0
