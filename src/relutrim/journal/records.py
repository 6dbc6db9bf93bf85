"""Records: plain dictionaries of JSON values and numpy arrays, as bytes; and what trees look like as such.

A record is a JSON object and, behind it, the raw little-endian numbers of its arrays, which the object lists
by name, type and shape. Nothing is pickled, nothing is executed, and what does not fit together is refused.

Leaves of a tree are ragged, so they are stored as flat arrays with the length of each piece.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from relutrim.prove.hull.model import Goal, Index
from relutrim.prove.hull.packed import MIXED, Packed, Part
from relutrim.prove.hull.proof import Leaf

Record: TypeAlias = dict[str, Any]
"""JSON values and numpy arrays by name."""
_TYPES = frozenset({"<f8", "<i8", "|u1"})
_LENGTH = struct.Struct("<Q")


class RecordError(ValueError):
    """Bytes that are no record, or a record that is not of the kind that was expected."""


def packed(record: Record) -> bytes:
    """A record as bytes."""
    fields = {name: value for name, value in record.items() if not isinstance(value, np.ndarray)}
    arrays = {name: _plain(value) for name, value in record.items() if isinstance(value, np.ndarray)}
    listed = [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()]
    text = json.dumps({"fields": fields, "arrays": listed}, allow_nan=False).encode()
    return b"".join([_LENGTH.pack(len(text)), text, *(array.tobytes() for array in arrays.values())])


def unpacked(data: bytes) -> Record:
    """The record that :func:`packed` made these bytes of."""
    try:
        (length,) = _LENGTH.unpack_from(data)
        at = _LENGTH.size + length
        content: dict[str, Any] = json.loads(data[_LENGTH.size : at].decode())
        record: Record = dict(content["fields"])
        for name, kind, shape in content["arrays"]:
            if kind not in _TYPES or name in record or not all(type(n) is int and n >= 0 for n in shape):
                raise RecordError(f"the array {name!r} is listed as {kind!r} of shape {shape!r}")
            dtype, count = np.dtype(kind), math.prod(shape)
            if count * dtype.itemsize > len(data) - at:
                raise RecordError(f"the array {name!r} is longer than its record")
            record[name] = np.frombuffer(data, dtype, count, at).reshape(shape).copy()
            at += count * dtype.itemsize
    except RecordError:
        raise
    except (struct.error, ValueError, TypeError, KeyError, RecursionError) as error:
        raise RecordError(f"this is no record ({error})") from None
    if at != len(data):
        raise RecordError("there is more in the record than it lists")
    return record


def _plain(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    kind = {"f": "<f8", "i": "<i8", "b": "|u1", "u": "|u1"}.get(array.dtype.kind)
    if kind is None or (array.dtype.kind == "u" and array.dtype.itemsize > 1):
        raise RecordError(f"arrays of {array.dtype} are not written")
    return np.ascontiguousarray(array, dtype=kind).reshape(array.shape)


def take(record: Record, name: str, kind: type | tuple[type, ...]) -> Any:
    """A field, if it is there and what it should be."""
    value = record.get(name)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise RecordError(f"the field {name!r} is {'not there' if value is None else 'of another kind'}")
    return value


def take_array(record: Record, name: str, kind: str, axes: int) -> npt.NDArray[Any]:
    """An array, if it is there and what it should be."""
    value = record.get(name)
    if not isinstance(value, np.ndarray) or value.dtype.str != kind or value.ndim != axes:
        raise RecordError(f"the array {name!r} is not there, or not as it should be")
    return value


def leaf_fields(leaves: Sequence[Leaf]) -> Record:
    """Leaves as flat arrays."""
    return {
        "leaf_bounds": np.array([leaf.bound for leaf in leaves], dtype=np.float64),
        **state_fields("leaf", [leaf.states for leaf in leaves]),
        **_packed_fields([leaf.packed for leaf in leaves]),
    }


def leaves_in(record: Record) -> list[Leaf]:
    """The leaves that :func:`leaf_fields` wrote."""
    bounds = take_array(record, "leaf_bounds", "<f8", 1).tolist()
    states, multipliers = states_in(record, "leaf"), _packed_in(record)
    if not len(bounds) == len(states) == len(multipliers):
        raise RecordError("the arrays of leaves do not have the same length")
    return [Leaf(*leaf) for leaf in zip(states, bounds, multipliers, strict=True)]


def _packed_fields(leaves: Sequence[Packed]) -> Record:
    """Packed multipliers, one array of each kind, and the places, which leaves have in common: nearly always
    all of them do. ``packed`` says whose places a leaf has.
    """
    known: dict[int, int] = {}
    groups: list[tuple[Index, ...]] = []
    for leaf in leaves:
        if id(leaf.places) not in known:
            same = (at for at, own in enumerate(groups) if _same_places(own, leaf.places))
            known[id(leaf.places)] = next(same, len(groups))
            if known[id(leaf.places)] == len(groups):
                groups.append(leaf.places)
    places = [own for group in groups for own in group]
    parts = [part for leaf in leaves for part in leaf.parts]
    return {
        "packed": np.array([known[id(leaf.places)] for leaf in leaves], np.int64),
        "packed_shapes": np.array([own.shape for own in places], dtype=np.int64).reshape(-1, 2),
        "packed_places": _joined([own.reshape(-1) for own in places], np.int64),
        "packed_push": _joined([part.push for part in parts], np.float64),
        **{
            f"packed_{kind}": _joined([getattr(part, kind).reshape(-1) for part in parts], np.uint8)
            for kind in ("lean", "mix", "share")
        },
    }


def _same_places(one: Sequence[Index], other: Sequence[Index]) -> bool:
    return len(one) == len(other) and all(map(np.array_equal, one, other))


def _packed_in(record: Record) -> list[Packed]:
    """What :func:`_packed_fields` wrote."""
    whose = take_array(record, "packed", "<i8", 1)
    shapes = take_array(record, "packed_shapes", "<i8", 2)
    count = int(whose.max(initial=-1)) + 1
    if shapes.shape[1] != 2 or (shapes < [1, 0]).any() or (shapes >= 2**31).any() or (whose < 0).any():
        raise RecordError("packed leaves have layers of no size")
    if count > len(shapes) or len(shapes) % max(1, count):
        raise RecordError("packed leaves do not all have the same layers")
    layers = len(shapes) // max(1, count)
    places = _pieces(take_array(record, "packed_places", "<i8", 1), shapes.prod(1))
    held = [own.reshape(shape) for own, shape in zip(places, shapes.tolist(), strict=True)]
    groups = [tuple(held[at * layers : (at + 1) * layers]) for at in range(count)]
    lean = take_array(record, "packed_lean", "|u1", 1)
    if layers * len(whose) > len(lean):  # asked before an array is made of as many numbers
        raise RecordError("packed leaves do not have as many neurons as they should")
    own = shapes[: count * layers].reshape(count, layers, 2)[whose].reshape(-1, 2)
    pieces = [
        _pieces(lean, own[:, 0]),
        _pieces(take_array(record, "packed_mix", "|u1", 1), MIXED * own[:, 0]),
        _pieces(take_array(record, "packed_push", "<f8", 1), own[:, 0]),
        _pieces(take_array(record, "packed_share", "|u1", 1), own.prod(1)),
    ]
    with np.errstate(over="ignore"):  # what does not fit is infinite, and no multiplier
        parts = iter(
            [
                Part(lean, mix.reshape(MIXED, -1), push.astype(np.float32), share.reshape(shape))
                for lean, mix, push, share, shape in zip(*pieces, own.tolist(), strict=True)
            ]
        )
    return [Packed(groups[at], tuple(islice(parts, layers))) for at in whose.tolist()]


def state_fields(prefix: str, cases: Sequence[Mapping[int, bool]]) -> Record:
    """Fixed states, one mapping a case, as flat arrays."""
    return {
        f"{prefix}_states_each": np.array([len(case) for case in cases], dtype=np.int64),
        f"{prefix}_states": np.array([neuron for case in cases for neuron in case], dtype=np.int64),
        f"{prefix}_on": np.array([on for case in cases for on in case.values()], dtype=np.uint8),
    }


def states_in(record: Record, prefix: str) -> list[dict[int, bool]]:
    """The states that :func:`state_fields` wrote."""
    each = take_array(record, f"{prefix}_states_each", "<i8", 1)
    neurons = _pieces(take_array(record, f"{prefix}_states", "<i8", 1), each)
    states = _pieces(take_array(record, f"{prefix}_on", "|u1", 1), each)
    return [
        {neuron: bool(on) for neuron, on in zip(case.tolist(), ons.tolist(), strict=True)}
        for case, ons in zip(neurons, states, strict=True)
    ]


def goal_fields(goal: Goal) -> Record:
    """What a tree is about."""
    return {
        "target": goal.target,
        "neuron": goal.neuron,
        "sign": goal.sign,
        "depth": goal.depth,
        "droppable": goal.droppable,
    }


def goal_in(record: Record) -> Goal:
    """The goal that :func:`goal_fields` wrote."""
    return Goal(
        take(record, "target", str),
        take(record, "neuron", int),
        float(take(record, "sign", (int, float))),
        take(record, "depth", int),
        float(take(record, "droppable", (int, float))),
    )


def _joined(arrays: Iterable[npt.NDArray[Any]], dtype: type) -> npt.NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype), *arrays])


def _pieces(array: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    """A flat array cut into pieces of these lengths, which have to add up to its own."""
    if (lengths < 0).any() or (lengths > len(array)).any() or int(lengths.sum()) != len(array):
        raise RecordError("the lengths of an array's pieces do not add up")
    ends = np.cumsum(lengths)
    return list(_between(array, ends - lengths, ends))


def _between(
    array: npt.NDArray[Any], starts: npt.NDArray[Any], ends: npt.NDArray[Any]
) -> Iterator[npt.NDArray[Any]]:
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        yield array[start:end]
