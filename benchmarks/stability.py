"""How fast and how completely neurons are decided, and whether any verdict can be refuted by sampling.

Without arguments each network of ``networks/paper`` on [0, 1]^n. An argument is a pattern for names in that
folder or in ``networks/public``, or the path of a model, ``@file.vnnlib`` behind it for its domain. For each:
``relutrim analyze`` (after import), the floor (one pass of linear bounds over all layers) in the same run and
the ratio to it, and 100,000 inputs of mixed kinds that look for a contradiction.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.results import command_memory_mb, shared, table, write_section
from benchmarks.sampling import Extremes, extremes
from relutrim.analysis import analyze_network
from relutrim.bounds.relaxation import Slope
from relutrim.domain import Box, Domain
from relutrim.graph import Network
from relutrim.io import load
from relutrim.io.vnnlib import read_vnnlib
from relutrim.prove.cascade import Cascade
from relutrim.prove.deadline import Deadline
from relutrim.prove.hull.compiling import never_compile
from relutrim.prove.stability import Stability
from relutrim.prove.verdict import Evidence, Verdict

SLOW = 60.0
HEADER = (
    *("network", "active", "inactive", "unstable", "unknown", "proof", "witness", "solver"),
    *("nodes", "seconds", "floor", "ratio", "MB", "refuted"),
)
_PAPER = ("networks", "paper")
_MEMORY_SECONDS = 2.0
_NAMED = 20
_ROWS = 1024


@dataclass(frozen=True)
class Case:
    """A model and the file that states its domain; without one it is [0, 1]^n."""

    path: Path
    vnnlib: Path | None = None

    @property
    def name(self) -> str:
        """What the table calls it."""
        return f"{self.path.stem}@{self.vnnlib.stem}" if self.vnnlib else self.path.stem

    @property
    def of_the_paper(self) -> bool:
        """Whether it is one of the paper's networks on the paper's domain."""
        return self.vnnlib is None and self.path.resolve().parent.parts[-2:] == _PAPER

    def read(self) -> tuple[Network, Domain]:
        """The network and the domain."""
        network = load(self.path)
        if self.vnnlib is None:
            return network, Box(0, 1)
        found = read_vnnlib(self.vnnlib, network.input.size)
        box = Box(found.lo, found.hi)
        if not len(found.matrix):
            return network, box
        return network, box.constrain(found.matrix, found.lower, found.upper)


@dataclass(frozen=True)
class Measured:
    """What one network contributes to the report."""

    row: list[object]
    seconds: float
    unknown: int
    refuted: int
    inputs: int
    memory: float | None
    leftovers: str


def main(arguments: Sequence[str]) -> None:
    parser = _parser()
    options = parser.parse_args(arguments)
    section = options.section or ("stability" if options == parser.parse_args([]) else None)
    problems = [(case, *case.read()) for case in _cases(options.networks or ["*.onnx"])]
    if options.plain:
        never_compile()
    # The first call pays for torch's start-up.
    analyzed(*problems[0][1:], min(options.time_limit, 2.0), options.device, options.jobs)
    measured = []
    for case, network, domain in problems:
        measured.append(_measure(case, network, domain, options.time_limit, options.device, options.jobs))
        print(*measured[-1].row, flush=True)
    text = f"{_summary(measured, options.time_limit)}\n\n{table(HEADER, (one.row for one in measured))}"
    left = "\n".join(one.leftovers for one in measured if one.leftovers)
    if left:
        text += (
            f"\n\nUnknown neurons: proven bounds, and the extremes of sampled inputs and witnesses.\n\n{left}"
        )
    if section:
        write_section(section, text, shlex.join(["python", "-m", "benchmarks.stability", *arguments]))
    else:
        print(text)


def analyzed(
    network: Network, domain: Domain, time_limit: float, device: str = "cpu", jobs: int | None = None
) -> Stability:
    """The analysis that is measured."""
    stability = analyze_network(
        network,
        domain,
        data=None,
        method="auto",
        time_limit=time_limit,
        device=device,
        seed=0,
        jobs=jobs,
        progress=None,
    )
    if stability.interrupted:
        raise KeyboardInterrupt
    return stability


def floor(network: Network, domain: Domain, device: str = "cpu") -> float:
    """Seconds for one pass of linear bounds, both directions, over all neurons of all layers."""
    start = time.perf_counter()
    cascade = Cascade(domain.fit(network), Deadline(), device=device)
    network = cascade.network
    for name in dict.fromkeys(relu.inputs[0] for relu in network.relus):
        for index in torch.split(torch.arange(network.size(name), device=device), _ROWS):
            for sign in (1.0, -1.0):
                cascade.backward.neurons(name, index, sign, Slope.ADAPTIVE)
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stability", description=__doc__)
    parser.add_argument("--time-limit", type=float, default=300.0, metavar="S", help="for each [300]")
    parser.add_argument("--device", default="cpu", metavar="cpu|cuda")
    parser.add_argument("--jobs", type=int, metavar="N", help="trees grown at once [cores]")
    parser.add_argument("--plain", action="store_true", help="compile no steps, as if numba were not there")
    parser.add_argument("--section", metavar="NAME", help="the section of RESULTS.md to write")
    parser.add_argument("networks", nargs="*", metavar="PATTERN_OR_PATH")
    return parser


def _cases(arguments: Sequence[str]) -> Iterator[Case]:
    """The models that arguments name. A VNN-LIB file may lie beside its model."""
    for argument in arguments:
        model, at, vnnlib = argument.rpartition("@")
        if at and Path(model).is_file():
            places = (Path(vnnlib), Path(model).parent / vnnlib)
            stated = next((place for place in places if place.is_file()), None)
            if stated is None:
                sys.exit(f"there is no file {vnnlib}, nor one beside {model}")
            yield Case(Path(model), stated)
        elif Path(argument).is_file():
            yield Case(Path(argument))
        else:
            networks, name = shared() / "networks", Path(argument).name
            found = sorted(networks.glob(f"paper/{name}")) or sorted(networks.glob(f"public/*/{name}"))
            if not found:
                sys.exit(f"{argument} is neither a file nor a pattern of names in networks/paper or public")
            yield from map(Case, found)


def _measure(
    case: Case, network: Network, domain: Domain, time_limit: float, device: str, jobs: int | None
) -> Measured:
    stability = analyzed(network, domain, time_limit, device, jobs)
    least = floor(network, domain, device)
    seen = extremes(stability, device)
    refuted = sum(seen.refuted(layer) for layer in stability.layers)
    memory = _memory(case, min(time_limit, _MEMORY_SECONDS), device, jobs) if case.of_the_paper else None
    evidence = np.concatenate([layer.evidence for layer in stability.layers])
    row = [
        case.name,
        *(stability.count(v) for v in (Verdict.ACTIVE, Verdict.INACTIVE, Verdict.UNSTABLE, Verdict.UNKNOWN)),
        *(int((evidence == kind).sum()) for kind in (Evidence.PROOF, Evidence.WITNESS, Evidence.SOLVER)),
        stability.nodes,
        f"{stability.seconds:.3f}",
        f"{least:.3f}",
        f"{stability.seconds / least:.1f}",
        "-" if memory is None else f"{memory:.0f}",
        refuted,
    ]
    unknown = stability.count(Verdict.UNKNOWN)
    leftovers = f"- {case.name}: {_leftovers(stability, seen)}" if unknown else ""
    return Measured(row, stability.seconds, unknown, refuted, seen.inputs, memory, leftovers)


def _memory(case: Case, time_limit: float, device: str, jobs: int | None) -> float:
    """The command's peak memory in MB."""
    command = ["analyze", str(case.path), "--box", "0", "1", "--json", "--device", device]
    command += ["--time-limit", str(time_limit), *(["--jobs", str(jobs)] if jobs else [])]
    return command_memory_mb(command)


