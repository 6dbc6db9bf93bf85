"""Whether a network read from a module computes what the module computes, tried on random inputs.

A float evaluation of a function differs from the real one by rounding alone, and that has a bound at each
input: the standard one for sums in any order, passed on from operator to operator. What differs by more
computes something else. The bound is each output entry's own, so that large numbers elsewhere hide nothing.
What depends on fresh values is not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

import torch
from torch import Tensor
from torch.utils import _pytree

from relutrim.errors import InputError, UnsupportedError
from relutrim.graph import Affine, Barrier, Fresh, Network, Operator, Output
from relutrim.io.tails import behind_tail
from relutrim.rounding import UNIT

_ROWS = 3
_SAFETY = 16.0
"""Two evaluations, by formulas that may take a few more steps than the operators count."""
_FEW = 64
"""Units that a library's exponential and its like may be off."""
_LEAST = 1e-30
"""What underflows counts as nothing."""
_ROUGH = 1e-4
"""Relative to the largest number on the way: a difference of this size is one in meaning, always."""


def compare(
    module: Callable[..., object], network: Network, places: Sequence[int], examples: Sequence[Tensor]
) -> None:
    """Refuse a reading that computes something else than ``module`` does. ``places`` are those of the
    network's outputs among the module's results; of the ``examples`` the first one is for the network's
    input, the others are passed on.
    """
    example, *others = examples
    if not example.is_floating_point():
        return
    rows = _ROWS if isinstance(network.input.batch, str) and not others else len(example)
    x = torch.randn(
        rows, *network.input.shape, dtype=example.dtype, generator=torch.Generator().manual_seed(0)
    )
    try:
        results = _pytree.tree_leaves(module(x.clone(), *(other.clone() for other in others)))
    except Exception as error:
        raise InputError(
            f"the module was recorded for inputs of shape {network.input.shape}, and does not run on "
            f"them ({error})"
        ) from error
    unknown = _unknown(network)
    checked = [one for one in zip(places, network.outputs, strict=False) if one[1].source not in unknown]
    if not checked:
        return
    sources = {output.source for _, output in checked}
    values, radii, largest = _computed(network, x.double(), sources)
    for place, output in checked:
        radius = _behind(output, values[output.source], radii[output.source], _unit(network))
        most = radius.mul(_SAFETY).clamp(max=_ROUGH * largest) + _LEAST
        truth, ours = results[place].double(), behind_tail(output, values[output.source])
        # Infinities and their differences say nothing, and no error either.
        if truth.shape != ours.shape or bool(
            ((truth - ours).abs() > most).logical_and((truth - ours).isfinite()).any()
        ):
            raise UnsupportedError(
                "what torch.export recorded computes something else than the module itself; forward() "
                "probably depends on the batch, on state, or on something beside tensors. Rewrite that part"
            )


def _unknown(network: Network) -> set[str]:
    """The values that depend on fresh ones."""
    return network.behind({node.name for node in network if isinstance(node.operator, Fresh)})


def _unit(network: Network) -> float:
    return UNIT if network.dtype == "float64" else 2.0**-24


def _computed(
    network: Network, x: Tensor, until: Set[str]
) -> tuple[dict[str, Tensor], dict[str, Tensor], float]:
    """Some values, how far a float evaluation of them is from the real numbers at most, in any order of
    summation, and the largest number on the way. Nothing is held for longer than somebody reads it.
    """
    values, radii, largest = dict[str, Tensor](), dict[str, Tensor](), 0.0
    unknown = _unknown(network)
    for name, value in network.steps(x, until):
        values[name] = value
        if name == network.input.name:
            radii[name] = torch.zeros_like(value)
        elif name not in unknown:
            node = network[name]
            inputs, moved = ([known[source] for source in node.inputs] for known in (values, radii))
            radii[name] = _passed(node.operator, inputs, moved, value, _unit(network))
        if name in radii and value.numel():
            largest = max(largest, float(value.abs().max()))
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
