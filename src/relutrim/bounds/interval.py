"""Interval bounds: one sweep through the graph, each operator's image of the ranges before it.

Where a range has no end (or nothing is known of it, which is NaN), an affine operator's image is that of the
finite part of the ranges, and has no end where a weight that is not 0 leads there. What is multiplied by
exactly 0 adds exactly nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from relutrim.bounds.gates import Gate, gates
from relutrim.graph.graph import Network, Node
from relutrim.graph.operators import (
    Add,
    Affine,
    AveragePool,
    Barrier,
    Concat,
    Convolution,
    Fresh,
    Linear,
    Mean,
    Operator,
    Reshape,
    Scale,
    Take,
    Transpose,
)
from relutrim.intervals import Interval
from relutrim.rounding import ETA, gamma

if TYPE_CHECKING:
    from relutrim.prove.deadline import Deadline


def input_interval(network: Network, box: Interval) -> Interval:
    """The domain's box in the shape of the network's input."""
    shape = (1, *network.input.shape)
    return Interval(box.lo.reshape(shape), box.hi.reshape(shape))


def value_interval(network: Network, node: Node, values: Mapping[str, Interval]) -> Interval:
    """What is known about a node's value: the image of its inputs, and what they are together where it is a
    gate (:mod:`relutrim.bounds.gates`). For the network's own functions: every ReLU is one.
    """
    found, gate = node_interval(node, values), gates(network).get(node.name)
    return found if gate is None else found.meet(gate.range(values))


def node_interval(node: Node, values: Mapping[str, Interval]) -> Interval:
    """The image of what is known about a node's inputs."""
    if isinstance(node.operator, Fresh):
        like = next(iter(values.values())).lo
        found, rows = node.operator.range(like), (len(like), *node.operator.shape)
        return Interval(found.lo.expand(rows), found.hi.expand(rows))
    return image(node.operator, [values[name] for name in node.inputs])


def image(operator: Operator, inputs: Sequence[Interval]) -> Interval:
    """What an operator makes of ranges, of which some may have no end."""
    if all(bool((x.lo.isfinite() & x.hi.isfinite()).all()) for x in inputs):
        return operator.interval(inputs)
    ends = [
        Interval(
            x.lo.nan_to_num(-torch.inf, -torch.inf, -torch.inf),
            x.hi.nan_to_num(torch.inf, torch.inf, torch.inf),
        )
        for x in inputs
    ]
    if not isinstance(operator, Affine):
        return operator.interval(ends)
    found = operator.interval([_finite_part(x) for x in ends])
    falls, rises = _endless(operator, ends)
    return Interval(found.lo.where(~falls, -torch.inf), found.hi.where(~rises, torch.inf))


def _finite_part(x: Interval) -> Interval:
    """A part of a range that has two ends, and those of the range where these are numbers."""
    lo = torch.where(x.lo.isfinite(), x.lo, torch.where(x.hi.isfinite(), x.hi, torch.zeros_like(x.lo)))
    return Interval(lo, torch.where(x.hi.isfinite(), x.hi, lo))


def _endless(operator: Affine, inputs: Sequence[Interval]) -> tuple[Tensor, Tensor]:
    """Which entries of a value have no smallest number, and no largest one."""
    below = [(~x.lo.isfinite()).to(x.lo) for x in inputs]
    above = [(~x.hi.isfinite()).to(x.hi) for x in inputs]
    plus: Affine
    minus: Affine
    match operator:
        case Linear() | Convolution():
            weight, none = operator.weight, np.zeros_like(operator.bias)
            plus = replace(operator, weight=np.maximum(weight, 0), bias=none)
            minus = replace(operator, weight=np.maximum(-weight, 0), bias=none)
        case Scale():
            scale, radius = operator.scale, operator.scale_radius  # whose sum may overflow
            plus, minus = (
                Scale.exactly(some.astype(np.float64)) for some in (scale > -radius, scale < radius)
            )
        case Add() | AveragePool() | Mean() | Concat() | Reshape() | Take() | Transpose():
            return operator.spread(below) > 0, operator.spread(above) > 0  # no weight is negative
        case _:
            both = operator.spread([one.maximum(other) for one, other in zip(below, above, strict=True)]) > 0
            return both, both
    falls = (plus.spread(below) > 0) | (minus.spread(above) > 0)
    return falls, (plus.spread(above) > 0) | (minus.spread(below) > 0)


def magnitude(operator: Affine, reach: Sequence[Tensor]) -> Tensor:
    """``|W| m + |b|``, infinite just where a weight that is not 0 meets a magnitude that is no number."""
    if all(bool(m.isfinite().all()) for m in reach):
        return operator.magnitude(reach)
    endless = [(~m.isfinite()).to(m) for m in reach]
    finite = [m.where(m.isfinite(), 0.0) for m in reach]
    some = operator.spread(endless) > 0
    if isinstance(operator, Scale):
        some = some | ((endless[0] > 0) & torch.as_tensor(operator.scale_radius > 0, device=some.device))
    return operator.magnitude(finite).where(~some, torch.inf)


