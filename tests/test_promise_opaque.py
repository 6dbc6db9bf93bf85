"""What is written is never farther from the model than what is proven, with nodes in it that relutrim does
not know; and nothing that such a node reads has moved.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import oracle
import relutrim
from cutting import declared_model
from onnx_models import numbers, op
from relutrim.domain import Box
from relutrim.errors import CheckFailed
from relutrim.graph import Fresh
from relutrim.io import load
from relutrim.io.onnx.beside import Files
from relutrim.io.onnx.verify import verify_edited

Numbers = list[Fraction]
EPSILON = 0.25
DEVIATIONS = (3.0, 1.5, 0.75, 5.0, 2.0)
"""Square roots of variance + epsilon: rational, so that the truth is."""
FLOAT32 = st.floats(-3, 3, width=32).map(lambda v: v if abs(v) > 1e-6 else 0.0)
OPAQUE: dict[str, Callable[..., Fraction]] = {
    "Mul": lambda a, b: a * b,
    "Floor": lambda a: Fraction(math.floor(a)),
    "Sign": lambda a: Fraction((a > 0) - (a < 0)),
}
"""Nodes that relutrim does not follow (a product of two values), and what they make of rational numbers."""


def fractions(array: np.ndarray) -> Numbers:
    return [Fraction(float(v)) for v in array.ravel()]


class Graph:
    """An ONNX model in the making, and what it computes over the rational numbers."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.sizes = {"x": draw(st.integers(1, 3))}
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self.steps: dict[str, Callable[[dict[str, Numbers]], Numbers]] = {}

    def drawn(self, *shape: int, of: st.SearchStrategy[float] = FLOAT32) -> np.ndarray:
        size = math.prod(shape)
        return np.array(self.draw(st.lists(of, min_size=size, max_size=size)), np.float32).reshape(shape)

    def add(
        self,
        kind: str,
        reads: Sequence[str],
        compute: Callable[..., Numbers],
        arrays: Sequence[np.ndarray] = (),
        size: int | None = None,
        **attributes: Any,
    ) -> str:
        made = f"v{len(self.nodes)}"
        names = [f"{made}.{k}" for k in range(len(arrays))]
        self.weights |= {name: np.asarray(a, np.float32) for name, a in zip(names, arrays, strict=True)}
        self.nodes.append(op(kind, [*reads, *names], made, **attributes))
        self.steps[made] = lambda values: compute(*(values[name] for name in reads))
        self.sizes[made] = self.sizes[reads[0]] if size is None else size
        return made

    def any_value(self, size: int | None = None) -> str:
        return str(self.draw(st.sampled_from([n for n, one in self.sizes.items() if size in (None, one)])))

    def gemm(self, value: str, size: int) -> str:
        weight = self.drawn(size, self.sizes[value])
        # Neurons that are stable, or dead whatever they read.
        bias = self.drawn(size, of=FLOAT32 | st.sampled_from([-20.0, 20.0, 0.0]))
        weight[[self.draw(st.integers(0, 3)) == 3 for _ in range(size)]] = 0
        rows, shifts = [fractions(row) for row in weight], fractions(bias)

        def compute(x: Numbers) -> Numbers:
            products = (sum((w * v for w, v in zip(row, x, strict=True)), Fraction(0)) for row in rows)
            return [product + b for product, b in zip(products, shifts, strict=True)]

        return self.add("Gemm", [value], compute, [weight, bias], size, transB=1)

    def norm(self, value: str) -> str:
        size = self.sizes[value]
        gain, bias, mean = (self.drawn(size) for _ in range(3))
        deviation = self.drawn(size, of=st.sampled_from(DEVIATIONS))
        gain[[self.draw(st.integers(0, 3)) == 3 for _ in range(size)]] = 0
        parts = list(zip(*(fractions(a) for a in (gain, bias, mean, deviation)), strict=True))
        return self.add(
            "BatchNormalization",
            [value],
            lambda x: [g * (v - m) / d + b for v, (g, b, m, d) in zip(x, parts, strict=True)],
            [gain, bias, mean, deviation**2 - EPSILON],
            epsilon=EPSILON,
        )

    def each(self, kind: str, value: str) -> str:
        numbers = self.drawn(self.sizes[value])
        parts = fractions(numbers)
        if kind == "Mul":
            return self.add(
                kind, [value], lambda x: [a * v for a, v in zip(parts, x, strict=True)], [numbers]
            )
        return self.add(kind, [value], lambda x: [a + v for a, v in zip(parts, x, strict=True)], [numbers])

    def bend(self, value: str, slope: float) -> str:
        if slope == 0:
            return self.add("Relu", [value], lambda x: [max(v, Fraction(0)) for v in x])
        alpha = Fraction(float(np.float32(slope)))
        return self.add("LeakyRelu", [value], lambda x: [v if v > 0 else alpha * v for v in x], alpha=slope)

    def opaque(self, value: str) -> str:
        kind = self.draw(st.sampled_from([*OPAQUE]))
        reads = [value] if kind != "Mul" else [value, self.any_value(self.sizes[value])]
        return self.add(kind, reads, lambda *x: [OPAQUE[kind](*each) for each in zip(*x, strict=True)])

    def joined(self, value: str) -> str:
        other = self.any_value(self.sizes[value])
        return self.add("Add", [value, other], lambda x, y: [a + b for a, b in zip(x, y, strict=True)])

    def layer(self) -> str:
        value = self.gemm(self.any_value(), self.draw(st.integers(1, 4)))
        for kind in self.draw(st.lists(st.sampled_from(["norm", "Mul", "Add", "join"]), max_size=2)):
            if kind == "norm":
                value = self.norm(value)
            else:
                value = self.joined(value) if kind == "join" else self.each(kind, value)
        return self.bend(value, self.draw(st.sampled_from([0.0, 0.0, 0.1])))

    def proto(self, outputs: Sequence[str]) -> onnx.ModelProto:
        return declared_model(self.nodes, ["batch", self.sizes["x"]], self.weights, outputs=outputs)

    def __call__(self, x: Numbers) -> dict[str, Numbers]:
        values = {"x": x}
        for name, step in self.steps.items():
            values[name] = step(values)
        return values


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Graph, list[str]]:
    """Layers that read any value before them, opaque nodes between them, and one or two outputs."""
    graph = Graph(draw)
    for kind in draw(st.lists(st.sampled_from(["layer", "layer", "opaque"]), min_size=2, max_size=6)):
        graph.layer() if kind == "layer" else graph.opaque(graph.any_value())
    read = {name for node in graph.nodes for name in node.input}
    unread = [name for name in graph.steps if name not in read]
    # What nothing reads is read by the first output, but for what is an output itself.
    ends = [graph.gemm(name, 2) for name in unread]
    while len(ends) > 1:
        one, other = ends.pop(), ends.pop()
        ends.append(graph.add("Add", [one, other], lambda x, y: [a + b for a, b in zip(x, y, strict=True)]))
    extra = [name for name in graph.steps if name not in ends]
    return graph, [*ends, *draw(st.lists(st.sampled_from(extra), max_size=1))]


