"""Slices, pads, permutations and concatenations as torch means them, on a
:class:`~relutrim.formats.building.Builder`. Axes count the batch axis, which none of them may touch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from relutrim.errors import NetworkError, UnsupportedError
from relutrim.formats.building import BATCH, Batch, Builder, Operand, Value
from relutrim.formats.picks import blank, gathered, padded, sliced, take
from relutrim.network.operators import Concat, Scale, Take, Transpose
from relutrim.network.operators.moving import Index

_MODES = {"replicate": "edge", "circular": "wrap"}


def own_axis(x: Value, dim: int) -> int:
    """An axis without the batch."""
    rank = len(x.shape) + 1
    if not -rank <= dim < rank:
        raise NetworkError(f"its axis {dim} does not exist in a value of {rank} axes")
    if dim % rank == 0:
        raise UnsupportedError("it works along the batch axis, so the inputs of a batch are not independent")
    return dim % rank - 1


def pick(b: Builder, name: str, x: Operand, picks: Mapping[int, Index], *, view: bool = True) -> Value:
    """Entries along some axes (counted without the batch); a ``view`` shares the memory of ``x``."""
    value = b.read(x)
    operator = take(value.shape, picks)
    if operator is None:
        return value
    made = b.append(name, operator, value)
    return replace(made, storage=value.storage) if view else made


def slice_axis(b: Builder, name: str, x: Operand, dim: int, start: Any, end: Any, step: Any = 1) -> Value:
    """``x[start:end:step]`` along one axis."""
    value = b.read(x)
    if dim in (0, -len(value.shape) - 1):
        _check_whole(b, slice(start, end, step))
        return value
    axis = own_axis(value, dim)
    return pick(b, name, value, {axis: sliced(value.shape[axis], start, end, step)})


def select(b: Builder, name: str, x: Operand, dim: int, index: int) -> Value:
    """One entry along an axis, which goes away."""
    value = b.read(x)
    axis = own_axis(value, dim)
    made = pick(b, f"{name}_picked", value, {axis: gathered(value.shape[axis], np.array([index]))})
    return b.reshape(name, made, [BATCH, *value.shape[:axis], *value.shape[axis + 1 :]])


def get_item(b: Builder, name: str, x: Operand, index: Any) -> Value:
    """``x[:, 1:3, ..., 0]``: slices, whole numbers, lists of these, None and an ellipsis."""
    value = b.read(x)
    steps = list(index) if isinstance(index, tuple) else [index]
    taken = sum(step is not None and step is not Ellipsis for step in steps)
    if Ellipsis in [step for step in steps if step is None or step is Ellipsis]:
        at = next(i for i, step in enumerate(steps) if step is Ellipsis)
        steps[at : at + 1] = [slice(None)] * (len(value.shape) + 1 - taken)
    first, *rest = steps or [slice(None)]
    if not isinstance(first, slice):
        raise UnsupportedError("it picks from the batch; write x[:, ...]")
    _check_whole(b, first)
    picks: dict[int, Index] = {}
    shape: list[int] = []
    axis = 0
    for step in rest:
        if step is None:
            shape.append(1)
            continue
        if axis >= len(value.shape):
            raise NetworkError(f"{len(rest)} indices for a value of shape {value.shape} (without the batch)")
        size = value.shape[axis]
        if isinstance(step, slice):
            picks[axis] = sliced(size, step.start, step.stop, step.step)
            shape.append(len(picks[axis]))
        elif isinstance(step, int) and not isinstance(step, bool):
            picks[axis] = gathered(size, np.array([step]))
        else:
            raise UnsupportedError(
                "it picks by something else than slices and whole numbers; use torch.index_select for lists"
            )
        axis += 1
    shape += value.shape[axis:]
    made = pick(b, name, value, picks)
    return made if made.shape == tuple(shape) else b.reshape(name, made, [BATCH, *shape])


def split(b: Builder, name: str, x: Operand, sizes: Sequence[int], dim: int) -> tuple[Value, ...]:
    """Parts of ``sizes`` along an axis."""
    value = b.read(x)
    axis = own_axis(value, dim)
    if sum(sizes) != value.shape[axis] or min(sizes, default=0) < 0:
        raise NetworkError(f"an axis of {value.shape[axis]} cannot be split into parts of {list(sizes)}")
    ends = np.cumsum(sizes)
    return tuple(
        pick(b, f"{name}_{part}", value, {axis: np.arange(end - size, end)})
        for part, (size, end) in enumerate(zip(sizes, ends, strict=True))
    )


def pad(b: Builder, name: str, x: Operand, pads: Sequence[int], mode: str, constant: float | None) -> Value:
    """Pads in pairs from the last axis on; a border of a constant or of the value itself."""
    value = b.read(x)
    if len(pads) % 2 or len(pads) > 2 * len(value.shape) or not all(isinstance(n, int) for n in pads):
        raise UnsupportedError(
            f"pads {list(pads)} for a value of shape {value.shape}; they are pairs, from the last axis on, "
            "and must leave out the batch"
        )
    around = {
        len(value.shape) - 1 - k: (int(pads[2 * k]), int(pads[2 * k + 1])) for k in range(len(pads) // 2)
    }
    picks = padded(value.shape, around, _MODES.get(mode, mode))
    operator = take(value.shape, picks)
    if operator is None:
        return b.copy(value)
    border = 0.0 if constant is None else float(b.stored(constant))
    if mode != "constant" or border == 0:
        return b.append(name, operator, value)
    made = b.append(f"{name}_zeros", operator, value)
    return b.append(name, Scale.exactly(shift=np.where(blank(operator.picks, made.shape), border, 0.0)), made)


def permute(b: Builder, name: str, x: Operand, dims: Sequence[int]) -> Value:
    """Axes in another order."""
    value = b.read(x)
    rank = len(value.shape) + 1
    order = [dim % rank if -rank <= dim < rank else rank for dim in dims]
    if sorted(order) != list(range(rank)):
        raise NetworkError(f"{list(dims)} is not an order of {rank} axes")
    if order[0] != 0:
        raise UnsupportedError("it moves the batch axis; keep it the first one")
    own = tuple(axis - 1 for axis in order[1:])
    if own == tuple(range(rank - 1)):
        return value
    return replace(b.append(name, Transpose(own), value), storage=value.storage)


def concatenate(b: Builder, name: str, values: Sequence[Operand], dim: int) -> Value:
    """Values one behind the other; one that occurs twice is read once."""
    if not all(isinstance(value, Value) for value in values) or not values:
        raise UnsupportedError("it joins values with constants; add the constants in a step of their own")
    read = [b.read(value) for value in values]
    axis = own_axis(read[0], dim)
    distinct = list({value.name: value for value in read}.values())
    sizes = tuple(value.shape[axis] if axis < len(value.shape) else 0 for value in distinct)
    if len(distinct) == len(read):
        return b.copy(read[0]) if len(read) == 1 else b.append(name, Concat(axis, sizes), *distinct)
    joined = distinct[0]
    if len(distinct) > 1:
        joined = b.append(f"{name}_distinct", Concat(axis, sizes), *distinct)
    starts = dict(zip((value.name for value in distinct), np.cumsum([0, *sizes]), strict=False))
    entries = [starts[value.name] + np.arange(value.shape[axis]) for value in read]
    picks: list[Index | None] = [None] * len(joined.shape)
    picks[axis] = np.concatenate(entries)
    return b.append(name, Take(tuple(picks)), joined)


def _check_whole(b: Builder, part: slice) -> None:
    """Only all of the batch can be taken."""
    start, end, step = part.start, part.stop, part.step
    batch = b.port.batch
    least = batch if isinstance(batch, int) else 2**31 - 1
    whole = end is None or isinstance(end, Batch) or (isinstance(end, int) and end >= least)
    if start not in (None, 0) or step not in (None, 1) or not whole:
        raise UnsupportedError("it takes a part of the batch; write x[:, ...]")
