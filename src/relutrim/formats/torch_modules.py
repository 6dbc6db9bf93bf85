"""The few modules torch.nn lacks, in a place that pickles can be loaded from: keep names and paths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from torch import Tensor, nn


class ScaleShift(nn.Module):
    """``scale * x + shift`` entry by entry; None leaves the step out.

    Both are buffers: they hold data normalisation, frozen batch normalisation and numbers of Python, none of
    which is to be trained.
    """

    scale: Tensor | None
    shift: Tensor | None

    def __init__(self, scale: Tensor | None, shift: Tensor | None) -> None:
        super().__init__()
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)

    def forward(self, x: Tensor) -> Tensor:
        """Apply it to a batch."""
        if self.scale is not None:
            x = x * self.scale
        if self.shift is not None:
            x = x + self.shift
        return x

    def extra_repr(self) -> str:
        """What ``print`` shows."""
        shown = {"scale": self.scale, "shift": self.shift}
        return ", ".join(f"{name}={tuple(value.shape)}" for name, value in shown.items() if value is not None)


class Reshape(nn.Module):
    """The same numbers in another shape; ``shape`` does not include the batch axis."""

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.shape = tuple(shape)

    def forward(self, x: Tensor) -> Tensor:
        """Apply it to a batch."""
        return x.reshape(x.shape[0], *self.shape)

    def extra_repr(self) -> str:
        """What ``print`` shows."""
        return f"shape={self.shape}"


class Sum(nn.Module):
    """The sum of its arguments."""

    def forward(self, *values: Tensor) -> Tensor:
        """Apply it to several batches of one shape."""
        return reduce(lambda x, y: x + y, values)


class GraphModel(nn.Module):
    """Layers wired as a directed acyclic graph.

    ``wiring`` says in order of execution which layer reads which values; a layer's value has the layer's name
    and the input is called ``""``, which no layer can be. With several ``outputs`` the result is a tuple.
    """

    def __init__(
        self,
        layers: Mapping[str, nn.Module],
        wiring: Sequence[tuple[str, tuple[str, ...]]],
        outputs: Sequence[str],
    ) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.wiring = [(name, tuple(reads)) for name, reads in wiring]
        self.outputs = list(outputs)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Apply it to a batch."""
        values = {"": x}
        for name, reads in self.wiring:
            values[name] = self.get_submodule(name)(*[values[read] for read in reads])
        found = tuple(values[name] for name in self.outputs)
        return found if len(found) > 1 else found[0]
