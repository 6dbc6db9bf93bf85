"""Networks that fool a verifier which computes in floats and believes them.

In the manner of Jia and Rinard (*Exploiting verified neural networks via floating point numerical error*,
2020) and of Szasz, Banhelyi and Jelasity (*No soundness in the real world*, 2025): weights so large that
an input vanishes beside them, sums whose order matters, numbers too small to be told from zero.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from onnx import helper

from attacks.forging import accepted, forged, hint_of, onnx_of
from certifying import certified, proof_of, true_gap
from oracle import Polytope
from relutrim.certificate.check import domain, expressions, prove_ranges, ranges, read_front
from relutrim.certificate.check.domain import Domain
from relutrim.errors import RelutrimError
from rewriting import dense, linear

node = helper.make_node
LARGE = [2.0**24, 2.0**53, 2.0**60, 1e30]


def absorbing(large, double):
    """``max(0, x + large) - large``, which is x; where ``x + large`` is rounded it is 0."""
    kind = np.float64 if double else np.float32
    nodes = [
        node("Add", ["x", "b"], ["a"]),
        node("Relu", ["a"], ["r"]),
        node("Add", ["r", "c"], ["s"]),
        node("Relu", ["s"], ["y"]),
    ]
    constants = {"b": np.array([large], kind), "c": np.array([-large], kind)}
    return onnx_of(nodes, [1, 1], constants, double=double)


def box(lo, hi):
    return Domain(np.array(lo), np.array(hi), np.zeros((0, len(lo))), np.zeros(0), np.zeros(0))


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("large", LARGE)
def test_an_input_beside_a_large_number_is_not_forgotten(large, double):
    model = absorbing(large, double)
    last = prove_ranges(read_front(model, "model"), box([-1.0], [1.0])).layers[-1]
    assert last.lo[0] <= -1
    assert last.hi[0] >= 1
    # What a float verifier would see: a second neuron that is 0 for all inputs.
    zero = [hint_of([1]), hint_of([2])]
    content = forged(model, model, [-1.0], [1.0], model_hints=zero, bound=0.5, slack=0.5)
    assert not accepted(model, model, content)


ORDERS = ([0, 1, 2], [1, 0, 2], [2, 1, 0], [0, 2, 1])


def ends_of_sum(large, order):
    """The ends of ``large x + x - large x``, which is x, added up in some order: floats may lose x."""
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("MatMul", ["a", "v"], ["b"]),
        node("Relu", ["b"], ["y"]),
    ]
    last = np.array([[large], [1.0], [-large]])[order]
    graph = read_front(onnx_of(nodes, [1, 1], {"w": np.ones((1, 3)), "v": last}), "model")
    layer = prove_ranges(graph, box([-1.0], [1.0])).layers[0]
    return layer.lo[0], layer.hi[0]


@pytest.mark.parametrize("large", LARGE)
def test_the_order_of_a_sum_is_not_trusted(large):
    for order in ORDERS:
        low, high = ends_of_sum(large, order)
        assert low <= -1
        assert high >= 1


@pytest.mark.parametrize("tiny", [5e-324, 2.0**-1060, 1e-310, 1e-200, 2.0**-149])
@pytest.mark.parametrize("again", [1.0, 1e300])
def test_what_is_tiny_is_not_nothing(tiny, again):
    """A neuron that is tiny, and weights that make it large again."""
    network = dense(
        linear([[tiny], [-tiny]]),
        linear([[again, 0.0], [0.0, again]]),
        linear([[again, again]]),
        dtype="float64",
    )
    try:
        result = certified(network, None)
    except RelutrimError:
        return
    unit = Polytope.of([0], [1])
    assert true_gap(network, result.stored, unit) <= Fraction(proof_of(result).bound)


@pytest.mark.parametrize("large", LARGE)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_large_weights_that_cancel_are_certified_truly_or_not_at_all(large, dtype):
    first = linear([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [large, -0.5, -1.0])
    second = linear([[1.0, 1.0, -1.0], [-1.0, 0.5, 0.25]], [-large, large])
    network = dense(first, second, linear([[1.0, -1.0]]), dtype=dtype)
    if dtype == "float32" and float(np.float32(large)) != large:
        return
    try:
        result = certified(network)
    except RelutrimError:
        return
    gap = true_gap(network, result.stored, Polytope.of([0, 0], [1, 1]))
    assert gap <= Fraction(proof_of(result).bound)


def test_a_checker_that_believes_its_sums_would_be_fooled(monkeypatch):
    """The control: without the radius of sums, the test of their order fails."""
    for module in (domain, expressions, ranges):
        monkeypatch.setattr(module, "gamma", lambda terms: 0.0)
    ends = [ends_of_sum(large, order) for large in LARGE for order in ORDERS]
    assert any(low > -1 or high < 1 for low, high in ends)


@pytest.mark.parametrize("small", [1e-200, 2.0**-600])
def test_a_constant_that_underflows_is_not_forgotten_by_large_weights(small):
    """Beside ``x``, ``small * small`` is 0 in floats; twice multiplied by ``1 / small`` it is 1."""
    large = 1 / small
    nodes = [
        node("Concat", ["x", "c"], ["a"], axis=1),
        node("MatMul", ["a", "s"], ["b"]),
        node("MatMul", ["b", "t"], ["d"]),
        node("MatMul", ["d", "t"], ["e"]),
        node("MatMul", ["e", "o"], ["y"]),
    ]
    constants = {
        "c": np.array([[small]]),
        "s": np.diag([1, small]),
        "t": np.diag([1, large]),
        "o": np.ones((2, 1)),
    }
    model = onnx_of(nodes, [1, 1], constants)
    same = onnx_of([node("Identity", ["x"], ["y"])], [1, 1], {})
    assert not accepted(model, same, forged(model, same, [-1.0], [1.0], bound=0.5))
