"""The few modules torch.nn lacks, in a place that pickles can be loaded from: keep names and paths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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


class Erf(nn.Module):
    """The error function of each number."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply it to a batch."""
        return x.erf()


class Concat(nn.Module):
    """Its arguments one behind the other; ``dim`` counts the batch axis."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, *values: Tensor) -> Tensor:
        """Apply it to several batches."""
        return torch.cat(values, self.dim)

    def extra_repr(self) -> str:
        """What ``print`` shows."""
        return f"dim={self.dim}"


class Permute(nn.Module):
    """Axes in another order; ``dims`` counts the batch axis, which stays first."""

    def __init__(self, dims: Sequence[int]) -> None:
        super().__init__()
        self.dims = tuple(dims)

    def forward(self, x: Tensor) -> Tensor:
        """Apply it to a batch."""
        return x.permute(self.dims)

    def extra_repr(self) -> str:
        """What ``print`` shows."""
        return f"dims={self.dims}"


class Mean(nn.Module):
    """The mean over some axes; ``dims`` counts the batch axis."""

    def __init__(self, dims: Sequence[int], keepdim: bool) -> None:
        super().__init__()
        self.dims, self.keepdim = tuple(dims), keepdim

    def forward(self, x: Tensor) -> Tensor:
        """Apply it to a batch."""
        return x.mean(self.dims, self.keepdim)

    def extra_repr(self) -> str:
        """What ``print`` shows."""
        return f"dims={self.dims}, keepdim={self.keepdim}"


class Take(nn.Module):
    """Entries picked along each axis behind the batch: slices, zero padding, lists of indices.

    ``picks`` holds per axis the indices to take, None for all as they are; -1 is a zero that is put there.
    ``shape`` is that of one input.
    """

    def __init__(self, picks: Sequence[Sequence[int] | None], shape: Sequence[int]) -> None:
        super().__init__()
        self.picks = [None if pick is None else list(pick) for pick in picks]
        self.narrowed: list[tuple[int, int, int]] = []
        self.gathered: list[int] = []
        pads: list[tuple[int, int]] = []
        for dim, (pick, size) in enumerate(zip(self.picks, shape, strict=True), start=1):
            around = (0, 0)
            if pick is not None:
                before, start, end, behind = _stretch(pick)
                if pick == [-1] * before + list(range(start, end)) + [-1] * behind:
                    self.narrowed.append((dim, start, end - start))
                    around = (before, behind)
                else:
                    # Zeros are read from one that is put behind the axis.
                    around = (0, int(-1 in pick))
                    index = torch.tensor([size if place == -1 else place for place in pick])
                    self.register_buffer(f"index_{dim}", index, persistent=False)
                    self.gathered.append(dim)
            pads.append(around)
        self.pads = [number for pair in reversed(pads) for number in pair]

    def forward(self, x: Tensor) -> Tensor:
        """Apply it to a batch."""
        for dim, start, length in self.narrowed:
            x = x.narrow(dim, start, length)
        if any(self.pads):
            x = F.pad(x, self.pads)
        for dim in self.gathered:
            x = x.index_select(dim, self.get_buffer(f"index_{dim}"))
        return x

    def extra_repr(self) -> str:
        """What ``print`` shows."""
        return ", ".join("all" if pick is None else str(len(pick)) for pick in self.picks)


def _stretch(pick: Sequence[int]) -> tuple[int, int, int, int]:
    """Zeros before, the first entry, the end behind the last one, zeros behind."""
    taken = [place for place, index in enumerate(pick) if index != -1]
    if not taken:
        return 0, 0, 0, len(pick)
    first, last = taken[0], taken[-1]
    return first, pick[first], pick[last] + 1, len(pick) - 1 - last


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