class Exactly:
    """The values of a file at a point: of what relutrim reads in it, and of the nodes that it does not."""

    def __init__(self, path: Path, x: Numbers) -> None:
        self.network, self.graph = load(path), onnx.load(path).graph
        self.values = {self.network.input.name: x}

    def __getitem__(self, name: str) -> Numbers:
        if name not in self.values:
            self.values[name] = self.computed(name)
        return self.values[name]

    def computed(self, name: str) -> Numbers:
        node = self.network.get(name)
        if node is not None and not isinstance(node.operator, Fresh):
            shapes = [self.network.shapes[read] for read in node.inputs]
            return oracle.operator_value(node.operator, shapes)([self[read] for read in node.inputs])
        source = {output.name: output.source for output in self.network.outputs}.get(name, name)
        if source != name:
            return self[source]
        made = next(one for one in self.graph.node if name in one.output)
        return [OPAQUE[made.op_type](*each) for each in zip(*(self[one] for one in made.input), strict=True)]


def points(inputs: int) -> list[Numbers]:
    corners = [list(map(Fraction, corner)) for corner in itertools.product((0, 1), repeat=inputs)]
    random = np.random.default_rng(0).random((8, inputs)).astype(np.float32)
    return [*corners, *(fractions(row) for row in random)]


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs(), st.sampled_from([0.0, 1e-9, "exact", "rounding"]))
def test_what_is_saved_is_within_what_is_proven_and_nothing_moves_in_front_of_opaque_nodes(
    tmp_path_factory, drawn, tolerance
):
    graph, outputs = drawn
    folder = tmp_path_factory.mktemp("promise")
    path, out = folder / "model.onnx", folder / "out.onnx"
    onnx.save(graph.proto(outputs), path)
    result = relutrim.compress(path, Box(0, 1), tolerance=tolerance, method="bounds")
    result.save(out)
    proven = result.deviation.proven
    assert proven is not None
    assert result.allowed is None or proven <= result.allowed
    known = {output.name for output in result.original.outputs}
    for x in points(graph.sizes["x"]):
        truth, found = graph(x), Exactly(out, x)
        # What nobody depends on any more goes, opaque nodes too.
        assert {*found.network.pinned} <= {*result.original.pinned}
        for name in found.network.pinned:
            assert found[name] == truth[name], name
        for name in outputs:
            allowed = Fraction(proven) if name in known else 0
            assert all(abs(a - b) <= allowed for a, b in zip(truth[name], found[name], strict=True)), name


