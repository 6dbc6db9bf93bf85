"""How far float evaluations may be apart that mean the same.

An evaluation of a network differs from its real value by rounding alone, and that has a bound at each input:
the standard one for sums in any order, passed on from operator to operator. What differs by more computes
something else. The bound is each output entry's own, so that large numbers elsewhere hide nothing. What
depends on fresh values that nobody gives is not compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import torch
from torch import Tensor

from relutrim.graph import Affine, Barrier, Fresh, Network, Operator, Output
from relutrim.io.tails import behind_tail
from relutrim.rounding import UNIT

_SAFETY = 16.0
"""Two evaluations, by formulas that may take a few more steps than the operators count."""
_FEW = 64
"""Units that a library's exponential and its like may be off."""
_LEAST = 1e-30
"""What underflows counts as nothing."""
_ROUGH = 1e-4
"""Relative to the largest number on the way: a difference of this size is one in meaning, unless the last
bits of the input make one of that size.
"""
_TOLERANCE, _TIMES = 1e-3, 8.0
"""What counts as rounding between a model and its result: a part of the output, and times its noise."""


def mismatch(network: Network, x: Tensor, found: Sequence[Tensor]) -> Output | None:
    """The first output for which an evaluation on ``x`` found something else than the network computes."""
    for output, ours, result in zip(network.outputs, evaluated(network, x), found, strict=False):
        if ours is not None and (ours[0].shape != result.shape or not near(ours[0], result, ours[1])):
            return output
    return None


def agree(expected: Tensor, found: Tensor, allowed: float, noise: Tensor) -> bool:
    """Whether a model's result is within what is ``allowed`` of the model's own, up to rounding: a part of
    1e-3, or a small multiple of what that does to the model, its ``noise``.
    """
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return False
    if not (expected.is_floating_point() or expected.is_complex()):
        return True
    known = _real(expected).isfinite()
    size, least = (_largest(one.broadcast_to(known.shape)[known]) for one in (_real(expected), noise))
    return near(expected, found, allowed + _TOLERANCE * size + _TIMES * least)


def near(expected: Tensor, found: Tensor, most: Tensor | float) -> bool:
    """Whether every number is at most so far from the one that is expected, where that is finite."""
    return bool((difference(found, expected) <= most).logical_or(~_real(expected).isfinite()).all())


def difference(one: Tensor, other: Tensor) -> Tensor:
    """How far numbers are apart."""
    return (_real(one) - _real(other)).abs()


def evaluated(
    network: Network, x: Tensor, fresh: Mapping[str, Tensor] | None = None
) -> list[tuple[Tensor, Tensor] | None]:
    """Each output for a batch of inputs, as a file has it, and how far any evaluation in the network's type
    may be from that; None for what depends on values that are not among the ``fresh`` ones, and where sums on
    the way may overflow.
    """
    fresh = fresh or {}
    own = {node.name for node in network if isinstance(node.operator, Fresh)}
    unknown = network.behind(own - fresh.keys())
    until = {output.source for output in network.outputs} - unknown
    kind = torch.finfo(getattr(torch, network.dtype))
    values, radii, largest = _computed(network, x.double(), until, fresh, unknown)
    noise = 2 * kind.eps * torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x.device)
    shaken = {n: value for n, value in network.steps(x.double() * (1 + noise), until, fresh) if n in until}
    batched, found = network.input.batch is not None, list[tuple[Tensor, Tensor] | None]()
    for output in network.outputs:
        if output.source in unknown or not largest < kind.max * kind.eps:
            found.append(None)
            continue
        value = values[output.source]
        radius = _SAFETY * _behind(output, value, radii[output.source], kind.eps / 2)
        turned = _largest(difference(shaken[output.source], value)) * 2.0 ** len(output.tail)
        most = radius.clamp(max=max(_ROUGH * largest, _TIMES * turned)) + _LEAST
        value = behind_tail(output, value, batched=batched)
        found.append((value, most) if batched else (value[0], most[0]))
    return found


def _computed(
    network: Network, x: Tensor, until: Set[str], fresh: Mapping[str, Tensor], unknown: Set[str]
) -> tuple[dict[str, Tensor], dict[str, Tensor], float]:
    """Some values, how far a float evaluation of them is from the real numbers at most, in any order of
    summation, and the largest number on the way. Nothing is held for longer than somebody reads it.
    """
    unit = torch.finfo(getattr(torch, network.dtype)).eps / 2
    values, radii, largest = dict[str, Tensor](), dict[str, Tensor](), 0.0
    for name, value in network.steps(x, until, fresh):
        values[name] = value
        if name == network.input.name or name in fresh:
            radii[name] = torch.zeros_like(value)
        elif name not in unknown:
            node = network[name]
            inputs, moved = ([known[source] for source in node.inputs] for known in (values, radii))
            radii[name] = _passed(node.operator, inputs, moved, value, unit)
        if name in radii:
            largest = max(largest, _largest(value))
        for done in set(network.read_last.get(name, ())) - until:
            values.pop(done)
            radii.pop(done, None)
    return values, radii, largest


def _passed(
    operator: Operator, inputs: list[Tensor], moved: list[Tensor], result: Tensor, unit: float
) -> Tensor:
    """The radius behind an operator: that of its inputs passed on, and its own rounding.

    For a sum of ``k`` products these are ``|W| r + k u (|W| (|x| + r) + |b|)``, which is one product with
    ``|W|``.
    """
    reach = [x.abs() + r for x, r in zip(inputs, moved, strict=True)]
    if isinstance(operator, Affine):
        terms = operator.terms([tuple(x.shape[1:]) for x in inputs])
        if not terms:
            return operator.spread(moved)
        own = (terms + 8) * unit
        found = own * operator.magnitude([m + r / own for m, r in zip(reach, moved, strict=True)])
        fuzz = operator.fuzz(reach)
        # What its parameters are off in float64, the module's own computation of them is in its type.
        return found if fuzz is None else found + fuzz * (unit / UNIT)
    found = operator.spread(moved)
    if isinstance(operator, Barrier):
        largest = reach[0].flatten(1).amax(1).reshape(-1, *(1,) * (result.ndim - 1))
        found = found + unit * ((_FEW + result[0].numel()) * result.abs() + _FEW * reach[0].minimum(largest))
        found = found + operator.rounding(reach[0], result.abs())  # formulas with numbers in float32
    return found


def _behind(output: Output, value: Tensor, radius: Tensor, unit: float) -> Tensor:
    """The radius behind an output's tail: no step moves by more than twice what its entries move by."""
    if not value.numel():
        return radius
    for _ in output.tail:
        size = value.abs().max() + 1
        radius = torch.full_like(radius, float(2 * radius.max() + (_FEW + value[0].numel()) * unit * size))
        value = torch.full_like(value, float(2 * size + value[0].numel()))
    return radius


def _largest(tensor: Tensor) -> float:
    """The largest of some magnitudes; infinity where one is NaN."""
    known = tensor.abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    return float(known.max()) if tensor.numel() else 0.0


def _real(tensor: Tensor) -> Tensor:
    """The parts of complex numbers, and all numbers as precisely as can be."""
    return (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).double()
