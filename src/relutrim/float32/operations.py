"""What one operator rounds in float32, and what a runtime may fuse it with.

A sum of products evaluated in any order is off by at most ``gamma_k (|W| |a| + |b|) + underflow``, where no
term goes through more than ``k`` roundings, each off by ``u = 2**-24`` relative to its result, and
``gamma_k = k u / (1 - k u)``. A product or quotient that underflows is off by ``2**-150`` besides.

**Fusion.** A linear node (weights ``w``) with a batch norm ``s y + t`` behind it may run as one node with the
weights ``fl(w s)`` and the bias ``fl(b s + t)``, and a residual sum may start where a convolution adds up its
products. No term of such a fused evaluation goes through more roundings than there are in all nodes of the
chain together, so every node of a chain is charged for that many. Its magnitudes are never smaller than the
fused ones: ``|s| (|W| |a| + |b|) + |t|``, node by node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from relutrim.graph.graph import Network, Node
from relutrim.graph.operators import (
    Add,
    Affine,
    Array,
    AveragePool,
    Concat,
    Convolution,
    Linear,
    MaxPool,
    Mean,
    Operator,
    Relu,
    Reshape,
    Scale,
    Shape,
    Take,
    Transpose,
)

Mask = npt.NDArray[np.bool_]
UNIT = 2.0**-24
"""Unit roundoff of float32."""
ETA = 2.0**-149
"""Smallest positive float32; an underflowing product is off by at most half of it."""
LARGEST = (2 - 2.0**-23) * 2.0**127
"""Largest finite float32."""

MOVING = (Reshape, Take, Transpose, Concat)
"""Operators that only move numbers."""
_SELECTING = (Relu, MaxPool)
_STARTING = (Linear, Convolution, AveragePool, Mean)
_JOINING = (Scale, Add)

_DIVISION = 3.0
"""``x / d`` rounds once, ``x * fl(1 / d)`` twice."""
_NORMALISATION = 10.0
"""``gain * (x - mean) / sqrt(variance + epsilon) + bias``, in whatever order or as ``s x + t``: epsilon, its
sum, the root, a quotient and a product make at most 5 for ``s``; ``mean s`` and the sum with the bias, or
``x - mean``, ``s`` times it and the bias, make 3 more; the rest pays for ``s`` not being known exactly.
"""


@dataclass(frozen=True)
class Chains:
    """Per node, how many roundings one of its terms goes through at most, whatever is fused: a tensor that
    broadcasts against the node's value; and which inputs a node may be fused with.
    """

    roundings: Mapping[str, Tensor]
    fused: Mapping[str, tuple[str, ...]]


def gamma(roundings: Tensor) -> Tensor:
    """``k u / (1 - k u)``, rounded up; infinite from ``k u = 1/2`` on."""
    share = roundings * UNIT
    return torch.where(share < 0.5, share / (1 - share) * (1 + 2.0**-20), torch.inf)


def covered(network: Network) -> bool:
    """Whether it is known how every operator rounds."""
    return all(_covered(node.operator) for node in network.nodes)


def _covered(operator: Operator) -> bool:
    if isinstance(operator, Scale):
        return operator.exact or operator.parts is not None or _divides(operator)
    return isinstance(operator, MOVING + _SELECTING + _STARTING + _JOINING)


def _divides(scale: Scale) -> bool:
    return not (scale.shift.any() or scale.shift_radius.any())


def chains(network: Network, given: str) -> Chains:
    """The roundings of every node of a network whose value ``given`` is what the runtime begins with."""
    own: dict[str, Tensor] = {}
    fused: dict[str, tuple[str, ...]] = {}
    until: dict[str, float] = {}  # of a term in the value of a node, since its chain began
    for node in network.nodes:
        if node.name == given:
            continue
        shapes = [network.shapes[name] for name in node.inputs]
        joins = isinstance(node.operator, MOVING + _JOINING)
        fused[node.name] = tuple(n for n in node.inputs if joins and n in until and _sole(network, n))
        before = sum(until[name] for name in fused[node.name])
        count = own_roundings(node.operator, shapes)
        joined = before if isinstance(node.operator, _JOINING) else 0.0
        own[node.name] = torch.where(count > 0, count + joined, 0.0)
        if isinstance(node.operator, Affine):
            until[node.name] = before + _largest(count)
    behind: dict[str, float] = {}
    for node in reversed(network.nodes):
        for name in fused.get(node.name, ()):
            behind[name] = behind.get(node.name, 0.0) + until[node.name] - until[name]
    every = {name: torch.where(count > 0, count + behind.get(name, 0.0), 0.0) for name, count in own.items()}
    return Chains(every, fused)


def _sole(network: Network, name: str) -> bool:
    """Whether only one node reads a value, and reads it once: else nobody leaves it out by fusion."""
    readers = network.readers(name)
    return len(readers) == 1 and readers[0].inputs.count(name) == 1 and not network.is_output(name)


def _largest(count: Tensor) -> float:
    return float(count.max()) if count.numel() else 0.0


def own_roundings(operator: Operator, shapes: Sequence[Shape]) -> Tensor:
    """How many roundings a term of each entry goes through, with nothing fused: sums of ``n`` terms have
    ``n - 1``, products that are not with 1 or -1 have one more, weights that float32 does not hold another.
    """
    match operator:
        case Linear():
            return _of_rows(operator.weight, operator.bias)[None]
        case Convolution():
            axes = operator.weight.ndim - 2
            rows = _of_rows(operator.weight.reshape(len(operator.bias), -1), operator.bias)
            return rows.reshape(1, -1, *[1] * axes)
        case Scale() if operator.parts is not None:
            return torch.full((1,), _NORMALISATION, dtype=torch.float64)
        case Scale() if not operator.exact:
            return torch.full((1,), _DIVISION, dtype=torch.float64)
        case Scale():
            off = ~_held(operator.scale) | ~_held(operator.shift)
            count = (np.abs(operator.scale) != 1).astype(float) + (operator.shift != 0) + off
            return torch.as_tensor(np.asarray(count))[None]
        case AveragePool() | Mean():
            # One more than there are terms: a sum, and a product with the rounded 1 / n.
            return torch.full((1,), float(operator.terms(shapes)), dtype=torch.float64)
        case Add():
            return torch.full((1,), operator.count - 1.0, dtype=torch.float64)
        case _:
            return torch.zeros(1, dtype=torch.float64)


def _of_rows(weight: Array, bias: Array) -> Tensor:
    used = weight != 0
    terms = used.sum(1) + (bias != 0)
    product = (used & (np.abs(weight) != 1)).any(1)
    off = (~_held(weight)).any(1) | ~_held(bias)
    return torch.as_tensor(np.maximum(terms - 1, 0) + product + off, dtype=torch.float64)


def _held(array: Array) -> Mask:
    """Where float32 holds a number."""
    with np.errstate(over="ignore"):
        return np.asarray(array.astype(np.float32).astype(np.float64) == array, dtype=np.bool_)


def magnitude(operator: Affine, reach: Sequence[Tensor]) -> Tensor:
    """``|W| m + |b|`` over all terms that a runtime may add up: a normalisation has two in its shift."""
    if isinstance(operator, Scale) and operator.parts is not None:
        parts = operator.parts
        addends = np.abs(parts.bias) + np.abs(parts.mean * operator.scale)
        own = torch.as_tensor(np.asarray(addends * (1 + 2.0**-40)))
        return reach[0] * torch.as_tensor(np.abs(operator.scale)) + own
    return operator.magnitude(reach)


def sums(operator: Affine, reach: Sequence[Tensor]) -> Tensor:
    """Magnitudes of what a runtime may hold before the last operation: a mean is a sum first."""
    found = magnitude(operator, reach)
    if isinstance(operator, AveragePool | Mean):
        return found * float(operator.terms([tuple(m.shape[1:]) for m in reach]))
    if isinstance(operator, Scale) and operator.parts is not None:
        mean = torch.as_tensor(np.abs(operator.parts.mean))
        return torch.maximum(found, (reach[0] + mean) * _factor(operator) ** 2)
    return found


def largest_weight(operator: Affine) -> float:
    """The largest factor that a runtime may multiply other weights by."""
    match operator:
        case Linear() | Convolution():
            return float(np.abs(operator.weight).max(initial=0.0))
        case Scale():
            return max(float(np.abs(operator.scale).max(initial=0.0)), _factor(operator))
        case _:
            return 1.0


def _factor(scale: Scale) -> float:
    """The largest single number that a value is multiplied by on the way through a normalisation."""
    if scale.parts is None:
        return 1.0
    gain, deviation = np.abs(scale.parts.gain), np.abs(scale.parts.deviation)
    with np.errstate(over="ignore"):
        inverse = float(np.max(1.0001 / deviation, initial=1.0))
    return max(1.0, float(gain.max(initial=0.0)), inverse, float(deviation.max(initial=0.0)))


def underflow(node: Node, roundings: Tensor, reach: Sequence[Tensor], fused: float) -> Tensor:
    """What products that underflow cost at most: of weights, of weights with values, of a normalisation's
    parts. ``fused`` is the sum of the magnitudes in what the node may be fused with.
    """
    operator = node.operator
    size = 1.0 + fused
    if isinstance(operator, Scale):
        size = (size + sum(float(m.sum()) for m in reach)) * _factor(operator)
    elif isinstance(operator, Linear | Convolution) and not _all_held(operator):
        size += sum(float(m.sum()) for m in reach)
    # Sums never underflow, but a sum with a batch norm behind it may be one of products.
    return torch.where(roundings > 0, (roundings + 1) * (ETA * size), 0.0)


def _all_held(operator: Linear | Convolution) -> bool:
    return bool(_held(operator.weight).all() and _held(operator.bias).all())
