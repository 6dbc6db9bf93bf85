"""Certificates of the paper's networks: their size, the checker's time and memory, and what it proves.

Each network of ``networks/paper`` is compressed on [0, 1]^n with a certificate, once for each tolerance; then
``python -m relutrim.certificate.check`` checks it in a process of its own. "prover" is the time of the
analysis and the rewriting, "check" that of the checker without starting Python, "memory" the peak of its
process. "certified" is the bound that the checker proves, "proven" the package's own.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from benchmarks.results import shared, table, write_section
from relutrim.analysis import analyze
from relutrim.certificate.groundwork import Groundwork
from relutrim.certificate.write import certify
from relutrim.domain import Box
from relutrim.errors import RelutrimError
from relutrim.formats import load, save
from relutrim.rewrite.pipeline import rewrite
from relutrim.wish import allowed_deviation

TOLERANCES: tuple[str | float, ...] = ("exact", 1e-6)
HEADER = (
    *("network", "tolerance", "hints", "prover s", "check s", "memory MB", "bytes", "share of model"),
    *("proven", "certified"),
)
_TIMED = """
import re, sys, time
from pathlib import Path
from relutrim.certificate.check.__main__ import main
started = time.perf_counter()
code = main(sys.argv[1:])
peak = re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text()).group(1)
print(time.perf_counter() - started, int(peak) / 1024, file=sys.stderr)
sys.exit(code)
"""


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.certificates", description=__doc__)
    parser.add_argument("--time-limit", type=float, default=20.0, metavar="S", help="of each analysis [20]")
    parser.add_argument("--section", metavar="NAME", help="the section of RESULTS.md to write")
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="of names in networks/paper [*]")
    options = parser.parse_args(arguments)
    rows: list[list[object]] = []
    for path in sorted(shared().joinpath("networks", "paper").glob("*.onnx")):
        if any(fnmatch(path.stem, pattern) for pattern in options.patterns or ["*"]):
            for row in _measured(path, options.time_limit):
                rows.append(row)
                print(*row, flush=True)
    if not rows:
        sys.exit(f"no network in networks/paper has a name like {' or '.join(options.patterns)}")
    text = f"{_summary(rows)}\n\n{table(HEADER, rows)}"
    if options.section:
        command = shlex.join(["python", "-m", "benchmarks.certificates", *arguments])
        write_section(options.section, text, command)
    else:
        print(text)


def _measured(path: Path, limit: float) -> list[list[object]]:
    network = load(path)
    stability = analyze(network, Box(0, 1), time_limit=limit)
    work = Groundwork.of(path.read_bytes(), stability)
    rows: list[list[object]] = []
    for tolerance in TOLERANCES:
        started = time.perf_counter()
        allowed = allowed_deviation(network, stability, tolerance)
        result = rewrite(network, work.supported(stability), allowed=allowed)
        prover = stability.seconds + time.perf_counter() - started
        limits = None if allowed is None else [allowed[o.source].flatten().numpy() for o in network.outputs]
        name: list[object] = [path.stem, tolerance, len(stability.proofs), f"{prover:.2f}"]
        try:
            proof = certify(work, result.stored, stability, result.steps, tolerance, limits)
        except RelutrimError as error:
            print(path.stem, tolerance, error, file=sys.stderr)
            rows.append([*name, "", "", "", "", f"{result.deviation_stored:.1e}", "not certified"])
            continue
        with tempfile.TemporaryDirectory() as folder:
            out, target = Path(folder) / "out.onnx", Path(folder) / "certificate.zip"
            save(result.stored, out)
            proof.save(target, model=path, out=out)
            seconds, memory = _checked(path, out, target)
            size = target.stat().st_size
        rows.append(
            [
                *name,
                f"{seconds:.2f}",
                f"{memory:.0f}",
                size,
                f"{size / path.stat().st_size:.3f}",
                f"{result.deviation_stored:.1e}",
                f"{proof.bound:.1e}",
            ]
        )
    return rows


def _checked(model: Path, out: Path, certificate: Path) -> tuple[float, float]:
    """Seconds and megabytes of the checker, which must accept."""
    arguments = [str(model), str(out), str(certificate), "--box", "0", "1"]
    done = subprocess.run(
        [sys.executable, "-c", _TIMED, *arguments], capture_output=True, text=True, env={**os.environ}
    )
    if done.returncode != 0:
        sys.exit(f"{model.stem} was not accepted: {done.stderr}")
    seconds, memory = done.stderr.split()[-2:]
    return float(seconds), float(memory)


def _summary(rows: Sequence[Sequence[object]]) -> str:
    good = [row for row in rows if row[9] != "not certified"]
    slow = max(float(str(row[4])) for row in good)
    ratio = max(float(str(row[4])) / max(float(str(row[3])), 2 / 3) for row in good)
    memory = max(float(str(row[5])) for row in good)
    plain = max([float(str(row[7])) for row in good if row[2] == 0], default=0.0)
    most = max(float(str(row[7])) for row in good)
    return (
        f"{len(good)} of {len(rows)} certified and accepted. Slowest check {slow:.1f} s; at most {ratio:.1f} "
        f"times the prover (or 2 s / 3, whichever is more); memory {memory:.0f} MB; certificates up to "
        f"{plain:.3f} of the model where no hints were needed, {most:.2f} where they were."
    )


if __name__ == "__main__":
    main(sys.argv[1:])
