"""The sum of several values: residual connections and branches that meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from relutrim.bounds.values import Interval
from relutrim.errors import NetworkError
from relutrim.network.operators.base import Affine, Mask, Shape
from relutrim.rounding import gamma, widen_down, widen_up

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Add(Affine):
    """``x + y + ...``, ``count`` values of one shape."""

    kind = "Add"

    count: int = 2

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        if len(inputs) != self.count or any(shape != inputs[0] for shape in inputs):
            raise NetworkError(
                f"values of shapes {list(inputs)} cannot be added; {self.count} of one shape are needed"
            )
        return inputs[0]

    def reads(self, wanted: Mask, inputs: Sequence[Shape]) -> list[Mask]:
        return [wanted] * self.count

    def terms(self, inputs: Sequence[Shape]) -> int:
        return self.count

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        return reduce(lambda x, y: x + y, inputs)

    def adjoint(self, forms: Tensor, inputs: Sequence[Shape]) -> list[Tensor]:
        return [forms] * self.count

    def constant(self, forms: Tensor) -> Tensor:
        return forms.new_zeros(forms.shape[0])

    def magnitude(self, inputs: Sequence[Tensor]) -> Tensor:
        return self.forward(inputs)

    def spread(self, inputs: Sequence[Tensor]) -> Tensor:
        return self.forward(inputs)

    def interval(self, inputs: Sequence[Interval]) -> Interval:
        low, high = self.forward([x.lo for x in inputs]), self.forward([x.hi for x in inputs])
        radius_low = gamma(len(inputs)) * self.forward([x.lo.abs() for x in inputs])
        radius_high = gamma(len(inputs)) * self.forward([x.hi.abs() for x in inputs])
        return Interval(widen_down(low, radius_low), widen_up(high, radius_high))
