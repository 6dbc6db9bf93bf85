"""Random convolutions, poolings and moves, and small networks made of them."""

from __future__ import annotations

from math import prod

import numpy as np
from hypothesis import strategies as st

import strategies
from relutrim.errors import NetworkError
from relutrim.graph import (
    Add,
    AveragePool,
    Concat,
    Convolution,
    Linear,
    MaxPool,
    Mean,
    Network,
    Node,
    Operator,
    Output,
    Port,
    Relu,
    Reshape,
    Scale,
    Take,
    Transpose,
)

Shape = tuple[int, ...]


def fits(operator: Operator, *shapes: Shape) -> bool:
    try:
        return prod(operator.output_shape(list(shapes))) > 0
    except NetworkError:
        return False


@st.composite
def shapes(draw: st.DrawFn, *, channels: int = 3, largest: int = 5) -> Shape:
    """A value of one or two spatial axes."""
    axes = draw(st.sampled_from([1, 2]))
    space = draw(st.lists(st.integers(1, largest), min_size=axes, max_size=axes))
    return (draw(st.integers(1, channels)), *space)


def _each(axes: int, low: int, high: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(low, high), min_size=axes, max_size=axes).map(tuple)


def _paddings(axes: int) -> st.SearchStrategy[tuple[tuple[int, int], ...]]:
    pair = st.tuples(st.integers(0, 2), st.integers(0, 2))
    return st.lists(pair, min_size=axes, max_size=axes).map(tuple)


