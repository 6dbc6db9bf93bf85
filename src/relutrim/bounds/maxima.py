"""Linear bounds of a maximum over a window: what takes the place of max pooling in the backward pass.

* From below, ``max(x) >= x_j`` for every entry ``j`` of the window, so the choice of ``j`` can never be
  unsound.
* From above, with ``j`` the entry with the largest upper end and ``U`` the largest upper end of the others,
  ``max(x) <= max(x_j, U)``, which is convex in ``x_j``; so for **any** float ``0 <= slope <= 1`` it is at
  most ``slope * x_j + max(max(l_j, U) - slope * l_j, max(u_j, U) - slope * u_j)``. The chord has
  ``slope = (u_j - U) / (u_j - l_j)``. Where ``l_j >= U``, the entry wins everywhere, and ``slope`` 1 with
  intercept 0 is exact.

Padding never wins: it is an entry of minus infinity that is never chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from relutrim.bounds.relaxation import Slope
from relutrim.graph.operators import MaxPool, Shape
from relutrim.intervals import Interval
from relutrim.rounding import UNIT, gamma

_LOWEST = torch.finfo(torch.float64).min


@dataclass(frozen=True, eq=False)
class Maxima:
    """Per window (batch, channels, windows): the entry that stands for the maximum from below and the one
    from above (flat places in the channel), the upper line's slope and intercept, and the rounding that both
    bring per unit of coefficient; ``reach`` is the magnitude of what a rounded coefficient stands before, 0
    where none rounds.
    """

    below: Tensor
    above: Tensor
    slope: Tensor
    intercept: Tensor
    reach: Tensor
    radius: Tensor


def relax_maxima(operator: MaxPool, value: Interval, slope: Slope) -> Maxima:
    """The relaxation of every window. Unknown (NaN) ends make NaN slopes or intercepts, hence no bound."""
    shape = tuple(value.lo.shape[1:])
    places = operator.table(shape)
    # A larger upper end is as true, and tells an entry from padding.
    lower, upper = _windows(value.lo, places), _windows(value.hi.clamp(min=_LOWEST), places)
    index = torch.as_tensor(places, device=lower.device).expand(lower.shape)
    first = upper.argmax(-1, keepdim=True)
    lo, hi = lower.gather(-1, first)[..., 0], upper.gather(-1, first)[..., 0]
    others = upper.scatter(-1, first, -torch.inf).amax(-1)
    wins, flat = lo >= others, others >= hi
    chord = ((hi - others) / (hi - lo)).clamp(0, 1)
    endless = ~wins & ~flat & ~(hi.isfinite() & lo.isfinite())
    chord = torch.where(endless, (hi.isinf() & ~lo.isinf()).to(lo), chord)
    rise = torch.where(wins, torch.ones_like(lo), torch.where(flat, torch.zeros_like(lo), chord))
    level = torch.maximum(hi, others)
    intercept = torch.maximum(_at_most(torch.maximum(lo, others), rise * lo), _at_most(level, rise * hi))
    intercept = torch.where(rise == 0, level, torch.where(wins, torch.zeros_like(lo), intercept))
    above = index.gather(-1, first)[..., 0]
    promise = torch.where(index >= 0, _promise(lower, upper, slope), -torch.inf)
    best = promise.argmax(-1, keepdim=True)
    below = torch.where(wins, above, index.gather(-1, best)[..., 0])
    magnitude = value.magnitude.flatten(2)
    reach = torch.maximum(magnitude.gather(2, below), magnitude.gather(2, above))
    overlap = operator.overlap(shape)
    if overlap <= 1:
        # One coefficient per entry, times 0 or 1: nothing is rounded.
        reach = torch.where((rise == 0) | (rise == 1), torch.zeros_like(reach), reach)
    return Maxima(below, above, rise, intercept, reach, gamma(overlap + 1) * reach)


def pull(forms: Tensor, below: Tensor, above: Tensor, slope: Tensor, shape: Shape) -> Tensor:
    """Forms over the maxima as forms over the entries (rows, *shape): positive coefficients go to the entry
    from below, negative ones to that from above.
    """
    flat = forms.flatten(2)
    found = flat.new_zeros(len(flat), shape[0], int(np.prod(shape[1:])))
    found.scatter_add_(2, below.expand_as(flat), flat.clamp(min=0))
    found.scatter_add_(2, above.expand_as(flat), flat.clamp(max=0) * slope)
    return found.reshape(len(flat), *shape)


def _windows(end: Tensor, places: np.ndarray) -> Tensor:
    """The entries of each window (batch, channels, windows, entries); padding is minus infinity."""
    flat = end.flatten(2)
    padding = torch.full_like(flat[:, :, :1], -torch.inf)
    index = torch.as_tensor(np.where(places < 0, flat.shape[2], places), device=end.device)
    return torch.cat([flat, padding], dim=2)[:, :, index]


def _promise(lower: Tensor, upper: Tensor, slope: Slope) -> Tensor:
    """The larger, the better an entry stands for the maximum from below: always a finite number or more."""
    match slope:
        case Slope.ADAPTIVE | Slope.CHORD:
            found = lower / 2 + upper / 2
        case Slope.ZERO:
            found = lower
        case Slope.ONE:
            found = upper
    return found.nan_to_num(_LOWEST, torch.inf, _LOWEST).clamp(min=_LOWEST)


def _at_most(level: Tensor, product: Tensor) -> Tensor:
    """A float at least ``level - product``, where ``product`` was rounded once."""
    found = level - product
    return found + (8 * UNIT * (level.abs() + product.abs()) + 2.0**-1070)