def settle_ties(
    node: Node, values: dict[str, Interval], found: Interval, deadline: Deadline | None = None
) -> Interval:
    """Decide in rational arithmetic those ends that are too close to 0 for float64.

    A sum such as 2 - 1 - 1 is exactly 0 and so a proof, but its rounding radius is not. Only linear nodes and
    convolutions, and only ends within the radius, of which a trained network has next to none; those that the
    deadline leaves stay as they are.
    """
    operator = node.operator
    if not isinstance(operator, Linear | Convolution) or (
        isinstance(operator, Linear) and found.lo.ndim != 2
    ):
        return found
    source = values[node.inputs[0]]
    terms = operator.terms([tuple(source.lo.shape[1:])])
    reach = 4 * gamma(terms) * magnitude(operator, [source.magnitude])
    # An end of 0, or beyond it, has decided the sign already.
    near = ((found.lo < 0) & (found.lo >= -reach)) | ((found.hi > 0) & (found.hi <= reach))
    near &= torch.isfinite(reach)
    rows = near.flatten().nonzero()[:, 0].tolist()
    if not rows:
        return found
    # A row whose reach is finite reads nothing that has no end.
    low_ends, high_ends = (
        np.nan_to_num(end[0].cpu().numpy(), posinf=0, neginf=0) for end in (source.lo, source.hi)
    )
    lo, hi = found.lo.clone().flatten(), found.hi.clone().flatten()
    for row in rows:
        if deadline is not None and deadline.passed:
            break
        low, high = operator.exact_extremes(row, low_ends, high_ends)
        lo[row], hi[row] = _float_below(low), -_float_below(-high)
    return found.meet(Interval(lo.reshape(found.lo.shape), hi.reshape(found.hi.shape)))


def _float_below(value: Fraction) -> float:
    """The largest float64 at or below an exact value (or close to it)."""
    try:
        near = float(value)
    except OverflowError:
        return float("nan")
    return near if Fraction(near) <= value else float(np.nextafter(near, -np.inf))


def forward_radius(network: Network, values: dict[str, Interval]) -> dict[str, Tensor]:
    """How far a float64 forward pass can be from the real value, for every node and any input of the domain.

    One radius for the whole domain, from the ranges in ``values``: each affine operator adds ``gamma |W|
    |x|`` and passes on ``|W| r``; ReLU passes the radius on, and max pooling the largest of each window; a
    barrier passes on what its slope makes of it, and adds what it rounds itself. What depends on values from
    nowhere is not known at all.
    """
    source, known = values[network.input.name], gates(network)
    radius = {network.input.name: torch.zeros_like(source.lo)}
    rounded: dict[str, Tensor] = {}
    for node in network.nodes:
        before = [radius[name] for name in node.inputs]
        operator = node.operator
        if isinstance(operator, Fresh):
            radius[node.name] = source.lo.new_full((len(source.lo), *operator.shape), torch.inf)
            continue
        total = operator.spread(before)
        if isinstance(operator, Barrier):
            reach, result = values[node.inputs[0]].magnitude + before[0], values[node.name].magnitude + total
            radius[node.name] = (total + operator.rounding(reach, result)) * (1 + 2.0**-20)
            continue
        if not isinstance(operator, Affine):
            radius[node.name] = total
            continue
        own = rounded[node.name] = _own_rounding(network, node, operator, before, values)
        radius[node.name] = (total + own) * (1 + 2.0**-20)
        if node.name in known:
            together = _gate_radius(known[node.name], radius, rounded)
            radius[node.name] = torch.fmin(radius[node.name], together)
    return radius


def _own_rounding(
    network: Network, node: Node, operator: Affine, before: Sequence[Tensor], values: Mapping[str, Interval]
) -> Tensor:
    """What an affine node adds to the radii of what it reads: its sums round, and its coefficients may be
    known up to a radius only.
    """
    reaches = [values[name].magnitude + r for name, r in zip(node.inputs, before, strict=True)]
    terms = operator.terms([network.shapes[name] for name in node.inputs])
    own = gamma(terms) * operator.magnitude(reaches) + terms * ETA if terms else before[0].new_zeros(())
    fuzz = operator.fuzz(reaches)
    return own if fuzz is None else own + fuzz


def _gate_radius(gate: Gate, radius: Mapping[str, Tensor], rounded: Mapping[str, Tensor]) -> Tensor:
    """How far off a gate is: no farther than its argument times its steepest slope, and what its own nodes
    round.
    """
    start = radius[gate.source]
    own = {gate.source: torch.zeros_like(start)}
    for node in gate.nodes:
        total = node.operator.spread([own[name] for name in node.inputs])
        own[node.name] = (total + rounded[node.name] if node.name in rounded else total) * (1 + 2.0**-20)
    return (gate.steepness.to(start) * start + own[gate.nodes[-1].name]) * (1 + 2.0**-20)
