"""Random small networks and domains, made of what breaks provers: ties, zeros, multiples, extreme numbers.

Everything shrinks towards one input, one layer, small integers and the unit box.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from oracle import Polytope
from relutrim.graph import Add, Linear, Network, Node, Output, Port, Relu, Reshape, Scale

Array = npt.NDArray[np.float64]

INTEGERS = st.integers(-3, 3).map(float)
DYADIC = st.builds(lambda n, e: n * 2.0**-e, st.integers(-64, 64), st.integers(0, 8))
FLOAT32 = st.floats(-4, 4, width=32).map(lambda v: v if abs(v) > 1e-6 else 0.0)
TINY = st.sampled_from([1e-30, -1e-30, 1e-200, -1e-200, 5e-324, -5e-324, 2.0**-1060, 1e-8, -1e-8])
HUGE = st.sampled_from([1e20, -1e20, 1e8, -1e8, 1e150, -1e150])

FLAVOURS = {
    "integers": INTEGERS,
    "dyadic": INTEGERS | DYADIC,
    "float32": INTEGERS | FLOAT32 | FLOAT32,
    "tiny": INTEGERS | FLOAT32 | TINY,
    "huge": INTEGERS | FLOAT32 | HUGE,
    "all": INTEGERS | DYADIC | FLOAT32 | TINY | HUGE,
}
TAME = ("integers", "dyadic", "float32")


def flavours(*, extreme: bool = True) -> st.SearchStrategy[str]:
    """How weights look; extreme numbers in about a quarter of the networks."""
    return st.sampled_from(TAME * 3 + ("tiny", "huge", "all")) if extreme else st.sampled_from(TAME)


@st.composite
def linears(draw: st.DrawFn, outputs: int, inputs: int, flavour: str = "integers") -> Linear:
    """A layer whose rows may be zero, equal to earlier ones, or their multiples, with or without the bias."""
    numbers = FLAVOURS[flavour]
    weight, bias = np.zeros((outputs, inputs)), np.zeros(outputs)
    for i in range(outputs):
        kind = draw(st.sampled_from(["fresh"] * 5 + ["zero", "multiple", "multiple"]))
        if kind == "multiple" and i > 0:
            other = draw(st.integers(0, i - 1))
            factor = draw(st.sampled_from([1.0, -1.0, 2.0, -0.5, 3.0]))
            weight[i] = factor * weight[other]
            bias[i] = factor * bias[other] if draw(st.booleans()) else draw(numbers)
        else:
            if kind != "zero":
                weight[i] = draw(st.lists(numbers, min_size=inputs, max_size=inputs))
            # Small biases: otherwise most neurons are stable for no interesting reason.
            bias[i] = draw(st.just(0.0) | numbers.map(lambda v: v / 4))
    return Linear(weight, bias)


@st.composite
def scales(draw: st.DrawFn, size: int, flavour: str = "integers") -> Scale:
    """An exact Scale, of one number or of one per entry."""
    numbers = FLAVOURS[flavour]
    if draw(st.booleans()):
        return Scale.exactly(draw(numbers), draw(numbers))
    entries = st.lists(numbers, min_size=size, max_size=size)
    return Scale.exactly(np.array(draw(entries)), np.array(draw(entries)))


@dataclass
class _Builder:
    """Nodes so far, and the size of every flat value among them."""

    nodes: list[Node] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)

    def add(
        self, name: str, operator: Linear | Scale | Relu | Add | Reshape, inputs: tuple[str, ...], size: int
    ) -> str:
        self.nodes.append(Node(name, operator, inputs))
        self.sizes[name] = size
        return name


@st.composite
def networks(
    draw: st.DrawFn,
    *,
    max_inputs: int = 3,
    max_layers: int = 4,
    max_width: int = 6,
    max_neurons: int = 12,
    max_outputs: int = 3,
    branches: bool = True,
    extreme: bool = True,
) -> Network:
    """A random network with at most ``max_neurons`` ReLUs in all; layers may be empty.

    Between Linear and Relu there may be a Scale; with ``branches``, earlier values of any size come back
    through a Linear and an Add (before the ReLU), values of the same size also directly (behind it). The
    input may have a shape to flatten first, the output may end in a ReLU, there may be a second output.
    """
    flavour = draw(flavours(extreme=extreme))
    inputs = draw(st.integers(1, max_inputs))
    build = _Builder()
    shape = draw(st.sampled_from([(inputs,), (1, inputs), (inputs, 1)]))
    build.sizes["x"] = inputs
    current = "x"
    if shape != (inputs,):
        current = build.add("flatten", Reshape(shape, (inputs,)), ("x",), inputs)
        del build.sizes["x"]  # only flat values are read further on
    if draw(st.booleans()):
        current = build.add("scale0", draw(scales(inputs, flavour)), (current,), inputs)

    left = max_neurons
    layers = draw(st.integers(1, max_layers))
    for k in range(1, layers + 1):
        # Empty layers are worth a test and make everything behind them constant: not too often.
        fewest = draw(st.sampled_from([1] * 9 + [0])) if left else 0
        width = draw(st.integers(fewest, max(fewest, min(max_width, left))))
        left -= width
        before = current
        current = build.add(
            f"linear{k}", draw(linears(width, build.sizes[before], flavour)), (before,), width
        )
        if branches and draw(st.integers(0, 4)) == 4:
            other = draw(st.sampled_from(sorted(build.sizes)))
            side = build.add(f"branch{k}", draw(linears(width, build.sizes[other], flavour)), (other,), width)
            current = build.add(f"join{k}", Add(2), (current, side), width)
        if draw(st.integers(0, 4)) == 4:
            current = build.add(f"scale{k}", draw(scales(width, flavour)), (current,), width)
        current = build.add(f"relu{k}", Relu(), (current,), width)
        if branches and draw(st.integers(0, 4)) == 4:
            same = sorted(name for name, size in build.sizes.items() if size == width)
            current = build.add(f"add{k}", Add(2), (current, draw(st.sampled_from(same))), width)

    width = draw(st.integers(1, max_outputs))
    source = build.add("output", draw(linears(width, build.sizes[current], flavour)), (current,), width)
    if left >= width and draw(st.integers(0, 4)) == 4:
        source = build.add("output_relu", Relu(), (source,), width)
    outputs = [Output("y", source)]
    if draw(st.integers(0, 9)) == 9:
        outputs.append(Output("z", draw(st.sampled_from(sorted(build.sizes)))))
    return Network(Port("x", shape), tuple(build.nodes), tuple(outputs), dtype=_dtype(build.nodes))


def _dtype(nodes: list[Node]) -> str:
    """float32 if that holds every parameter, as a file would have it."""
    arrays = []
    for node in nodes:
        if isinstance(node.operator, Linear):
            arrays += [node.operator.weight, node.operator.bias]
        elif isinstance(node.operator, Scale):
            arrays += [node.operator.scale, node.operator.shift]
    with np.errstate(over="ignore"):
        return "float32" if all((a.astype(np.float32) == a).all() for a in arrays) else "float64"


@dataclass(frozen=True, eq=False)
class RandomDomain:
    """A box, rows ``lower <= matrix @ x <= upper``, and a point that lies in all of it, exactly."""

    lo: Array
    hi: Array
    matrix: Array
    lower: Array
    upper: Array
    point: Array

    @property
    def polytope(self) -> Polytope:
        """The same set for the oracle."""
        return Polytope.of(self.lo, self.hi, self.matrix, self.lower, self.upper)


@st.composite
def domains(draw: st.DrawFn, inputs: int, *, rows: int = 2, extreme: bool = True) -> RandomDomain:
    """A domain that is not empty; sides may be flat, and constraints may touch the box only in a point."""
    ends = INTEGERS | DYADIC | FLOAT32
    if extreme and draw(st.integers(0, 9)) == 9:
        ends = ends | TINY | st.sampled_from([1e6, -1e6, 1e20, -1e20])
    lo, hi, point = np.zeros(inputs), np.ones(inputs), np.zeros(inputs)
    for i in range(inputs):
        kind = draw(st.sampled_from(["unit", "unit", "signed", "signed", "any", "any", "flat"]))
        if kind == "signed":
            lo[i] = -1.0
        elif kind != "unit":
            a = draw(ends)
            b = a if kind == "flat" else draw(ends)
            lo[i], hi[i] = min(a, b), max(a, b)
        middle = float(np.clip(lo[i] / 2 + hi[i] / 2, lo[i], hi[i]))
        point[i] = draw(st.sampled_from([middle, lo[i], hi[i]]))
    matrix, lower, upper = [], [], []
    for _ in range(draw(st.integers(0, rows))):
        row = np.array(draw(st.lists(INTEGERS | FLOAT32, min_size=inputs, max_size=inputs)))
        value = sum(
            (Fraction(g) * Fraction(x) for g, x in zip(row.tolist(), point.tolist(), strict=True)),
            Fraction(0),
        )
        slack = st.sampled_from([Fraction(1, 4), Fraction(1), Fraction(0)])
        sides = draw(st.sampled_from(["upper", "lower", "both"]))
        matrix.append(row)
        upper.append(np.inf if sides == "lower" else _at_least(value + draw(slack)))
        lower.append(-np.inf if sides == "upper" else -_at_least(-(value - draw(slack))))
    return RandomDomain(
        lo, hi, np.array(matrix).reshape(len(matrix), inputs), np.array(lower), np.array(upper), point
    )


def _at_least(value: Fraction) -> float:
    """The smallest float64 that is at least ``value``."""
    nearest = float(value)
    return nearest if Fraction(nearest) >= value else float(np.nextafter(nearest, np.inf))


@st.composite
def problems(
    draw: st.DrawFn, *, rows: int = 2, extreme: bool = True, **options: int | bool
) -> tuple[Network, RandomDomain]:
    """A network and a domain for it; ``options`` are those of :func:`networks`."""
    network = draw(networks(extreme=extreme, **options))
    return network, draw(domains(network.input.size, rows=rows, extreme=extreme))
