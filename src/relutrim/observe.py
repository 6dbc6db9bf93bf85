"""What can be seen of two networks: how far apart they are, over the real numbers and as they run.

A proof says how far apart they are at most. Here is the other side: inputs of the domain are tried, and from
those with the largest difference gradient ascent goes on. What that finds, less the rounding of its own
evaluation, is a difference that certainly exists, so it is never above what is proven.

In the type of a deployment both networks round, and so does the original on its own; only the three numbers
together say whether a difference matters. An input is what the file's type can hold; then the input, the
weights and every value are rounded to the deployed type. In bfloat16, products are summed in float32 and
rounded once, as hardware does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from relutrim.analysis import as_rows
from relutrim.bounds.interval import forward_radius
from relutrim.domain.domain import Problem
from relutrim.domain.region import Region
from relutrim.errors import InputError
from relutrim.graph.graph import Network, Node
from relutrim.intervals import Interval, flat
from relutrim.memory import AMPLE, MemoryBudget
from relutrim.prove.deadline import Deadline
from relutrim.prove.stability import Stability
from relutrim.rounding import UNIT, widen_down

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16-check": torch.bfloat16}
"""The types to look at networks in, by the names that the command line has for them."""

_SAMPLES, _WORK = 2048, 2**30
"""So many inputs of one kind, or as many as take so many multiplications, or have so many numbers in all
values.
"""
_FEW, _MORE_WORK = 32, 2**33
"""Where those are fewer than so many, the second number."""
_FEWEST = 2
_PART = 0.1
"""The part of the time that one look at one network may take."""
_NUMBERS = 2**25
"""How many numbers of all values are held at once."""
_ENDS = 2**22
"""How many numbers the inputs of one kind and their outputs may have together; one input may have more."""
_WITH_RADIUS = 8
"""How often values are held where it is computed how far off they may be."""
_NEAR = (0.1, 10.0)
"""Where inputs have no end, how far to go."""
_STARTS = 32
_STEPS = 30


@dataclass(frozen=True)
class Predictions:
    """How often the largest output is the same one, as shares of ``inputs``.

    ``original`` and ``compressed``: each network in the deployed type against the original in float64.
    ``agree``: both in the deployed type. ``from_data``: on the user's data, not on sampled inputs.
    """

    inputs: int
    from_data: bool
    original: float
    compressed: float
    agree: float


@dataclass(frozen=True)
class InType:
    """In one type: the largest difference of both networks, the original's own largest error (in float64 a
    bound on it), and how often they predict the same (None where there is nothing to choose from).
    """

    difference: float
    own_error: float
    predictions: Predictions | None


@dataclass(frozen=True)
class Observation:
    """``found`` certainly exists between both networks over the real numbers; ``by_type`` is what rounding
    makes of it.
    """

    found: float
    inputs: int
    by_type: dict[str, InType]


def checked_dtype(dtype: str | None, network: Network) -> str:
    """One of :data:`DTYPES`; None is the type of the network's file."""
    if dtype is None:
        return network.dtype
    if dtype not in DTYPES:
        raise InputError(
            f"there is no type {dtype!r} to look at networks in; choose one of {', '.join(DTYPES)}"
        )
    return dtype


def observe(
    original: Network,
    stored: Network,
    stability: Stability,
    data: Any,
    *dtypes: str,
    deadline: Deadline | None = None,
    search: Deadline | None = None,
    same: bool = False,
    memory: MemoryBudget = AMPLE,
) -> Observation:
    """Both networks on random inputs, corners, witnesses, data, and where a search finds them farthest apart,
    unless it is known that they are the ``same`` over the real numbers. By the deadline all of it is done,
    fewer inputs if need be; ``search`` ends the search alone.
    """
    problem, deadline = stability.problem, deadline or Deadline()
    region = problem.region()
    points, rows = samples(stability, data), _data_rows(stability, data)
    one, other = problem.network, _on_the_domain(problem, original, stored)
    few = affordable(one, points, deadline)
    points, rows = points[-few:], rows[-few:]
    apart = (
        points[:0]
        if same or stored is original
        else climb(one, other, region, points, deadline=search or deadline, memory=memory)
    )
    found = certain_difference(one, other, apart, deadline, memory)
    inputs = behind_normalisation(problem, original, torch.cat([points, apart]))
    ordinary = slice(len(points) - len(rows) if len(rows) else 0, len(points))
    inputs = inputs.to(torch.float64 if original.dtype == "float64" else torch.float32)
    truth = outputs_of(original, inputs.to(torch.float64), memory)
    by_type = {
        dtype: _in_type(DTYPES[dtype], original, stored, inputs, truth, ordinary, bool(len(rows)), memory)
        for dtype in dict.fromkeys(dtypes)
    }
    return Observation(found, len(inputs), by_type)


