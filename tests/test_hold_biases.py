"""Biases that a file's type cannot hold, on a constant neuron."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import oracle
import strategies
from relutrim.analysis import analyze_network
from relutrim.domain import Box
from relutrim.graph import Linear, Network, Node
from relutrim.prove.verdict import Evidence
from relutrim.rewrite.draft import Draft
from relutrim.rewrite.hold_biases import NAME, hold_biases, split
from relutrim.rewrite.layers import dense_layer
from rewriting import QUICK, compressed, dense, gap, layer_of, linear, names, start

slow = settings(suppress_health_check=list(HealthCheck), max_examples=60)
anything = st.floats(-1e30, 1e30, allow_subnormal=True)


@given(st.lists(anything, min_size=1, max_size=5))
def test_a_bias_is_nearly_the_sum_of_two_numbers_that_the_file_holds(values):
    bias = np.array(values)
    first, rest = split(bias, "float32")
    for part in (first, rest):
        assert (part.astype(np.float32) == part).all()
    for b, f, r in zip(bias.tolist(), first.tolist(), rest.tolist(), strict=True):
        lost = abs(Fraction(b) - Fraction(f) - Fraction(r))
        assert lost <= abs(Fraction(b)) / 2**48 + Fraction(1, 2**149)


def test_what_storing_takes_from_a_bias_goes_through_the_neuron():
    third = 1 / 3
    network = dense(
        linear([[1.0, -1.0]], [0.5]), linear([[1.0], [-1.0]], [third, -third]), linear([[1.0, 1.0]])
    )
    network = Network(network.input, network.nodes, network.outputs, dtype="float32")
    draft = start(network, 0, 1)
    held = hold_biases(draft, layer_of(draft, "relu1"))
    assert held.network.widths == [2, 2, 2, 1]
    assert held.stored().realise().proven < 1e-14 < 1e-9 < draft.stored().realise().proven
    assert gap(network, held.stored().network, 0, 1) <= Fraction(held.stored().realise().proven)


def test_biases_that_the_file_holds_need_no_neuron():
    network = dense(linear([[1.0, -1.0]], [0.5]), linear([[1.0]], [0.25]), dtype="float32")
    draft = start(network, 0, 1)
    assert hold_biases(draft, layer_of(draft, "relu1")) is draft
    odd = start(dense(linear([[1.0, -1.0]], [0.5]), linear([[1.0]], [1 / 3])), 0, 1)  # float64 holds it
    assert hold_biases(odd, layer_of(odd, "relu1")) is odd


@slow
@given(strategies.problems(), st.integers(0, 2**31))
def test_what_is_proven_of_it_is_true(problem, seed):
    network, random = problem
    rng = np.random.default_rng(seed)
    change: dict[str, Node | None] = {}
    for node in network.nodes:
        if isinstance(node.operator, Linear):
            bias = node.operator.bias * (1 + rng.uniform(-1e-3, 1e-3, node.operator.bias.shape))
            change[node.name] = Node(node.name, Linear(node.operator.weight, bias), node.inputs)
    network = network.edit(change=change)
    network = Network(network.input, network.nodes, network.outputs, dtype="float32")
    box = Box(random.lo, random.hi)
    draft = Draft.start(network, analyze_network(network, box, data=None, **QUICK), Evidence.PROOF)
    held = draft
    for relu in network.relus:
        layer = dense_layer(held.network, relu.name)
        if layer is not None:
            held = hold_biases(held, layer)
    for final in (held.realise(), held.stored().realise()):
        if not np.isnan(final.proven):
            largest = oracle.largest_deviations(network, final.network, random.polytope)
            assert all(distance <= Fraction(final.proven) for distance in largest)


def test_a_constant_neuron_takes_the_place_of_many_where_storing_costs_too_much():
    """Twelve active neurons that hardly depend on the input: within the tolerance they are a constant, but
    a stored one is too coarse behind two more layers.
    """
    rng = np.random.default_rng(0)

    def single(array: np.ndarray) -> np.ndarray:
        return array.astype(np.float32).astype(float)

    first = np.concatenate([rng.normal(size=(4, 8)), 1e-12 * rng.normal(size=(12, 8))])
    bias = np.concatenate([np.zeros(4), rng.uniform(1, 2, 12)])
    layers = [
        Linear(single(first), single(bias)),
        Linear(single(rng.normal(size=(8, 16))), single(rng.normal(size=8))),
        Linear(single(rng.normal(size=(8, 8))), single(rng.normal(size=8))),
        Linear(single(rng.normal(size=(1, 8))), np.zeros(1)),
    ]
    network = dense(*layers, dtype="float32")
    tolerance = 1e-6
    result = compressed(network, 0, 1, tolerance=tolerance)
    assert NAME in names(result)
    assert result.network.widths[1] == 5
    assert result.deviation.proven is not None
    assert result.deviation.proven <= tolerance
    inputs = torch.as_tensor(rng.uniform(size=(4096, 8)))
    assert float((network(inputs) - result.stored(inputs)).abs().max()) <= result.deviation.proven
