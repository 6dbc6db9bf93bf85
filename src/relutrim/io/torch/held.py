"""Which tensors of a program get new content: those of the state where all that read them agree, else ones of
a reader's own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from relutrim.errors import UnsupportedError
from relutrim.graph.edits import SetTensor, SliceTensor
from relutrim.graph.sharing import Slot
from relutrim.io.torch.record import Call, Constant, Program, names

Array = npt.NDArray[Any]
Place = tuple[str, str]
"""A call, and the name of one of its arguments."""


@dataclass(frozen=True, eq=False)
class Held:
    """The tensors of a program, and who reads them; calls that are ``gone`` read nothing."""

    program: Program
    gone: Collection[str]
    tensors: dict[str, Array] = field(default_factory=dict)
    """What tensors of the state hold from now on."""
    own: dict[Place, Array] = field(default_factory=dict)
    """What a call is to read instead of a tensor that others read as well."""

    def apply(self, edits: Mapping[Place, SliceTensor | SetTensor]) -> None:
        """Give the tensors that edits name their new content."""
        made = {call.name: call for call in self.program.calls}
        readers = self._readers()
        for name, make in self.program.constants.items():
            wanted = {place: edits[place] for place in self._behind(name, made, readers) if place in edits}
            if not wanted:
                continue
            constant = make()
            assert constant.home is not None
            contents = {place: _content(constant, edit) for place, edit in wanted.items()}
            found = self._agreed(name, contents, made, readers)
            if found is not None:
                self.tensors[constant.home.tensor] = found
            elif all(place in readers[name] for place in contents):
                self.own.update(contents)
            else:
                raise UnsupportedError(
                    "several layers read it, and need it differently",
                    where=f"tensor {constant.home.tensor!r}",
                )

    def _readers(self) -> dict[str, list[Place]]:
        found: dict[str, list[Place]] = {}
        for call in self.program.calls:
            if call.name not in self.gone:
                for argument, value in call.arguments.items():
                    for name in names(value):
                        found.setdefault(name, []).append((call.name, argument))
        return found

    def _behind(
        self, name: str, made: Mapping[str, Call], readers: Mapping[str, list[Place]]
    ) -> Iterator[Place]:
        """The places where a tensor is read, or what is moved of nothing but it."""
        for place in readers.get(name, []):
            yield place
            moved = _moved(made[place[0]])
            if moved is not None:
                yield from self._behind(moved, made, readers)

    def _agreed(
        self,
        name: str,
        contents: Mapping[Place, Array],
        made: Mapping[str, Call],
        readers: Mapping[str, list[Place]],
    ) -> Array | None:
        """What all that read a tensor want it to hold; None if they differ."""
        found: Array | None = None
        for place in readers.get(name, []):
            moved = _moved(made[place[0]])
            wanted = contents.get(place)
            if wanted is None and moved is not None:
                wanted = self._agreed(moved, contents, made, readers)
            if wanted is None or (found is not None and not _same(found, wanted)):
                return None
            found = wanted
        return found


def slots(program: Program, homes: Mapping[str, str]) -> dict[str, set[Slot]]:
    """The arguments of calls that read each tensor of the state; ``homes`` are the names in the program of
    these tensors, and of what is moved of nothing but them.
    """
    found: dict[str, set[Slot]] = {}
    for call in program.calls:
        made = [out.name for out in call.outputs if out is not None]
        if call.only_sizes or (made and homes.keys() >= {*made}):
            continue
        for place, value in enumerate(call.arguments.values()):
            for name in names(value):
                if name in homes:
                    found.setdefault(homes[name], set()).add((call.name, place))
    for one in (*program.outputs, *program.kept):
        if one is not None and one in homes:
            found.setdefault(homes[one], set()).add((one, -1))
    return found


def _moved(call: Call) -> str | None:
    """The tensor that a call makes of one other by moving its axes."""
    moves = call.kind in ("t", "numpy_T", "permute", "transpose", "detach", "alias", "clone", "contiguous")
    (out,) = call.outputs if len(call.outputs) == 1 else (None,)
    return out.name if moves and out is not None else None


def _content(constant: Constant, edit: SliceTensor | SetTensor) -> Array:
    """What the whole tensor of the state is to hold."""
    found = constant.array
    if isinstance(edit, SetTensor):
        return np.ascontiguousarray(edit.numbers.astype(found.dtype)).reshape(edit.numbers.shape)
    for axis, indices in enumerate(edit.indices):
        if indices is not None:
            found = np.take(found, indices, axis)
    return np.ascontiguousarray(found)


def _same(one: Array, other: Array) -> bool:
    return one.shape == other.shape and one.tobytes() == other.tobytes()
