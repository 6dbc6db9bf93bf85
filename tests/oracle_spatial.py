"""The oracle's convolutions, poolings and moves: plain loops over indices, in rational arithmetic.

Written from the definitions, entry by entry, and sharing nothing with the package.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import combinations, product

import numpy as np

from relutrim.graph import AveragePool, Concat, Convolution, MaxPool, Mean, Operator, Take, Transpose

Flat = list[Fraction]
Shape = tuple[int, ...]


def spatial(operator: Operator, shapes: list[Shape]) -> Callable[[list[Flat]], Flat]:
    """What computes an operator's value from those of its inputs, flat in C order."""
    shape = shapes[0]
    match operator:
        case Convolution():
            return lambda inputs: _convolution(operator, shape, inputs[0])
        case AveragePool():
            return lambda inputs: [
                sum(entries, Fraction(0)) / (full if operator.count_padding else len(entries))
                for entries, full in _windows(operator, shape, inputs[0], (1,) * len(operator.kernel))
            ]
        case MaxPool():
            return lambda inputs: [
                max(entries) for entries, _ in _windows(operator, shape, inputs[0], operator.dilation)
            ]
        case Mean():
            return lambda inputs: _mean(operator, shape, inputs[0])
        case Take():
            return lambda inputs: _take(operator, shape, inputs[0])
        case Transpose():
            return lambda inputs: _transpose(operator, shape, inputs[0])
        case Concat():
            return lambda inputs: _concat(operator, shapes, inputs)
    raise NotImplementedError(f"the oracle does not know {operator.kind}")


def _at(shape: Shape, index: tuple[int, ...]) -> int:
    place = 0
    for size, i in zip(shape, index, strict=True):
        place = place * size + i
    return place


def _counts(space: Shape, kernel: Shape, stride: Shape, padding, dilation: Shape) -> Shape:
    return tuple(
        (n + a + b - (d * (k - 1) + 1)) // s + 1
        for n, k, s, (a, b), d in zip(space, kernel, stride, padding, dilation, strict=True)
    )


def _places(operator, space: Shape, kernel: Shape, dilation: Shape, window: tuple[int, ...]):
    """Offsets in a window and the places they lie over, without those that are padding."""
    for offset in product(*(range(k) for k in kernel)):
        place = tuple(
            w * s + t * d - a
            for w, s, t, d, (a, _) in zip(
                window, operator.stride, offset, dilation, operator.padding, strict=True
            )
        )
        if all(0 <= p < n for p, n in zip(place, space, strict=True)):
            yield offset, place


def _convolution(operator: Convolution, shape: Shape, x: Flat) -> Flat:
    outputs, inputs, *kernel = operator.weight.shape
    space, found = shape[1:], []
    counts = _counts(space, tuple(kernel), operator.stride, operator.padding, operator.dilation)
    for channel in range(outputs):
        first = channel // (outputs // operator.groups) * inputs
        for window in product(*(range(c) for c in counts)):
            total = Fraction(float(operator.bias[channel]))
            for offset, place in _places(operator, space, tuple(kernel), operator.dilation, window):
                for j in range(inputs):
                    weight = float(operator.weight[(channel, j, *offset)])
                    if weight:
                        total += Fraction(weight) * x[_at(shape, (first + j, *place))]
            found.append(total)
    return found


def _windows(operator, shape: Shape, x: Flat, dilation: Shape):
    """Per channel and window, the entries that are no padding, and how many there would be with it."""
    counts = _counts(shape[1:], operator.kernel, operator.stride, operator.padding, dilation)
    full = int(np.prod(operator.kernel))
    for channel in range(shape[0]):
        for window in product(*(range(c) for c in counts)):
            places = _places(operator, shape[1:], operator.kernel, dilation, window)
            yield [x[_at(shape, (channel, *place))] for _, place in places], full


def window_pairs(operator: MaxPool, shape: Shape) -> set[tuple[int, int]]:
    """The flat indices of any two entries that lie in a window together."""
    places = list(range(int(np.prod(shape))))
    found = set()
    for entries, _ in _windows(operator, shape, places, operator.dilation):
        found.update(combinations(sorted(entries), 2))
    return found


def _mean(operator: Mean, shape: Shape, x: Flat) -> Flat:
    kept = [axis for axis in range(len(shape)) if axis not in operator.axes]
    found = []
    for index in product(*(range(shape[axis]) for axis in kept)):
        entries = [
            x[_at(shape, place)]
            for place in product(*(range(n) for n in shape))
            if all(place[axis] == i for axis, i in zip(kept, index, strict=True))
        ]
        found.append(sum(entries, Fraction(0)) / len(entries))
    return found


def _take(operator: Take, shape: Shape, x: Flat) -> Flat:
    picks = [range(n) if p is None else p.tolist() for n, p in zip(shape, operator.picks, strict=True)]
    return [Fraction(0) if -1 in place else x[_at(shape, place)] for place in product(*picks)]


def _transpose(operator: Transpose, shape: Shape, x: Flat) -> Flat:
    found = []
    for index in product(*(range(shape[axis]) for axis in operator.order)):
        place = [0] * len(shape)
        for axis, i in zip(operator.order, index, strict=True):
            place[axis] = i
        found.append(x[_at(shape, tuple(place))])
    return found


def _concat(operator: Concat, shapes: list[Shape], inputs: list[Flat]) -> Flat:
    total = sum(shape[operator.axis] for shape in shapes)
    whole = (*shapes[0][: operator.axis], total, *shapes[0][operator.axis + 1 :])
    found = []
    for index in product(*(range(n) for n in whole)):
        at, part = index[operator.axis], 0
        while at >= shapes[part][operator.axis]:
            at -= shapes[part][operator.axis]
            part += 1
        place = (*index[: operator.axis], at, *index[operator.axis + 1 :])
        found.append(inputs[part][_at(shapes[part], place)])
    return found
