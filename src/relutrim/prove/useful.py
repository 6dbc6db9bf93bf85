"""Which verdicts somebody has a use for: where the time of the last stages goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class States:
    """The states of a ReLU's neurons that inputs have shown, flat."""

    seen_active: Mask
    seen_inactive: Mask


@dataclass(frozen=True, eq=False)
class Useful:
    """For which of a ReLU's neurons a proof that they are active would be of use, or that they are not;
    ``axis`` is that of the channels whose units are of use together only, None where each one is.
    """

    active: Mask
    inactive: Mask
    axis: int | None = None


class Relevance(Protocol):
    """Somebody who has a use for verdicts."""

    def useful(self, name: str, states: States) -> Useful:
        """Of the neurons of the ReLU of this name those for which a proof would be of use."""
        ...
