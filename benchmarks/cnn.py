"""Ordinary convolutional networks: what ``relutrim compress`` removes, in which time and memory.

The networks of ``networks/cnn`` on normalised images, each as ONNX with batch norm kept, as ONNX with batch
norm folded by this script, and (the one whose class is known here) as an ``nn.Module``. Each is one whole
command, or one call, in a process of its own. "dead" and "constant" are counted by a walk of its own over
the ONNX nodes, with plain intervals of each entry: channels of a ReLU or clip that are 0 everywhere, or one
fixed value other than 0. "runtime" is the largest difference in onnxruntime on random images, relative to the
largest output; latencies are medians of onnxruntime on one image and one thread. With ``--cifar DIR``
(standard files of CIFAR-10) the accuracy on the test set is added.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import numpy_helper
from torch import nn
from torch.nn import functional as F

from benchmarks.results import shared, table, write_section

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
PLAN = (32, 0, 64, 0, 128, 128, 0, 256, 256, 0, 256, 256, 0)
"""Channels of the VGG's convolutions; 0 is a max pooling."""
HEADER = (
    *("network", "as", "parameters", "dead", "constant", "left", "seconds", "MB", "proven", "found"),
    *("runtime", "us before", "us after", "class", "accuracy before", "accuracy after"),
)
Array = npt.NDArray[Any]
Ends = tuple[torch.Tensor, torch.Tensor]


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cnn", description=__doc__)
    parser.add_argument("--time-limit", default="60", metavar="S", help="of each command [60]")
    parser.add_argument("--tolerance", default="exact", help="[exact]")
    parser.add_argument("--cifar", type=Path, metavar="DIR", help="CIFAR-10's files, for accuracies")
    parser.add_argument("--module", type=Path, metavar="PT", help=argparse.SUPPRESS)
    parser.add_argument("--section", metavar="NAME", help="the section of RESULTS.md to write")
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="of names [*]")
    options = parser.parse_args(arguments)
    if options.module is not None:
        _compress_module(options.module, options.time_limit, options.tolerance)
        return
    rows = []
    for path in sorted((shared() / "networks" / "cnn").glob("*.onnx")):
        if any(fnmatch(path.name, pattern) for pattern in options.patterns or ["*"]):
            for row in _rows(path, options):
                rows.append(row)
                print(*row, flush=True)
    text = table(HEADER, rows)
    if options.section:
        write_section(options.section, text, shlex.join(["python", "-m", "benchmarks.cnn", *arguments]))


def _rows(path: Path, options: argparse.Namespace) -> list[list[object]]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        model = onnx.load(path)
        folded = Path(folder) / f"folded-{path.name}"
        onnx.save(_folded(model), folded)
        dead, constant = _count(model)
        for form, file in (("ONNX", path), ("ONNX, folded", folded)):
            out = Path(folder) / f"out-{file.name}"
            domain = ["--normalized-box", "0", "1", "--mean", *map(str, MEAN), "--std", *map(str, STD)]
            more = ["--time-limit", options.time_limit, "--tolerance", options.tolerance, "--json"]
            data = ["--data", str(options.cifar)] if options.cifar else []
            said, seconds, memory = _run(
                ["-m", "relutrim", "compress", str(file), str(out), *domain, *more, *data]
            )
            rows.append(_row(path.stem, form, said, (dead, constant), seconds, memory, _apart(file, out)))
        state = path.with_suffix(".pt")
        if path.stem.startswith("vgg") and state.exists():
            limits = ["--time-limit", options.time_limit, "--tolerance", options.tolerance]
            said, seconds, memory = _run(["-m", "benchmarks.cnn", "--module", str(state), *limits])
            rows.append(_row(path.stem, "nn.Module", said, (dead, constant), seconds, memory, said["apart"]))
    return rows


