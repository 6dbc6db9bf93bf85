"""Whether steps can be compiled: numba is an extra, and much can keep it from working."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from relutrim.prove.deadline import Deadline
from relutrim.prove.hull.dual import Dual, Multipliers
from relutrim.prove.hull.way import Rates, Way

_SECONDS = 6.0
"""With less time than this nothing is compiled for the first time."""


@dataclass
class _Known:
    """What has been seen of it in this process."""

    broken: bool = False
    done: bool = False


_KNOWN = _Known()


def can_compile(device: torch.device, deadline: Deadline) -> bool:
    """Whether it is worth a try."""
    return device.type == "cpu" and not _KNOWN.broken and (_KNOWN.done or deadline.left > _SECONDS)


def compiled_way(dual: Dual, batch: Sequence[Multipliers], states: Sequence[Tensor], rates: Rates) -> Way:
    """A way with compiled steps; any exception says that there is none."""
    from relutrim.prove.hull.fused import Fused

    way = Fused(dual, batch, states, rates)
    _KNOWN.done = True
    return way


def never_compile() -> None:
    """Not in this process any more."""
    _KNOWN.broken = True
