"""The same numbers in another shape: Flatten, Reshape, Identity, Dropout at inference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relutrim.bounds.values import Interval
from relutrim.errors import NetworkError
from relutrim.network.operators.base import Affine, Mask, Shape, only

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Reshape(Affine):
    """Numbers in C order, as every format here keeps them. An identity is a reshape into the same shape."""

    kind = "Reshape"

    before: Shape
    after: Shape

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        shape = only(inputs, self.kind)
        if shape != self.before or math.prod(self.before) != math.prod(self.after):
            raise NetworkError(
                f"a value of shape {shape} cannot be reshaped from {self.before} to {self.after}"
            )
        return self.after

    def reads(self, wanted: Mask, inputs: Sequence[Shape]) -> list[Mask]:
        return [wanted.reshape(self.before)]

    def terms(self, inputs: Sequence[Shape]) -> int:
        return 0

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        (x,) = inputs
        return x.reshape(x.shape[0], *self.after)

    def adjoint(self, forms: Tensor, inputs: Sequence[Shape]) -> list[Tensor]:
        return [forms.reshape(forms.shape[0], *self.before)]

    def constant(self, forms: Tensor) -> Tensor:
        return forms.new_zeros(forms.shape[0])

    def magnitude(self, inputs: Sequence[Tensor]) -> Tensor:
        return self.forward(inputs)

    def spread(self, inputs: Sequence[Tensor]) -> Tensor:
        return self.forward(inputs)

    def interval(self, inputs: Sequence[Interval]) -> Interval:
        (x,) = inputs
        return Interval(self.forward([x.lo]), self.forward([x.hi]))
