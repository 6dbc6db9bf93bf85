"""How fast and how completely neurons are decided, and whether any verdict can be refuted by sampling.

For each network of ``networks/paper`` on [0, 1]^n: ``relutrim analyze`` (after import), the floor (one pass
of linear bounds over all layers) in the same run and the ratio to it, and 100,000 inputs of mixed kinds that
look for a contradiction.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

import torch

from benchmarks.results import command_memory_mb, shared, table, write_section
from relutrim.analysis import analyze_network
from relutrim.bounds.relaxation import Slope
from relutrim.domain import Box
from relutrim.formats import load
from relutrim.network import Network
from relutrim.prove.cascade import Cascade
from relutrim.prove.deadline import Deadline
from relutrim.prove.stability import Stability
from relutrim.prove.verdict import Verdict

SAMPLES = 100_000
VERDICTS = (Verdict.ACTIVE, Verdict.INACTIVE, Verdict.UNSTABLE, Verdict.UNKNOWN)


def main(pattern: str = "*.onnx") -> None:
    rows, times, memory, unknown, refuted = [], [], [], 0, 0
    paths = sorted((shared() / "networks" / "paper").glob(pattern))
    _analyze(load(paths[0]))  # the first call pays for torch's start-up
    for path in paths:
        network = load(path)
        stability = _analyze(network)
        floor = _floor(network)
        wrong = _refuted(network, stability)
        counts = [
            stability.count(v) for v in (Verdict.ACTIVE, Verdict.INACTIVE, Verdict.UNSTABLE, Verdict.UNKNOWN)
        ]
        times.append(stability.seconds)
        unknown += counts[-1]
        refuted += wrong
        ratio = stability.seconds / floor
        peak = command_memory_mb(["analyze", str(path), "--box", "0", "1", "--json"])
        memory.append(peak)
        seconds = f"{stability.seconds:.3f}"
        rows.append([path.stem, *counts, seconds, f"{floor:.3f}", f"{ratio:.1f}", f"{peak:.0f}", wrong])
        print(*rows[-1], flush=True)
    header = [
        "network",
        "active",
        "inactive",
        "unstable",
        "unknown",
        "seconds",
        "floor",
        "ratio",
        "MB",
        "refuted",
    ]
    summary = (
        f"{len(paths)} networks: {unknown} unknown in all, "
        f"{refuted} verdicts refuted by {SAMPLES} inputs each; "
        f"{sum(times):.1f} s in all, median {statistics.median(times):.3f} s, longest {max(times):.2f} s; "
        f"largest peak memory of the command {max(memory):.0f} MB."
    )
    text = f"{summary}\n\n{table(header, rows)}"
    if pattern == "*.onnx":
        write_section("stability", text)
    else:
        print(text)


def _analyze(network: Network) -> Stability:
    return analyze_network(
        network, Box(0, 1), data=None, method="auto", time_limit=None, device="cpu", seed=0, progress=None
    )


def _floor(network: Network) -> float:
    """Seconds for one pass of linear bounds, both directions, over the neurons that intervals leave open."""
    start = time.perf_counter()
    cascade = Cascade(Box(0, 1).fit(network), Deadline())
    for relu in network.relus:
        node = network[relu.inputs[0]]
        index = torch.arange(network.size(node.name))
        for sign in (1.0, -1.0):
            cascade.backward.neurons(node.name, index, sign, Slope.ADAPTIVE)
    return time.perf_counter() - start


def _refuted(network: Network, stability: Stability) -> int:
    """Stable verdicts that an input contradicts clearly."""
    generator = torch.Generator().manual_seed(7)
    wrong = {layer.name: torch.zeros(layer.size, dtype=torch.bool) for layer in stability.layers}
    for batch in range(SAMPLES // 4000):
        values = network.run(_mixed(network.input.size, batch, generator))
        for layer in stability.layers:
            y = values[network[layer.name].inputs[0]]
            verdict = torch.as_tensor(layer.verdict)
            wrong[layer.name] |= (verdict == Verdict.ACTIVE) & (y < -1e-9).any(0)
            wrong[layer.name] |= (verdict == Verdict.INACTIVE) & (y > 1e-9).any(0)
    return sum(int(found.sum()) for found in wrong.values())


def _mixed(size: int, kind: int, generator: torch.Generator) -> torch.Tensor:
    """4000 inputs: uniform, corners of every density, sparse grey images, or smooth ramps."""
    x = torch.rand(4000, size, generator=generator, dtype=torch.float64)
    density = torch.rand(4000, 1, generator=generator, dtype=torch.float64)
    if kind % 4 == 1:
        return (x < density).to(x)
    if kind % 4 == 2:
        return torch.where(torch.rand(4000, size, generator=generator) < density, x, 0 * x)
    if kind % 4 == 3:
        ramp = torch.linspace(0, 1, size, dtype=torch.float64)
        return (ramp * (2 * density - 1) + x[:, :1] + 0.1 * x).clamp(0, 1)
    return x


if __name__ == "__main__":
    main(*(Path(argument).name for argument in sys.argv[1:2]))
