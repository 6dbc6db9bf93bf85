"""How far the outputs may move, and what a change somewhere in the network costs of that.

The price of a change by 1 is what it can move an output by (:mod:`relutrim.rewrite.gains`), in units of what
that output has left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from relutrim.graph.operators import Array
from relutrim.rewrite.draft import Draft
from relutrim.rewrite.gains import gains

_BEYOND = 1e300
"""What it costs to move an output that has nothing left."""


@dataclass(frozen=True, eq=False)
class Share:
    """``prices`` (outputs, entries): what a change by 1 of an entry costs each output, in units of what it
    has left; ``part`` of that may be spent.
    """

    prices: Array
    part: float


@dataclass(frozen=True, eq=False)
class Budget:
    """Per output source how far each entry may move in all."""

    allowed: Mapping[str, Tensor]

    def left(self, draft: Draft) -> Tensor:
        """What the outputs of a draft have left, flat over all sources."""
        parts = [(self.allowed[s] - draft.deviation[s]).flatten() for s in draft.network.sources]
        return torch.cat(parts).nan_to_num(0.0).clamp(min=0)

    def share(self, draft: Draft, names: list[str], part: float) -> Share | None:
        """A part of what is left, for changes of the values of these nodes; None where nothing is left,
        nothing can be said, or there are none.
        """
        left = self.left(draft)
        if not names or not bool((left > 0).any()) or not part > 0:
            return None
        found = gains(draft.network, draft.identity, names)
        gain, left = torch.cat([found[name] for name in names], dim=1), left[:, None]
        prices = torch.where(left > 0, gain / left, _BEYOND * gain.sign())
        return Share(prices.numpy(), part) if bool(prices.isfinite().all()) else None


def cheapest(costs: Array, part: float) -> np.ndarray:
    """The entries to spend ``part`` of every output's budget on, cheapest first; ``costs`` is (outputs,
    entries).
    """
    order = np.argsort(costs.max(axis=0, initial=0.0), kind="stable")
    spent = np.cumsum(costs[:, order], axis=1).max(axis=0, initial=0.0)
    # Sums of non-negative numbers: their rounding is far below the room that is left here.
    return order[: int(np.searchsorted(spent * (1 + 2.0**-20), part, side="right"))]
