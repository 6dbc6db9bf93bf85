"""Certificates of the paper's networks: their size, the checker's time and memory, and what it proves.

Each file of ``networks/paper`` is compressed by its path on [0, 1]^n with a certificate and saved, once for
each tolerance; then ``python -m relutrim.certificate.check`` checks it in a process of its own. "prover" is
the time of the analysis alone, "all" that of the whole compression with the certificate, "check" that of the
checker without starting Python, "memory" the peak of its process. "certified" is the bound that the checker
proves, "proven" the package's own.
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
from relutrim.compression import compress
from relutrim.domain import Box
from relutrim.errors import RelutrimError

TOLERANCES: tuple[str | float, ...] = ("exact", 1e-6)
HEADER = (
    *("network", "tolerance", "hints", "prover s", "all s", "check s", "memory MB", "bytes"),
    *("share of model", "proven", "certified"),
)
UNCERTIFIED = "not certified"
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
    parser.add_argument("--time-limit", type=float, default=50.0, metavar="S", help="of each [50]")
    parser.add_argument("--section", metavar="NAME", help="the section of RESULTS.md to write")
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="of names in networks/paper [*]")
    options = parser.parse_args(arguments)
    rows: list[list[object]] = []
    for path in sorted(shared().joinpath("networks", "paper").glob("*.onnx")):
        if any(fnmatch(path.stem, pattern) for pattern in options.patterns or ["*"]):
            for tolerance in TOLERANCES:
                rows.append(_measured(path, tolerance, options.time_limit))
                print(*rows[-1], flush=True)
    if not rows:
        sys.exit(f"no network in networks/paper has a name like {' or '.join(options.patterns)}")
    text = f"{_summary(rows)}\n\n{table(HEADER, rows)}"
    if options.section:
        command = shlex.join(["python", "-m", "benchmarks.certificates", *arguments])
        write_section(options.section, text, command)
    else:
        print(text)


def _measured(path: Path, tolerance: str | float, limit: float) -> list[object]:
    started = time.perf_counter()
    try:
        result = compress(path, Box(0, 1), tolerance=tolerance, certificate=True, time_limit=limit)
    except RelutrimError as error:
        print(path.stem, tolerance, error, file=sys.stderr)
        return [path.stem, tolerance, *[""] * (len(HEADER) - 3), UNCERTIFIED]
    taken = time.perf_counter() - started
    stability, proven = result.stability, result.deviation.proven
    assert proven is not None
    times = [f"{stability.seconds:.2f}", f"{taken:.2f}"]
    row: list[object] = [path.stem, tolerance, len(stability.proofs), *times]
    if result.certificate is None:
        return [*row, "", "", "", "", f"{proven:.1e}", UNCERTIFIED]
    with tempfile.TemporaryDirectory() as folder:
        out, target = Path(folder) / "out.onnx", Path(folder) / "certificate.zip"
        result.save(out)
        result.certificate.save(target, model=path, out=out)
        seconds, memory = _checked(path, out, target)
        size = target.stat().st_size
    return [
        *row,
        f"{seconds:.2f}",
        f"{memory:.0f}",
        size,
        f"{size / path.stat().st_size:.3f}",
        f"{proven:.1e}",
        f"{result.certificate.bound:.1e}",
    ]


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
    good = [dict(zip(HEADER, row, strict=True)) for row in rows if row[-1] != UNCERTIFIED]
    if not good:
        return f"0 of {len(rows)} certified."
    checks = [float(str(row["check s"])) for row in good]
    ratio = max(
        check / max(float(str(row["prover s"])), 2 / 3) for check, row in zip(checks, good, strict=True)
    )
    memory = max(float(str(row["memory MB"])) for row in good)
    plain = max([float(str(row["share of model"])) for row in good if row["hints"] == 0], default=0.0)
    most = max(float(str(row["share of model"])) for row in good)
    return (
        f"{len(good)} of {len(rows)} certified and accepted. Slowest check {max(checks):.1f} s; at most "
        f"{ratio:.1f} times the prover (or 2 s / 3, whichever is more); memory {memory:.0f} MB; certificates "
        f"up to {plain:.3f} of the model where no hints were needed, {most:.2f} where they were."
    )


if __name__ == "__main__":
    main(sys.argv[1:])
