"""Whether two graphs are the same: the one that was meant, and the one that is read from what was written.

Values are compared by name, from the outputs back: each must be the same operator, with the same numbers,
of the same values. A writer may spell one node in several (a product, then a sum), and a reader may take
several for one. What lies between two names that both graphs have is therefore brought into one form first,
in which nothing is computed but what is exact:

1. Nodes that only move numbers are one table of where each entry comes from.
2. A sum with constants right behind a product without one is part of it.
3. What does nothing (an identity, a factor of 1) is not there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import TypeAlias

import numpy as np

from relutrim.errors import CheckFailed, RelutrimError
from relutrim.graph.graph import Network, Output
from relutrim.graph.operators import (
    Add,
    Concat,
    Convolution,
    Linear,
    Operator,
    Reshape,
    Scale,
    Shape,
    Take,
    Transpose,
)
from relutrim.graph.slicing import Index


@dataclass(frozen=True)
class _Leaf:
    """A value that both graphs have."""

    name: str
    shape: Shape


@dataclass(frozen=True, eq=False)
class _Applied:
    """An operator applied to expressions."""

    operator: Operator
    inputs: tuple[_Expression, ...]
    shape: Shape


@dataclass(frozen=True, eq=False)
class _Moved:
    """Entries of expressions, which are numbered through; -1 is a 0."""

    parts: tuple[_Expression, ...]
    places: Index

    @property
    def shape(self) -> Shape:
        return self.places.shape


_Expression: TypeAlias = _Leaf | _Applied | _Moved


@contextmanager
def reading_back() -> Iterator[None]:
    """What was written is read here: an error is one of the writer."""
    try:
        yield
    except CheckFailed:
        raise
    except RelutrimError as error:
        raise CheckFailed(f"what was made cannot be read ({error}); this is a bug in relutrim") from error


def check_equal(read: Network, expected: Network) -> None:
    """Raise :class:`CheckFailed`, with the node, unless both graphs are the same."""
    if (read.input, read.dtype) != (expected.input, expected.dtype):
        raise CheckFailed(f"the input reads as {read.input} in {read.dtype}, not {expected.input}")
    if _outputs(read) != _outputs(expected) or not {*read.pinned} <= {*expected.pinned}:
        raise CheckFailed("other values are outputs, or must stay as they are, in what was written")
    common = {*read.shapes} & {*expected.shapes}
    done, waiting = {expected.input.name}, [*(output.source for output in _outputs(read)), *read.pinned]
    while waiting:
        name = waiting.pop()
        if name in done:
            continue
        done.add(name)
        leaves: list[str] = []
        found, wanted = (_expression(network, name, common, leaves) for network in (read, expected))
        if read.shapes[name] != expected.shapes[name] or not _agree(found, wanted):
            raise CheckFailed(
                "what was written does not read as the network that it should be; this is a bug in relutrim",
                where=f"node {name!r}",
            )
        waiting += leaves


def _outputs(network: Network) -> list[Output]:
    """The outputs, each as that of the first value which it is."""
    found = []
    for output in network.outputs:
        source: _Expression | None = _Leaf(output.source, network.shapes[output.source])
        while isinstance(source, _Leaf):
            output = replace(output, source=source.name)
            made = source.name in network
            source = _expression(network, source.name, {*network.shapes}, []) if made else None
        found.append(output)
    return found


def same(one: Operator, other: Operator) -> bool:
    """Whether two operators are the same to the last bit."""
    if one is other:
        return True
    names = [f.name for f in fields(one) if f.name != "_cache"]
    return type(one) is type(other) and all(equal(getattr(one, n), getattr(other, n)) for n in names)


def equal(one: object, other: object) -> bool:
    """The same of fields."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    if hasattr(one, "__dataclass_fields__") and type(one) is type(other):
        names = [f.name for f in fields(one)]  # type: ignore[arg-type]
        return all(equal(getattr(one, name), getattr(other, name)) for name in names)
    return one is other or bool(one == other)


def _expression(network: Network, name: str, common: set[str], leaves: list[str]) -> _Expression:
    """What a value is made of, down to values that both graphs have."""
    node, inputs = network[name], list[_Expression]()
    for source in node.inputs:
        if source in common:
            leaves.append(source)
            inputs.append(_Leaf(source, network.shapes[source]))
        else:
            inputs.append(_expression(network, source, common, leaves))
    return _simplified(node.operator, inputs, network.shapes[name])


