"""``x -> max(0, x)``: the neurons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relutrim.graph.operators.base import Mask, Operator, Shape, only
from relutrim.intervals import Interval

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Relu(Operator):
    """Not affine; every statement about stability is about its inputs."""

    kind = "Relu"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        return only(inputs, self.kind)

    def reads(self, wanted: Mask, inputs: Sequence[Shape]) -> list[Mask]:
        return [wanted]

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        (x,) = inputs
        return x.clamp(min=0)

    def spread(self, inputs: Sequence[Tensor]) -> Tensor:
        return inputs[0]

    def interval(self, inputs: Sequence[Interval]) -> Interval:
        (x,) = inputs
        return Interval(x.lo.clamp(min=0), x.hi.clamp(min=0))
