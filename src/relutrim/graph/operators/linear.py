"""``x -> W x + b`` on the last axis: Gemm, MatMul, nn.Linear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from relutrim.errors import NetworkError
from relutrim.graph.operators.affine import Affine, Coefficient, Coefficients, View
from relutrim.graph.operators.base import Array, Mask, Shape, only, parameter

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Linear(Affine):
    """``weight`` is (outputs, inputs), ``bias`` is (outputs,); leading axes of the value are kept."""

    kind = "Linear"

    weight: Array
    bias: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", parameter(self.weight, "the weight matrix"))
        object.__setattr__(self, "bias", parameter(self.bias, "the bias"))
        if self.weight.ndim != 2 or self.bias.shape != self.weight.shape[:1]:
            raise NetworkError(
                f"a weight matrix of shape {self.weight.shape} does not go with a bias of shape "
                f"{self.bias.shape}"
            )

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        shape = only(inputs, self.kind)
        if not shape or shape[-1] != self.weight.shape[1]:
            raise NetworkError(
                f"a weight matrix for {self.weight.shape[1]} inputs meets a value of shape {shape}"
            )
        return (*shape[:-1], self.weight.shape[0])

    @property
    def coefficients(self) -> Mapping[str, Coefficient]:
        return {"weight": Coefficient(self.weight)}

    @property
    def offset(self) -> Coefficient:
        return Coefficient(self.bias)

    def product(self, p: Coefficients, inputs: Sequence[Tensor]) -> Tensor:
        return inputs[0] @ p["weight"].T

    def pulled_back(self, view: View, forms: Tensor, inputs: Sequence[Shape]) -> list[Tensor]:
        """A product."""
        return [forms @ Coefficients(self, view, forms)["weight"]]

    def rows(self, index: Tensor, like: Tensor, inputs: Sequence[Shape]) -> tuple[Tensor, Tensor]:
        """Rows of the matrix itself for a vector: bounds begin with these, once per neuron."""
        if len(inputs[0]) > 1:
            return super().rows(index, like, inputs)
        p = Coefficients(self, View.VALUE, like)
        return p["weight"][index], p.offset[index]

    def summed(self, inputs: Sequence[Shape]) -> tuple[int, int]:
        outputs, width = self.weight.shape
        return width, outputs

    def reads(self, wanted: Mask, inputs: Sequence[Shape]) -> list[Mask]:
        return [np.asarray(wanted @ (self.weight != 0))]

    @property
    def field_counts(self) -> Mapping[str, int]:
        return {"weight": self.weight.size, "bias": self.bias.size}

    def multiply_adds(self, entries: int) -> int:
        return entries * int(self.weight.shape[1])
