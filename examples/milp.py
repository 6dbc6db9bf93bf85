"""A network in a program of one's own: how far can one logit exceed another, somewhere in a box?

Reads an ONNX file of Gemm and Relu nodes and the bounds that ``relutrim analyze --bounds`` wrote for it, and
solves the textbook big-M formulation with HiGHS: per neuron with pre-activation y in [l, u]

    a >= 0,  a >= y,  a <= u z,  a <= y - l (1 - z),  z in {0, 1}

A neuron with l >= 0 is a = y, one with u <= 0 is a = 0; both need no binary. Without bounds, l and u come
from interval arithmetic, which is what modelling tools do by themselves. Needs numpy, onnx and highspy, and
nothing of relutrim; so it is also how to read the file from elsewhere.

    relutrim analyze  model.onnx              --center seven.npy --radius 0.05 --bounds model.json
    relutrim compress model.onnx smaller.onnx --center seven.npy --radius 0.05 --bounds smaller.json
    python milp.py model.onnx   --center seven.npy --radius 0.05
    python milp.py model.onnx   --center seven.npy --radius 0.05 --bounds model.json
    python milp.py smaller.onnx --center seven.npy --radius 0.05 --bounds smaller.json

The box must lie within the domain that the bounds and the smaller network were made for.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from dataclasses import dataclass
from pathlib import Path

import highspy
import numpy as np
import onnx
from onnx import numpy_helper

DROPPED = 1e-5
"""What left-out weights of a row may add up to: l1 training leaves thousands of 1e-8, and simplex codes stall
on them. The row is an interval of that half width instead, so nothing that the network can do is lost.
"""


@dataclass
class Layer:
    """``y = weight @ a + bias``, and the name of the ReLU behind it (None: there is none)."""

    weight: np.ndarray
    bias: np.ndarray
    relu: str | None


@dataclass
class Program:
    """A mixed-integer program row by row, and where its outputs are."""

    highs: highspy.Highs
    outputs: np.ndarray
    binaries: int

    @property
    def columns(self) -> int:
        """How many variables."""
        return int(self.highs.getNumCol())

    @property
    def rows(self) -> int:
        """How many constraints."""
        return int(self.highs.getNumRow())


@dataclass
class Answer:
    """What the solver said: a proven upper end and the best input's value; and how long it took, by the clock
    and in processor time.
    """

    status: str
    bound: float
    value: float
    seconds: float
    processor: float
    nodes: int


def read_layers(path: Path) -> list[Layer]:
    """Gemm and Relu in turns, which is what relutrim writes for a dense network."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    graph = onnx.load_from_string(data).graph
    weights = {one.name: numpy_helper.to_array(one).astype(np.float64) for one in graph.initializer}
    layers: list[Layer] = []
    for node in graph.node:
        if node.op_type == "Gemm":
            options = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
            weight = weights[node.input[1]]
            weight = weight if options.get("transB", 0) else weight.T
            scale, shift = options.get("alpha", 1.0), options.get("beta", 1.0)
            bias = shift * weights[node.input[2]] if len(node.input) > 2 else np.zeros(len(weight))
            layers.append(Layer(scale * weight, np.broadcast_to(bias, (len(weight),)), None))
        elif node.op_type == "Relu" and layers and layers[-1].relu is None:
            layers[-1].relu = node.output[0]
        elif node.op_type not in ("Flatten", "Identity"):
            raise SystemExit(f"{path}: {node.op_type} is more than this example knows")
    return layers