def affordable(network: Network, points: Tensor, deadline: Deadline) -> int:
    """How many of the points there is time to look at, going by the first of them."""
    if math.isinf(deadline.left):
        return len(points)
    began, few = time.monotonic(), points[:_FEWEST]
    outputs_of(network, few)
    each = (time.monotonic() - began) / max(1, len(few))
    return max(1, len(few), int(min(len(points), _PART * deadline.left / max(each, 1e-9))))


def samples(stability: Stability, data: Any) -> Tensor:
    """Inputs in raw units: random ones, random corners, witnesses, and last the rows of the data; of each as
    many as can be looked at quickly.
    """
    generator = torch.Generator().manual_seed(1)
    region, most = stability.problem.region(), most_samples(stability.problem.network)
    witnesses = most if region.bounded else 0  # those of a domain without ends are far out
    return torch.cat(
        [
            region.sample(most, generator, _NEAR),
            torch.as_tensor(stability.witnesses[:witnesses]),
            _data_rows(stability, data),
        ]
    )


def most_samples(network: Network) -> int:
    """How many inputs to look at: fewer where one takes many multiplications, or has many numbers in its
    values, and those of all inputs and outputs have to be held.
    """
    each = max(1, network.multiply_adds, _numbers(network))
    most = max(_FEWEST, min(_FEW, _MORE_WORK // each), min(_SAMPLES, _WORK // each))
    return max(1, min(most, _ENDS // max(1, network.input.size, _outputs(network))))


def _data_rows(stability: Stability, data: Any) -> Tensor:
    """The first rows of the data, (n, inputs). What lies outside the domain says nothing."""
    region = stability.problem.region()
    rows = as_rows(data, stability.problem)
    if rows is None:
        return region.lo.new_zeros(0, region.size)
    first = rows[: most_samples(stability.problem.network)].to(torch.float64)
    return first[region.inside(first)]


def behind_normalisation(problem: Problem, original: Network, points: Tensor) -> Tensor:
    """What the original network sees of inputs in raw units."""
    name = original.input.name
    if problem.network.input.name == name:
        return points
    return flat(problem.network.run(points, until=[name])[name])


def _on_the_domain(problem: Problem, original: Network, stored: Network) -> Network:
    """The compressed network with the domain's normalisation in front, as the problem's network has it."""
    name = original.input.name
    if problem.network.input.name == name:
        return stored
    raw = problem.network.input.name
    while raw in stored:
        raw += "_"
    front = Node(name, problem.network[name].operator, (raw,))
    return replace(stored, input=replace(problem.network.input, name=raw), nodes=(front, *stored.nodes))


def climb(
    one: Network,
    other: Network,
    region: Region,
    points: Tensor,
    *,
    starts: int = _STARTS,
    steps: int = _STEPS,
    deadline: Deadline | None = None,
    memory: MemoryBudget = AMPLE,
) -> Tensor:
    """Inputs that provably lie in the region, where two networks are far apart: the best met by sign-gradient
    steps of shrinking size on ``|f_k - f'_k|``, from the points and outputs k where it is largest.
    """
    points = points[region.inside(points)]
    starts = max(1, min(starts, memory.share(_NUMBERS) // max(1, _numbers(one) + _numbers(other))))
    gap = (
        (outputs_of(one, points, memory) - outputs_of(other, points, memory)).abs().nan_to_num(0.0, 0.0, 0.0)
    )
    if not gap.any():
        return points[:0]
    outputs = gap.shape[1]
    # The best few inputs of each output, then the best of all of these: one output must not take all starts.
    values, rows = gap.topk(min(len(points), math.ceil(starts / outputs)), dim=0)
    best, order = values.flatten().topk(min(starts, values.numel()))
    target, x = order % outputs, points[rows.flatten()[order]]
    best_at, width = x, region.width
    for step in range(steps + 1):
        if deadline is not None and deadline.passed:
            break
        x = x.detach().requires_grad_(True)
        difference = (one(x) - other(x)).gather(1, target[:, None])[:, 0].abs()
        (slope,) = torch.autograd.grad(difference.sum(), x, allow_unused=True, materialize_grads=True)
        x = x.detach()
        better = (difference.detach() > best) & region.inside(x)
        best, best_at = difference.detach().where(better, best), x.where(better[:, None], best_at)
        x = region.project(x + 0.5 * (1 - step / (steps + 1)) ** 2 * width * slope.nan_to_num(0.0).sign())
    return best_at


def outputs_of(network: Network, points: Tensor, memory: MemoryBudget = AMPLE) -> Tensor:
    """All outputs, flat."""
    return torch.cat([*outputs_by_part(network, points, memory=memory)])


def outputs_by_part(
    network: Network,
    points: Tensor,
    deadline: Deadline | None = None,
    memory: MemoryBudget = AMPLE,
) -> Iterator[Tensor]:
    """All outputs, flat, of some inputs at a time so that memory stays bounded; of the first few alone where
    time is up.
    """
    for part in _parts(network, points, memory):
        few = _FEWEST if deadline is not None and deadline.limited else max(1, len(part))
        for piece in _doubling(part, few):
            with torch.no_grad():
                yield network(piece)
            if deadline is not None and deadline.passed:
                return


def _doubling(points: Tensor, first: int) -> Iterator[Tensor]:
    """Inputs in pieces: so few first, each piece as long as all before it together."""
    yield points[:first]
    while first < len(points):
        yield points[first : 2 * first]
        first *= 2


def largest_outputs(
    network: Network,
    stability: Stability,
    data: Any,
    deadline: Deadline | None = None,
    memory: MemoryBudget = AMPLE,
) -> Tensor:
    """How large every output, flat, was seen to get, 0 where it is no number; on some inputs alone where time
    is up.
    """
    first = samples(stability, data).flip(0)  # data and witnesses before what is random
    points = behind_normalisation(stability.problem, network, first)
    each = (part.abs().amax(0) for part in outputs_by_part(network, points, deadline, memory))
    return reduce(torch.maximum, each).nan_to_num(0.0, 0.0, 0.0)


def certain_difference(
    one: Network,
    other: Network,
    points: Tensor,
    deadline: Deadline | None = None,
    memory: MemoryBudget = AMPLE,
) -> float:
    """The largest ``|f_k - f'_k|`` at some inputs over the real numbers, or a little less: the rounding of
    both evaluations is taken off. 0 where nothing is certain; of the first inputs alone where time is up.
    """
    largest = 0.0
    for part in _parts(one, points, memory, _WITH_RADIUS):
        (before, radius), (after, other_radius) = _with_radius(one, part), _with_radius(other, part)
        gap = (before - after).abs()
        lower = widen_down(gap, (radius + other_radius + UNIT * gap) * (1 + 2.0**-20))
        if lower.numel():
            largest = max(largest, float(lower.nan_to_num(0.0, 0.0, 0.0).max()))
        if deadline is not None and deadline.passed:
            break
    return largest


def _with_radius(network: Network, points: Tensor) -> tuple[Tensor, Tensor]:
    """All outputs, flat, and how far each can be from the real number."""
    with torch.no_grad():
        values = network.run(points)
        radii = forward_radius(network, {name: Interval(value, value) for name, value in values.items()})
    return (
        torch.cat([flat(values[name]) for name in network.sources], 1),
        torch.cat([flat(radii[name]) for name in network.sources], 1),
    )


def _own_radius(network: Network, points: Tensor, memory: MemoryBudget) -> Tensor:
    """How far each output can be from the real number, for some inputs at a time."""
    parts = _parts(network, points, memory, _WITH_RADIUS)
    return torch.cat([_with_radius(network, part)[1] for part in parts])


def _parts(network: Network, points: Tensor, memory: MemoryBudget, copies: int = 1) -> tuple[Tensor, ...]:
    """Inputs, at least one at a time, such that all values fit in memory ``copies`` times."""
    return torch.split(points, max(1, memory.share(_NUMBERS) // max(1, copies * _numbers(network))))


def _numbers(network: Network) -> int:
    """How many numbers all values have, of one input."""
    return sum(map(network.size, network.shapes))


def _outputs(network: Network) -> int:
    """How many of them are outputs."""
    return sum(map(network.size, network.sources))


def _in_type(
    dtype: torch.dtype,
    original: Network,
    stored: Network,
    inputs: Tensor,
    truth: Tensor,
    ordinary: slice,
    from_data: bool,
    memory: MemoryBudget,
) -> InType:
    """Both networks in one type, beside the original in float64; predictions are counted on the inputs that
    no search has chosen. What depends on values that only the model itself can tell is left out; where that
    is everything, the differences are NaN.
    """
    rounded = inputs.to(dtype)
    before = outputs_of(original, rounded, memory).to(torch.float64)
    after = before if stored is original else outputs_of(stored, rounded, memory).to(torch.float64)
    if not truth.numel():
        return InType(0.0, 0.0, None)
    names = {output.source for output in original.outputs}
    known = ~truth.isnan().all(0)
    known[sum(map(original.size, names)) :] = False  # what is pinned is no output
    if not bool(known.any()):
        return InType(math.nan, math.nan, None)
    own = (before - truth).abs()
    if dtype == torch.float64:  # nothing more accurate is at hand, so this is a bound
        own = _own_radius(original, inputs.to(dtype), memory)
    predictions = None
    size = original.size(original.outputs[0].source)
    if len(names) == 1 and size > 1 and bool(known[:size].all()):
        right, old, new = (values[ordinary, :size].argmax(1) for values in (truth, before, after))
        shares = (float((a == b).double().mean()) for a, b in ((old, right), (new, right), (old, new)))
        predictions = Predictions(len(right), from_data, *shares)
    apart = (before - after).abs()
    return InType(float(apart[:, known].max()), float(own[:, known].max()), predictions)