def _row(
    name: str,
    form: str,
    said: dict[str, Any],
    counts: tuple[int, int],
    seconds: float,
    memory: float,
    apart: float,
) -> list[object]:
    def shown(number: float | None) -> str:
        return "" if number is None else f"{number:.1e}"

    latency = said.get("latency") or {}
    one = (latency.get("timings") or [{}])[0]
    accuracy = said.get("accuracy") or {}
    deviation = said["deviation"]
    return [
        *(name, form, said["original"]["parameters"], *counts, said["compressed"]["parameters"]),
        *(f"{seconds:.1f}", f"{memory:.0f}", shown(deviation["proven"]), shown(deviation["found"])),
        *(shown(apart), *(f"{one[key]:.0f}" if key in one else "" for key in ("before_us", "after_us"))),
        *(said.get("class", ""), accuracy.get("before", ""), accuracy.get("after", "")),
    ]


_REPORTING = """
import atexit, re, runpy, sys
from pathlib import Path
hwm = lambda: re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text()).group(1)
atexit.register(lambda: print(hwm(), file=sys.stderr))
sys.argv = sys.argv[2:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def _run(arguments: list[str]) -> tuple[dict[str, Any], float, float]:
    """What a command says in JSON, its seconds, and its peak memory in MB by its own account."""
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", _REPORTING, *arguments], capture_output=True, text=True)
    seconds = time.perf_counter() - started
    if done.returncode:
        sys.exit(f"{shlex.join(arguments)} failed: {done.stderr}")
    return json.loads(done.stdout), seconds, int(done.stderr.split()[-1]) / 1024


def _compress_module(state: Path, time_limit: str, tolerance: str) -> None:
    import relutrim

    layers: list[nn.Module] = []
    channels = 3
    for width in PLAN:
        if width:
            layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
        else:
            layers.append(nn.MaxPool2d(2))
    module = nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 10)).eval()
    module.load_state_dict(torch.load(state, weights_only=True))
    domain = relutrim.NormalizedBox(0, 1, mean=MEAN, std=STD)
    example = torch.zeros(2, 3, 32, 32)
    result = relutrim.compress(
        module, domain, example_input=example, tolerance=tolerance, time_limit=float(time_limit)
    )
    x = torch.as_tensor(_images(32))
    with torch.no_grad():
        before, after = module(x), result.model(x)
    said = {**result.report, "class": "same" if type(result.model) is type(module) else "other"}
    said["apart"] = float((before - after).abs().max() / before.abs().max())
    print(json.dumps(said))


def _images(count: int) -> Array:
    raw = np.random.default_rng(0).random((count, 3, 32, 32))
    shape = (1, 3, 1, 1)
    found = (raw - np.reshape(MEAN, shape)) / np.reshape(STD, shape)
    return found.astype(np.float32)


def _apart(before: Path, after: Path) -> float:
    import onnxruntime

    outputs = []
    for path in (before, after):
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        outputs.append(session.run(None, {session.get_inputs()[0].name: _images(32)})[0])
    return float(np.abs(outputs[0] - outputs[1]).max() / np.abs(outputs[0]).max())


def _arrays(model: onnx.ModelProto) -> dict[str, Array]:
    found = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            found[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
        elif node.op_type == "Identity" and node.input[0] in found:
            found[node.output[0]] = found[node.input[0]]
    return found


def _folded(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every batch norm right behind a convolution multiplied into it, as exporters do."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    arrays, nodes = _arrays(found), {node.output[0]: node for node in found.graph.node}
    for norm in [node for node in found.graph.node if node.op_type == "BatchNormalization"]:
        conv = nodes.get(norm.input[0])
        if conv is None or conv.op_type != "Conv":
            continue
        epsilon = next((one.f for one in norm.attribute if one.name == "epsilon"), 1e-5)
        gain, bias, mean, variance = (arrays[name].astype(np.float64) for name in norm.input[1:])
        factor = gain / np.sqrt(variance + epsilon)
        weight = arrays[conv.input[1]].astype(np.float64) * factor[:, None, None, None]
        old = arrays[conv.input[2]] if len(conv.input) > 2 else 0.0
        names = f"{conv.output[0]}.weight", f"{conv.output[0]}.bias"
        for name, array in zip(names, (weight, bias + (old - mean) * factor), strict=True):
            found.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
        del conv.input[1:]
        conv.input.extend(names)
        conv.output[0] = norm.output[0]
        found.graph.node.remove(norm)
    read = {name for node in found.graph.node for name in node.input}
    for tensor in [one for one in found.graph.initializer if one.name not in read]:
        found.graph.initializer.remove(tensor)
    return found


@torch.no_grad()
def _count(model: onnx.ModelProto) -> tuple[int, int]:
    """How many channels of ReLUs and clips are 0, and how many one other value, by plain intervals."""
    arrays = {name: torch.as_tensor(np.array(one)).double() for name, one in _arrays(model).items()}
    mean, std = (torch.tensor(one, dtype=torch.float64).reshape(1, 3, 1, 1) for one in (MEAN, STD))
    ones = torch.ones(1, 3, 32, 32, dtype=torch.float64)
    ends: dict[str, Ends] = {model.graph.input[0].name: (ones * (0 - mean) / std, ones * (1 - mean) / std)}
    dead = constant = 0
    for node in model.graph.node:
        if node.output[0] in arrays:
            continue
        given = [ends[name] for name in node.input if name in ends]
        held = [arrays[name] for name in node.input if name in arrays]
        lo, hi = ends[node.output[0]] = _image(node, given, held)
        if node.op_type in ("Relu", "Clip"):
            low, high = lo.amin((0, 2, 3)), hi.amax((0, 2, 3))
            dead += int((high <= 0).sum())
            constant += int(((low == high) & (high > 0)).sum())
    return dead, constant


def _image(node: onnx.NodeProto, given: list[Ends], held: list[torch.Tensor]) -> Ends:
    said = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
    lo, hi = given[0]

    def both(function: Any) -> Ends:
        return function(lo), function(hi)

    def linear(function: Any, weight: torch.Tensor, bias: torch.Tensor | float) -> Ends:
        up, down = weight.clamp(min=0), weight.clamp(max=0)
        low, high = function(lo, up) + function(hi, down), function(hi, up) + function(lo, down)
        return low + bias, high + bias

    match node.op_type:
        case "Conv":
            places = {"stride": said.get("strides", 1), "padding": said.get("pads", [0, 0])[:2]}
            bias = held[1].reshape(1, -1, 1, 1) if len(held) > 1 else 0.0
            return linear(lambda x, w: F.conv2d(x, w, groups=said.get("group", 1), **places), held[0], bias)
        case "Gemm":
            return linear(F.linear, held[0] if said.get("transB") else held[0].T, held[1])
        case "BatchNormalization":
            gain, bias, mean, variance = (one.reshape(1, -1, 1, 1) for one in held)
            factor = gain / (variance + said.get("epsilon", 1e-5)).sqrt()
            return linear(lambda x, w: x * w, factor, bias - mean * factor)
        case "Relu":
            return both(lambda x: x.clamp(min=0))
        case "Clip":
            return both(lambda x: x.clamp(float(held[0]), float(held[1])))
        case "MaxPool":
            return both(lambda x: F.max_pool2d(x, said["kernel_shape"], said["strides"]))
        case "AveragePool" | "GlobalAveragePool" | "ReduceMean":
            return both(lambda x: x.mean((2, 3), keepdim=bool(said.get("keepdims", 1))))
        case "Flatten" | "Reshape":
            return both(lambda x: x.flatten(1))
        case "Add":
            (other_lo, other_hi) = given[1]
            return lo + other_lo, hi + other_hi
    raise NotImplementedError(node.op_type)


if __name__ == "__main__":
    main(sys.argv[1:])
