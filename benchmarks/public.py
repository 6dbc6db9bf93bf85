"""Other people's networks, and LeNets: what is decided on their domains, what goes, and whether it is the
same network.

Every model of ``networks/public`` on the box of each VNN-LIB file beside it, or on [0, 1]^n where there is
none, and those of ``networks/lenet`` on [0, 1]^3072. Files are compressed from their paths, LeNets as the
modules that they are; what was saved is read again. 100,000 inputs of mixed kinds look for a contradiction
to a verdict. "runtime" is the largest difference of MODEL and the saved file in onnxruntime on random inputs
of the domain (of a module, as it is written to ONNX), "own" the original's own float32 error there.
"""

from __future__ import annotations

import argparse
import shlex
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
from torch import nn

from benchmarks.results import shared, table, write_section
from benchmarks.runtime import outputs
from benchmarks.sampling import extremes
from benchmarks.stability import Case
from relutrim.compression import compress
from relutrim.domain import Box, Domain
from relutrim.errors import RelutrimError
from relutrim.graph import Network
from relutrim.io import as_network, load, save
from relutrim.prove.stability import Stability
from relutrim.prove.verdict import Verdict
from relutrim.result import Compression

HEADER = (
    *("network", "neurons", "active", "inactive", "unstable", "unknown", "refuted", "seconds"),
    *("neurons left", "parameters", "left", "channels gone", "proven", "runtime", "own"),
)
_ROWS = 256
_SHAPE = (3, 32, 32)


@dataclass(frozen=True)
class Problem:
    """A model as a user has it, the path of a file or a module, and its domain."""

    name: str
    model: Path | nn.Module
    domain: Domain

    def compress(self, **options: Any) -> Compression:
        """What ``relutrim.compress`` makes of it."""
        shape = None if isinstance(self.model, Path) else _SHAPE
        return compress(self.model, self.domain, input_shape=shape, **options)

    def file(self, folder: Path, original: Network) -> Path:
        """MODEL as ONNX: its own file, or the module written to one."""
        if isinstance(self.model, Path):
            return self.model
        path = folder / "model.onnx"
        save(original, path)
        return path


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.public", description=__doc__)
    parser.add_argument("--time-limit", type=float, default=60.0, metavar="S", help="of each [60]")
    parser.add_argument("--section", metavar="NAME", help="the section of RESULTS.md to write")
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="of names [*]")
    options = parser.parse_args(arguments)
    rows = []
    for problem in problems():
        if any(fnmatch(problem.name, pattern) for pattern in options.patterns or ["*"]):
            rows.append(_measure(problem, options.time_limit))
            print(*rows[-1], flush=True)
    if not rows:
        sys.exit(f"no network has a name like {' or '.join(options.patterns)}")
    refuted = sum(row[6] for row in rows)
    text = f"{len(rows)} problems; {refuted} verdicts refuted.\n\n{table(HEADER, rows)}"
    if options.section:
        write_section(options.section, text, shlex.join(["python", "-m", "benchmarks.public", *arguments]))
    else:
        print(text)


def problems() -> Iterator[Problem]:
    """The networks of ``networks/public`` and ``networks/lenet`` on their domains."""
    for path in sorted(shared().joinpath("networks", "public").glob("*/*.onnx")):
        boxes: list[Path | None] = [*sorted(path.parent.glob("*.vnnlib"))] or [None]
        for box in boxes:
            case = Case(path, box)
            try:
                _, domain = case.read()
            except RelutrimError as error:  # another network's box
                print(f"{case.name}: {error}", flush=True)
            else:
                yield Problem(case.name, path, domain)
    for name, module in _modules():
        yield Problem(name, module, Box(0, 1))


def lenets() -> Iterator[tuple[str, Network]]:
    """The networks of ``networks/lenet``, by name."""
    for name, module in _modules():
        yield name, as_network(module, input_shape=_SHAPE)


def _modules() -> Iterator[tuple[str, nn.Module]]:
    for path in sorted(shared().joinpath("networks", "lenet").glob("*.pt")):
        module = lenet(batch_norm="_bn_" in path.stem)
        module.load_state_dict(torch.load(path, weights_only=True))
        yield path.stem, module.eval()


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


def random_inputs(stability: Stability) -> npt.NDArray[np.float32]:
    """Random inputs of the domain."""
    region = stability.problem.region()
    found: npt.NDArray[np.float32] = region.sample(_ROWS, torch.Generator().manual_seed(3)).float().numpy()
    return found


def _measure(problem: Problem, time_limit: float) -> list[Any]:
    started = time.perf_counter()
    result = problem.compress(time_limit=time_limit)
    seconds = time.perf_counter() - started
    network, stability, proven = result.original, result.stability, result.deviation.proven
    seen, x = extremes(stability), random_inputs(stability)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.onnx"
        result.save(out)
        small = load(out)
        before = outputs(problem.file(Path(folder), network), network.input, x)
        after = outputs(out, small.input, x)
    truth = network(torch.as_tensor(x, dtype=torch.float64)).numpy()
    counts = [
        stability.count(v) for v in (Verdict.ACTIVE, Verdict.INACTIVE, Verdict.UNSTABLE, Verdict.UNKNOWN)
    ]
    return [
        problem.name,
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
        f"{np.abs(before - truth).max(initial=0):.1e}",
    ]


def _channels_gone(network: Network, small: Network) -> int:
    """How many channels convolutional ReLUs have lost."""
    return sum(
        network.shapes[relu.name][0] - small.shapes[relu.name][0]
        for relu in network.relus
        if len(network.shapes[relu.name]) > 1 and relu.name in small.shapes
    )


if __name__ == "__main__":
    main(sys.argv[1:])
