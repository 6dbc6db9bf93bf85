"""Ranges as tight as linear bounds make them, of every neuron and every output.

An analysis stops bounding a neuron once its state is known. Whoever puts the network into a program of their
own wants more: the range of an unstable neuron is its big-M constant, and the outputs have ranges too. One
sweep from the first layer to the last with every slope, starting from what the analysis has proved.
"""

from __future__ import annotations

import torch

from relutrim.bounds.interval import value_interval
from relutrim.bounds.linear import Backward
from relutrim.bounds.relaxation import Slope
from relutrim.graph.operators import Relu
from relutrim.intervals import Interval
from relutrim.prove.deadline import Deadline
from relutrim.prove.stability import Stability


def tightest(stability: Stability, deadline: Deadline | None = None) -> dict[str, Interval]:
    """Proven ranges of every value, never wider than :attr:`Stability.ranges`; where time is up, as they
    were.
    """
    deadline = deadline or Deadline()
    network = stability.problem.network
    values = {name: Interval(r.lo.cpu(), r.hi.cpu()) for name, r in stability.ranges.items()}
    backward = Backward(network, stability.problem.region(), values)
    with torch.no_grad():
        for node in network.nodes:
            values[node.name] = values[node.name].meet(value_interval(network, node, values))
            backward.forget()
            read = any(isinstance(reader.operator, Relu) for reader in network.readers(node.name))
            if not (read or network.is_output(node.name)):
                continue
            pre = values[node.name]
            # A ReLU whose state is known has no constant to be tightened.
            stable = ((pre.lo >= 0) | (pre.hi <= 0)).flatten() & (not network.is_output(node.name))
            every = (~stable).nonzero()[:, 0]
            for slope in Slope if len(every) else ():
                for index in torch.split(every, backward.rows):
                    for sign in (1.0, -1.0):
                        if deadline.passed:
                            return values
                        lower = backward.neurons(node.name, index, sign, slope).lower
                        values[node.name] = values[node.name].tightened(index, sign, lower)
    return values
