"""Models of a single operator with odd attributes: what ONNX says in a corner, asked of onnxruntime.

One table, for the reader and for the checker, which share no code: each must compute what onnxruntime
computes, or refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import onnx
from onnx import helper

from onnx_models import model

Shape = Sequence[int | str]
LARGEST, LEAST = 2**63 - 1, -(2**63)
IMAGE = (1, 2, 5, 4)
OPEN = ("n", 2, 5, 4)


@dataclass(frozen=True)
class Case:
    """A node that reads ``x`` and the tensors given as inputs (None: an input left out) and makes ``y``."""

    kind: str
    shape: Shape
    inputs: Sequence[np.ndarray | str | None] = ("x",)
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 17
    outputs: int = 1

    def __str__(self) -> str:
        given = [one if not isinstance(one, np.ndarray) else one.tolist() for one in self.inputs]
        return f"{self.kind}-{self.opset} of {list(self.shape)}: {given} {self.attributes}"

    def proto(self) -> onnx.ModelProto:
        arrays = {f"i{k}": one for k, one in enumerate(self.inputs) if isinstance(one, np.ndarray)}
        names = [f"i{k}" if f"i{k}" in arrays else one or "" for k, one in enumerate(self.inputs)]
        ends = ["y", *(f"y{k}" for k in range(1, self.outputs))]
        node = helper.make_node(self.kind, names, ends, name="node", **self.attributes)
        return model([node], self.shape, arrays, outputs=ends, opset=self.opset)


Cases = Iterator[Case]
GROUPS: dict[str, Callable[[], Cases]] = {}


def group(make: Callable[[], Cases]) -> Callable[[], Cases]:
    GROUPS[make.__name__] = make
    return make


def ints(*numbers: int, dtype: Any = np.int64) -> np.ndarray:
    return np.array(numbers, dtype)


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@group
def slices() -> Cases:
    ends = (LEAST, -100, -5, -4, -3, 0, 2, 3, 4, 5, 2**31 - 1, LARGEST)
    for start, end, step in product(ends, ends, (1, 2, -1, -2, 100, -100)):
        yield Case("Slice", (1, 4), ("x", ints(start), ints(end), ints(1), ints(step)))


@group
def slices_along_axes() -> Cases:
    for shape in (IMAGE, OPEN, (2, 3, 4), (5,)):
        rank = len(shape)
        for axes in ((rank - 1,), (-1,), (0,), (-rank,), (rank - 1, 0), (0, -1), (-1, rank - 1)):
            count = len(axes)
            for start, end, step in ((1, LARGEST, 1), (-9, -9, -1), (9, -9, -2), (0, LARGEST, 1)):
                limits = (ints(*[start] * count), ints(*[end] * count), ints(*axes), ints(*[step] * count))
                yield Case("Slice", shape, ("x", *limits))
        yield Case("Slice", shape, ("x", ints(0), ints(1)))
        yield Case("Slice", shape, ("x", ints(0), ints(-1), ints(-1)))
        yield Case("Slice", shape, ("x", ints(-1), ints(-9), None, ints(-1)))
        short = {"starts": [-9], "ends": [9], "axes": [-1]}
        yield Case("Slice", shape, attributes=short, opset=9)
        yield Case("Slice", shape, attributes={"starts": [1], "ends": [-1]}, opset=9)
    for dtype in (np.int32, np.int64):
        limits = (ints(one, dtype=dtype) for one in (-9, -9, 1, -1))
        yield Case("Slice", (1, 4), ("x", *limits))
    yield Case("Slice", (1, 4), ("x", ints(0), ints(4), ints(1), ints(0)))


@group
def gathers() -> Cases:
    for shape, axis in product((IMAGE, OPEN, (3, 4), (4,)), (None, 0, 1, -1, 3, -4, 9)):
        attributes = {} if axis is None else {"axis": axis}
        for index in (0, -1, 1, -2, 3, -4, 4, -5):
            yield Case("Gather", shape, ("x", np.array(index)), attributes)
        for indices in (ints(-1, 0, -1), ints(1, 1, dtype=np.int32), np.array([[0, -1], [1, -2]])):
            yield Case("Gather", shape, ("x", indices), attributes)


@group
def pads() -> Cases:
    around = (
        (0, 1, 0, 2),
        (0, -1, 0, 0),
        (0, -1, 0, 2),
        (0, 3, 0, -2),
        (0, 0, 0, 0),
        (1, 0, 0, 0),
        (0, -3, 0, -2),
    )
    for shape, pair, mode in product(
        ((1, 4), ("n", 4), (2, 4)), around, ("constant", "reflect", "edge", "wrap")
    ):
        for value in (None, np.array(1.5, np.float32), np.array([2.5], np.float32)):
            inputs = ("x", ints(*pair)) if value is None else ("x", ints(*pair), value)
            yield Case("Pad", shape, inputs, {"mode": mode}, opset=19)
        if mode != "wrap":
            yield Case("Pad", shape, ("x",), {"mode": mode, "pads": list(pair), "value": 0.1}, opset=10)
    for axes, two in (((1,), (1, 2)), ((-1,), (-1, 2)), ((-1, -2), (1, 0, 0, 0)), ((1, 1), (1, 0, 0, 0))):
        yield Case("Pad", (1, 4), ("x", ints(*two), None, ints(*axes)), opset=19)
        yield Case("Pad", (1, 4), ("x", ints(*two), np.array(3, np.float32), ints(*axes)), opset=19)
    yield Case("Pad", (1, 3), ("x", ints(0, 5, 0, 0)), {"mode": "reflect"})
    yield Case("Pad", (1, 3), ("x", ints(0, 3, 0, 3)), {"mode": "reflect"})
    yield Case("Pad", (1, 3), ("x", ints(0, 7, 0, 7)), {"mode": "wrap"}, opset=19)
    yield Case("Pad", (1, 3), ("x", ints(0, 1, 0, 1)))


@group
def shapes() -> Cases:
    for shape in ((1, 2, 6), ("n", 2, 6), (2, 2, 6), (12,)):
        for axis in (None, *range(-4, 5)):
            yield Case("Flatten", shape, attributes={} if axis is None else {"axis": axis}, opset=13)
        for target, zero in product(
            (
                (0, -1),
                (-1, 12),
                (1, -1),
                (0, 0, -1),
                (-1, 0, 6),
                (1, 3, 4),
                (2, 12),
                (0, 3, -1, 2),
                (-1,),
                (12,),
            ),
            (None, 0, 1),
        ):
            yield Case("Reshape", shape, ("x", ints(*target)), {} if zero is None else {"allowzero": zero})
        for perm in (None, (0, 2, 1), (1, 0, 2), (2, 1, 0), (0, 1, 2), (0,)):
            yield Case("Transpose", shape, attributes={} if perm is None else {"perm": perm})
    for shape in ((1, 1, 3, 1), ("n", 1, 3, 1), (2, 1, 3, 1)):
        for axes in ((), (1,), (-1,), (1, 3), (3, 1), (-1, 1), (-1, -3), (0,), (2,), (1, -3)):
            yield Case("Squeeze", shape, ("x", ints(*axes)), opset=13)
            yield Case("Squeeze", shape, attributes={"axes": axes} if axes else {}, opset=11)
        yield Case("Squeeze", shape, opset=13)
        for axes in ((1,), (-1,), (0,), (1, 3), (3, 1), (-1, 1), (1, -1), (-1, -3), (-3, -1), (5, 1), (1, 1)):
            yield Case("Unsqueeze", shape, ("x", ints(*axes)), opset=13)
            yield Case("Unsqueeze", shape, attributes={"axes": axes}, opset=11)
    for shape, opset in product(((1, 3, 2), ("n", 3, 2)), (7, 17)):
        yield Case("Identity", shape, opset=opset)
        yield Case("Dropout", shape, attributes={"ratio": 0.5} if opset < 12 else {}, opset=opset)
    yield Case("Dropout", (1, 3), ("x", np.array(0.5, np.float32), np.array(False)))
    yield Case("Dropout", (1, 3), ("x", np.array(0.0, np.float32), np.array(True)))


@group
def joins_and_splits() -> Cases:
    for axis in (0, 1, 2, -1, -2, -3, 5):
        for shape in ((1, 3, 4), ("n", 3, 4), (2, 3, 4)):
            yield Case("Concat", shape, ("x", "x"), {"axis": axis})
            for other in ((1, 3, 4), (1, 1, 4), (1, 3, 1), (1, 1, 3, 4)):
                yield Case("Concat", shape, (floats(*other), "x", "x"), {"axis": axis})
            for parts in ((1, 2), (2, 1), (2, 2), (0, 3), (3,), (1, 1, 1), (1, 3), (4, -1)):
                wanted = {"axis": axis}
                yield Case("Split", shape, ("x", ints(*parts)), wanted, opset=13, outputs=len(parts))
                yield Case(
                    "Split", shape, attributes={**wanted, "split": parts}, opset=11, outputs=len(parts)
                )
            for count, said in ((2, 2), (3, 3), (2, 3), (4, 4), (3, None)):
                more = {} if said is None else {"num_outputs": said}
                yield Case("Split", shape, attributes={"axis": axis, **more}, opset=18, outputs=count)
                yield Case("Split", shape, attributes={"axis": axis}, opset=13, outputs=count)
    yield Case("Split", (2, 4), outputs=2, opset=13)


@group
def gemms() -> Cases:
    summands = (
        None,
        floats(4),
        floats(1),
        floats(1, 4),
        floats(),
        floats(1, 1),
        floats(2, 4),
        floats(2, 1),
        floats(3),
    )
    for shape, flip in product(((1, 3), ("n", 3), (2, 3)), (0, 1)):
        weight = floats(4, 3) if flip else floats(3, 4)
        for summand, (alpha, beta) in product(summands, ((None, None), (0.3, 1.0), (1.0, 0.7), (-2.0, 0.0))):
            scaled = {} if alpha is None else {"alpha": alpha, "beta": beta}
            yield Case(
                "Gemm", shape, ("x", weight, summand)[: 2 + (summand is not None)], {**scaled, "transB": flip}
            )
    for flip_a, flip_b in product((0, 1), (0, 1)):
        for shape in ((3, 1), (1, 3), (2, 3), (3, 2)):
            for size in (1, 2, 3):
                flips = {"transA": flip_a, "transB": flip_b}
                yield Case("Gemm", shape, ("x", floats(size, 3)), flips)
                yield Case("Gemm", shape, (floats(3, size), "x"), flips)
                yield Case("Gemm", shape, (floats(3, size), "x", floats(3)), flips)


@group
def matrix_products() -> Cases:
    for shape in ((1, 3), ("n", 3), (3,), (2, 3), (1, 2, 3), ("n", 2, 3), (1, 3, 1), ("n", 3, 1), (2, 1, 3)):
        for other in ((3, 4), (3,), (1, 3, 4), (3, 3), (2, 3, 4), (4, 3), (1, 4, 3), (1,), (1, 2)):
            yield Case("MatMul", shape, ("x", floats(*other)))
            yield Case("MatMul", shape, (floats(*other), "x"))


@group
def batch_normalisations() -> Cases:
    single = np.float32(1e-5)
    nearly = np.array([-np.nextafter(single, np.float32(0)), 1.0], np.float32)  # plus epsilon, one ulp
    plain = [np.ones(2, np.float32), np.zeros(2, np.float32), np.zeros(2, np.float32)]
    for shape, opset in product(((1, 2), ("n", 2), (1, 2, 3), OPEN, (2, 2, 3)), (7, 9, 14, 15, 17)):
        for attributes in ({}, {"epsilon": 1e-5}, {"epsilon": 0.1}, {"momentum": 0.5}):
            numbers = (floats(2, seed=1), floats(2, seed=2), floats(2, seed=3), abs(floats(2, seed=4)))
            yield Case("BatchNormalization", shape, ("x", *numbers), attributes, opset=opset)
        yield Case("BatchNormalization", shape, ("x", *plain, nearly), opset=opset)
        yield Case("BatchNormalization", shape, ("x", *plain, nearly), {"epsilon": 1e-5}, opset=opset)


@group
def convolutions() -> Cases:
    pads = (None, [1, 0, 2, 1], [0, 0, 0, 1], [1, 1, 1, 1])
    for shape, pad, stride, steps in product(
        (IMAGE, OPEN, (2, 2, 5, 4)), pads, (None, [2, 3]), (None, [2, 1])
    ):
        given = {"pads": pad, "strides": stride, "dilations": steps}
        attributes = {name: value for name, value in given.items() if value is not None}
        yield Case("Conv", shape, ("x", floats(3, 2, 2, 2), floats(3)), attributes)
        yield Case(
            "Conv", shape, ("x", floats(4, 1, 2, 3)), {**attributes, "group": 2, "kernel_shape": [2, 3]}
        )
    for way, stride in product(("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"), ([1, 1], [2, 2], [3, 2])):
        for kernel in ((3, 2, 2, 2), (3, 2, 3, 3), (3, 2, 1, 4)):
            yield Case("Conv", IMAGE, ("x", floats(*kernel)), {"auto_pad": way, "strides": stride})
    yield Case("Conv", (1, 2, 5), ("x", floats(3, 2, 3)), {"pads": [2, 0]})
    yield Case(
        "Conv", ("n", 2, 5), ("x", floats(2, 1, 2)), {"group": 2, "dilations": [3], "auto_pad": "SAME_UPPER"}
    )
    yield Case("Conv", IMAGE, ("x", floats(3, 2, 2, 2)), {"kernel_shape": [2, 3]})
    for pad, stride, extra in product((None, [1, 0, 0, 1]), (None, [2, 3]), (None, [1, 0], [0, 1])):
        given = {"pads": pad, "strides": stride, "output_padding": extra}
        attributes = {name: value for name, value in given.items() if value is not None}
        yield Case("ConvTranspose", IMAGE, ("x", floats(2, 3, 2, 3), floats(3)), attributes)
        yield Case(
            "ConvTranspose", OPEN, ("x", floats(2, 3, 2, 3)), {**attributes, "group": 2, "dilations": [2, 2]}
        )


@group
def poolings() -> Cases:
    pads = (None, [1, 0, 0, 1], [0, 1, 1, 0], [1, 1, 1, 1])
    strides, kernels = (None, [2, 2], [3, 1], [4, 3]), ([2, 2], [3, 2])
    for pad, stride, kernel, ceil in product(pads, strides, kernels, (None, 0, 1)):
        given = {"pads": pad, "strides": stride, "kernel_shape": kernel, "ceil_mode": ceil}
        attributes = {name: value for name, value in given.items() if value is not None}
        for counted, opset in product((0, 1), (12, 22)):
            yield Case(
                "AveragePool", IMAGE, attributes={**attributes, "count_include_pad": counted}, opset=opset
            )
        for steps in ([1, 1], [2, 1]):
            yield Case("MaxPool", OPEN, attributes={**attributes, "dilations": steps}, opset=12)
    yield Case("AveragePool", IMAGE, attributes={"kernel_shape": [2, 2], "dilations": [2, 1]}, opset=19)
    for way, stride, kind in product(
        ("SAME_UPPER", "SAME_LOWER", "VALID"), ([1, 1], [2, 3]), ("AveragePool", "MaxPool")
    ):
        for kernel, opset in product(([2, 2], [3, 3], [2, 3]), (10, 12, 19)):
            attributes = {"auto_pad": way, "strides": stride, "kernel_shape": kernel}
            yield Case(kind, IMAGE, attributes=attributes, opset=opset)
            yield Case(kind, IMAGE, attributes={**attributes, "ceil_mode": 1}, opset=opset)
    yield Case("MaxPool", IMAGE, attributes={"kernel_shape": [2, 2], "storage_order": 1})
    both = {"kernel_shape": [2, 2], "dilations": [2, 2]}
    yield Case("MaxPool", IMAGE, attributes={**both, "auto_pad": "SAME_UPPER"})
    yield Case("MaxPool", IMAGE, attributes={**both, "auto_pad": "VALID"})
    yield Case("MaxPool", (1, 2, 7), attributes={"kernel_shape": [3], "pads": [1, 2], "strides": [2]})
    for kind, shape in product(
        ("GlobalAveragePool", "GlobalMaxPool"), (IMAGE, OPEN, (1, 2, 3), (2, 2, 3, 3))
    ):
        yield Case(kind, shape)


@group
def piecewise() -> Cases:
    limits = [None, *(np.array(one, np.float32) for one in (-0.5, 0.5, 0.0, -np.inf, np.inf, 3.4028235e38))]
    for shape, low, high in product(((1, 4), ("n", 4)), limits, limits):
        inputs = ("x", low, high) if high is not None else ("x", low) if low is not None else ("x",)
        yield Case("Clip", shape, inputs)
        given = {name: float(one) for name, one in (("min", low), ("max", high)) if one is not None}
        yield Case("Clip", shape, attributes=given, opset=6 + 1)
    yield Case("Clip", (1, 4), ("x", None, np.array([0.5], np.float32)))
    for kind in ("LeakyRelu", "Elu", "Celu", "ThresholdedRelu"):
        for alpha in (None, 0.0, 0.01, 1.0, 2.5, -0.5):
            yield Case(kind, (1, 4), attributes={} if alpha is None else {"alpha": alpha})
    for attributes in ({}, {"alpha": 0.3}, {"beta": 0.1}, {"alpha": -0.3, "beta": 0.7}, {"alpha": 0.0}):
        yield Case("HardSigmoid", (1, 4), attributes=attributes)
    for attributes in ({}, {"alpha": 1.5}, {"gamma": 0.9}, {"alpha": 0.5, "gamma": 2.0}, {"gamma": -1.0}):
        yield Case("Selu", (1, 4), attributes=attributes)
    for kind, opset in (("Softplus", 17), ("HardSwish", 17), ("Erf", 17), ("Mish", 18), ("Gelu", 20)):
        yield Case(kind, ("n", 4), opset=opset)
    yield Case("Gelu", (1, 4), attributes={"approximate": "tanh"}, opset=20)
    for kind in ("Relu", "Abs", "Neg", "Sigmoid", "Tanh"):
        yield Case(kind, ("n", 4))
    for shape, slope in product(
        ((1, 2, 3), ("n", 2, 3), (2, 2, 3)), ((1,), (2, 1), (3,), (2, 3), (1, 2, 1), (2,), ())
    ):
        yield Case("PRelu", shape, ("x", floats(*slope)))
    for kind, shape, opset in product(
        ("Softmax", "LogSoftmax"), ((1, 2, 3), ("n", 2, 3), (2, 2, 1)), (11, 13)
    ):
        for axis in (None, 0, 1, 2, -1, -2):
            yield Case(kind, shape, attributes={} if axis is None else {"axis": axis}, opset=opset)


@group
def reductions() -> Cases:
    for kind, shape, keep in product(
        ("ReduceMean", "ReduceSum"), ((1, 2, 3), ("n", 2, 3), (2, 2, 3)), (None, 0, 1)
    ):
        kept = {} if keep is None else {"keepdims": keep}
        for axes in (None, (1,), (-1,), (1, 2), (2, 1), (-1, -2), (0,), (0, 1, 2), (1, 1)):
            yield Case(kind, shape, attributes=kept if axes is None else {**kept, "axes": axes}, opset=11)
            inputs = ("x",) if axes is None else ("x", ints(*axes))
            for empty in ({}, {"noop_with_empty_axes": 1}):
                yield Case(kind, shape, inputs, {**kept, **empty}, opset=18)
        yield Case(kind, shape, ("x", ints()), {**kept, "noop_with_empty_axes": 1}, opset=18)
        yield Case(kind, shape, ("x", ints()), kept, opset=18)


@group
def arithmetic() -> Cases:
    others = (
        (3,),
        (1,),
        (),
        (2, 3),
        (2, 1),
        (1, 2, 3),
        (1, 2, 1),
        (1, 1, 2, 3),
        (4, 2, 3),
        (2, 2, 3),
        (3, 1),
        (4,),
    )
    for kind, shape, other in product(
        ("Add", "Sub", "Mul", "Div", "Sum", "Max", "Min"), ((1, 2, 3), ("n", 2, 3), (2, 3), (2, 1, 3)), others
    ):
        yield Case(kind, shape, ("x", floats(*other)))
        yield Case(kind, shape, (floats(*other), "x"))
    for kind in ("Add", "Sub", "Mul", "Div", "Sum", "Max", "Min"):
        yield Case(kind, ("n", 3), ("x", "x"))
    yield Case("Sum", (1, 3), ("x", floats(3), "x", floats(1, 3), "x"))
    yield Case("Max", (1, 3), ("x", floats(3), floats(1, 3)))
    yield Case("Sum", (1, 3), ("x",))
    yield Case("Div", (1, 3), ("x", np.array([1.0, 0.0, 2.0], np.float32)))
