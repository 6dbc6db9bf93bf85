"""``x -> W x + b`` on the last axis: Gemm, MatMul, nn.Linear."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from relutrim.bounds.values import Interval, flat
from relutrim.errors import NetworkError
from relutrim.network.operators.base import Affine, Array, Mask, Shape, only, parameter
from relutrim.network.operators.extremes import exact_extremes
from relutrim.rounding import ETA, gamma, widen_down, widen_up

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
    def parameters(self) -> int:
        return int(self.weight.size + self.bias.size)

    def reads(self, wanted: Mask, inputs: Sequence[Shape]) -> list[Mask]:
        return [np.asarray(wanted @ (self.weight != 0))]

    def multiply_adds(self, entries: int) -> int:
        return entries * int(self.weight.shape[1])

    def terms(self, inputs: Sequence[Shape]) -> int:
        return self._terms

    @property
    def _terms(self) -> int:
        return int(max(self.weight.shape)) + 1

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        (x,) = inputs
        return x @ self._w(x).T + self._b(x)

    def adjoint(self, forms: Tensor, inputs: Sequence[Shape]) -> list[Tensor]:
        return [forms @ self._w(forms)]

    def adjoint_spread(self, sizes: Tensor, inputs: Sequence[Shape]) -> list[Tensor]:
        return [sizes @ self._abs_w(sizes)]

    def rows(self, index: Tensor, like: Tensor, inputs: Sequence[Shape]) -> tuple[Tensor, Tensor]:
        """The rows of ``W`` at ``index``, which is what :meth:`adjoint` makes of unit forms, without a
        product; and the entries of ``b``.
        """
        return self._w(like)[index], self._b(like)[index]

    def constant(self, forms: Tensor) -> Tensor:
        return flat(forms @ self._b(forms)).sum(1)

    def magnitude(self, inputs: Sequence[Tensor]) -> Tensor:
        (m,) = inputs
        return m @ self._abs_w(m).T + self._b(m).abs()

    def spread(self, inputs: Sequence[Tensor]) -> Tensor:
        (r,) = inputs
        return r @ self._abs_w(r).T

    def interval(self, inputs: Sequence[Interval]) -> Interval:
        import torch

        (x,) = inputs
        up = self._tensor("w+", x.lo, lambda: np.maximum(self.weight, 0).T)
        down = self._tensor("w-", x.lo, lambda: np.minimum(self.weight, 0).T)
        ends = torch.stack([x.lo, x.hi, x.lo.abs(), x.hi.abs()])
        plus, minus = ends @ up, ends @ down
        bias = self._b(x.lo)
        low, high = plus[0] + minus[1] + bias, plus[1] + minus[0] + bias
        return Interval(
            widen_down(low, self._radius(plus[2] - minus[3], x.lo, x.hi)),
            widen_up(high, self._radius(plus[3] - minus[2], x.hi, x.lo)),
        )

    def _radius(self, magnitude: Tensor, with_plus: Tensor, with_minus: Tensor) -> Tensor:
        """Rounding radius of ``with_plus @ W+ + with_minus @ W- + b``, zero where every product is exactly
        zero.
        """
        radius = gamma(self._terms) * (magnitude + self._b(magnitude).abs()) + self._terms * ETA
        if bool((magnitude == 0).any()):  # no product at all, or products that underflow
            some_plus = self._tensor("w+ != 0", magnitude, lambda: (self.weight > 0).T)
            some_minus = self._tensor("w- != 0", magnitude, lambda: (self.weight < 0).T)
            plus, minus = (with_plus != 0).to(magnitude), (with_minus != 0).to(magnitude)
            some = (plus @ some_plus + minus @ some_minus) > 0
            radius = radius.where((magnitude != 0) | some, 0.0)
        return radius

    def exact_extremes(self, row: int, lo: Array, hi: Array) -> tuple[Fraction, Fraction]:
        """Smallest and largest value of output ``row`` over the box ``[lo, hi]``, in rational arithmetic."""
        return exact_extremes(self.weight[row], float(self.bias[row]), lo, hi)

    def _w(self, like: Tensor) -> Tensor:
        return self._tensor("w", like, lambda: self.weight)

    def _b(self, like: Tensor) -> Tensor:
        return self._tensor("b", like, lambda: self.bias)

    def _abs_w(self, like: Tensor) -> Tensor:
        return self._tensor("|w|", like, lambda: np.abs(self.weight))
