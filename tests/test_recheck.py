"""What an analysis has proved is proved again from what it left behind."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given, settings

import oracle
import relutrim
import strategies
from relutrim.analysis import analyze_network
from relutrim.domain import Box
from relutrim.graph import Add, Linear, Network, Node, Output, Port, Relu
from relutrim.prove.recheck import Rechecked, recheck
from relutrim.prove.verdict import Evidence, Verdict
from test_hull import slow
from test_soundness import QUICK, as_domain


@settings(slow, max_examples=20)
@given(strategies.problems(max_layers=3, extreme=False))
def test_every_proved_verdict_with_a_margin_is_proved_again(problem):
    network, random = problem
    stability = analyze_network(network, as_domain(random), data=None, **QUICK)
    exact = oracle.exact_ranges(network, random.polytope)
    again = recheck(stability)
    proved = sum(int((layer.evidence == Evidence.PROOF).sum()) for layer in stability.layers)
    assert again.confirmed + len(again.lost) == proved
    for name, neuron in again.lost:  # ties that the analysis settles in rational arithmetic
        low, high = exact[name][neuron]
        assert max(low, -high) < Fraction(1, 10**6)


def test_a_proof_that_makes_linear_bounds_worse_loses_no_verdict():
    """While ``u`` may be negative, its ReLU is at least 0, and what adds up to ``join`` is at least 0.1. Once
    a proof shows that it is active, linear bounds go on to the layer before, where they are loose.
    """

    def layer(weight: list[list[float]], bias: list[float]) -> Linear:
        return Linear(np.array(weight), np.array(bias))

    network = Network(
        Port("x", (2,)),
        (
            Node("a", layer([[1.0, 1.0], [1.0, -1.0]], [0.0, 0.0]), ("x",)),
            Node("relu_a", Relu(), ("a",)),
            Node("u", layer([[-1.0, -1.0]], [2.25]), ("relu_a",)),
            Node("relu_u", Relu(), ("u",)),
            Node("more", layer([[5.0, 0.0]], [0.1]), ("x",)),
            Node("less", layer([[-5.0, 0.0]], [0.0]), ("x",)),
            Node("sum", Add(2), ("relu_u", "more")),
            Node("join", Add(2), ("sum", "less")),
            Node("relu_join", Relu(), ("join",)),
        ),
        (Output("y", "relu_join"),),
    )
    stability = relutrim.analyze(network, Box(-1, 1))
    assert [layer.verdict.tolist() for layer in stability.layers[1:]] == [[Verdict.ACTIVE]] * 2
    assert [proof.target for proof in stability.proofs] == ["u"]
    assert recheck(stability) == Rechecked(2, ())
