"""Ordinary convolutional networks: what ``relutrim compress`` removes, in which time and memory.

The networks of ``networks/cnn`` on normalised images, each as ONNX with batch norm kept, as ONNX with batch
norm folded by this script, and as an ``nn.Module``. Each is one whole command, or one call, in a process of
its own. All parameters are counted from what was written, as PyTorch counts them: batch norm's two vectors,
without running means and variances. "dead" and "constant" channels, and what is left "without dead" and
"without both", are counted by ``benchmarks.cnn_count`` with plain intervals; "zero filters" is what
removing exact zeros alone leaves. "runtime" is the largest difference in onnxruntime (in PyTorch, of
modules) on random images, relative to the largest output; latencies are medians of onnxruntime on one image
and one thread.

With ``--simplify FOLDER`` torch-simplify runs on the same modules, with ``--cifar DIR`` (standard files of
CIFAR-10) the accuracy on the test set is measured before and after. ``--parts`` chooses what to measure:
``networks``, ``limits`` (``--time-limit 5``, and certificates), ``scale`` (a toy, a VGG-11 of full width,
and a network of ResNet-50's size on 224x224 pixels).
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import numpy_helper
from torch import nn

from benchmarks.cnn_count import MEAN, STD, count, parameters
from benchmarks.cnn_models import module_of, resnet50, stored, toy, vgg11
from benchmarks.results import shared, table, write_section

NETWORKS = (
    *("network", "as", "parameters", "dead", "constant", "zero filters", "without dead", "without both"),
    *("left", "left, rounding", "seconds", "MB", "proven", "found", "runtime", "class"),
    *("accuracy before", "after", "us before", "us after"),
)
OTHERS = ("network", "parameters", "torch-simplify leaves", "seconds", "off by, relative", "relutrim leaves")
LIMITS = (
    *("network", "without both", "left at --time-limit 5", "seconds"),
    *("with a certificate", "seconds", "certificate bytes", "checked in seconds"),
)
SCALE = ("network", "input", "time limit", "parameters", "left", "seconds", "MB", "proven", "class")
Array = npt.NDArray[Any]
_MODULES = {"toy": (toy, 16, "60"), "vgg11": (vgg11, 32, "30"), "resnet50": (resnet50, 224, "120")}


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cnn", description=__doc__)
    parser.add_argument("--time-limit", default="60", metavar="S", help="of each command [60]")
    parser.add_argument("--device", default="cpu", help="[cpu]")
    parser.add_argument("--parts", nargs="+", default=["networks", "limits", "scale"], help="[all]")
    parser.add_argument("--cifar", type=Path, metavar="DIR", help="CIFAR-10's files, for accuracies")
    parser.add_argument("--simplify", metavar="FOLDER", help="where torch-simplify is installed")
    parser.add_argument("--module", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--section", metavar="NAME", help="the section of RESULTS.md to write")
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="of names [*]")
    options = parser.parse_args(arguments)
    if options.module is not None:
        _compress_module(*options.module, options.device)
        return
    text = "\n\n".join(_parts(options))
    if options.section:
        folders = {options.simplify: "FOLDER", str(options.cifar): "DIR"}
        said = [folders.get(one, one) for one in arguments]
        write_section(options.section, text, shlex.join(["python", "-m", "benchmarks.cnn", *said]))
    else:
        print(text)


def _parts(options: argparse.Namespace) -> Iterator[str]:
    paths = [
        path
        for path in sorted((shared() / "networks" / "cnn").glob("*.onnx"))
        if any(fnmatch(path.name, pattern) for pattern in options.patterns or ["*"])
    ]
    if "networks" in options.parts:
        rows = [row for path in paths for row in _shown(_rows(path, options))]
        yield table(NETWORKS, rows)
        if options.simplify:
            left = {row[0]: row[8] for row in rows if row[1] == "nn.Module"}
            yield table(OTHERS, [_simplified(path, options.simplify, left.get(path.stem)) for path in paths])
    if "limits" in options.parts:
        yield table(LIMITS, _shown(_limited(path, options) for path in paths))
    if "scale" in options.parts:
        yield table(SCALE, _shown(_scaled(name, options) for name in _MODULES))


def _shown(rows: Any) -> list[list[object]]:
    found = []
    for row in rows:
        print(*row, flush=True)
        found.append(row)
    return found


def _rows(path: Path, options: argparse.Namespace) -> Iterator[list[object]]:
    with tempfile.TemporaryDirectory() as folder:
        folded = Path(folder) / f"folded-{path.name}"
        onnx.save(_folded(onnx.load(path)), folded)
        for form, file in (("ONNX", path), ("ONNX, folded", folded)):
            out = Path(folder) / f"out-{file.name}"
            said, seconds, memory = _command(file, out, options)
            rounded = Path(folder) / f"rounded-{file.name}"
            _command(file, rounded, options, "--tolerance", "rounding")
            found = count(onnx.load(file))
            left = [parameters(onnx.load(one)) for one in (out, rounded)]
            accuracy = [_accuracy(one, options.cifar) for one in (file, out)]
            counts = [found.parameters, *found[:2], *found[3:], *left]
            row = _row(path.stem, form, said, counts, seconds, memory)
            yield [*row, f"{_apart(file, out):.1e}", "", *accuracy, *_latency(said)]
        said, seconds, memory = _in_module(str(path), "32", options.time_limit, options)
        found = count(onnx.load(path))
        counts = [said["before"], *found[:2], *found[3:], said["after"], ""]
        row = _row(path.stem, "nn.Module", said, counts, seconds, memory)
        yield [*row, f"{said['apart']:.1e}", said["class"], "", "", "", ""]


def _row(
    name: str, form: str, said: dict[str, Any], counts: Sequence[object], seconds: float, memory: float
) -> list[object]:
    deviation = said["deviation"]
    shown = ["" if (one := deviation[key]) is None else f"{one:.1e}" for key in ("proven", "found")]
    return [name, form, *counts, f"{seconds:.1f}", f"{memory:.0f}", *shown]


def _latency(said: dict[str, Any]) -> list[str]:
    one = ((said.get("latency") or {}).get("timings") or [{}])[0]
    return [f"{one[key]:.0f}" if key in one else "" for key in ("before_us", "after_us")]


def _simplified(path: Path, folder: str, left: object) -> list[object]:
    command = [sys.executable, "-m", "benchmarks.cnn_simplify", folder, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said = json.loads(done.stdout.splitlines()[-1])
    before = parameters(onnx.load(path))
    if "error" in said:
        return [path.stem, before, said["error"], "", "", left]
    return [
        *(path.stem, before, said["parameters"], f"{said['seconds']:.1f}"),
        *(f"{said['apart']:.1e}", left),
    ]


def _limited(path: Path, options: argparse.Namespace) -> list[object]:
    with tempfile.TemporaryDirectory() as folder:
        short, certified = Path(folder) / "short.onnx", Path(folder) / "certified.onnx"
        certificate = Path(folder) / "certificate.zip"
        _, seconds, _ = _command(path, short, options, "--time-limit", "5")
        _, longer, _ = _command(path, certified, options, "--certificate", str(certificate))
        started = time.perf_counter()
        check = [sys.executable, "-m", "relutrim", "check", str(path), str(certified), str(certificate)]
        done = subprocess.run(check, capture_output=True, text=True)
        checked = f"{time.perf_counter() - started:.1f}" if done.returncode == 0 else "refused"
        return [
            *(path.stem, count(onnx.load(path)).without_both, parameters(onnx.load(short)), f"{seconds:.1f}"),
            *(parameters(onnx.load(certified)), f"{longer:.1f}", certificate.stat().st_size, checked),
        ]


def _scaled(name: str, options: argparse.Namespace) -> list[object]:
    _, size, limit = _MODULES[name]
    said, seconds, memory = _in_module(name, str(size), limit, options)
    return [
        *(name, f"3 x {size} x {size}", limit, said["before"], said["after"], f"{seconds:.1f}"),
        *(f"{memory:.0f}", f"{said['deviation']['proven']:.1e}", said["class"]),
    ]


def _command(
    file: Path, out: Path, options: argparse.Namespace, *more: str
) -> tuple[dict[str, Any], float, float]:
    domain = ["--normalized-box", "0", "1", "--mean", *map(str, MEAN), "--std", *map(str, STD)]
    limit = [] if "--time-limit" in more else ["--time-limit", options.time_limit]
    device = ["--device", options.device, "--json"]
    return _run(["-m", "relutrim", "compress", str(file), str(out), *domain, *limit, *device, *more])


def _in_module(
    name: str, size: str, limit: str, options: argparse.Namespace
) -> tuple[dict[str, Any], float, float]:
    """A module compressed in a process of its own; its seconds are those of the call alone."""
    command = ["-m", "benchmarks.cnn", "--device", options.device, "--module", name, size, limit]
    said, _, memory = _run(command)
    return said, said["seconds_of_call"], memory


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


def _compress_module(name: str, size: str, time_limit: str, device: str) -> None:
    import relutrim

    module = _MODULES[name][0]() if name in _MODULES else module_of(Path(name))
    domain = relutrim.NormalizedBox(0, 1, mean=MEAN, std=STD)
    example = torch.zeros(2, 3, int(size), int(size))
    started = time.perf_counter()
    result = relutrim.compress(
        module, domain, example_input=example, time_limit=float(time_limit), device=device
    )
    said = {**result.report, "seconds_of_call": time.perf_counter() - started}
    x = torch.as_tensor(_images(4, int(size)))
    with torch.no_grad():
        before, after = module(x), result.model(x)
    said["class"] = "same" if type(result.model) is type(module) else "other"
    said["before"], said["after"] = _numbers(module), _numbers(result.model)
    said["apart"] = float((before - after).abs().max() / before.abs().max())
    print(json.dumps(said))


def _numbers(module: nn.Module) -> int:
    return sum(one.numel() for one in module.parameters())


def _images(number: int, size: int = 32) -> Array:
    raw = np.random.default_rng(0).random((number, 3, size, size))
    return _normalised(raw)


def _normalised(raw: Array) -> Array:
    shape = (1, 3, 1, 1)
    found = (raw - np.reshape(MEAN, shape)) / np.reshape(STD, shape)
    return found.astype(np.float32)


def _apart(before: Path, after: Path) -> float:
    outputs = [_outputs(path, _images(32)) for path in (before, after)]
    return float(np.abs(outputs[0] - outputs[1]).max() / np.abs(outputs[0]).max())


def _accuracy(path: Path, cifar: Path | None) -> str:
    """On CIFAR-10's test set, in percent."""
    if cifar is None:
        return ""
    from relutrim.paper.cifar import read_records

    images, labels = read_records(next(iter(sorted(cifar.rglob("test_batch.bin")))), 1)
    right = 0
    for at in range(0, len(images), 500):
        found = _outputs(path, _normalised(images[at : at + 500] / 255.0)).argmax(1)
        right += int((found == labels[at : at + 500]).sum())
    return f"{100 * right / len(images):.2f}"


def _outputs(path: Path, x: Array) -> Array:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    found: Array = session.run(None, {session.get_inputs()[0].name: x})[0]
    return found


def _folded(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every batch norm right behind a convolution multiplied into it, as exporters do."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    arrays, nodes = stored(found), {node.output[0]: node for node in found.graph.node}
    for norm in [node for node in found.graph.node if node.op_type == "BatchNormalization"]:
        conv = nodes.get(norm.input[0])
        if conv is None or conv.op_type != "Conv":
            continue
        epsilon = next((one.f for one in norm.attribute if one.name == "epsilon"), 1e-5)
        gain, bias, mean, variance = (arrays[name].astype(np.float64) for name in norm.input[1:])
        factor = gain / np.sqrt(variance + epsilon)
        weight = arrays[conv.input[1]].astype(np.float64) * factor[:, None, None, None]
        old = arrays[conv.input[2]].astype(np.float64) if len(conv.input) > 2 else 0.0
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


if __name__ == "__main__":
    main(sys.argv[1:])
