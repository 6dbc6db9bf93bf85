"""The paper's method beside its baselines and beside ``auto``, on the same networks in one run.

For each network of ``networks/paper`` that a pattern names, on [0, 1]^n: every way of deciding it, on every
solver. Ways: ``isa`` (with the training data as preprocessing where there is any, the prover's constants and
inputs from relaxations), ``isa-nodata``, ``isa-random`` and ``isa-off`` (other injections), ``isa-interval``
(the paper's constants), ``layer``, ``neuron`` (until the sign is known), ``neuron-nodata`` and
``neuron-optimal`` (both directions of all neurons, so data is of no use to it). A way that runs out of time
counts with the limit.
"""

from __future__ import annotations

import argparse
import math
import shlex
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.mnist import images
from benchmarks.results import shared, table, write_section
from relutrim.analysis import analyze_network
from relutrim.domain import Box
from relutrim.errors import InputError
from relutrim.graph import Network
from relutrim.io import load
from relutrim.milp.settings import SOLVERS
from relutrim.prove.stability import Stability
from relutrim.prove.verdict import Evidence, Verdict

WAYS: dict[str, dict[str, str]] = {
    "isa": {"method": "isa"},
    "isa-nodata": {"method": "isa"},
    "isa-random": {"method": "isa", "inject": "random"},
    "isa-off": {"method": "isa", "inject": "off"},
    "isa-interval": {"method": "isa", "big_m": "interval"},
    "layer": {"method": "layer"},
    "neuron": {"method": "neuron"},
    "neuron-nodata": {"method": "neuron"},
    "neuron-optimal": {"method": "neuron", "until": "optimal"},
}
HEADER = (
    *("network", "way", "solver", "seconds", "to auto"),
    *("active", "inactive", "unstable", "unknown", "proof", "solver's word", "nodes", "contradicts auto"),
)
_REPEATS = 5
"""Of auto, whose runs are too short to be measured once; the median counts."""
_WITHOUT_DATA = ("auto", "isa-nodata", "neuron-nodata", "neuron-optimal")
_PATTERNS = ("*_2x100_*", "*_2x200_*", "*_2x400_*", "*_3x100_*")


@dataclass(frozen=True)
class Run:
    """One way on one network."""

    network: str
    way: str
    solver: str
    stability: Stability
    limit: float

    @property
    def seconds(self) -> float:
        """What it took; without an end it is the limit."""
        return self.stability.seconds if self.stability.complete else self.limit

    @property
    def size(self) -> str:
        """Data and shape, as in ``mnist_2x100``."""
        return "_".join(self.network.split("_")[:2])


