"""Other people's networks, and LeNets: what is decided on their domains, what goes, and whether it is the
same network.

Every model of ``networks/public`` on the box of each VNN-LIB file beside it, or on [0, 1]^n where there is
none, and those of ``networks/lenet`` on [0, 1]^3072. 100,000 inputs of mixed kinds look for a contradiction
to a verdict. "runtime" is the largest difference of both ONNX files in onnxruntime on random inputs of the
domain, "own" the original's own float32 error there.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import nn

from benchmarks.results import shared, table, write_section
from benchmarks.sampling import extremes
from benchmarks.stability import Case
from relutrim.compression import Compression, compress
from relutrim.domain import Box, Domain
from relutrim.formats import as_network, save
from relutrim.network import Network
from relutrim.prove.verdict import Verdict

HEADER = (
    *("network", "neurons", "active", "inactive", "unstable", "unknown", "refuted", "seconds"),
    *("neurons left", "parameters", "left", "channels gone", "proven", "runtime", "own"),
)
_ROWS = 256


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.public", description=__doc__)
    parser.add_argument("--time-limit", type=float, default=60.0, metavar="S", help="of each analysis [60]")
    parser.add_argument("--section", metavar="NAME", help="the section of RESULTS.md to write")
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="of names [*]")
    options = parser.parse_args(arguments)
    rows = []
    for name, network, domain in _cases():
        if any(fnmatch(name, pattern) for pattern in options.patterns or ["*"]):
            rows.append(_measure(name, network, domain, options.time_limit))
            print(*rows[-1], flush=True)
    if not rows:
        sys.exit(f"no network has a name like {' or '.join(options.patterns)}")
    refuted = sum(row[6] for row in rows)
    text = f"{len(rows)} problems; {refuted} verdicts refuted.\n\n{table(HEADER, rows)}"
    if options.section:
        write_section(options.section, text, shlex.join(["python", "-m", "benchmarks.public", *arguments]))
    else:
        print(text)


def _cases() -> Iterator[tuple[str, Network, Domain]]:
    for path in sorted(shared().joinpath("networks", "public").glob("*/*.onnx")):
        boxes: list[Path | None] = [*sorted(path.parent.glob("*.vnnlib"))] or [None]
        for box in boxes:
            case = Case(path, box)
            try:
                yield (case.name, *case.read())
            except Exception as error:
                print(f"{case.name}: {error}", flush=True)
    for name, network in lenets():
        yield name, network, Box(0, 1)


def lenets() -> Iterator[tuple[str, Network]]:
    """The networks of ``networks/lenet``, by name."""
    for path in sorted(shared().joinpath("networks", "lenet").glob("*.pt")):
        module = lenet(batch_norm="_bn_" in path.stem)
        module.load_state_dict(torch.load(path, weights_only=True))
        yield path.stem, as_network(module.eval(), input_shape=(3, 32, 32))


def lenet(*, batch_norm: bool) -> nn.Sequential:
    """The architecture of ``networks/lenet``."""
    if not batch_norm:
        return nn.Sequential(
            *(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
        )
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 5), nn.BatchNorm2d(6), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.BatchNorm2d(16), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.BatchNorm1d(120), nn.ReLU()),
        *(nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


def _measure(name: str, network: Network, domain: Domain, time_limit: float) -> list[Any]:
    started = time.perf_counter()
    result = compress(network, domain, time_limit=time_limit)
    stability = result.stability
    seconds = time.perf_counter() - started
    seen = extremes(stability)
    before, after, own = _runtime(result)
    counts = [
        stability.count(v) for v in (Verdict.ACTIVE, Verdict.INACTIVE, Verdict.UNSTABLE, Verdict.UNKNOWN)
    ]
    small = result.stored
    proven = result.deviation.proven
    return [
        name,
        network.neurons,
        *counts,
        sum(seen.refuted(layer) for layer in stability.layers),
        f"{seconds:.2f}",
        small.neurons,
        network.parameters,
        small.parameters,
        _channels_gone(network, small),
        "-" if proven is None else f"{proven:.1e}",
        f"{np.abs(before - after).max(initial=0):.1e}",
        f"{own:.1e}",
    ]


def _channels_gone(network: Network, small: Network) -> int:
    """How many channels convolutional ReLUs have lost."""
    return sum(
        network.shapes[relu.name][0] - small.shapes[relu.name][0]
        for relu in network.relus
        if len(network.shapes[relu.name]) > 1 and relu.name in small.shapes
    )


def _runtime(result: Compression) -> tuple[np.ndarray, np.ndarray, float]:
    """Outputs of both files on random inputs, and how far the original's are from its float64 ones."""
    region = result.stability.problem.region()
    x = region.sample(_ROWS, torch.Generator().manual_seed(3)).numpy().astype(np.float32)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for which, network in enumerate((result.original, result.stored)):
            path = Path(folder) / f"{which}.onnx"
            save(network, path)
            found.append(_run(path, network, x))
    truth = result.original(torch.as_tensor(x.astype(np.float64))).numpy()
    return found[0], found[1], float(np.abs(found[0] - truth).max(initial=0))


def _run(path: Path, network: Network, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    batch = network.input.batch
    step = len(x) if isinstance(batch, str) else batch or 1
    outputs = []
    for start in range(0, len(x) - step + 1, step):
        part = x[start : start + step].reshape(step, *network.input.shape)
        values = session.run(None, {network.input.name: part[0] if batch is None else part})
        outputs.append(np.concatenate([value.reshape(step, -1) for value in values], axis=1))
    return np.concatenate(outputs)


if __name__ == "__main__":
    main(sys.argv[1:])
