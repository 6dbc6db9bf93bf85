"""Rounds of solving and cutting, and branching on states where cuts alone do not decide.

Every leaf of the tree is closed by a Lagrangian bound that holds in spite of rounding, or by a ray that
proves it empty. Cuts are made from the ranges that hold on the whole domain, so they serve every node.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from relutrim.bounds.linear import Backward
from relutrim.network.operators import Array
from relutrim.prove.deadline import Deadline
from relutrim.prove.hull.model import Model

_ROUNDS = (14, 5)
"""Rounds of cuts at the root and at other nodes."""
_STALL = 0.03
"""Rounds of cuts go on while each closes at least this share of what is missing."""


@dataclass(eq=False)
class HullBound:
    """A proven lower bound of ``sign * y`` (NaN: none), and how many nodes of the tree were solved."""

    lower: float = math.nan
    nodes: int = 0


def hull_bound(
    backward: Backward,
    target: str,
    neuron: int,
    sign: float,
    deadline: Deadline,
    refuted: Callable[[Tensor], bool] = lambda _: False,
) -> HullBound:
    """The best bound of one neuron's pre-activation that can be had in time.

    Stops as soon as the bound is 0 or more, or ``refuted`` says that the inputs of the solutions show the
    opposite. Until the tree is closed, the bound is that of its root.
    """
    model = Model(backward, target, neuron, sign)
    found = HullBound()
    waiting: list[dict[int, bool]] = [{}]
    closed: list[float] = []
    while waiting:
        states = waiting.pop()
        model.split(states)
        bound, last, inputs = _cut_and_solve(model, _ROUNDS[bool(states)], deadline)
        found.nodes += 1
        if not states:
            found.lower = bound
        if bound >= 0:
            closed.append(bound)
            continue
        branch = None if last is None else model.to_branch(*last)
        if (inputs and refuted(torch.cat(inputs))) or last is None or branch is None or deadline.passed:
            return found
        model.purge(last[1])
        waiting += [{**states, branch: False}, {**states, branch: True}]
    found.lower = min(closed)
    return found


def _cut_and_solve(
    model: Model, rounds: int, deadline: Deadline
) -> tuple[float, tuple[Array, Array] | None, list[Tensor]]:
    """The best bound over rounds of cuts, infinite if there is no point at all; the last solution; all
    inputs.
    """
    best, last = math.nan, None
    inputs: list[Tensor] = []
    for _ in range(rounds):
        if deadline.passed:
            break
        last = model.program.solve(min(deadline.left, 1e6))
        if last is None:
            return (math.inf if model.program.infeasible() else best), None, inputs
        inputs.append(model.input_of(last[0]))
        bound = float(np.nextafter(model.program.lower_bound(last[1]) - model.slack, -np.inf))
        stalled = bound - best < _STALL * abs(best)
        best = float(np.fmax(best, bound))
        if best >= 0 or stalled or not model.separate(last[0]):
            break
    return best, last, inputs
