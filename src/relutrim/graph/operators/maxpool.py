"""The largest entry of each window: MaxPool, nn.MaxPool1d, nn.MaxPool2d."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from relutrim.errors import NetworkError
from relutrim.graph.operators.base import Mask, Operator, Shape, only
from relutrim.graph.operators.windows import (
    Padding,
    Places,
    require_entries,
    table,
    taps,
    window_space,
)
from relutrim.intervals import Interval

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class MaxPool(Operator):
    """The largest entry of each window of each channel; padding never wins. Not affine."""

    kind = "MaxPool"

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: Padding
    dilation: tuple[int, ...]

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        shape = only(inputs, self.kind)
        if len(shape) != len(self.kernel) + 1 or len(self.kernel) not in (1, 2):
            raise NetworkError(f"windows of {self.kernel} meet a value of shape {shape}")
        space = window_space(shape[1:], self.kernel, self.stride, self.padding, self.dilation)
        require_entries(self.taps(shape), "max pooling")
        return (shape[0], *space)

    def taps(self, shape: Shape) -> list[Places]:
        """Per spatial axis, the places that each window lies over in a value of this shape."""
        return taps(shape[1:], self.kernel, self.stride, self.padding, self.dilation)

    def table(self, shape: Shape) -> Places:
        """(windows, entries of a window): flat places in a channel of a value of this shape, -1 for
        padding.
        """
        return table(self.taps(shape), shape[1:])

    def overlap(self, shape: Shape) -> int:
        """How many windows lie over one entry at most."""
        places = self.table(shape)
        return int(np.bincount(places[places >= 0]).max(initial=0))

    def reads(self, wanted: Mask, inputs: Sequence[Shape]) -> list[Mask]:
        import torch

        forms = torch.as_tensor(np.asarray(wanted)[None], dtype=torch.float64)
        return [self.to_window(forms, inputs[0])[0].numpy() > 0]

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        from torch.nn import functional

        from relutrim.graph.operators.correlate import pad

        (x,) = inputs
        x = pad(x, self.padding, float("-inf"))
        if not x.numel():
            none = ((0, 0),) * len(self.kernel)
            space = window_space(tuple(x.shape[2:]), self.kernel, self.stride, none, self.dilation)
            return x.new_zeros(*x.shape[:2], *space)
        pool = functional.max_pool1d if len(self.kernel) == 1 else functional.max_pool2d
        found: Tensor = pool(x, self.kernel, self.stride, 0, self.dilation)
        return found

    def spread(self, inputs: Sequence[Tensor]) -> Tensor:
        """No window's maximum moves farther than the entry that moves farthest."""
        return self.forward(inputs)

    def interval(self, inputs: Sequence[Interval]) -> Interval:
        (x,) = inputs
        return Interval(self.forward([x.lo]), self.forward([x.hi]))

    def to_window(self, forms: Tensor, shape: Shape) -> Tensor:
        """Every window's coefficient given to each of its entries, and added up there: (rows, *shape)."""
        places = self.table(shape)
        found = forms.new_zeros(forms.shape[0], shape[0], int(np.prod(shape[1:])) + 1)
        flat = forms.flatten(2)
        for entry in range(places.shape[1]):
            column = self._tensor_index(places[:, entry], found)
            found.index_add_(2, column, flat)
        return found[:, :, :-1].reshape(forms.shape[0], *shape)

    @staticmethod
    def _tensor_index(places: Places, found: Tensor) -> Tensor:
        """Indices beside ``found``; padding lies behind the last entry."""
        import torch

        return torch.as_tensor(np.where(places < 0, found.shape[2] - 1, places), device=found.device)
