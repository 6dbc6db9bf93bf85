"""Interval and linear bounds on many boxes at once: each row of a backward pass has a box of its own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from relutrim.bounds.interval import value_interval
from relutrim.bounds.linear import Backward
from relutrim.bounds.relaxation import Slope
from relutrim.domain.region import Region
from relutrim.graph.graph import Network
from relutrim.graph.operators import Affine, Relu
from relutrim.intervals import Interval, flat
from relutrim.rounding import ETA, gamma, widen_down

_ROWS = 8192


@dataclass(eq=False)
class BoxesBackward(Backward):
    """The backward pass where every value has a range per box: ``lo``, ``hi`` are (boxes, inputs)."""

    lo: Tensor = None  # type: ignore[assignment]
    hi: Tensor = None  # type: ignore[assignment]

    def _lower(self, forms: Tensor, boxes: Tensor | None) -> Tensor:
        lo, hi = (self.lo, self.hi) if boxes is None else (self.lo[boxes], self.hi[boxes])
        up, down = forms.clamp(min=0), forms.clamp(max=0)
        value = (up * lo + down * hi).sum(1)
        radius = gamma(lo.shape[1] + 1) * (up * lo.abs() - down * hi.abs()).sum(1) + 2 * lo.shape[1] * ETA
        some = ((forms > 0) & (lo != 0)).any(1) | ((forms < 0) & (hi != 0)).any(1)
        value = value.where(~forms.isnan().any(1), torch.full_like(value, torch.nan))
        return widen_down(value, radius.where(some, radius * 0))


@dataclass(frozen=True, eq=False)
class Forms:
    """Linear lower bounds of ``sign * value[index]``, a row for each box and neuron that is open there."""

    name: str
    sign: float
    boxes: Tensor
    index: Tensor
    forms: Tensor


def bound_boxes(
    network: Network, region: Region, known: dict[str, Interval], lo: Tensor, hi: Tensor, until: str
) -> tuple[dict[str, Interval], list[Forms]]:
    """Ranges of every value up to ``until`` on every box, and the forms of what stays open.

    ``known`` are ranges of some values on the whole region, which hold on each box too.
    """
    count, source = len(lo), network.input.name
    shape = (count, *network.input.shape)
    values = {source: Interval(lo.reshape(shape), hi.reshape(shape))}
    backward = BoxesBackward(network, region, values, lo=lo, hi=hi)
    found: list[Forms] = []
    after_relu = False
    for node in network.nodes:
        values[node.name] = value_interval(network, node, values)
        if node.name in known:
            values[node.name] = values[node.name].meet(known[node.name])
        after_relu = after_relu or not isinstance(node.operator, Affine)
        if after_relu and any(isinstance(reader.operator, Relu) for reader in network.readers(node.name)):
            found += _tighten(backward, node.name)
        if node.name == until:
            break
    return values, found


def _tighten(backward: BoxesBackward, name: str) -> list[Forms]:
    found = []
    for sign in (1.0, -1.0):
        pre = backward.values[name]
        open_ = flat(~((pre.lo >= 0) | (pre.hi <= 0)))
        boxes, index = open_.nonzero(as_tuple=True)
        for part in torch.split(torch.arange(len(boxes), device=boxes.device), min(_ROWS, backward.rows)):
            bounded = backward.neurons(name, index[part], sign, Slope.ADAPTIVE, boxes[part])
            pre = pre.tightened(boxes[part] * open_.shape[1] + index[part], sign, bounded.lower)
            found.append(Forms(name, sign, boxes[part], index[part], bounded.forms))
        backward.values[name] = pre
        backward.forget()
    return found
