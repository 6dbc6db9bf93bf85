"""How far a float32 evaluation of one network is from the real numbers, for any input of the domain.

``e = W e_in + d`` at each affine node, with ``|d| <= gamma (|W| (|a| + E_in) + |b|) + underflow``; ReLUs and
maxima round nothing and multiply by slopes from [0, 1]. Twice:

* **forwards**, ``E``: the largest error of every value on the domain, from the largest magnitude of each
  entry. It says which neurons keep their sign in float32 too, whether anything overflows, and pays for the
  magnitudes being those of computed values.
* **all at once**: the error of an output is at most ``sum_nodes S gamma (|W| |a(x)| + |b|)``, where ``S``
  bounds how far the output moves with the node. That is one linear form in the magnitudes ``|a(x)|``. They
  are linear in ``a(x)`` where its sign is known, so one backward pass bounds it over the domain, jointly.
  Where signs within ``S`` save more than that, the largest magnitudes take the place of ``a(x)``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from relutrim.bounds.linear import Backward
from relutrim.bounds.relaxation import Slope
from relutrim.domain.region import Region
from relutrim.float32.operations import (
    LARGEST,
    Chains,
    chains,
    gamma,
    largest_weight,
    magnitude,
    sums,
    underflow,
)
from relutrim.float32.sensitivity import Slopes, sensitivities
from relutrim.graph.graph import Network, Node
from relutrim.graph.operators import Affine, Relu
from relutrim.intervals import Interval, flat
from relutrim.memory import AMPLE, MemoryBudget

_SAFETY = 1 + 2.0**-20
"""Pays for the rounding of sums of non-negative numbers."""
_SMALL = 2.0**-900
"""Far above what underflows in float64, far below what matters in float32."""
_MUCH = 0.9
"""Signs are worth more than a form in the input where they save a tenth."""
_BYTES = 128 * 2**20
"""What sensitivities of some outputs to all values may take."""
_NUMBERS = 2**31
"""How many sensitivities are computed at most; beyond, the forward bound has to do."""


@dataclass(eq=False)
class Forward:
    """The largest errors of all values, how they came to be, and whether everything stays finite."""

    errors: dict[str, Tensor] = field(default_factory=dict)
    lost: dict[str, Tensor] = field(default_factory=dict)
    """Per node that rounds, what underflow costs."""
    local: dict[str, Tensor] = field(default_factory=dict)
    """Per node, what it rounds itself."""
    one: dict[str, Tensor] = field(default_factory=dict)
    zero: dict[str, Tensor] = field(default_factory=dict)
    finite: bool = True
    _nested: dict[str, Tensor] = field(default_factory=dict)
    _weights: dict[str, float] = field(default_factory=dict)
    _sums: dict[str, float] = field(default_factory=dict)

    @classmethod
    def over(cls, network: Network, ranges: Mapping[str, Interval], given: str, chained: Chains) -> Forward:
        """From proven ranges of every value."""
        found = cls()
        for name in (network.input.name, given):
            found.errors[name] = torch.zeros_like(ranges[name].lo)
            found._hold(ranges[name].magnitude)
        for node in network.nodes:
            if node.name != given:
                found._add(node, ranges, chained)
        return found

    def _add(self, node: Node, ranges: Mapping[str, Interval], chained: Chains) -> None:
        before = [self.errors[name] for name in node.inputs]
        error = node.operator.spread(before)
        if isinstance(node.operator, Affine):
            reach = [ranges[n].magnitude + e for n, e in zip(node.inputs, before, strict=True)]
            error = (error + self._local(node, node.operator, reach, chained)) * _SAFETY
        elif isinstance(node.operator, Relu):
            pre = ranges[node.inputs[0]]
            self.one[node.name] = pre.lo >= error
            self.zero[node.name] = (pre.hi <= -error) & ~self.one[node.name]
            error = torch.where(self.zero[node.name], 0.0, error)
        self.errors[node.name] = error
        self._hold(ranges[node.name].magnitude + error)

    def _local(self, node: Node, operator: Affine, reach: list[Tensor], chained: Chains) -> Tensor:
        """What the node rounds itself. Where it is fused, sums are as large as those before it make them."""
        count, fused = chained.roundings[node.name], chained.fused[node.name]
        nested = [self._nested[n] if n in fused else m for n, m in zip(node.inputs, reach, strict=True)]
        joined = sum(self._sums[name] for name in fused)
        lost = underflow(node, count, reach, joined)
        factor = gamma(count)
        self.lost[node.name] = lost
        self._nested[node.name] = magnitude(operator, nested)
        self._hold(sums(operator, nested) * (1 + factor.clamp(max=1)) + lost)
        weight = largest_weight(operator)
        for name in fused:
            weight = max(weight, weight * self._weights[name])
        self._weights[node.name] = weight
        self._sums[node.name] = joined + sum(float(m.sum()) for m in (*reach, self._nested[node.name]))
        self.finite &= weight < LARGEST and self._sums[node.name] < 2.0**900
        # Nothing rounds with a count of 0, whatever the magnitude.
        local = torch.where(count > 0, factor * magnitude(operator, reach) + lost, 0.0) * _SAFETY
        self.local[node.name] = local
        return local

    def _hold(self, reach: Tensor) -> None:
        """Remember whether float32 holds numbers as large as these. NaN is held by nothing."""
        self.finite &= bool((reach * _SAFETY < LARGEST).all())


def forms_of(
    network: Network,
    forward: Forward,
    chained: Chains,
    outputs: tuple[int, int],
    stopped: Callable[[], bool],
    memory: MemoryBudget,
) -> tuple[dict[str, Tensor], Tensor] | None:
    """The error of each output from the first up to the second number, as forms in the magnitudes of values
    and a constant; None where there was no time.
    """
    wanted = frozenset(name for name, count in chained.roundings.items() if bool((count > 0).any()))
    constant = torch.zeros(outputs[1] - outputs[0], dtype=torch.float64)
    forms: dict[str, Tensor] = {}
    slopes = Slopes(forward.one, forward.zero, memory)
    for name, found, behind in sensitivities(network, slopes, wanted, outputs, stopped):
        node, rows = network[name], found.size
        if behind is not None:
            # Slopes are at most 1, so what the ReLU's value does to an output bounds what the node does.
            (relu,) = network.readers(name)
            local = torch.where(forward.zero[relu.name], 0.0, forward.local[name])
            together = behind.largest_sums(local)
            less = together < _MUCH * flat(rows * local).sum(1)
            constant = constant + torch.where(less, together, 0.0)
            rows = torch.where(less.reshape(-1, *[1] * (rows.ndim - 1)), 0.0, rows)
        operator, shapes = node.operator, [network.shapes[n] for n in node.inputs]
        assert isinstance(operator, Affine)
        count = chained.roundings[name]
        errors = [forward.errors[n] for n in node.inputs]
        fixed = torch.where(count > 0, gamma(count) * magnitude(operator, errors) + forward.lost[name], 0.0)
        constant = constant + flat(rows * fixed).sum(1) * _SAFETY
        weighed = rows * gamma(count)
        for source, form in zip(node.inputs, operator.adjoint_spread(weighed, shapes), strict=True):
            wide = form * _SAFETY + _SMALL
            forms[source] = forms[source] + wide if source in forms else wide
    if stopped():
        return None
    return forms, constant * _SAFETY + len(wanted) * _SMALL


def joint(
    network: Network,
    region: Region,
    ranges: dict[str, Interval],
    forms: dict[str, Tensor],
    constant: Tensor,
    memory: MemoryBudget = AMPLE,
) -> Tensor:
    """The largest value over the region of forms in magnitudes, plus a constant."""
    plain, signed, rest = constant, {}, constant
    for name, form in forms.items():
        lo, hi = ranges[name].lo, ranges[name].hi
        plain = plain + flat(form * ranges[name].magnitude).sum(1) * _SAFETY
        # |a| <= slope a + offset: the chord between both ends, or a itself with its sign.
        slope = torch.where(lo >= 0, 1.0, torch.where(hi <= 0, -1.0, (hi + lo) / (hi - lo))).clamp(-1, 1)
        offset = torch.maximum((1 - slope) * hi, -(1 + slope) * lo).clamp(min=0) * _SAFETY
        rest = rest + flat(form * offset).sum(1) * _SAFETY
        # The sign of a product is exact, and its rounding is paid by what was added to the form.
        signed[name] = -(form * slope)
        rest = rest + flat(form * ranges[name].magnitude).sum(1) * 2.0**-50
    if not signed:
        return plain
    lower = Backward(network, region, ranges, memory=memory).forms(signed, Slope.ADAPTIVE).lower
    return torch.fmin(plain, (rest - lower) * _SAFETY)


def error(
    network: Network,
    region: Region,
    ranges: dict[str, Interval],
    given: str,
    stopped: Callable[[], bool],
    memory: MemoryBudget = AMPLE,
) -> Tensor | None:
    """Per output, flat: the largest error of a float32 evaluation; None where something may overflow."""
    chained = chains(network, given)
    forward = Forward.over(network, ranges, given, chained)
    if not forward.finite:
        return None
    found = torch.cat([forward.errors[source].flatten() for source in network.sources])
    total, numbers = len(found), sum(map(network.size, network.shapes))
    step = memory.share(_BYTES) // (8 * numbers)
    if not step or total * numbers > _NUMBERS:
        return found
    for first in range(0, total, step):
        outputs = (first, min(total, first + step))
        part = forms_of(network, forward, chained, outputs, stopped, memory)
        if part is None:
            break
        better = joint(network, region, ranges, *part, memory)
        found[slice(*outputs)] = torch.fmin(found[slice(*outputs)], better)
    return found
