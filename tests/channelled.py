"""Random networks full of channels that could go: multiples, combinations, constants, active and dead ones,
tied by sums, joined, picked, pooled, flattened, and seen by several outputs.

The structure comes from ``choose``, which picks from a list: hypothesis' choice in a test, so that examples
shrink, or a random generator's in a long search.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

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

Choose = Callable[[Sequence[Any]], Any]
Shape = tuple[int, ...]


@st.composite
def channelled(draw: st.DrawFn, **options: int) -> Network:
    """A network as below."""
    seed = draw(st.integers(0, 2**16))
    return network(lambda options: draw(st.sampled_from(options)), np.random.default_rng(seed), **options)


def network(
    choose: Choose, rng: np.random.Generator, *, steps: int = 6, neurons: int = 48, largest: int = 4
) -> Network:
    """A network of a few convolutions and what may stand between them."""
    return _Builder(choose, rng, neurons, largest).built(steps)


_STEPS = (
    *("convolved", "convolved", "active", "rectified", "rectified", "pooled", "scaled", "added"),
    *("twins", "joined", "taken", "averaged", "turned", "per_channel"),
    *("gated", "only_somewhere", "only_at_the_border", "block", "block"),
)


class _Builder:
    def __init__(self, choose: Choose, rng: np.random.Generator, neurons: int, largest: int) -> None:
        self.choose, self.rng, self.left = choose, rng, neurons
        axes = choose([1, 1, 2])
        shape = (choose([1, 2]), *(choose(range(1, largest + 1)) for _ in range(axes)))
        self.port, self.nodes, self.shapes = Port("x", shape), [], {"x": shape}
        self.kind = choose(["integers", "dyadic", "float32", "float64"])

    def built(self, steps: int) -> Network:
        current = self.convolved("x")
        for _ in range(self.choose(range(1, steps + 1))):
            name = self.choose(_STEPS)
            current = getattr(self, name)(current)
        if self.choose([True, True, False]):
            current = self.rectified(current)
        if self.choose([True, True, False]):
            current = self.flattened(current)
        if self.choose([True, False, False]):
            current = self.rectified(current)
        sources = [current]
        if self.choose([True, False, False, False]):
            sources.append(self.choose(sorted(self.shapes)))
        outputs = tuple(Output(f"y{k}", source) for k, source in enumerate(sources))
        return Network(self.port, tuple(self.nodes), outputs, dtype=self.dtype)

    @property
    def dtype(self) -> str:
        return "float64" if self.kind == "float64" else "float32"

    def add(self, operator: Operator, *inputs: str) -> str:
        """The value of a new node, or the first input if the operator does not fit or makes too much."""
        try:
            shape = operator.output_shape([self.shapes[name] for name in inputs])
        except NetworkError:
            return inputs[0]
        if prod(shape) > 60 or not prod(shape):
            return inputs[0]
        name = f"{operator.kind.lower()}{len(self.nodes)}"
        self.nodes.append(Node(name, operator, inputs))
        self.shapes[name] = shape
        return name

    def numbers(self, *shape: int) -> np.ndarray:
        match self.kind:
            case "integers":
                return self.rng.integers(-3, 4, shape).astype(float)
            case "dyadic":
                return self.rng.integers(-8, 9, shape) / 8
            case "float32":
                return self.rng.normal(size=shape).astype(np.float32).astype(float)
            case _:
                return self.rng.normal(size=shape)

    def held(self, array: np.ndarray) -> np.ndarray:
        return array.astype(self.dtype).astype(float)

    def rows(self, count: int, size: Shape, *, active: bool) -> tuple[np.ndarray, np.ndarray]:
        """Kernels and biases, some of them multiples or combinations of earlier ones, zeros, or stable."""
        flat = np.zeros((count, prod(size) + 1))
        for i in range(count):
            flat[i] = self.numbers(prod(size) + 1)
            flat[i, :-1] *= self.rng.random(prod(size)) < 0.7
            how = self.choose(["fresh", "multiple", "multiple", "combined", "constant", "dead"])
            if how == "multiple" and i:
                flat[i] = self.choose([1.0, 2.0, 0.5, 3.0, -1.0, -0.1]) * flat[self.choose(range(i))]
            elif how == "combined" and i > 1:
                flat[i] = flat[self.choose(range(i))] + 2 * flat[self.choose(range(i))]
            elif how == "constant":
                flat[i, :-1] = 0
            elif how == "dead" and not active:
                flat[i] = -np.abs(flat[i])
            if active and how not in ("multiple", "combined"):
                flat[i, -1] = np.abs(flat[i]).sum() * 4 + 1
        flat = self.held(flat)
        return flat[:, :-1].reshape(count, *size), flat[:, -1]

    def window(self, axes: int, most: int) -> Shape:
        return tuple(self.choose(range(1, most + 1)) for _ in range(axes))

    def padding(self, axes: int) -> tuple[tuple[int, int], ...]:
        return tuple((self.choose([0, 0, 1, 2]), self.choose([0, 0, 1, 2])) for _ in range(axes))

    def convolved(self, source: str, *, active: bool = False, count: int | None = None) -> str:
        shape = self.shapes[source]
        if len(shape) not in (2, 3):
            return self.weighed(source)
        axes = len(shape) - 1
        groups = self.choose([g for g in range(1, shape[0] + 1) if shape[0] % g == 0] + [1, 1])
        count = groups * self.choose([1, 2, 3, 4]) if count is None else count
        if count % groups:
            groups = 1
        weight, bias = self.rows(count, (shape[0] // groups, *self.window(axes, 3)), active=active)
        if self.choose([True, False]):
            bias = bias if active else 0 * bias
        stride, dilation = self.window(axes, 2), self.window(axes, 2)
        return self.add(Convolution(weight, bias, stride, self.padding(axes), dilation, groups), source)

    def active(self, source: str) -> str:
        """A convolution that is active for the most part, and its ReLU."""
        return self.rectified(self.convolved(source, active=True))

    def per_channel(self, source: str) -> str:
        shape = self.shapes[source]
        if len(shape) not in (2, 3):
            return source
        kernel, bias = self.rows(1, self.window(len(shape) - 1, 2), active=False)
        weight = np.repeat(kernel[None], shape[0], axis=0).reshape(shape[0], 1, *kernel.shape[1:])
        bias = self.choose([0.0, 1.0]) * np.repeat(bias, shape[0])
        axes = len(shape) - 1
        return self.add(
            Convolution(weight, bias, (1,) * axes, self.padding(axes), (1,) * axes, shape[0]), source
        )

    def weighed(self, source: str) -> str:
        shape = self.shapes[source]
        if not shape:
            return source
        weight, bias = self.rows(self.choose([1, 2, 3]), shape[-1:], active=False)
        return self.add(Linear(weight, bias), source)

    def rectified(self, source: str) -> str:
        if prod(self.shapes[source]) > self.left:
            return source
        self.left -= prod(self.shapes[source])
        return self.add(Relu(), source)

    def gated(self, source: str) -> str:
        """A ReLU that saturates: ``relu(x) - relu(x - c)``."""
        if 2 * prod(self.shapes[source]) > self.left:
            return source
        above = self.rectified(self.add(Scale.exactly(1.0, -self.choose([0.5, 1.0, 6.0])), source))
        return self.add(Add(2), self.rectified(source), self.add(Scale.exactly(-1.0), above))

    def only_somewhere(self, source: str) -> str:
        """Channels that are far below 0 at every position but one, or but none; and the ReLU."""
        shape = self.shapes[source]
        if len(shape) not in (2, 3) or prod(shape) > self.left:
            return source
        shift = np.zeros(shape)
        for channel in range(shape[0]):
            if self.choose([True, True, False]):
                shift[channel] = -1000.0
                shift[channel].flat[self.choose(range(prod(shape[1:])))] = self.choose([0.0, 0.0, -1000.0])
        return self.rectified(self.add(Scale.exactly(1.0, shift), source))

    def only_at_the_border(self, source: str) -> str:
        """Channels that are below 0 where the whole kernel meets what is about 1, and above it where a part
        of it meets the padding; and the ReLU.
        """
        shape = self.shapes[source]
        if len(shape) not in (2, 3):
            return source
        axes = len(shape) - 1
        ones = (1,) * axes
        flat = Convolution(np.zeros((1, shape[0], *ones)), np.ones(1), ones, ((0, 0),) * axes, ones)
        some = self.add(flat, source)
        if self.choose([True, False]):
            some = self.add(Add(2), some, self.add(Scale.exactly(2.0**-12), self.weighed_to_one(source)))
        kernel = -np.ones((self.choose([1, 2]), self.shapes[some][0], *(3,) * axes))
        bias = np.full(len(kernel), 3.0**axes - 0.5)
        return self.rectified(self.add(Convolution(kernel, bias, ones, ((1, 1),) * axes, ones), some))

    def weighed_to_one(self, source: str) -> str:
        """One channel of small weights, at every position."""
        shape = self.shapes[source]
        ones = (1,) * (len(shape) - 1)
        weight = self.held(np.sign(self.numbers(1, shape[0], *ones)))
        return self.add(Convolution(weight, np.zeros(1), ones, ((0, 0),) * len(ones), ones), source)

    def block(self, source: str) -> str:
        """A residual block: what it adds is 0, or constant, in some channels."""
        shape = self.shapes[source]
        if len(shape) not in (2, 3):
            return source
        inner = self.rectified(self.convolved(source))
        if len(self.shapes[inner]) != len(shape):
            return source
        axes = len(shape) - 1
        ones = (1,) * axes
        weight, bias = self.rows(shape[0], (self.shapes[inner][0], *ones), active=False)
        branch = self.add(Convolution(weight, bias, ones, ((0, 0),) * axes, ones), inner)
        silent = np.array([self.choose([0.0, 0.0, 1.0]) for _ in range(shape[0])])
        silent *= self.choose([0.0, 1.0, 1.0])
        shift = self.choose([0.0, 0.0, 1.0]) * self.numbers(shape[0])
        wide = (shape[0], *ones)
        scale = Scale.exactly(silent.reshape(wide), self.held(shift).reshape(wide))
        branch = self.add(scale, branch)
        if self.shapes[branch] != shape:
            return source
        total = self.add(Add(2), source, branch)
        return self.choose([total, self.rectified(total)])

    def pooled(self, source: str) -> str:
        axes = len(self.shapes[source]) - 1
        if axes not in (1, 2):
            return source
        kernel, stride, padding = self.window(axes, 3), self.window(axes, 2), self.padding(axes)
        if self.choose([True, False]):
            return self.add(MaxPool(kernel, stride, padding, (1,) * axes), source)
        return self.add(AveragePool(kernel, stride, padding, self.choose([True, False])), source)

    def scaled(self, source: str) -> str:
        shape = self.shapes[source]
        if not shape:
            return source
        size = (shape[0], *(1,) * (len(shape) - 1))
        scale = self.held(self.choose([1.0, 2.0, -1.0]) * np.abs(self.numbers(*size)))
        if self.choose([True, False]):
            scale = np.full(size, 2.0)
        shift = self.choose([0.0, 1.0]) * self.numbers(*size)
        return self.add(Scale.exactly(scale, shift), source)

    def added(self, source: str) -> str:
        same = sorted(name for name, shape in self.shapes.items() if shape == self.shapes[source])
        return self.add(Add(2), source, self.choose(same))

    def twins(self, source: str) -> str:
        """Two convolutions of one value, added up: kernels that are multiples in one of them are so in the
        other, perhaps other multiples.
        """
        one = self.convolved(source)
        node = next((node for node in self.nodes if node.name == one), None)
        if node is None or not isinstance(node.operator, Convolution) or one == source:
            return one
        old = node.operator
        factor = np.array([self.choose([2.0, 2.0, 2.0, 1.0, -1.0]) for _ in old.bias])
        weight = old.weight * factor.reshape(-1, *(1,) * (old.weight.ndim - 1))
        other = self.add(
            Convolution(weight, factor * old.bias, old.stride, old.padding, old.dilation, old.groups), source
        )
        total = self.add(Add(2), self.rectified(one), self.choose([other, self.rectified(other)]))
        return self.choose([total, self.convolved(total)])

    def joined(self, source: str) -> str:
        shape = self.shapes[source]
        if not shape:
            return source
        axis = self.choose(range(len(shape)))
        fitting = sorted(
            name
            for name, other in self.shapes.items()
            if len(other) == len(shape)
            and other[:axis] + other[axis + 1 :] == shape[:axis] + shape[axis + 1 :]
        )
        other = self.choose(fitting)
        return self.add(Concat(axis, (shape[axis], self.shapes[other][axis])), source, other)

    def taken(self, source: str) -> str:
        picks: list[np.ndarray | None] = []
        for size in self.shapes[source]:
            some = self.choose([False, False, True])
            picks.append(self.rng.integers(-1, size, self.choose(range(1, size + 2))) if some else None)
        return self.add(Take(tuple(picks)), source)

    def averaged(self, source: str) -> str:
        axes = tuple(a for a in range(len(self.shapes[source])) if self.choose([False, True]))
        return self.add(Mean(axes, self.choose([True, False])), source) if axes else source

    def turned(self, source: str) -> str:
        order = self.rng.permutation(len(self.shapes[source])).tolist()
        return self.add(Transpose(tuple(order)), source) if order else source

    def flattened(self, source: str) -> str:
        size = prod(self.shapes[source])
        return self.weighed(self.add(Reshape(self.shapes[source], (size,)), source))
