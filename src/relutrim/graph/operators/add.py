"""The sum of several values: residual connections and branches that meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from relutrim.errors import NetworkError
from relutrim.graph.operators.affine import Affine, Coefficients, View
from relutrim.graph.operators.base import Mask, Shape

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

    def product(self, p: Coefficients, inputs: Sequence[Tensor]) -> Tensor:
        return reduce(lambda x, y: x + y, inputs)

    def pulled_back(self, view: View, forms: Tensor, inputs: Sequence[Shape]) -> list[Tensor]:
        """Nothing to compute."""
        return [forms] * self.count

    def reads(self, wanted: Mask, inputs: Sequence[Shape]) -> list[Mask]:
        return [wanted] * self.count
