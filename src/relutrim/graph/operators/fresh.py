"""A value that does not come from the network's input: what an opaque node makes, or another input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relutrim.errors import NetworkError
from relutrim.graph.operators.barrier import Barrier
from relutrim.graph.operators.base import Mask, Shape
from relutrim.intervals import Interval

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Fresh(Barrier):
    """Any value of this shape with entries between ``least`` and ``greatest``.

    It reads nothing, so it ends every path through the network. Nothing is known of it but its range, also
    when the network runs: it is NaN then, and so is whatever depends on it, which shows no state of any
    neuron. Two fresh values are two, whatever they are called.
    """

    kind = "Fresh"

    shape: Shape
    least: float = -math.inf
    greatest: float = math.inf

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        if inputs:
            raise NetworkError(f"a fresh value reads nothing, not {len(inputs)} value(s)")
        return self.shape

    def reads(self, wanted: Mask, inputs: Sequence[Shape]) -> list[Mask]:
        return []

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        raise NetworkError("what a fresh value is, only the model itself can tell")

    def unknown(self, like: Tensor) -> Tensor:
        """A NaN for each entry, as many rows as ``like`` has."""
        return like.new_full((len(like), *self.shape), math.nan)

    def range(self, like: Tensor) -> Interval:
        """The range of every entry, as a batch of one, beside ``like``."""
        shape = (1, *self.shape)
        return Interval(like.new_full(shape, self.least), like.new_full(shape, self.greatest))

    def interval(self, inputs: Sequence[Interval]) -> Interval:
        import torch

        return self.range(torch.zeros(1, dtype=torch.float64))

    def spread(self, inputs: Sequence[Tensor]) -> Tensor:
        import torch

        return torch.zeros((1, *self.shape), dtype=torch.float64)

    def rounding(self, reach: Tensor, result: Tensor) -> Tensor:
        return result.new_full(result.shape, math.inf)

    def pulled(self, middle: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
        raise NetworkError("a fresh value depends on nothing")
