"""The paper's inexact mode on its networks: units that no training image contradicts are taken for stable.
How many the test images show not to be, and what is stable by proof. Masked are those that are always 0.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.mnist import images, labels
from benchmarks.public import lenets
from benchmarks.results import shared, table, write_section
from relutrim.analysis import analyze
from relutrim.domain import Box
from relutrim.graph import Network
from relutrim.holdout import held_out
from relutrim.io import load
from relutrim.paper import load_dataset
from relutrim.prove.verdict import Verdict

_STABLE = (Verdict.ACTIVE, Verdict.INACTIVE)

HEADER = (
    "network",
    "accuracy %",
    "units",
    "stable by data %",
    "of these not on test %",
    "masked by data %",
    "stable by proof %",
    "masked by proof %",
    "unknown",
)
_PAPER = {
    "mnist": "31.93% and 1.16%",
    "cifar10": "40.86% and 0.60%",
    "lenet": "1.06% of these; 11.86% of all masked, at an accuracy of 70.02%",
}
Rows = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Data:
    """Rows in [0, 1], and the test rows' classes."""

    train: Rows
    test: Rows
    classes: npt.NDArray[np.int64]


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inexact", description=__doc__)
    parser.add_argument("--time-limit", type=float, default=5.0, metavar="S", help="of each proof [5]")
    parser.add_argument("--cifar", type=Path, metavar="FOLDER", help="where CIFAR-10 lies, for its networks")
    parser.add_argument("--section", metavar="NAME", help="the section of RESULTS.md to write")
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="of names of networks [*]")
    options = parser.parse_args(arguments)
    parts = []
    for kind in _PAPER:
        data = _data(kind, options.cifar)
        rows = [
            _measure(name, network, data, options.time_limit)
            for name, network in (_networks(kind) if data is not None else ())
            if any(fnmatch(name, pattern) for pattern in options.patterns or ["*"])
        ]
        if rows:
            by_data = statistics.fmean(float(row[3]) for row in rows)
            wrong = statistics.fmean(float(row[4]) for row in rows if row[4] != "-")
            parts.append(
                f"{kind}, {len(rows)} networks: on average {by_data:.2f}% of the units are stable by the "
                f"training data, and {wrong:.2f}% of these are not on the test data (the paper: "
                f"{_PAPER[kind]}).\n\n{table(HEADER, rows)}"
            )
    text = "\n\n".join(parts)
    if options.section:
        write_section(options.section, text, shlex.join(["python", "-m", "benchmarks.inexact", *arguments]))
    else:
        print(text)


def _data(kind: str, cifar: Path | None) -> Data | None:
    if kind == "mnist":
        train, test, classes = images("train"), images("t10k"), labels("t10k")
        return None if train is None or test is None or classes is None else Data(train, test, classes)
    return None if cifar is None else _cifar10(cifar)


@cache
def _cifar10(folder: Path) -> Data:
    found = load_dataset("cifar10", folder)
    train, test = (x.reshape(len(x), -1) / np.float32(255) for x in (found.x_train, found.x_test))
    return Data(train, test, found.y_test)


def _networks(kind: str) -> Iterator[tuple[str, Network]]:
    if kind == "lenet":
        yield from lenets()
    else:
        for path in sorted(shared().joinpath("networks", "paper").glob(f"{kind}_*.onnx")):
            yield path.stem, load(path)


def _measure(name: str, network: Network, data: Data, seconds: float) -> list[str]:
    seen = analyze(network, Box(0, 1), data=data.train, method="data")
    proved = analyze(network, Box(0, 1), time_limit=seconds)
    found = held_out(seen, data.test)
    shape = network.input.shape
    with torch.no_grad():
        guesses = [
            network(torch.as_tensor(part, dtype=torch.float64).reshape(-1, *shape)).argmax(1).numpy()
            for part in np.array_split(data.test, 20)
        ]
    row = [
        name,
        f"{100 * float((np.concatenate(guesses) == data.classes).mean()):.2f}",
        f"{network.neurons}",
        f"{100 * found.stable / network.neurons:.1f}",
        "-" if found.share is None else f"{100 * found.share:.2f}",
        f"{100 * seen.count(Verdict.INACTIVE) / network.neurons:.1f}",
        f"{100 * sum(proved.count(v) for v in _STABLE) / network.neurons:.1f}",
        f"{100 * proved.count(Verdict.INACTIVE) / network.neurons:.1f}",
        f"{proved.count(Verdict.UNKNOWN)}",
    ]
    print(*row, flush=True)
    return row


if __name__ == "__main__":
    main(sys.argv[1:])
