"""The comparison with magnitude pruning, against pruning one connection after the other."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relutrim
from relutrim.graph import Linear, Network, Node, Output, Port, Relu
from relutrim.paper.reproduce.magnitude import magnitude_pruning
from relutrim.prove.verdict import Verdict


def network(widths: list[int], seed: int, shift: float) -> Network:
    random = np.random.default_rng(seed)
    nodes, value = [], "x"
    for number, (before, after) in enumerate(pairwise(widths)):
        size = (random.permutation(before * after) + 1) / 8 + number / 1024  # no two are the same
        weight = (size * random.choice([-1.0, 1.0], len(size))).reshape(after, before)
        last = number == len(widths) - 2
        bias = random.normal(size=after) - (0 if last else shift)
        nodes.append(Node(f"fc{number}", Linear(weight, bias), (value,)))
        value = f"fc{number}"
        if not last:
            nodes.append(Node(f"relu{number}", Relu(), (value,)))
            value = f"relu{number}"
    return Network(Port("x", (widths[0],)), tuple(nodes), (Output("y", value),))


@given(
    widths=st.lists(st.integers(1, 4), min_size=3, max_size=4),
    seed=st.integers(0, 10**6),
    shift=st.floats(0, 3),
)
def test_ranks_and_misses_are_those_of_pruning_step_by_step(
    widths: list[int], seed: int, shift: float
) -> None:
    net = network(widths, seed, shift)
    stability = relutrim.analyze(net, relutrim.Box(0, 1))
    connections = []
    for number in range(len(widths) - 1):
        operator = net[f"fc{number}"].operator
        assert isinstance(operator, Linear)
        for (after, before), weight in np.ndenumerate(operator.weight):
            ends = [(f"relu{number}", after), (f"relu{number - 1}", before)]
            free = any(
                neuron in stability[name].which(Verdict.INACTIVE)
                for name, neuron in ends
                if name in [layer.name for layer in stability.layers]
            )
            connections.append((abs(weight), free))
    removable = sum(free for _, free in connections)
    found = magnitude_pruning(net, stability)
    if not removable:
        assert found is None
        return
    assert found is not None
    left, at = removable, []
    for taken, (_, free) in enumerate(sorted(connections), 1):
        left -= free
        if free:
            at.append(taken)
        if taken == removable:
            missed = left
    assert (found["connections"], found["removable"], found["missed"]) == (
        len(connections),
        removable,
        missed,
    )
    assert found["last"] == pytest.approx(at[-1] / len(connections))
    assert found["median"] == pytest.approx(at[(len(at) - 1) // 2] / len(connections))