def _leftovers(stability: Stability, seen: Extremes) -> str:
    """The first unknown neurons: layer, neuron, proven bounds and extremes met."""
    words: list[str] = []
    for layer in stability.layers:
        low, high = seen.lowest[layer.name], seen.highest[layer.name]
        for i in layer.which(Verdict.UNKNOWN)[: max(0, _NAMED - len(words))]:
            met = f"seen [{low[i]:.3g}, {high[i]:.3g}]" if low[i] <= high[i] else "never seen"
            words.append(f"{layer.name} neuron {i} in [{layer.lower[i]:.3g}, {layer.upper[i]:.3g}], {met}")
    more = stability.count(Verdict.UNKNOWN) - len(words)
    if more:
        counts = ((layer.name, len(layer.which(Verdict.UNKNOWN))) for layer in stability.layers)
        layers = ", ".join(f"{count} in {name}" for name, count in counts if count)
        words.append(f"and {more} more; in all {layers}")
    return "; ".join(words)


def _summary(measured: Sequence[Measured], time_limit: float) -> str:
    times = [one.seconds for one in measured]
    tried = [one.inputs for one in measured]
    summary = (
        f"{len(measured)} networks, at most {time_limit:g} s for each: "
        f"{sum(one.unknown for one in measured)} unknown in all, "
        f"{sum(one.refuted for one in measured)} verdicts refuted by "
        f"{'at least ' if min(tried) < max(tried) else ''}{min(tried)} inputs each; "
        f"{sum(times):.1f} s in all, median {statistics.median(times):.3f} s, longest {max(times):.2f} s, "
        f"{sum(seconds > SLOW for seconds in times)} took more than {SLOW:g} s"
    )
    memory = [one.memory for one in measured if one.memory is not None]
    if memory:
        limit = min(time_limit, _MEMORY_SECONDS)
        summary += f"; largest peak memory of the command, with --time-limit {limit:g}, {max(memory):.0f} MB"
    return f"{summary}."


if __name__ == "__main__":
    main(sys.argv[1:])