def _simplified(operator: Operator, inputs: Sequence[_Expression], shape: Shape) -> _Expression:
    if isinstance(operator, Reshape | Take | Transpose | Concat):
        return _moved(operator, inputs)
    if isinstance(operator, Add) and operator.count == 1:
        return inputs[0]
    if type(operator) is Scale and operator.exact and (operator.scale == 1).all():
        if not operator.shift.any():
            return inputs[0]
        joint = _with_shift(inputs[0], operator)
        if joint is not None:
            return joint
    return _Applied(operator, tuple(inputs), shape)


def _with_shift(before: _Expression, shift: Scale) -> _Expression | None:
    """A product and the sum behind it as one."""
    if not isinstance(before, _Applied):
        return None
    operator = before.operator
    if type(operator) is Scale and operator.exact and not operator.shift.any():
        return replace(before, operator=replace(operator, shift=shift.shift))
    if isinstance(operator, Linear | Convolution) and not operator.bias.any():
        axis = len(before.shape) - 1 if isinstance(operator, Linear) else 0
        wide = np.moveaxis(np.broadcast_to(shift.shift, before.shape), axis, 0)
        rows = wide.reshape(len(wide), math.prod(wide.shape[1:]))
        if rows.size and (rows == rows[:, :1]).all():
            return replace(before, operator=replace(operator, bias=rows[:, 0]))
    return None


def _moved(operator: Operator, inputs: Sequence[_Expression]) -> _Expression:
    """Where the entries come from, found by moving their numbers."""
    parts: list[_Expression] = []
    starts: dict[_Leaf, int] = {}
    total = 0

    def numbered(expression: _Expression) -> Index:
        nonlocal total
        if isinstance(expression, _Moved):
            table = [numbered(part).reshape(-1) for part in expression.parts]
            return np.concatenate([*table, np.array([-1])])[expression.places]
        size, start = math.prod(expression.shape), total
        if isinstance(expression, _Leaf) and expression in starts:
            start = starts[expression]
        else:
            parts.append(expression)
            total += size
            if isinstance(expression, _Leaf):
                starts[expression] = start
        return np.arange(start, start + size).reshape(expression.shape)

    places = _rearranged(operator, [numbered(expression) for expression in inputs])
    whole = len(parts) == 1 and places.shape == parts[0].shape
    if whole and np.array_equal(places.reshape(-1), np.arange(places.size)):
        return parts[0]
    return _Moved(tuple(parts), places)


def _rearranged(operator: Operator, grids: Sequence[Index]) -> Index:
    match operator:
        case Reshape():
            return grids[0].reshape(operator.after)
        case Transpose():
            return np.transpose(grids[0], operator.order)
        case Concat():
            return np.concatenate(grids, operator.axis)
        case _:
            assert isinstance(operator, Take)
            (found,) = grids
            for axis, pick in enumerate(operator.picks):
                if pick is not None:
                    behind = np.full((*found.shape[:axis], 1, *found.shape[axis + 1 :]), -1)
                    found = np.take(np.concatenate([found, behind], axis), pick, axis)  # -1 is the last one
            return found


def _agree(one: _Expression, other: _Expression) -> bool:
    if isinstance(one, _Applied) and isinstance(other, _Applied):
        if len(one.inputs) != len(other.inputs) or one.shape != other.shape:
            return False
        return _alike(one.operator, other.operator, one.shape) and all(map(_agree, one.inputs, other.inputs))
    if isinstance(one, _Moved) and isinstance(other, _Moved):
        places = len(one.parts) == len(other.parts) and np.array_equal(one.places, other.places)
        return places and all(map(_agree, one.parts, other.parts))
    return one == other


def _alike(one: Operator, other: Operator, shape: Shape) -> bool:
    """Whether two operators are the same, but for numbers that are written out in one of them only."""
    if same(one, other):
        return True
    if type(one) is Scale and type(other) is Scale:
        names = ("scale", "shift", "scale_radius", "shift_radius")
        pairs = [(getattr(one, name), getattr(other, name)) for name in names]
        return all((np.broadcast_to(a, shape) == np.broadcast_to(b, shape)).all() for a, b in pairs)
    if isinstance(one, Linear | Convolution) and type(one) is type(other):  # a bias of -0 is none
        return bool((one.bias == other.bias).all()) and same(one, replace(other, bias=one.bias))
    return False