@st.composite
def convolutions(draw: st.DrawFn, shape: Shape, flavour: str = "integers", outputs: int = 3) -> Convolution:
    """A convolution of a value of this shape: any kernel, stride, dilation, padding and groups."""
    axes, numbers = len(shape) - 1, strategies.FLAVOURS[flavour]
    groups = draw(st.sampled_from([g for g in range(1, shape[0] + 1) if shape[0] % g == 0]))
    count = groups * draw(st.integers(1, max(1, outputs // groups)))
    size = (count, shape[0] // groups, *draw(_each(axes, 1, 3)))
    flat = draw(st.lists(numbers | st.just(0.0), min_size=prod(size), max_size=prod(size)))
    bias = draw(st.lists(st.just(0.0) | numbers.map(lambda v: v / 4), min_size=count, max_size=count))
    return Convolution(
        np.array(flat).reshape(size),
        np.array(bias),
        draw(_each(axes, 1, 3)),
        draw(_paddings(axes)),
        draw(_each(axes, 1, 2)),
        groups,
    )


@st.composite
def average_pools(draw: st.DrawFn, shape: Shape) -> AveragePool:
    axes = len(shape) - 1
    return AveragePool(
        draw(_each(axes, 1, 3)), draw(_each(axes, 1, 3)), draw(_paddings(axes)), draw(st.booleans())
    )


@st.composite
def max_pools(draw: st.DrawFn, shape: Shape) -> MaxPool:
    axes = len(shape) - 1
    return MaxPool(
        draw(_each(axes, 1, 3)), draw(_each(axes, 1, 3)), draw(_paddings(axes)), draw(_each(axes, 1, 2))
    )


@st.composite
def means(draw: st.DrawFn, shape: Shape) -> Mean:
    axes = draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    return Mean(tuple(sorted(axes)), draw(st.booleans()))


@st.composite
def takes(draw: st.DrawFn, shape: Shape) -> Take:
    """Picks along some axes, with zeros and repetitions."""
    picks: list[np.ndarray | None] = []
    for size in shape:
        pick = draw(st.none() | st.lists(st.integers(-1, size - 1), min_size=1, max_size=4))
        picks.append(None if pick is None else np.array(pick, dtype=np.int64))
    return Take(tuple(picks))


def transposes(shape: Shape) -> st.SearchStrategy[Transpose]:
    return st.permutations(range(len(shape))).map(lambda order: Transpose(tuple(order)))


@st.composite
def affine_operators(draw: st.DrawFn, shape: Shape, flavour: str = "integers") -> Operator:
    """Any affine operator of one value of this shape."""
    kinds = [takes(shape), transposes(shape), means(shape)]
    if len(shape) in (2, 3):
        kinds += [convolutions(shape, flavour), convolutions(shape, flavour), average_pools(shape)]
    return draw(st.one_of(*kinds).filter(lambda operator: fits(operator, shape)))


@st.composite
def spatial_networks(
    draw: st.DrawFn,
    *,
    steps: int = 6,
    max_neurons: int = 40,
    largest: int = 4,
    maxima: bool = True,
    extreme: bool = True,
) -> Network:
    """A network of convolutions, poolings, moves, sums, concatenations and ReLUs, with a linear end; now and
    then a second output shows some value on the way.
    """
    flavour = draw(strategies.flavours(extreme=extreme))
    shape = draw(shapes(channels=2, largest=largest))
    port, nodes, known, left = Port("x", shape), [], {"x": shape}, max_neurons
    current = "x"

    def add(operator: Operator, *inputs: str) -> str:
        name = f"{operator.kind.lower()}{len(nodes)}"
        nodes.append(Node(name, operator, inputs))
        known[name] = operator.output_shape([known[source] for source in inputs])
        return name

    kinds = ["affine", "affine", "relu", "relu", "scale", "add", "concat"] + ["maximum"] * 2 * maxima
    for _ in range(draw(st.integers(1, steps))):
        shape = known[current]
        match draw(st.sampled_from(kinds)):
            case "affine" if shape:
                operator = draw(affine_operators(shape, flavour))
                if prod(operator.output_shape([shape])) <= 2 * max_neurons:
                    current = add(operator, current)
            case "relu" if prod(shape) <= left:
                left -= prod(shape)
                current = add(Relu(), current)
            case "scale":
                numbers = strategies.FLAVOURS[flavour]
                current = add(Scale.exactly(draw(numbers), draw(numbers)), current)
            case "add":
                same = sorted(name for name, other in known.items() if other == shape)
                current = add(Add(2), current, draw(st.sampled_from(same)))
            case "concat" if shape:
                axis = draw(st.integers(0, len(shape) - 1))
                rest = (*shape[:axis], *shape[axis + 1 :])
                fitting = sorted(
                    name
                    for name, other in known.items()
                    if len(other) == len(shape) and (*other[:axis], *other[axis + 1 :]) == rest
                )
                other = draw(st.sampled_from(fitting))
                if prod(shape) + prod(known[other]) <= 2 * max_neurons:
                    current = add(Concat(axis, (shape[axis], known[other][axis])), current, other)
            case "maximum" if len(shape) in (2, 3):
                pool = draw(max_pools(shape))
                if fits(pool, shape):
                    current = add(pool, current)
    shape = known[current]
    if draw(st.booleans()) and prod(shape) <= left:
        left -= prod(shape)
        current = add(Relu(), current)
    current = add(Reshape(shape, (prod(shape),)), current)
    current = add(draw(strategies.linears(2, prod(shape), flavour)), current)
    if left >= 2:
        current = add(Relu(), current)
    outputs = [Output("y", current)]
    if draw(st.integers(0, 4)) == 4:
        outputs.append(Output("z", draw(st.sampled_from(sorted(known)))))
    return Network(port, tuple(nodes), tuple(outputs), dtype=_dtype(nodes))


def _dtype(nodes: list[Node]) -> str:
    """float32 if that holds every parameter, as a file would have it."""
    arrays = []
    for node in nodes:
        if isinstance(node.operator, Linear | Convolution):
            arrays += [node.operator.weight, node.operator.bias]
        elif isinstance(node.operator, Scale):
            arrays += [node.operator.scale, node.operator.shift]
    with np.errstate(over="ignore"):
        return "float32" if all((a.astype(np.float32) == a).all() for a in arrays) else "float64"
