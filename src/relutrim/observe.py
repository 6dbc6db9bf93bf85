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
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from relutrim.analysis import as_rows
from relutrim.bounds.interval import forward_radius
from relutrim.bounds.values import Interval, flat
from relutrim.domain.domain import Problem
from relutrim.domain.region import Region
from relutrim.errors import InputError
from relutrim.network.graph import Network, Node
from relutrim.prove.stability import Stability
from relutrim.rounding import UNIT, widen_down

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16-check": torch.bfloat16}
"""The types to look at networks in, by the names that the command line has for them."""

_SAMPLES = 2048
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


def observe(original: Network, stored: Network, stability: Stability, data: Any, *dtypes: str) -> Observation:
    """Both networks on random inputs, corners, witnesses, data, and where a search finds them farthest
    apart.
    """
    problem = stability.problem
    region = problem.region()
    points, rows = samples(stability, data), _data_rows(stability, data)
    one, other = problem.network, _on_the_domain(problem, original, stored)
    apart = climb(one, other, region, points)
    found = certain_difference(one, other, apart)
    inputs = behind_normalisation(problem, original, torch.cat([points, apart]))
    ordinary = slice(len(points) - len(rows) if len(rows) else 0, len(points))
    inputs = inputs.to(torch.float64 if original.dtype == "float64" else torch.float32)
    truth = original(inputs.to(torch.float64))
    by_type = {
        dtype: _in_type(DTYPES[dtype], original, stored, inputs, truth, ordinary, bool(len(rows)))
        for dtype in dict.fromkeys(dtypes)
    }
    return Observation(found, len(inputs), by_type)


def samples(stability: Stability, data: Any) -> Tensor:
    """Inputs in raw units: random ones, random corners, witnesses, and last the rows of the data."""
    generator = torch.Generator().manual_seed(1)
    region = stability.problem.region()
    return torch.cat(
        [
            region.sample(_SAMPLES, generator),
            torch.as_tensor(stability.witnesses[:_SAMPLES]),
            _data_rows(stability, data),
        ]
    )


def _data_rows(stability: Stability, data: Any) -> Tensor:
    """The first rows of the data, (n, inputs). What lies outside the domain says nothing."""
    region = stability.problem.region()
    rows = as_rows(data, stability.problem)
    if rows is None:
        return region.lo.new_zeros(0, region.size)
    first = rows[:_SAMPLES].to(torch.float64)
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
) -> Tensor:
    """Inputs that provably lie in the region, where two networks are far apart: the best met by sign-gradient
    steps of shrinking size on ``|f_k - f'_k|``, from the points and outputs k where it is largest.
    """
    points = points[region.inside(points)]
    with torch.no_grad():
        gap = (one(points) - other(points)).abs().nan_to_num(0.0, 0.0, 0.0)
    if not gap.any():
        return points[:0]
    outputs = gap.shape[1]
    # The best few inputs of each output, then the best of all of these: one output must not take all starts.
    values, rows = gap.topk(min(len(points), math.ceil(starts / outputs)), dim=0)
    best, order = values.flatten().topk(min(starts, values.numel()))
    target, x = order % outputs, points[rows.flatten()[order]]
    best_at, width = x, region.hi - region.lo
    for step in range(steps + 1):
        x = x.detach().requires_grad_(True)
        difference = (one(x) - other(x)).gather(1, target[:, None])[:, 0].abs()
        (slope,) = torch.autograd.grad(difference.sum(), x, allow_unused=True, materialize_grads=True)
        x = x.detach()
        better = (difference.detach() > best) & region.inside(x)
        best, best_at = difference.detach().where(better, best), x.where(better[:, None], best_at)
        x = region.project(x + 0.5 * (1 - step / (steps + 1)) ** 2 * width * slope.nan_to_num(0.0).sign())
    return best_at


def certain_difference(one: Network, other: Network, points: Tensor) -> float:
    """The largest ``|f_k - f'_k|`` at some inputs over the real numbers, or a little less: the rounding of
    both evaluations is taken off. 0 where nothing is certain.
    """
    if not len(points):
        return 0.0
    (before, radius), (after, other_radius) = _with_radius(one, points), _with_radius(other, points)
    gap = (before - after).abs()
    lower = widen_down(gap, (radius + other_radius + UNIT * gap) * (1 + 2.0**-20))
    return max(0.0, float(lower.nan_to_num(0.0, 0.0, 0.0).max())) if lower.numel() else 0.0


def _with_radius(network: Network, points: Tensor) -> tuple[Tensor, Tensor]:
    """All outputs, flat, and how far each can be from the real number."""
    with torch.no_grad():
        values = network.run(points)
        radii = forward_radius(network, {name: Interval(value, value) for name, value in values.items()})
    return (
        torch.cat([flat(values[name]) for name in network.sources], 1),
        torch.cat([flat(radii[name]) for name in network.sources], 1),
    )


def _in_type(
    dtype: torch.dtype,
    original: Network,
    stored: Network,
    inputs: Tensor,
    truth: Tensor,
    ordinary: slice,
    from_data: bool,
) -> InType:
    """Both networks in one type, beside the original in float64; predictions are counted on the inputs that
    no search has chosen.
    """
    rounded = inputs.to(dtype)
    before, after = original(rounded).to(torch.float64), stored(rounded).to(torch.float64)
    if not truth.numel():
        return InType(0.0, 0.0, None)
    own = (before - truth).abs()
    if dtype == torch.float64:  # nothing more accurate is at hand, so this is a bound
        _, own = _with_radius(original, inputs.to(dtype))
    predictions = None
    if len(original.sources) == 1 and truth.shape[1] > 1:
        right, old, new = (values[ordinary].argmax(1) for values in (truth, before, after))
        shares = (float((a == b).double().mean()) for a, b in ((old, right), (new, right), (old, new)))
        predictions = Predictions(len(right), from_data, *shares)
    return InType(float((before - after).abs().max()), float(own.max()), predictions)