def read_ranges(path: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Per ReLU the proven ends of its pre-activations; null, where nothing is known, becomes infinite."""
    found = json.loads(path.read_text())
    if found["schema"] != "relutrim/bounds/1":
        raise SystemExit(f"{path}: this is {found['schema']}, not relutrim/bounds/1")
    return {
        layer["name"]: tuple(
            np.array([default if end is None else end for end in layer["pre"][side]])
            for side, default in (("lower", -np.inf), ("upper", np.inf))
        )
        for layer in found["layers"]
    }


def build(
    layers: list[Layer],
    lo: np.ndarray,
    hi: np.ndarray,
    ranges: dict[str, tuple[np.ndarray, np.ndarray]] | None = None,
) -> Program:
    """The program over the box; with ``ranges`` those meet what intervals say."""
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    columns = _columns(highs, lo, hi)
    binaries = 0
    for layer in layers:
        low, high = _interval(layer, lo, hi)
        if layer.relu is not None and ranges is not None:
            low, high = np.maximum(low, ranges[layer.relu][0]), np.minimum(high, ranges[layer.relu][1])
        y = _columns(highs, low, high)
        _affine(highs, layer, columns, y, np.maximum(abs(lo), abs(hi)))
        if layer.relu is None:
            columns, lo, hi = y, low, high
            continue
        a = y.copy()
        off, loose = high <= 0, (low < 0) & (high > 0)
        a[off] = _columns(highs, np.zeros(off.sum()), np.zeros(off.sum()))
        a[loose] = _columns(highs, np.zeros(loose.sum()), high[loose])
        z = _columns(highs, np.zeros(loose.sum()), np.ones(loose.sum()))
        highs.changeColsIntegrality(len(z), z, np.full(len(z), highspy.HighsVarType.kInteger))
        for ai, yi, zi, lower, upper in zip(a[loose], y[loose], z, low[loose], high[loose], strict=True):
            highs.addRow(0.0, np.inf, 2, np.array([ai, yi]), np.array([1.0, -1.0]))
            highs.addRow(-np.inf, 0.0, 2, np.array([ai, zi]), np.array([1.0, -upper]))
            highs.addRow(-np.inf, -lower, 3, np.array([ai, yi, zi]), np.array([1.0, -1.0, -lower]))
        binaries += len(z)
        columns, lo, hi = a, np.maximum(low, 0), np.maximum(high, 0)
    return Program(highs, columns, binaries)


def maximise(program: Program, plus: int, minus: int, time_limit: float) -> Answer:
    """The largest difference of two outputs."""
    highs = program.highs
    highs.changeColCost(int(program.outputs[plus]), -1.0)
    highs.changeColCost(int(program.outputs[minus]), 1.0)
    highs.setOptionValue("time_limit", time_limit)
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("mip_rel_gap", 1e-3)
    started, worked = time.perf_counter(), time.process_time()
    highs.run()
    seconds, processor = time.perf_counter() - started, time.process_time() - worked
    info = highs.getInfo()
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    return Answer(
        highs.modelStatusToString(highs.getModelStatus()),
        -float(info.mip_dual_bound) if program.binaries else -float(info.objective_function_value),
        -float(info.objective_function_value) if found else float("-inf"),
        seconds,
        processor,
        max(0, int(info.mip_node_count)),
    )


def _interval(layer: Layer, lo: np.ndarray, hi: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    up, down = np.maximum(layer.weight, 0), np.minimum(layer.weight, 0)
    slack = 1e-9 * (1 + abs(layer.weight) @ np.maximum(abs(lo), abs(hi)))  # for rounding, generously
    return up @ lo + down @ hi + layer.bias - slack, up @ hi + down @ lo + layer.bias + slack


def _columns(highs: highspy.Highs, lo: np.ndarray, hi: np.ndarray) -> np.ndarray:
    first = highs.getNumCol()
    none = np.zeros(0)
    highs.addCols(
        len(lo), np.zeros(len(lo)), lo, hi, 0, np.zeros(len(lo), np.int32), none.astype(np.int32), none
    )
    return np.arange(first, first + len(lo), dtype=np.int32)


def _affine(
    highs: highspy.Highs, layer: Layer, columns: np.ndarray, y: np.ndarray, reach: np.ndarray
) -> None:
    """``y = weight @ a + bias``, without the smallest weights."""
    share = abs(layer.weight) * reach
    order = np.argsort(share, axis=1)
    small = np.zeros(share.shape, bool)
    np.put_along_axis(small, order, np.cumsum(np.take_along_axis(share, order, 1), 1) <= DROPPED, 1)
    radius = np.where(small, share, 0).sum(1)
    for row, keep, bias, width, column in zip(layer.weight, ~small, layer.bias, radius, y, strict=True):
        index = np.append(columns[keep], column).astype(np.int32)
        highs.addRow(-bias - width, -bias + width, len(index), index, np.append(row[keep], -1.0))


def main() -> None:
    """One network, one box, one answer."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--bounds", type=Path, metavar="B.json")
    parser.add_argument("--box", type=float, nargs=2, default=(0.0, 1.0), metavar=("LO", "HI"))
    parser.add_argument("--center", type=Path, metavar="X.npy", help="with --radius instead of --box")
    parser.add_argument("--radius", type=float, default=0.05)
    parser.add_argument("--logits", type=int, nargs=2, default=(3, 7), metavar=("PLUS", "MINUS"))
    parser.add_argument("--time-limit", type=float, default=60.0, metavar="S")
    options = parser.parse_args()
    layers = read_layers(options.model)
    size = layers[0].weight.shape[1]
    lo, hi = (np.full(size, end) for end in options.box)
    if options.center is not None:
        center = np.load(options.center).reshape(size).astype(np.float64)
        lo, hi = center - options.radius, center + options.radius
    program = build(layers, lo, hi, None if options.bounds is None else read_ranges(options.bounds))
    print(f"{program.columns} columns, {program.rows} rows, {program.binaries} binaries")
    answer = maximise(program, *options.logits, options.time_limit)
    print(
        f"{answer.status} in {answer.seconds:.2f} s, {answer.nodes} nodes: "
        f"largest difference {answer.value:.6g}, proven to be at most {answer.bound:.6g}"
    )


if __name__ == "__main__":
    main()