def rounded(step: str, weight: np.ndarray, *, outputs: Sequence[str] = ("y",)) -> onnx.ModelProto:
    """A layer, a node that relutrim does not know, and another layer."""
    nodes = [op("MatMul", ["x", "w"], "h"), op(step, ["h"], "f"), op("MatMul", ["f", "v"])]
    return declared_model(nodes, ["n", 2], {"w": np.eye(2, dtype=np.float32), "v": weight}, outputs=outputs)


def files(proto: onnx.ModelProto) -> Files:
    return Files(proto.SerializeToString())


def test_a_mistake_behind_an_opaque_node_is_seen_when_the_file_is_run(tmp_path):
    weight = numbers(2, 2)
    right, wrong = (rounded("Floor", one) for one in (weight, weight + 1))
    onnx.save(wrong, tmp_path / "wrong.onnx")
    network, x = load(tmp_path / "wrong.onnx"), np.array([[1.5, 2.5], [3.5, -0.5]])
    verify_edited(files(wrong), files(wrong), network, x, 0.0)
    with pytest.raises(CheckFailed, match="off the model's"):
        verify_edited(files(right), files(wrong), network, x, 0.0)


def test_a_step_that_turns_on_the_last_bit_is_no_mistake(tmp_path):
    weight = numbers(2, 2)
    one, other = rounded("Floor", weight), rounded("Floor", weight)
    other.graph.initializer[0].raw_data = np.diag([1 - 1e-7, 1]).astype(np.float32).tobytes()
    onnx.save(other, tmp_path / "other.onnx")
    network, x = load(tmp_path / "other.onnx"), np.array([[1.0, 2.5]])
    verify_edited(files(one), files(other), network, x, 0.0)


@pytest.mark.parametrize("outputs", [("y", "e"), ("e", "y"), ("e",)])
def test_outputs_that_opaque_nodes_make_stay_beside_the_others(tmp_path, outputs):
    nodes = [
        op("MatMul", ["x", "w"], "h"), op("Relu", ["h"], "r"), op("MatMul", ["r", "v"]),
        op("Exp", ["x"], "e"),
    ]  # fmt: skip
    weight = numbers(2, 5)
    weight[:, [1, 4]] = 0
    proto = declared_model(nodes, ["n", 2], {"w": weight, "v": numbers(5, 2)}, outputs=outputs)
    path, out = tmp_path / "model.onnx", tmp_path / "out.onnx"
    onnx.save(proto, path)
    result = relutrim.compress(path)
    result.save(out)
    assert result.unchanged == (outputs == ("e",))
    assert [entry.name for entry in onnx.load(out).graph.output] == list(outputs)
