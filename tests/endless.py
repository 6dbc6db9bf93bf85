"""Networks that read values from nowhere and keep values for nobody knows whom, and domains without ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

import oracle
from relutrim.domain import Box, Domain
from relutrim.graph import (
    Add,
    BatchNorm,
    Concat,
    Fresh,
    Network,
    Node,
    Output,
    Port,
    Relu,
    Reshape,
    Take,
)
from strategies import DYADIC, INTEGERS, linears

EPSILON = 0.25
ROOTS = (3.0, 1.5, 0.75, 5.0, 2.0)
"""Square roots of variance + epsilon: rational, so that the truth is."""
NUMBERS = (0, 1, -1, 3, Fraction(1, 3), -7, 10**6, -(10**6), 10**30, -(10**30), Fraction(1, 10**30))


@st.composite
def batch_norms(draw: st.DrawFn, shape: tuple[int, ...]) -> BatchNorm:
    """Per entry of the first axis; gains are often 0, and biases then."""
    count = shape[0]
    wide = (count, *[1] * (len(shape) - 1))

    def drawn(of: st.SearchStrategy[float]) -> np.ndarray:
        return np.array(draw(st.lists(of, min_size=count, max_size=count))).reshape(wide)

    root = drawn(st.sampled_from(ROOTS))
    gain, bias = drawn(INTEGERS | st.just(0.0) | DYADIC), drawn(INTEGERS | st.just(0.0))
    return BatchNorm.of(gain, bias, drawn(DYADIC), root**2 - EPSILON, EPSILON)


@st.composite
def opened(draw: st.DrawFn, *, most: int = 9) -> Network:
    """Linear layers, batch norms, ReLUs, sums and concatenations of whatever is there; here and there a value
    from nowhere, which may have a range, and a value that must stay.
    """
    inputs = draw(st.integers(1, 3))
    sizes, nodes, pinned = {"x": inputs}, list[Node](), list[str]()

    def add(operator, *names: str) -> str:
        name = f"v{len(nodes)}"
        nodes.append(Node(name, operator, names))
        (sizes[name],) = operator.output_shape([(sizes[n],) for n in names])
        return name

    def fresh(size: int) -> str:
        ends = draw(st.sampled_from([(-math.inf, math.inf), (0.0, math.inf), (-1.0, 1.0), (-math.inf, 2.0)]))
        if draw(st.booleans()):
            pinned.append(draw(st.sampled_from(sorted(sizes))))
        return add(Fresh((size,), *ends))

    current = "x"
    for _ in range(draw(st.integers(2, most))):
        kind = draw(st.sampled_from(["linear", "linear", "relu", "relu", "norm", "add", "concat", "fresh"]))
        size = sizes[current]
        same = sorted(name for name in sizes if sizes[name] == size)
        match kind:
            case "linear":
                current = add(draw(linears(draw(st.integers(1, 4)), size)), current)
            case "relu":
                current = add(Relu(), current)
            case "norm":
                current = add(draw(batch_norms((size,))), current)
            case "add":
                other = fresh(size) if draw(st.booleans()) else draw(st.sampled_from(same))
                current = add(Add(2), current, other)
            case "concat" if size < 8:
                other = fresh(2) if draw(st.booleans()) else draw(st.sampled_from(sorted(sizes)))
                current = add(Concat(0, (size, sizes[other])), current, other)
            case _:
                current = fresh(draw(st.integers(1, 3)))
    current = add(draw(linears(2, sizes[current])), current)
    outputs = (Output("y", current),)
    dtype = "float64" if any(isinstance(n.operator, BatchNorm) for n in nodes) else "float32"
    return Network(
        Port("x", (inputs,)), tuple(nodes), outputs, dtype=dtype, pinned=tuple(dict.fromkeys(pinned))
    )


@st.composite
def half_open(draw: st.DrawFn, inputs: int) -> Domain:
    """Boxes of which some ends are missing, all of them often."""
    if draw(st.booleans()):
        return Box(-np.inf, np.inf)
    ends = [
        draw(st.sampled_from([(-np.inf, np.inf), (0.0, np.inf), (-np.inf, 1.0), (-1.0, 1.0)]))
        for _ in range(inputs)
    ]
    return Box(np.array([low for low, _ in ends]), np.array([high for _, high in ends]))


def closed(network: Network, original: Network | None = None) -> Network:
    """The same with one long input of which the values from nowhere are parts: those of the ``original``, of
    which it may have lost some.
    """
    original = original or network
    fresh = [node for node in original.nodes if isinstance(node.operator, Fresh)]
    sizes = [original.input.size, *(original.size(node.name) for node in fresh)]
    starts = np.cumsum([0, *sizes])
    parts: list[Node] = []
    names = [network.input.name, *(node.name for node in fresh)]
    for name, start, size in zip(names, starts, sizes, strict=False):
        if name not in network.shapes:
            continue
        pick = Take((np.arange(start, start + size),))
        flat = f"{name}/flat"
        parts += [Node(flat, pick, ("all",)), Node(name, Reshape((size,), network.shapes[name]), (flat,))]
    rest = [node for node in network.nodes if not isinstance(node.operator, Fresh)]
    return replace(network, input=Port("all", (int(starts[-1]),)), nodes=(*parts, *rest))


def evaluate(network: Network, x: Sequence[Fraction], original: Network | None = None) -> oracle.Values:
    """Every value, over the rational numbers; behind the input stand the values from nowhere, as the
    ``original`` has them.
    """
    return oracle.evaluate(closed(network, original), x)


def ends(network: Network, domain: Domain) -> list[tuple[float, float]]:
    """Those of the long input of :func:`closed`."""
    problem = domain.fit(network)
    found = list(zip(problem.lo.tolist(), problem.hi.tolist(), strict=True))
    for node in network.nodes:
        if isinstance(node.operator, Fresh):
            found += [(node.operator.least, node.operator.greatest)] * network.size(node.name)
    return found


@st.composite
def points(draw: st.DrawFn, network: Network, domain: Domain) -> list[Fraction]:
    """A point of the domain and whatever values may come from nowhere, huge ones among them."""
    return [
        clamped(Fraction(draw(st.sampled_from(NUMBERS))), low, high) for low, high in ends(network, domain)
    ]


def clamped(value: Fraction, low: float, high: float) -> Fraction:
    """The nearest number between two ends, either of which may be missing."""
    value = value if low == -math.inf else max(value, Fraction(low))
    return value if high == math.inf else min(value, Fraction(high))
