"""The paper's inexact mode on its MNIST networks: neurons that no training image contradicts are taken for
stable. How many are not, by proof, and how many the test images already show not to be.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
from collections.abc import Sequence
from fnmatch import fnmatch

from benchmarks.mnist import images
from benchmarks.results import shared, table, write_section
from relutrim.analysis import analyze
from relutrim.domain import Box
from relutrim.formats import load
from relutrim.holdout import held_out
from relutrim.prove.verdict import Verdict

HEADER = ("network", "neurons", "stable by data %", "of these not on test %", "stable by auto %", "unknown")
_STABLE = (Verdict.ACTIVE, Verdict.INACTIVE)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inexact", description=__doc__)
    parser.add_argument("--time-limit", type=float, default=5.0, metavar="S", help="of auto [5]")
    parser.add_argument("--section", metavar="NAME", help="the section of RESULTS.md to write")
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="of names in networks/paper [mnist_*]")
    options = parser.parse_args(arguments)
    train, test = images("train"), images("t10k")
    if train is None or test is None:
        sys.exit("MNIST is not there")
    rows, by_data, wrong = [], [], []
    for path in sorted(shared().joinpath("networks", "paper").glob("mnist_*.onnx")):
        if not any(fnmatch(path.stem, pattern) for pattern in options.patterns or ["*"]):
            continue
        network = load(path)
        seen = analyze(network, Box(0, 1), data=train, method="data")
        proved = analyze(network, Box(0, 1), time_limit=options.time_limit)
        found = held_out(seen, test)
        by_data.append(100 * found.stable / network.neurons)
        wrong += [] if found.share is None else [100 * found.share]
        rows.append(
            [
                path.stem,
                network.neurons,
                f"{by_data[-1]:.1f}",
                "-" if found.share is None else f"{100 * found.share:.2f}",
                f"{100 * sum(proved.count(v) for v in _STABLE) / network.neurons:.1f}",
                proved.count(Verdict.UNKNOWN),
            ]
        )
        print(*rows[-1], flush=True)
    text = (
        f"{len(rows)} networks: on average {statistics.fmean(by_data):.2f}% of the neurons are stable by the "
        f"training data, and {statistics.fmean(wrong):.2f}% of these are not on the test data (the paper: "
        f"31.93% and 1.16%).\n\n{table(HEADER, rows)}"
    )
    if options.section:
        write_section(options.section, text, shlex.join(["python", "-m", "benchmarks.inexact", *arguments]))
    else:
        print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
