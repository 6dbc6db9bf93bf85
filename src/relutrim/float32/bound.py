"""The bound on what runs: the deviation over the real numbers and both networks' own errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from torch import Tensor

from relutrim.bounds.interval import input_interval, value_interval
from relutrim.domain.domain import Problem
from relutrim.float32.evaluation import error
from relutrim.float32.operations import covered
from relutrim.graph.graph import Network, Node
from relutrim.intervals import Interval
from relutrim.memory import AMPLE, MemoryBudget


def proven_float32(
    problem: Problem,
    original: Network,
    stored: Network,
    ranges: Mapping[str, Interval],
    stored_ranges: Mapping[str, Interval],
    proven: float | Tensor,
    *,
    stopped: Callable[[], bool] = lambda: False,
    memory: MemoryBudget = AMPLE,
) -> float | None:
    """A bound on ``|fl(stored) - fl(original)|`` over all outputs and the domain, or None if there is none
    that is finite: float64 files, operators that IEEE says nothing of, values that may overflow.

    ``problem`` is what was analysed, ``proven`` the deviation over the real numbers, one number or one per
    output entry. Ranges are proven bounds of both networks' values; what they leave out is bounded anew.
    Once ``stopped`` says so, the bound gets looser instead of taking longer; with little ``memory`` too.
    """
    if original.dtype != "float32" or stored.dtype != "float32" or not covered(original):
        return None
    one = evaluation_error(problem, original, ranges, stopped=stopped, memory=memory)
    if one is None:
        return None
    other = evaluation_error(problem, stored, stored_ranges, stopped=stopped, memory=memory)
    if other is None or one.shape != other.shape:
        return None
    total = ((one + other) * (1 + 2.0**-40) + proven) * (1 + 2.0**-40)
    largest = float(total.max()) if total.numel() else 0.0
    finite = math.isfinite(largest) and not bool(total.isnan().any())
    return largest if finite else None


def evaluation_error(
    problem: Problem,
    network: Network,
    ranges: Mapping[str, Interval],
    *,
    stopped: Callable[[], bool] = lambda: False,
    memory: MemoryBudget = AMPLE,
) -> Tensor | None:
    """Per output entry, how far a float32 evaluation of one network is from the real numbers at most, for any
    input of the domain and any order of summation; None where something may overflow or is not covered.
    """
    if not covered(network):
        return None
    framed = _on_the_domain(problem, network)
    region = problem.region()
    known = {framed.input.name: input_interval(framed, region.box())}
    for node in framed.nodes:
        found = value_interval(framed, node, known)
        known[node.name] = found.meet(ranges[node.name]) if node.name in ranges else found
    return error(framed, region, known, network.input.name, stopped, memory)


def _on_the_domain(problem: Problem, network: Network) -> Network:
    """The network with the domain's normalisation in front, if there is one."""
    name = network.input.name
    if problem.network.input.name == name:
        return network
    raw = network.free_name(problem.network.input.name)
    front = Node(name, problem.network[name].operator, (raw,))
    return replace(network, input=replace(problem.network.input, name=raw), nodes=(front, *network.nodes))
