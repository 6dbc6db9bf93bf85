"""The truth about small networks, in rational arithmetic: no float decides anything here.

Over a bounded polytope a ReLU network is continuous and piecewise affine. The activation patterns cut the
polytope into cells on each of which every pre-activation is affine, so its smallest and largest values are
taken at vertices. The oracle keeps exactly these cells, each as the list of its vertices: it starts from the
corners of the box, cuts by the domain's constraints, and then by each neuron's ``y = 0`` in topological
order, and where two entries of a window of max pooling are equal. A range is the smallest and largest value
over vertices; no linear program is solved. Cells are closed and overlap where they are cut, so minima and
maxima are attained.

Cost grows with the number of cells: fine for up to 4 inputs and about a dozen neurons.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise, product
from math import isqrt, prod

import numpy as np

from oracle_barriers import barrier
from oracle_spatial import spatial, window_pairs
from relutrim.graph import (
    Add,
    Barrier,
    BatchNorm,
    Linear,
    MaxPool,
    Network,
    Node,
    Operator,
    Output,
    Port,
    Relu,
    Reshape,
    Scale,
)

Point = tuple[Fraction, ...]
Values = dict[str, list[Fraction]]
Range = tuple[Fraction, Fraction]


@dataclass(frozen=True)
class Polytope:
    """``lo <= x <= hi`` and ``lower <= g x <= upper`` for the rows ``(g, lower, upper)``; None is no end."""

    lo: Point
    hi: Point
    rows: tuple[tuple[Point, Fraction | None, Fraction | None], ...] = ()

    @classmethod
    def of(cls, lo, hi, matrix=(), lower=(), upper=()) -> Polytope:
        """From numbers of any kind, floats taken exactly; infinite ends of rows are no ends."""
        rows = tuple(
            (_exact(row), *(Fraction(float(end)) if np.isfinite(end) else None for end in (low, high)))
            for row, low, high in zip(matrix, lower, upper, strict=True)
        )
        return cls(_exact(lo), _exact(hi), rows)

    def contains(self, x: Sequence[Fraction]) -> bool:
        return all(low <= v <= high for low, v, high in zip(self.lo, x, self.hi, strict=True)) and all(
            (low is None or low <= _dot(g, x)) and (high is None or _dot(g, x) <= high)
            for g, low, high in self.rows
        )


class EmptyDomain(ValueError):
    """No point satisfies all constraints."""


# Evaluation.


def evaluate(network: Network, x: Sequence[Fraction]) -> Values:
    """Every value of the network at ``x``, flat in C order, by name; the input is among them."""
    values: Values = {network.input.name: [Fraction(v) for v in x]}
    for node, compute in _steps(network):
        values[node.name] = compute([values[name] for name in node.inputs])
    return values


def outputs(network: Network, x: Sequence[Fraction]) -> list[Fraction]:
    """All outputs before their tails, one behind the other, as ``Network.__call__`` orders them."""
    values = evaluate(network, x)
    return [value for source in network.sources for value in values[source]]


@lru_cache(maxsize=32)
def _steps(network: Network) -> list[tuple[Node, Callable[[list[list[Fraction]]], list[Fraction]]]]:
    return [(node, _compute(node, [network.shapes[name] for name in node.inputs])) for node in network.nodes]


def _compute(node: Node, shapes: list[tuple[int, ...]]) -> Callable[[list[list[Fraction]]], list[Fraction]]:
    operator = node.operator
    if isinstance(operator, Scale) and not (operator.exact or isinstance(operator, BatchNorm)):
        raise NotImplementedError(f"node {node.name!r}: the oracle has no place for a Scale with a radius")
    return operator_value(operator, shapes)


def operator_value(
    operator: Operator, shapes: list[tuple[int, ...]]
) -> Callable[[list[list[Fraction]]], list[Fraction]]:
    """What computes an operator's value, flat in C order, from those of its inputs; radii are left out."""
    shape = shapes[0]
    if isinstance(operator, Linear):
        # Only weights other than zero: sparse rows are frequent, and Fractions are slow.
        rows = [
            ([(j, Fraction(w)) for j, w in enumerate(row) if w], Fraction(b))
            for row, b in zip(operator.weight.tolist(), operator.bias.tolist(), strict=True)
        ]
        width, count = shape[-1], prod(shape[:-1])

        def linear(inputs: list[list[Fraction]]) -> list[Fraction]:
            (x,) = inputs
            return [sum((w * x[k * width + j] for j, w in row), b) for k in range(count) for row, b in rows]

        return linear
    if isinstance(operator, BatchNorm):
        parts = [
            _exact(np.broadcast_to(array, shape).ravel())
            for array in (operator.gain, operator.bias, operator.mean, operator.variance)
        ]
        roots = [_root(v + Fraction(operator.epsilon)) for v in parts.pop()]
        return lambda inputs: [
            g * (v - m) / d + b for v, g, b, m, d in zip(inputs[0], *parts, roots, strict=True)
        ]
    if isinstance(operator, Scale):
        scale = _exact(np.broadcast_to(operator.scale, shape).ravel())
        shift = _exact(np.broadcast_to(operator.shift, shape).ravel())
        return lambda inputs: [s * v + t for s, v, t in zip(scale, inputs[0], shift, strict=True)]
    if isinstance(operator, Relu):
        return lambda inputs: [max(v, Fraction(0)) for v in inputs[0]]
    if isinstance(operator, Add):
        return lambda inputs: [sum(terms, Fraction(0)) for terms in zip(*inputs, strict=True)]
    if isinstance(operator, Reshape):
        return lambda inputs: list(inputs[0])
    if isinstance(operator, Barrier):
        return lambda inputs: barrier(operator, shape, inputs[0])
    return spatial(operator, shapes)