def main(arguments: Sequence[str]) -> None:
    parser = _parser()
    options = parser.parse_args(arguments)
    paths = sorted(shared().joinpath("networks", "paper").glob("*.onnx"))
    wanted = [p for p in paths if any(fnmatch(p.stem, pattern) for pattern in options.patterns or _PATTERNS)]
    if not wanted:
        sys.exit(f"no network in networks/paper has a name like {' or '.join(options.patterns)}")
    load_and_run(wanted[0], "auto", "-", 10.0)  # pays for torch's start-up
    runs: list[Run] = []
    for path in wanted:
        fits = [s for s in options.solvers if s != "gurobi" or fnmatch(path.stem, "mnist_2x100_*")]
        for way, solver in [("auto", "-"), *((way, solver) for way in options.ways for solver in fits)]:
            repeats = [load_and_run(path, way, solver, options.time_limit)]
            while way == "auto" and len(repeats) < _REPEATS and repeats[0].stability.seconds < 1:
                repeats.append(load_and_run(path, way, solver, options.time_limit))
            runs.append(sorted(repeats, key=lambda run: run.seconds)[len(repeats) // 2])
            print(*_row(runs[-1], _auto(runs, path.stem)), flush=True)
    text = _report(runs, options.time_limit)
    if options.section:
        write_section(options.section, text, shlex.join(["python", "-m", "benchmarks.isa", *arguments]))
    else:
        print(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.isa", description=__doc__)
    parser.add_argument("--time-limit", type=float, default=60.0, metavar="S", help="for each run [60]")
    parser.add_argument("--ways", nargs="+", default=["isa"], choices=list(WAYS), metavar="WAY")
    parser.add_argument("--solvers", nargs="+", default=list(SOLVERS), choices=SOLVERS, metavar="SOLVER")
    parser.add_argument("--section", metavar="NAME", help="the section of RESULTS.md to write")
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help=f"[{' '.join(_PATTERNS)}]")
    return parser


def load_and_run(path: Path, way: str, solver: str, limit: float) -> Run:
    """One measurement."""
    network = load(path)
    options: dict[str, Any] = {"method": "auto"} if way == "auto" else {**WAYS[way], "solver": solver}
    data = training_data(network) if way not in _WITHOUT_DATA else None
    try:
        found = analyze_network(
            network,
            Box(0, 1),
            data=data,
            time_limit=limit,
            device="cpu",
            seed=0,
            progress=None,
            **options,
        )
    except InputError as error:
        sys.exit(f"{path.stem}, {way} on {solver}: {error}")
    if found.interrupted:
        raise KeyboardInterrupt
    return Run(path.stem, way, solver, found, limit)


def training_data(network: Network) -> np.ndarray[Any, np.dtype[np.float32]] | None:
    """The training set of an MNIST network; that of CIFAR-10 is not at hand."""
    return images("train") if network.input.size == 784 else None


def _auto(runs: Iterable[Run], network: str) -> Run:
    return next(run for run in runs if run.network == network and run.way == "auto")


def _row(run: Run, auto: Run) -> list[object]:
    found = run.stability
    evidence = np.concatenate([layer.evidence for layer in found.layers])
    return [
        run.network,
        run.way,
        run.solver,
        f"{found.seconds:.2f}{'' if found.complete else ' (limit)' if not found.remarks else ' (failed)'}",
        f"{run.seconds / auto.seconds:.0f}x",
        *(found.count(v) for v in (Verdict.ACTIVE, Verdict.INACTIVE, Verdict.UNSTABLE, Verdict.UNKNOWN)),
        *(int((evidence == kind).sum()) for kind in (Evidence.PROOF, Evidence.SOLVER)),
        found.nodes,
        _contradictions(found, auto.stability),
    ]


def _contradictions(one: Stability, other: Stability) -> int:
    """Neurons on which two analyses say different things; to say nothing is no contradiction."""
    return sum(
        int(
            ((a.verdict != b.verdict) & (a.verdict != Verdict.UNKNOWN) & (b.verdict != Verdict.UNKNOWN)).sum()
        )
        for a, b in zip(one.layers, other.layers, strict=True)
    )


def _report(runs: Sequence[Run], limit: float) -> str:
    rows = [_row(run, _auto(runs, run.network)) for run in runs]
    wrong = sum(_contradictions(run.stability, _auto(runs, run.network).stability) for run in runs)
    count = len({run.network for run in runs})
    summary = (
        f"{count} networks, at most {limit:g} s for each run; a run that is not complete counts with the "
        f"limit. {wrong} contradictions between any way and auto."
    )
    words = [
        summary,
        "Geometric means of the seconds, and how many runs were not complete:",
        _means(runs),
        _ratios(runs),
        table(HEADER, rows),
    ]
    return "\n\n".join(word for word in words if word)


def _mean(runs: Iterable[Run]) -> float:
    return statistics.geometric_mean(max(1e-3, run.seconds) for run in runs)


def _means(runs: Sequence[Run]) -> str:
    sizes = sorted({run.size for run in runs})
    keys = list(dict.fromkeys((run.way, run.solver) for run in runs))
    rows = []
    for way, solver in keys:
        cells = []
        for size in [*sizes, None]:
            own = [r for r in runs if (r.way, r.solver) == (way, solver) and size in (r.size, None)]
            left = sum(not run.stability.complete for run in own)
            cells.append(f"{_mean(own):.2f}{f' ({left})' if left else ''}" if own else "-")
        rows.append([way, solver, *cells])
    return table(("way", "solver", *sizes, "all"), rows)


def _ratios(runs: Sequence[Run]) -> str:
    """Pairs of ways on the networks that both were run on."""
    lines = []
    for solver in dict.fromkeys(run.solver for run in runs if run.way != "auto"):
        for slow, fast, word in (
            ("isa", "auto", "ISA takes {} times as long as auto"),
            ("isa-nodata", "isa", "without preprocessing ISA takes {} times as long"),
            ("isa-random", "isa", "with random inputs ISA takes {} times as long"),
            ("isa-off", "isa", "without injected inputs ISA takes {} times as long"),
            ("isa-interval", "isa", "with constants from intervals ISA takes {} times as long"),
            ("layer", "isa", "a program per layer takes {} times as long as ISA"),
            ("neuron", "isa", "a program per neuron, until the sign, takes {} times as long as ISA"),
            ("neuron-nodata", "isa", "a program per neuron, without data, takes {} times as long as ISA"),
            ("neuron-nodata", "isa-nodata", "without data both, a program per neuron takes {} times as long"),
            ("neuron-optimal", "isa", "a program per neuron, to the end, takes {} times as long as ISA"),
        ):
            one = {r.network: r for r in runs if (r.way, r.solver) == (slow, solver)}
            other = {r.network: r for r in runs if r.way == fast and r.solver in (solver, "-")}
            both = [
                math.log(max(1e-3, one[n].seconds) / max(1e-3, other[n].seconds)) for n in one if n in other
            ]
            if both:
                ratio = math.exp(statistics.fmean(both))
                lines.append(f"- {solver}: {word.format(f'{ratio:.1f}')} ({len(both)} networks)")
    return "\n".join(lines)


if __name__ == "__main__":
    main(sys.argv[1:])
