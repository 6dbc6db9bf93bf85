"""LEO++ against all rewrites, at every tolerance, on the paper's networks: what goes, what is proven, what is
seen.

Each network of ``networks/paper`` is analysed once on [0, 1]^n and rewritten five times. "seen" is the
largest difference that a search finds between the original and the file's weights, rounding taken off:
random inputs, corners, test images, and gradient ascent on the difference from the best of them. Latency is
onnxruntime's for one input and one thread, the median of runs of both networks in turns. Accuracy is on
MNIST's test set; that of magnitude pruning is after setting as large a share of the weights, the smallest
ones, to 0.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import torch
from torch import Tensor

from benchmarks.mnist import images, labels
from benchmarks.results import shared, table, write_section
from relutrim.analysis import analyze
from relutrim.domain import Box
from relutrim.formats import load, save
from relutrim.latency import measure
from relutrim.network import Linear, Network, Node
from relutrim.observe import certain_difference, climb
from relutrim.prove.stability import Stability
from relutrim.rewrite.pipeline import Rewritten, rewrite
from relutrim.wish import allowed_deviation

WAYS: tuple[tuple[str, str, str | float], ...] = (
    ("leo++", "leo++", "exact"),
    ("exact", "all", "exact"),
    ("rounding", "all", "rounding"),
    ("1e-6", "all", 1e-6),
    ("1e-4", "all", 1e-4),
)
HEADER = (
    *("network", "way", "hidden widths", "neurons %", "connections %", "zeros", "bytes", "latency us"),
    *("proven", "seen", "float32", "own float32", "accuracy", "pruning"),
)
_STARTS = 64
_STEPS = 60


@dataclass(frozen=True)
class Measured:
    """One way on one network."""

    row: list[object]
    way: str
    neurons: float
    connections: float
    ratio: float
    moved: bool


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compression", description=__doc__)
    parser.add_argument("--time-limit", type=float, default=20.0, metavar="S", help="of each analysis [20]")
    parser.add_argument("--section", metavar="NAME", help="the section of RESULTS.md to write")
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="of names in networks/paper [*]")
    options = parser.parse_args(arguments)
    measured: list[Measured] = []
    for path in sorted(shared().joinpath("networks", "paper").glob("*.onnx")):
        if not any(fnmatch(path.stem, pattern) for pattern in options.patterns or ["*"]):
            continue
        network = load(path)
        stability = analyze(network, Box(0, 1), time_limit=options.time_limit)
        for way, rewrites, tolerance in WAYS:
            allowed = allowed_deviation(network, stability, tolerance)
            started = time.perf_counter()
            result = rewrite(network, stability, rewrites=rewrites, allowed=allowed)
            seconds = time.perf_counter() - started
            measured.append(_measure(path, way, network, stability, result))
            print(*measured[-1].row, f"({seconds:.2f} s)", flush=True)
    if not measured:
        sys.exit(f"no network in networks/paper has a name like {' or '.join(options.patterns)}")
    text = f"{_summary(measured)}\n\n{table(HEADER, (one.row for one in measured))}"
    if options.section:
        command = shlex.join(["python", "-m", "benchmarks.compression", *arguments])
        write_section(options.section, text, command)
    else:
        print(text)


def _measure(path: Path, way: str, network: Network, stability: Stability, result: Rewritten) -> Measured:
    small = result.stored
    inputs = _inputs(network)
    region = stability.problem.region()
    apart = climb(network, small, region, inputs, starts=_STARTS, steps=_STEPS)
    seen = certain_difference(network, small, apart)
    (latency, *_) = measure(network, small).timings
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.onnx"
        save(small, out)
        single = inputs.numpy().astype(np.float32)
        old, new = _runtime(path, single), _runtime(out, single)
    truth = network(torch.as_tensor(single.astype(np.float64))).numpy()
    difference, own = np.abs(new - old).max(), np.abs(old - truth).max()
    share = 1 - small.connections / network.connections
    accuracy, changed = _accuracy(network, small)
    row = [
        path.stem,
        way,
        "-".join(map(str, small.widths[1:-1])),
        f"{100 - 100 * small.neurons / network.neurons:.0f}",
        f"{100 * share:.1f}",
        small.zeros,
        small.parameters * 4,
        f"{latency.before_us:.0f} -> {latency.after_us:.0f}",
        f"{result.deviation_stored:.1e}",
        f"{seen:.1e}",
        f"{difference:.1e}",
        f"{own:.1e}",
        accuracy,
        _pruned(network, share),
    ]
    ratio = result.deviation_stored / seen if seen > 0 else 1.0
    neurons = 1 - small.neurons / network.neurons
    return Measured(row, way, neurons, share, ratio, changed)


def _summary(measured: Sequence[Measured]) -> str:
    rows = []
    for way, _, _ in WAYS:
        own = [one for one in measured if one.way == way]
        rows.append(
            [
                way,
                f"{100 * statistics.fmean(one.neurons for one in own):.1f}",
                f"{100 * statistics.fmean(one.connections for one in own):.1f}",
                f"{max(one.ratio for one in own):.0f}",
                sum(one.moved for one in own),
            ]
        )
    header = (
        "way",
        "mean neurons %",
        "mean connections %",
        "largest proven / seen",
        "predictions changed on",
    )
    return table(header, rows)


def _inputs(network: Network) -> Tensor:
    random = np.random.default_rng(3)
    size = network.input.size
    parts = [
        random.random((1000, size)),
        (random.random((1000, size)) < random.random((1000, 1))).astype(float),
    ]
    test = _test()
    if size == 784 and test is not None:
        parts.append(test[0][:2000])
    return torch.as_tensor(np.concatenate(parts))


def _runtime(path: Path, inputs: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {session.get_inputs()[0].name: inputs})
    return np.asarray(output, dtype=np.float64)


def _test() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]] | None:
    found, digits = images("t10k"), labels("t10k")
    return None if found is None or digits is None else (found.astype(np.float64), digits)


def _correct(network: Network) -> tuple[float, Tensor] | None:
    test = _test()
    if network.input.size != 784 or test is None:
        return None
    found = network(torch.as_tensor(test[0])).argmax(1)
    return float((found == torch.as_tensor(test[1])).double().mean()), found


def _accuracy(network: Network, small: Network) -> tuple[str, bool]:
    before, after = _correct(network), _correct(small)
    if before is None or after is None:
        return "-", False
    return f"{100 * before[0]:.2f} -> {100 * after[0]:.2f}", not torch.equal(before[1], after[1])


def _pruned(network: Network, share: float) -> str:
    """The accuracy after magnitude pruning of as large a share of the weights."""
    linear = {n.name: n.operator.weight for n in network.nodes if isinstance(n.operator, Linear)}
    sizes = np.sort(np.concatenate([np.abs(weight).ravel() for weight in linear.values()]))
    limit = sizes[min(len(sizes) - 1, int(share * len(sizes)))]
    change: dict[str, Any] = {}
    for node in network.nodes:
        if isinstance(node.operator, Linear):
            kept = np.where(np.abs(node.operator.weight) < limit, 0.0, node.operator.weight)
            change[node.name] = Node(node.name, Linear(kept, node.operator.bias), node.inputs)
    found = _correct(network.edit(change=change))
    return "-" if found is None else f"{100 * found[0]:.2f}"


if __name__ == "__main__":
    main(sys.argv[1:])
