"""LEO++ against all rewrites, at every tolerance, on the paper's networks: what goes, what is proven, what is
seen.

Each file of ``networks/paper`` is compressed by its path on [0, 1]^n, analysed once, rewritten six times and
saved; what is measured are the saved files, read again. "seen" is the largest difference that a search finds
between the original and the file's weights, rounding taken off: random inputs, corners, test images, and
gradient ascent on the difference from the best of them. Latency is onnxruntime's for one input and one
thread, the median of runs of both files in turns; "float32" is the largest difference of both there, and "own
float32" the original's own error. Accuracy is on MNIST's test set; that of magnitude pruning is after setting
as large a share of the weights, the smallest ones, to 0.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.mnist import images, labels
from benchmarks.results import shared, table, write_section
from benchmarks.runtime import outputs
from relutrim.compression import compress
from relutrim.domain import Box
from relutrim.graph import Linear, Network, Node
from relutrim.io import load
from relutrim.observe import certain_difference, climb
from relutrim.result import Compression

LEO = "leo++"
TOLERANCES: tuple[tuple[str, str | float], ...] = (
    ("0", 0.0),
    ("exact", "exact"),
    ("rounding", "rounding"),
    ("1e-6", 1e-6),
    ("1e-4", 1e-4),
)
WAYS = (LEO, *(way for way, _ in TOLERANCES))
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
    parser.add_argument("--time-limit", type=float, default=30.0, metavar="S", help="of the first way [30]")
    parser.add_argument("--section", metavar="NAME", help="the section of RESULTS.md to write")
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="of names in networks/paper [*]")
    options = parser.parse_args(arguments)
    measured: list[Measured] = []
    for path in sorted(shared().joinpath("networks", "paper").glob("*.onnx")):
        if not any(fnmatch(path.stem, pattern) for pattern in options.patterns or ["*"]):
            continue
        for way, result, seconds in _results(path, options.time_limit):
            measured.append(_measure(path, way, result))
            print(*measured[-1].row, f"({seconds:.2f} s)", flush=True)
    if not measured:
        sys.exit(f"no network in networks/paper has a name like {' or '.join(options.patterns)}")
    text = f"{_summary(measured)}\n\n{table(HEADER, (one.row for one in measured))}"
    if options.section:
        command = shlex.join(["python", "-m", "benchmarks.compression", *arguments])
        write_section(options.section, text, command)
    else:
        print(text)


def _results(path: Path, time_limit: float) -> Iterator[tuple[str, Compression, float]]:
    """Each way, its result, and how long it took; the verdicts of the first one serve all."""
    started = time.perf_counter()
    first = compress(path, Box(0, 1), rewrites=LEO, time_limit=time_limit)
    yield LEO, first, time.perf_counter() - started
    for way, tolerance in TOLERANCES:
        started = time.perf_counter()
        result = first.at(tolerance)
        yield way, result, time.perf_counter() - started


def _measure(path: Path, way: str, result: Compression) -> Measured:
    network, proven = result.original, result.deviation.proven
    assert proven is not None
    inputs = _inputs(network)
    single = inputs.float().numpy()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.onnx"
        result.save(out)
        small = load(out)
        old, new = outputs(path, network.input, single), outputs(out, small.input, single)
    region = result.stability.problem.region()
    apart = climb(network, small, region, inputs, starts=_STARTS, steps=_STEPS)
    seen = certain_difference(network, small, apart)
    (latency, *_) = result.latency().timings
    truth = network(torch.as_tensor(single, dtype=torch.float64)).numpy()
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
        f"{proven:.1e}",
        f"{seen:.1e}",
        f"{difference:.1e}",
        f"{own:.1e}",
        accuracy,
        _pruned(network, share),
    ]
    ratio = proven / seen if seen > 0 else 1.0
    neurons = 1 - small.neurons / network.neurons
    return Measured(row, way, neurons, share, ratio, changed)


def _summary(measured: Sequence[Measured]) -> str:
    rows = []
    for way in WAYS:
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
