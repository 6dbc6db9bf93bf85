"""What bounds and removal are worth to whoever puts a network into a mixed-integer program.

For each network and image: how far can the runner-up's logit exceed the winner's in the box around the image
(cut to [0, 1])? The program of ``examples/milp.py`` on HiGHS, one thread, three times: with ranges from
intervals, as modelling tools make them; with those of ``relutrim analyze --bounds``; and over the network of
``relutrim compress`` with the bounds of that. Seconds are processor time, which other work on the machine
does not change; "made" is what relutrim took to analyse, or to compress. The answers must agree, up to the
solver's gap.
"""

from __future__ import annotations

import argparse
import importlib.util
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.mnist import images
from benchmarks.results import shared, table, write_section
from relutrim.analysis import analyze
from relutrim.compression import compress_network
from relutrim.domain import Box
from relutrim.io import load, save
from relutrim.report.bounds import of_compressed, write_bounds
from relutrim.report.json import model_json

CASES = (
    ("mnist_2x100_l1_0.0002_s0", 0.05),
    ("mnist_2x400_l1_0.0001_s0", 0.02),
    ("mnist_3x100_l1_0.0001_s0", 0.02),
    ("mnist_4x100_l1_5e-05_s0", 0.01),
    ("mnist_5x100_l1_0.0001_s0", 0.02),
)
GAP = 2e-3
HEADER = (
    *("network", "radius", "program", "neurons", "binaries", "rows", "columns"),
    *("seconds", "nodes", "proven at most", "found", "ratio", "made"),
)


@dataclass(frozen=True)
class Row:
    """One solve."""

    program: str
    neurons: int
    shape: tuple[int, int, int]
    answer: Any
    made: float


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.neighbours", description=__doc__)
    parser.add_argument("--time-limit", type=float, default=120.0, metavar="S", help="of each solve [120]")
    parser.add_argument("--image", type=int, default=0, help="of MNIST's test set [0]")
    parser.add_argument("--section", metavar="NAME", help="the section of RESULTS.md to write")
    parser.add_argument("patterns", nargs="*", metavar="NAME", help="parts of names")
    options = parser.parse_args(arguments)
    rows, lines = [], []
    for name, radius in CASES:
        if options.patterns and not any(pattern in name for pattern in options.patterns):
            continue
        solved = _measure(name, radius, _image(options.image), options.time_limit)
        base = solved[0].answer.processor
        for row in solved:
            answer = row.answer
            ended = answer.status == "Optimal"
            rows.append(
                (
                    name.removesuffix("_s0"),
                    radius,
                    row.program,
                    row.neurons,
                    *row.shape,
                    f"{answer.processor:.1f}" if ended else f"> {answer.processor:.0f}",
                    answer.nodes,
                    f"{answer.bound:.4g}",
                    "-" if answer.value == -np.inf else f"{answer.value:.4g}",
                    _ratio(solved[0].answer, answer, base),
                    f"{row.made:.1f}" if row.made else "",
                )
            )
            print(*rows[-1], flush=True)
        lines.append(_disagreement(name, solved))
    wrong = [line for line in lines if line]
    text = "\n".join(wrong) if wrong else "All answers agree."
    text = f"{__doc__.strip()}\n\n{text}\n\n{table(HEADER, rows)}"
    if options.section:
        write_section(
            options.section, text, shlex.join(["python", "-m", "benchmarks.neighbours", *arguments])
        )
    else:
        print(text)


def _ratio(first: Any, answer: Any, base: float) -> str:
    """How much quicker than the first; a first that ran out of time makes it a lower end."""
    if answer is first or answer.status != "Optimal":
        return ""
    return f"{'' if first.status == 'Optimal' else '> '}{base / answer.processor:.1f}"


def _disagreement(name: str, solved: list[Row]) -> str:
    """What one program found must not exceed what another proved."""
    best = max(row.answer.value for row in solved)
    least = min(row.answer.bound for row in solved)
    return "" if best <= least + GAP * (1 + abs(least)) else f"**{name}: {best} is found, {least} proven**"


def _measure(name: str, radius: float, image: np.ndarray, time_limit: float) -> list[Row]:
    milp = _example()
    network = load(shared() / "networks" / "paper" / f"{name}.onnx")
    lo, hi = np.clip(image - radius, 0, 1), np.clip(image + radius, 0, 1)
    domain = Box(lo, hi)
    winner, second = torch.topk(network(torch.as_tensor(image)[None])[0], 2).indices.tolist()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        model, smaller = Path(folder) / "model.onnx", Path(folder) / "smaller.onnx"
        save(network, model)
        started = time.process_time()
        write_bounds(model.with_suffix(".json"), analyze(network, domain), model_json(network, model))
        bounded = time.process_time() - started
        started = time.process_time()
        options = {"method": "auto", "time_limit": None, "device": "cpu", "seed": 0, "progress": None}
        result = compress_network(network, domain, **options)
        result.save(smaller)
        again = of_compressed(result, domain=domain, data=None, **options)
        write_bounds(smaller.with_suffix(".json"), again, model_json(result.stored, smaller))
        compressed = time.process_time() - started
        for program, path, bounds, neurons, made in (
            ("intervals", model, None, network.neurons, 0.0),
            ("bounds", model, model.with_suffix(".json"), network.neurons, bounded),
            ("removal, bounds", smaller, smaller.with_suffix(".json"), result.stored.neurons, compressed),
        ):
            built = milp.build(
                milp.read_layers(path), lo, hi, None if bounds is None else milp.read_ranges(bounds)
            )
            answer = milp.maximise(built, second, winner, time_limit)
            rows.append(Row(program, neurons, (built.binaries, built.rows, built.columns), answer, made))
    return rows


def _image(index: int) -> np.ndarray:
    """An image of MNIST's test set, between 0 and 1."""
    found = images("t10k")
    if found is None:
        sys.exit("MNIST's test set is not there; it belongs into data/mnist of the shared folder")
    return found[index].astype(np.float64)


def _example() -> Any:
    """``examples/milp.py``, which is no package."""
    path = Path(__file__).resolve().parents[1] / "examples" / "milp.py"
    spec = importlib.util.spec_from_file_location("milp_example", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(sys.argv[1:])
