"""A recorded program: calls of ATen's operators, whether they come from an ``ExportedProgram`` in memory or
from the JSON of a ``.pt2`` file. Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from relutrim.graph.operators import Shape

SIZES = (
    "sym_size",
    "sym_numel",
    "sym_stride",
    "sym_storage_offset",
    "_assert_scalar",
    "_assert_tensor_metadata",
)
"""Operators that read how large a tensor is, and no number in it; ``sym_constrain_...`` are others."""

ROWS = 2
"""Rows of an example where their number is open; with one, torch takes sizes of 1 for the batch."""


@dataclass(frozen=True)
class Tensor:
    """What is recorded of a tensor: sizes are numbers, or expressions where they are not known."""

    name: str
    shape: tuple[int | str, ...]
    dtype: str


@dataclass(frozen=True)
class Ref:
    """An argument that is a tensor (or a size) of the graph."""

    name: str


@dataclass(frozen=True, eq=False)
class Call:
    """A node of the graph: an operator, its arguments by the names of its schema (``self`` is called
    ``input``), and the tensors that it makes, None for a result that is no tensor.

    ``layer`` is the torch module it belongs to: a key for each use of it, and its path.
    ``evaluate`` computes it, given the tensors that it reads, where that is safe and always the same.
    """

    name: str
    target: str
    arguments: Mapping[str, Any]
    outputs: tuple[Tensor | None, ...]
    layer: tuple[str, str] | None = None
    evaluate: Callable[[Mapping[str, Any]], Any] | None = None

    @property
    def kind(self) -> str:
        """The operator's name if it is one of ATen's: ``relu`` of ``aten.relu.default``."""
        space, _, rest = self.target.partition(".")
        return rest.partition(".")[0] if space == "aten" else ""

    @property
    def reads(self) -> tuple[str, ...]:
        """The names of what it reads."""
        return tuple(dict.fromkeys(names(list(self.arguments.values()))))

    @property
    def only_sizes(self) -> bool:
        """Whether it reads no numbers, or computes with sizes alone."""
        return (
            self.kind in SIZES
            or self.kind.startswith("sym_constrain")
            or self.target.startswith(("_operator.", "operator.", "math.", "torch.sym_"))
        )

    def place(self, argument: str) -> int:
        """The position of an argument."""
        return list(self.arguments).index(argument)


def names(argument: Any) -> Iterator[str]:
    """The names of tensors and sizes in an argument."""
    if isinstance(argument, Ref):
        yield argument.name
    elif isinstance(argument, slice):
        yield from names([argument.start, argument.stop, argument.step])
    elif isinstance(argument, Mapping):
        yield from names(list(argument.values()))
    elif isinstance(argument, list | tuple):
        for part in argument:
            yield from names(part)


def substituted(argument: Any, tensors: Mapping[str, str]) -> Any:
    """An argument that reads other tensors."""
    if isinstance(argument, Ref):
        return Ref(tensors.get(argument.name, argument.name))
    if isinstance(argument, Mapping):
        return {key: substituted(part, tensors) for key, part in argument.items()}
    if isinstance(argument, list | tuple):
        return type(argument)([substituted(part, tensors) for part in argument])
    return argument


@dataclass(frozen=True)
class Home:
    """The tensor of the state dict that a constant is: which of its axes each axis is, and its sign."""

    tensor: str
    axes: tuple[int, ...]
    rank: int
    sign: float = 1.0


@dataclass(frozen=True, eq=False)
class Constant:
    """Numbers that do not depend on the input; ``raw`` is an array, or a tensor of torch's."""

    raw: Any
    home: Home | None = None

    @property
    def array(self) -> np.ndarray[Any, np.dtype[Any]]:
        """As numpy has it."""
        return self.raw if isinstance(self.raw, np.ndarray) else np.asarray(self.raw.detach().cpu().numpy())

    def permuted(self, order: Sequence[int]) -> Constant:
        """With the axes in another order."""
        home = self.home
        if home is not None:
            home = replace(home, axes=tuple(home.axes[axis] for axis in order))
        whole = isinstance(self.raw, np.ndarray)
        return Constant(self.raw.transpose(order) if whole else self.raw.permute(*order), home)


@dataclass(frozen=True, eq=False)
class Program:
    """A recorded graph. ``inputs`` begins with the one that is the network's; ``constants`` are made when
    they are asked for; ``mutable`` are those that the program itself changes.

    ``outputs`` are names of tensors, None where the program returns something else; ``kept`` are those that
    go elsewhere, such as into a buffer. ``size`` is how many bytes hold all of it: several constants may
    be views of the same numbers.
    """

    inputs: tuple[Tensor, ...]
    constants: Mapping[str, Callable[[], Constant]]
    calls: tuple[Call, ...]
    outputs: tuple[str | None, ...]
    mutable: frozenset[str] = frozenset()
    kept: tuple[str, ...] = ()
    remarks: Mapping[str, str] = field(default_factory=dict)
    size: int = 0

    @property
    def batch(self) -> int | str:
        """The size of the input's first axis."""
        return self.inputs[0].shape[0]

    def rows(self, tensor: Tensor, dtype: str) -> Shape | None:
        """The shape without the batch axis of a tensor that has a row for each input; None if it has not."""
        if not tensor.shape or tensor.shape[0] != self.batch or tensor.dtype != dtype:
            return None
        sizes = [size for size in tensor.shape[1:] if isinstance(size, int)]
        return tuple(sizes) if len(sizes) == len(tensor.shape) - 1 else None


def with_remarks(program: Program) -> Program:
    """The program with what is to be said of its recording."""
    first = program.batch if isinstance(program.batch, int) else "batch"
    sizes = ", ".join(str(size) for size in (first, *program.inputs[0].shape[1:]))
    said = {"relutrim.recorded": f"in eval mode, for inputs of shape ({sizes})"}
    return replace(program, remarks={**program.remarks, **said})
