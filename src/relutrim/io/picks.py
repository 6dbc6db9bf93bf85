"""Which entries a slice, a gather or a pad takes along an axis, as :class:`~relutrim.graph.operators.Take`
has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from relutrim.errors import NetworkError, UnsupportedError
from relutrim.graph.operators import Operator, Shape, Take
from relutrim.graph.operators.moving import Index
from relutrim.io.sizes import check_size


def take(shape: Shape, picks: Mapping[int, Index]) -> Take | None:
    """The operator that takes ``picks`` along some axes of a value, None if that is all of it as it is."""
    wanted = {axis: pick for axis, pick in picks.items() if not np.array_equal(pick, np.arange(shape[axis]))}
    check_size([len(wanted[axis]) if axis in wanted else size for axis, size in enumerate(shape)])
    return Take(tuple(wanted.get(axis) for axis in range(len(shape)))) if wanted else None


def sliced(size: int, start: int | None, end: int | None, step: int | None) -> Index:
    """The indices of ``[start:end:step]``, as Python has them but for one case: going back, ONNX takes a
    start before the first entry for that entry, and Python takes nothing. (torch does not go back.)
    """
    if step == 0:
        raise NetworkError("a slice with steps of 0")
    if step is not None and step < 0 and start is not None:
        start = max(start, -size)
    return np.arange(size, dtype=np.int64)[slice(start, end, step)]


def gathered(size: int, indices: Index) -> Index:
    """Indices, of which negative ones count from the end."""
    if ((indices < -size) | (indices >= size)).any():
        bad = int(indices[(indices < -size) | (indices >= size)].reshape(-1)[0])
        raise NetworkError(f"it takes entry {bad} of an axis of {size}")
    return np.asarray(np.where(indices < 0, indices + size, indices), np.int64)


def padded(shape: Shape, pads: Mapping[int, tuple[int, int]], mode: str) -> dict[int, Index]:
    """Picks that put zeros (``constant``) or entries of the value itself around it; negative pads cut off."""
    sizes = list(shape)
    for axis, (before, behind) in pads.items():
        sizes[axis] += before + behind
        least = 0 if mode == "constant" else 1
        kept = shape[axis] + min(before, 0) + min(behind, 0)
        if min(sizes[axis], kept) < least or (mode != "constant" and min(before, behind) < 0):
            raise NetworkError(f"its pads {before, behind} do not go with an axis of {shape[axis]}")
        if mode == "reflect" and max(before, behind) >= shape[axis]:
            raise NetworkError(
                f"its pads {before, behind} reflect more than there is of an axis of {shape[axis]}"
            )
    check_size(sizes)
    return {
        axis: _surrounded(shape[axis], before, behind, mode)
        for axis, (before, behind) in pads.items()
        if before or behind
    }


def _surrounded(size: int, before: int, behind: int, mode: str) -> Index:
    inside = np.arange(max(0, -before), size - max(0, -behind), dtype=np.int64)
    around = (max(0, before), max(0, behind))
    match mode:
        case "constant":
            return np.pad(inside, around, constant_values=-1)
        case "reflect":
            return np.pad(inside, around, mode="reflect")
        case "edge":
            return np.pad(inside, around, mode="edge")
        case "wrap":
            return np.pad(inside, around, mode="wrap")
    raise UnsupportedError(f"padding in the mode {mode!r} is not known; use constant padding")


def blank(picks: Sequence[Index | None], shape: Shape) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Which entries of the result are a 0 that was put there; ``shape`` is that of the result."""
    found = np.zeros(shape, bool)
    for axis, pick in enumerate(picks):
        if pick is not None:
            found |= (pick == -1).reshape([-1 if other == axis else 1 for other in range(len(shape))])
    return found


def takes_range(operator: Operator, axis: int, start: int, end: int, size: int) -> bool:
    """Whether these entries of an axis of this size are taken, and all along the others."""
    if not isinstance(operator, Take):
        return (start, end) == (0, size)
    picks = list(operator.picks)
    pick = picks.pop(axis)
    whole = np.arange(size) if pick is None else pick
    return all(one is None for one in picks) and np.array_equal(whole, np.arange(start, end))


@dataclass(frozen=True)
class Moves:
    """Slices (start, end, step) along some axes, then zeros before and behind each, then lists of indices
    along others.
    """

    slices: dict[int, tuple[int, int, int]]
    pads: list[tuple[int, int]]
    lists: dict[int, Index]


def moves(shape: Shape, picks: Sequence[Index | None], *, steps: bool) -> Moves:
    """What makes these picks of a value, slices taking every entry in turn without ``steps``. A list takes
    its zeros from one that is put behind the axis.
    """
    found = Moves({}, [(0, 0)] * len(shape), {})
    for axis, (size, pick) in enumerate(zip(shape, picks, strict=True)):
        if pick is None:
            continue
        taken = np.flatnonzero(pick != -1)
        core = pick[taken[0] : taken[-1] + 1] if taken.size else pick
        limits = slice_of(core, size)
        if limits is None or (limits[2] != 1 and not steps):
            found.pads[axis] = 0, int((pick == -1).any())
            found.lists[axis] = np.where(pick == -1, size, pick)
            continue
        if limits != (0, size, 1):
            found.slices[axis] = limits
        if core.size:
            found.pads[axis] = int(taken[0]), len(pick) - 1 - int(taken[-1])
    return found


def slice_of(pick: Index, size: int) -> tuple[int, int, int] | None:
    """Start, end and step of a slice that takes just this, if there is one."""
    if not len(pick):
        return (0, 0, 1)
    if pick.min() < 0:
        return None
    step = int(pick[1] - pick[0]) if len(pick) > 1 else 1
    if step == 0 or (np.diff(pick) != step).any():
        return None
    end = int(pick[-1]) + (1 if step > 0 else -1)
    return int(pick[0]), (end if end >= 0 else -size - 1), step
