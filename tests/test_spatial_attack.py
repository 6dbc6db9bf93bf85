"""Networks whose channels look as if they could go, but may not."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

import oracle
from relutrim import Box
from relutrim.compression import compress_network
from relutrim.graph import (
    Concat,
    Convolution,
    Linear,
    Mean,
    Network,
    Node,
    Output,
    Port,
    Relu,
    Take,
    Transpose,
)

QUICK = {"method": "auto", "time_limit": 5.0, "device": "cpu", "seed": 0, "progress": None}


def chain(*operators, shape) -> Network:
    nodes, source = [], "x"
    for k, operator in enumerate(operators):
        nodes.append(Node(f"n{k}", operator, (source,)))
        source = f"n{k}"
    return Network(Port("x", shape), tuple(nodes), (Output("y", source),))


def check(network: Network, rewrites: str = "all") -> None:
    """Outputs within the proven deviation, masks true, on a grid over the unit box."""
    result = compress_network(network, Box(0, 1), rewrites=rewrites, **QUICK)
    for x in product([Fraction(k, 4) for k in range(5)], repeat=network.input.size):
        values = oracle.evaluate(result.stored, x)
        for before, after in zip(oracle.outputs(network, x), oracle.outputs(result.stored, x), strict=True):
            assert abs(before - after) <= Fraction(result.deviation.proven)
        for name, mask in result.masks.items():
            assert all(v == 0 for v, off in zip(values[name], mask.ravel(), strict=True) if off)


def test_an_inactive_unit_that_stays_keeps_what_makes_it_inactive():
    """The second hidden neuron is read by the first output only, which is 0 because of it."""
    first = Linear(np.array([[1.0, -0.5], [1.0, 1.0], [-0.5, 1.0]]), np.array([0.0, 1.0, 0.0]))
    second = Linear(np.array([[0.5, -3.0, 0.0], [1.0, 0.0, -1.0]]), np.array([1.0, 0.0]))
    check(chain(first, Relu(), second, Relu(), shape=(2,)))


@pytest.mark.parametrize("ends", [True, False])
def test_a_position_that_is_inactive_keeps_the_channel_that_makes_it_inactive(ends):
    """The third channel is read by the first window only, which is 0 because of it."""
    first = Convolution(
        np.array([[[1.0]], [[-1.0]], [[1.0]]]), np.array([-0.25, 0.5, 1.0]), (1,), ((0, 0),), (1,)
    )
    kernel = np.array([[[1.0, 1.0], [-1.0, 1.0], [0.0, -5.0]]])
    second = Convolution(kernel, np.array([0.5]), (2,), ((1, 1),), (1,))
    rest = () if ends else (Linear(np.array([[2.0, 1.0]]), np.array([-0.5])), Relu())
    check(chain(first, Relu(), second, Relu(), *rest, shape=(1, 2)))


def test_an_empty_value_keeps_its_channels():
    """Nothing of the first convolution is read, but its channels are joined with those of the second."""
    first = Convolution(
        np.array([[[1.0]], [[-1.0]], [[1.0]]]), np.array([-0.25, -1.0, 0.5]), (1,), ((0, 0),), (1,)
    )
    second = Convolution(
        np.array([[[2.0]], [[-1.0]], [[1.0]]]), np.array([-1.0, 0.5, 0.0]), (1,), ((0, 0),), (1,)
    )
    nodes = (
        Node("first", first, ("x",)),
        Node("one", Relu(), ("first",)),
        Node("none", Take((None, np.zeros(0, dtype=np.int64))), ("one",)),
        Node("second", second, ("x",)),
        Node("two", Relu(), ("second",)),
        Node("joined", Concat(1, (0, 3)), ("none", "two")),
        Node("mean", Mean((1,), False), ("joined",)),
        Node("y", Linear(np.ones((1, 3)), np.zeros(1)), ("mean",)),
    )
    check(Network(Port("x", (1, 3)), nodes, (Output("y", "y"),)))


def test_constants_that_an_empty_value_holds_too():
    """The last channel is constant, and one of those who weigh it reads no position at all."""
    first = Convolution(
        np.array([[[1.0]], [[-1.0]], [[0.0]]]), np.array([-0.25, 0.5, 0.5]), (1,), ((0, 0),), (1,)
    )
    nodes = (
        Node("first", first, ("x",)),
        Node("one", Relu(), ("first",)),
        Node("turned", Transpose((1, 0)), ("one",)),
        Node("none", Take((np.zeros(0, dtype=np.int64), None)), ("turned",)),
        Node("weighed", Linear(np.ones((2, 3)), np.ones(2)), ("none",)),
        Node("some", Linear(np.arange(6.0).reshape(2, 3), np.ones(2)), ("turned",)),
        Node("joined", Concat(0, (0, 3)), ("weighed", "some")),
        Node("y", Mean((0,), False), ("joined",)),
    )
    check(Network(Port("x", (1, 3)), nodes, (Output("y", "y"),)))
