"""The bound on float32 evaluations, against the same bound at a single input and what is observed.

Each network of ``networks/paper`` that was trained with l1 > 0 is analysed on [0, 1]^n and compressed.
"domain" is what is proven of ``|fl(OUT) - fl(MODEL)|`` for any order of summation. "input" is the same bound
where the domain is a single input: the worst one that gradient ascent finds from random inputs, corners and
witnesses. Their ratio is what the proof gives away by speaking of all inputs at once; at most 10 is asked
for, 50 with five hidden layers. "observed" is the largest difference of both networks in onnxruntime, over
those inputs; random errors cancel, and no bound for any order can know that.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime
import torch
from torch import Tensor

from benchmarks.results import shared, table, write_section
from relutrim.analysis import analyze
from relutrim.domain import Box
from relutrim.float32 import proven_float32
from relutrim.graph import Linear, Network
from relutrim.io import load, save
from relutrim.prove.stability import Stability
from relutrim.rewrite.pipeline import Rewritten, rewrite

HEADER = ("network", "hidden layers", "unstable", "domain", "input", "ratio", "asked", "observed", "seconds")
_UNIT = 2.0**-24
_STARTS = 8
_STEPS = 100
_LAST = 5


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.float32", description=__doc__)
    parser.add_argument("--time-limit", type=float, default=20.0, metavar="S", help="of each analysis [20]")
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="of names in networks/paper [*]")
    options = parser.parse_args(arguments)
    rows = []
    for path in sorted(shared().joinpath("networks", "paper").glob("*.onnx")):
        if "_l1_0_" in path.stem or not any(fnmatch(path.stem, p) for p in options.patterns or ["*"]):
            continue
        network = load(path)
        stability = analyze(network, Box(0, 1), time_limit=options.time_limit)
        rows.append(_measure(path, network, stability, rewrite(network, stability)))
        print(*rows[-1], flush=True)
    if not rows:
        sys.exit("no network of that name")
    over = [str(row[0]) for row in rows if float(str(row[5])) > float(str(row[6]))]
    said = f"Above what is asked: {', '.join(over)}." if over else "None is above what is asked."
    command = shlex.join(["python", "-m", "benchmarks.float32", *arguments])
    write_section("float32", f"{table(HEADER, rows)}\n\n{said}", command)


def _measure(path: Path, network: Network, stability: Stability, result: Rewritten) -> list[object]:
    problem, ranges = stability.problem, stability.ranges
    started = time.perf_counter()
    bound = proven_float32(problem, network, result.stored, ranges, result.ranges, result.deviation_stored)
    seconds = time.perf_counter() - started
    points = _worst(network, result.stored, stability)
    single = []
    for x in points[-_LAST:].numpy():
        at = proven_float32(replace(problem, lo=x, hi=x), network, result.stored, {}, {}, 0.0)
        single.append(at if at is not None else 0.0)
    assert bound is not None
    layers = len(network.relus)
    unstable = sum(int(((r.lo < 0) & (r.hi > 0)).sum()) for r in (ranges[n.inputs[0]] for n in network.relus))
    return [
        path.stem,
        layers,
        f"{unstable} of {network.neurons}",
        f"{bound:.2e}",
        f"{max(single):.2e}",
        f"{bound / max(single):.1f}",
        50 if layers >= 5 else 10,
        f"{_observed(path, result.stored, points):.1e}",
        f"{seconds:.2f}",
    ]


def _worst(network: Network, stored: Network, stability: Stability) -> Tensor:
    """Inputs, the last of which have the largest bounds met."""
    region = stability.problem.region()
    generator = torch.Generator().manual_seed(0)
    points = torch.cat([region.sample(512, generator), torch.as_tensor(stability.witnesses[:512])])
    both = [_layers(network), _layers(stored)]

    def bound(x: Tensor) -> Tensor:
        return _at(both[0], x) + _at(both[1], x)

    values, first = bound(points).topk(_STARTS, 0)
    target = torch.arange(values.shape[1]).expand_as(first).flatten()
    x, best = points[first.flatten()], values.flatten()
    best_at = x
    for step in range(_STEPS):
        x = x.detach().requires_grad_(True)
        value = bound(x).gather(1, target[:, None])[:, 0]
        (slope,) = torch.autograd.grad(value.sum(), x)
        better = value.detach() > best
        best, best_at = value.detach().where(better, best), x.detach().where(better[:, None], best_at)
        x = region.project(x.detach() + 0.5 * (1 - step / _STEPS) ** 2 * slope.sign())
    held = best_at[best.argsort()].float().double()  # what float32 holds
    return torch.cat([points, held])


def _layers(network: Network) -> list[tuple[Tensor, Tensor]]:
    operators = [node.operator for node in network.nodes]
    return [(torch.tensor(o.weight), torch.tensor(o.bias)) for o in operators if isinstance(o, Linear)]


def _at(layers: list[tuple[Tensor, Tensor]], x: Tensor) -> Tensor:
    """The bound at each input for each output, to first order and without the rounding of float64: for the
    search alone.
    """
    values, signs = [x], []
    for weight, bias in layers[:-1]:
        y = values[-1] @ weight.T + bias
        signs.append((y > 0).to(y))
        values.append(y.clamp(min=0))
    rows = torch.eye(len(layers[-1][0]), dtype=x.dtype).expand(len(x), -1, -1)
    total = x.new_zeros(len(x), rows.shape[1])
    for k in reversed(range(len(layers))):
        weight, bias = layers[k]
        count = (weight != 0).sum(1) + (bias != 0)
        local = _UNIT * count * (values[k] @ weight.abs().T + bias.abs())
        total = total + (rows.abs() @ local[:, :, None])[:, :, 0]
        if k:
            rows = (rows @ weight) * signs[k - 1][:, None, :]
    return total


def _observed(path: Path, stored: Network, points: Tensor) -> float:
    inputs = points.numpy().astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.onnx"
        save(stored, out)
        return float(np.abs(_runtime(path, inputs) - _runtime(out, inputs)).max())


def _runtime(path: Path, inputs: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {session.get_inputs()[0].name: inputs})
    return np.asarray(output, dtype=np.float64)


if __name__ == "__main__":
    main(sys.argv[1:])