def _root(square: Fraction) -> Fraction:
    """The root of a rational number: exactly where it is rational too, else to some 300 binary digits."""
    top, bottom = isqrt(square.numerator), isqrt(square.denominator)
    if (top * top, bottom * bottom) == (square.numerator, square.denominator):
        return Fraction(top, bottom)
    return Fraction(isqrt((square.numerator << 600) // square.denominator), 1 << 300)


# Cells.

Cell = list[tuple[Point, int]]
"""The vertices of a polytope, each with a bit mask of the constraints that hold there with equality."""


def _cut(cell: Cell, values: Sequence[Fraction], bit: int) -> tuple[Cell, Cell]:
    """The parts of ``cell`` where an affine function is <= 0 and >= 0, given its values at the vertices.

    A new vertex lies on an edge. Two vertices span an edge exactly if no third one satisfies with equality
    all constraints that both do (the double description method's combinatorial test).
    """
    below = [(x, mask, v) for (x, mask), v in zip(cell, values, strict=True) if v < 0]
    above = [(x, mask, v) for (x, mask), v in zip(cell, values, strict=True) if v > 0]
    edge = [(x, mask | bit) for (x, mask), v in zip(cell, values, strict=True) if v == 0]
    masks = [mask for _, mask in cell]
    for x, one, v in below:
        for y, other, w in above:
            common = one & other
            if sum(mask & common == common for mask in masks) == 2:
                t = v / (v - w)
                edge.append((tuple(a + t * (b - a) for a, b in zip(x, y, strict=True)), common | bit))
    return [(x, mask) for x, mask, _ in below] + edge, [(x, mask) for x, mask, _ in above] + edge


def _start(domain: Polytope) -> Cell:
    """The domain itself."""
    n = len(domain.lo)
    if any(low > high for low, high in zip(domain.lo, domain.hi, strict=True)):
        raise EmptyDomain("the box is empty")
    sides = [
        # A flat side satisfies both of its constraints with equality.
        [(low, 3 << 2 * i)] if low == high else [(low, 1 << 2 * i), (high, 2 << 2 * i)]
        for i, (low, high) in enumerate(zip(domain.lo, domain.hi, strict=True))
    ]
    cell: Cell = [(tuple(x for x, _ in corner), sum(bit for _, bit in corner)) for corner in product(*sides)]
    bit = 1 << 2 * n
    for g, low, high in domain.rows:
        for end, side in ((low, 1), (high, 0)):
            if end is not None:
                cell = _cut(cell, [_dot(g, x) - end for x, _ in cell], bit)[side]
                bit <<= 1
    if not cell:
        raise EmptyDomain("no point of the box satisfies all constraints")
    return cell


def vertices(domain: Polytope) -> list[Point]:
    """The vertices of the domain."""
    return [x for x, _ in _start(domain)]


def exact_value_ranges(network: Network, domain: Polytope, names: Iterable[str]) -> dict[str, list[Range]]:
    """Smallest and largest value over the domain of every entry of the named values; all are attained."""
    wanted = set(names)
    needed = _upstream(network, wanted)
    known: dict[Point, Values] = {}

    def at(x: Point) -> Values:
        # The network is continuous, so its value at a vertex is the same in all cells that share it.
        if x not in known:
            known[x] = evaluate(network, x)
        return known[x]

    cells = [_start(domain)]
    bit = 1 << (2 * len(domain.lo) + 2 * len(domain.rows))
    for node in network.nodes:
        if not isinstance(node.operator, Relu | MaxPool) or node.name not in needed:
            continue
        source = node.inputs[0]
        for k, other in _bends(node, network.shapes[source]):
            parts: list[Cell] = []
            for cell in cells:
                values = [at(x)[source][k] - (0 if other is None else at(x)[source][other]) for x, _ in cell]
                # A cell on one side of y = 0 needs no cut: the neuron is affine on it.
                split = min(values) < 0 < max(values)
                parts += _cut(cell, values, bit) if split else [cell]
            cells = parts
            bit <<= 1
    points = {x for cell in cells for x, _ in cell}
    ranges: dict[str, list[Range]] = {}
    for name in wanted:
        columns = list(zip(*(at(x)[name] for x in points), strict=True))
        ranges[name] = [(min(column), max(column)) for column in columns]
    return ranges


def _bends(node: Node, shape: tuple[int, ...]) -> list[tuple[int, int | None]]:
    """Where a node is not affine: where an entry of its input is 0, or equal to another of its window."""
    if isinstance(node.operator, Relu):
        return [(k, None) for k in range(prod(shape))]
    return list(window_pairs(node.operator, shape))


def _upstream(network: Network, names: Iterable[str]) -> set[str]:
    """The names of all values that ``names`` are computed from, themselves included."""
    found, waiting = set(), list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += network[name].inputs if name in network else ()
    return found


def exact_ranges(network: Network, domain: Polytope) -> dict[str, list[Range]]:
    """Smallest and largest pre-activation of every neuron over the domain, by the name of its ReLU node."""
    sources = {node.name: node.inputs[0] for node in network.relus}
    ranges = exact_value_ranges(network, domain, sources.values())
    return {name: ranges[source] for name, source in sources.items()}


def exact_output_ranges(network: Network, domain: Polytope) -> list[Range]:
    """Smallest and largest value of every output before its tail, in the order of ``Network.__call__``."""
    ranges = exact_value_ranges(network, domain, network.sources)
    return [pair for source in network.sources for pair in ranges[source]]


def largest_deviations(one: Network, other: Network, domain: Polytope) -> list[Fraction]:
    """``max |f_k - f'_k|`` over the domain for every entry of every output of two networks, exact."""
    nodes: list[Node] = []
    flat: list[list[str]] = []
    for prefix, network in (("one", one), ("other", other)):
        names = {node.name: f"{prefix}.{node.name}" for node in network.nodes}
        names[network.input.name] = f"{prefix}/input"
        nodes.append(Node(f"{prefix}/input", Reshape(one.input.shape, network.input.shape), ("x",)))
        nodes += [
            Node(names[node.name], node.operator, tuple(names[name] for name in node.inputs))
            for node in network.nodes
        ]
        flat.append([f"{prefix}/output{k}" for k in range(len(network.outputs))])
        for name, output in zip(flat[-1], network.outputs, strict=True):
            shape = network.shapes[output.source]
            nodes.append(Node(name, Reshape(shape, (prod(shape),)), (names[output.source],)))
    results = []
    for k, (a, b) in enumerate(zip(*flat, strict=True)):
        nodes.append(Node(f"minus{k}", Scale.exactly(-1.0), (b,)))
        nodes.append(Node(f"difference{k}", Add(2), (a, f"minus{k}")))
        results.append(Output(f"difference{k}", f"difference{k}"))
    both = Network(Port("x", one.input.shape), tuple(nodes), tuple(results))
    return [max(-low, high) for low, high in exact_output_ranges(both, domain)]


def random_points(domain: Polytope, count: int, seed: int = 0) -> list[list[Fraction]]:
    """Rational points of the domain: its vertices first, then convex combinations of some of them."""
    draw = random.Random(seed)
    corners = vertices(domain)
    points = [list(x) for x in corners[:count]]
    while len(points) < count:
        chosen = draw.sample(corners, draw.randint(1, len(corners)))
        cuts = sorted([0, 64, *(draw.randint(0, 64) for _ in chosen[1:])])
        weights = [Fraction(b - a, 64) for a, b in pairwise(cuts)]
        points.append([_dot(weights, column) for column in zip(*chosen, strict=True)])
    return points


def _exact(numbers: Iterable) -> Point:
    return tuple(v if isinstance(v, Fraction) else Fraction(float(v)) for v in numbers)


def _dot(a: Sequence[Fraction], b: Sequence[Fraction]) -> Fraction:
    return sum((v * w for v, w in zip(a, b, strict=True) if v), Fraction(0))
