"""Whether the promise is kept: every network of ``networks/paper``, ``lenet`` and ``public`` at ``--tolerance
exact``, ``0`` and ``rounding``.

Each is compressed as a user does it, from the path of its file (LeNets: from a module), and saved, once for
each tolerance. All that is said here is about the saved file, read again. "allowed" is the most that the
tolerance lets any output move, "proven" what is proved of the file, "found" what gradient ascent on the
difference of MODEL and the file finds, its own rounding taken off (of a module: also on that of both
modules).

At tolerance 0 "last bit" is the largest difference of MODEL and the file in onnxruntime, graph optimisations
off, on random inputs of the domain: 0 where all outputs are equal to the last bit. Where they are not, "why"
says what differs (:mod:`benchmarks.last_bit`). "order": a runtime may sum in another order where a layer is
narrower; summed in one fixed order, in float32, both files have the same outputs for these inputs, to the
last bit. "margin (n)": n of the removed neurons are always on or always off over the real numbers, but by a
margin within the radius of float32. "other": neither, such as two neurons that were made one.

A promise is broken if more is proven than allowed, or found than proven; if outputs in onnxruntime are
farther apart than what is proven of float32; if a model from which nothing was removed is not the same file,
byte for byte; and if there is an error instead of a result.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import numpy as np

from benchmarks.last_bit import reason
from benchmarks.public import Problem, problems, random_inputs
from benchmarks.results import shared, table, write_section
from benchmarks.runtime import outputs
from relutrim.domain import Box
from relutrim.errors import RelutrimError, one_line
from relutrim.graph import Network
from relutrim.io import as_network, load
from relutrim.observe import certain_difference, climb, samples
from relutrim.result import Compression

HEADER = (
    *("network", "parameters", "tolerance", "left", "neurons left", "allowed", "proven", "found"),
    *("float32", "last bit", "why", "left out", "seconds"),
)
TOLERANCES: tuple[str | float, ...] = ("exact", 0.0, "rounding")
_STARTS, _STEPS = 64, 60


@dataclass(frozen=True)
class Measured:
    """One network at one tolerance."""

    row: list[object]
    left: int | None
    """The parameters in the file; None where there is none."""
    late: bool
    """Whether time was up before every neuron was decided."""
    why: str
    broken: str
    """Which promise is; empty if none."""


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.promise", description=__doc__)
    parser.add_argument("--time-limit", type=float, default=20.0, metavar="S", help="of each result [20]")
    parser.add_argument("--section", metavar="NAME", help="the section of RESULTS.md to write")
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="of names [*]")
    options = parser.parse_args(arguments)
    measured: list[Measured] = []
    worse: list[str] = []
    for problem in _problems():
        if not any(fnmatch(problem.name, pattern) for pattern in options.patterns or ["*"]):
            continue
        found = [_measured(problem, tolerance, options.time_limit) for tolerance in TOLERANCES]
        measured += found
        exact, nothing, rounding = (one.left for one in found)
        if exact is not None and nothing is not None and rounding is not None:
            late = " (time was up)" if any(one.late for one in found) else ""
            worse += [] if nothing >= exact >= rounding else [f"{problem.name}{late}"]
    if not measured:
        sys.exit(f"no network has a name like {' or '.join(options.patterns)}")
    text = f"{_summary(measured, worse)}\n\n{table(HEADER, (one.row for one in measured))}"
    if options.section:
        write_section(options.section, text, shlex.join(["python", "-m", "benchmarks.promise", *arguments]))
    else:
        print(text)


def _problems() -> Iterator[Problem]:
    for path in sorted(shared().joinpath("networks", "paper").glob("*.onnx")):
        yield Problem(path.stem, path, Box(0, 1))
    yield from problems()


def _summary(measured: Sequence[Measured], worse: Sequence[str]) -> str:
    reasons = Counter(one.why.partition(" ")[0] for one in measured if one.why)
    apart = ", ".join(f"{why} {count}" for why, count in reasons.items()) or "none"
    broken = [f"{one.row[0]} at {one.row[2]}: {one.broken}." for one in measured if one.broken]
    said = (
        f"{len(measured)} results; {len(broken)} with a broken promise. Not equal to the last bit at 0: "
        f"{apart}. A larger tolerance leaves more: {', '.join(worse) or 'nowhere'}."
    )
    return "\n\n".join([said, *broken])


def _measured(problem: Problem, tolerance: str | float, time_limit: float) -> Measured:
    started = time.perf_counter()
    try:
        result = problem.compress(tolerance=tolerance, time_limit=time_limit)
        found = _measure(problem, tolerance, result, time.perf_counter() - started)
    except RelutrimError as error:
        row: list[object] = [problem.name, "", tolerance, *[""] * (len(HEADER) - 3)]
        found = Measured(row, None, False, "", one_line(str(error)))
    print(*found.row, f"BROKEN: {found.broken}" if found.broken else "", flush=True)
    return found


def _measure(problem: Problem, tolerance: str | float, result: Compression, seconds: float) -> Measured:
    network, deviation, allowed = result.original, result.deviation, result.allowed
    proven, bound = deviation.proven, deviation.proven_float32
    assert proven is not None
    assert allowed is not None
    apart, why = 0.0, ""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.onnx"
        result.save(out)
        small = load(out)
        same = isinstance(problem.model, Path) and problem.model.read_bytes() == out.read_bytes()
        if tolerance == 0.0 and not same:
            x = random_inputs(result.stability)
            model = problem.file(Path(folder), network)
            before, after = (
                outputs(path, one.input, x, optimized=False) for path, one in ((model, network), (out, small))
            )
            apart = float(np.abs(before - after).max(initial=0))
            why = reason(network, small, result.stability, x) if apart else ""
    found = 0.0 if same else _found(problem, result, small)
    broken = [
        said
        for wrong, said in (
            (proven > allowed, "more is proven than allowed"),
            (found > proven, "more is found than proven"),
            (bound is not None and apart > bound, "float32 is off by more than proven"),
            (result.unchanged and isinstance(problem.model, Path) and not same, "the file is another one"),
        )
        if wrong
    ]
    left = result.left_out
    row: list[object] = [
        problem.name,
        network.parameters,
        tolerance,
        small.parameters,
        small.neurons,
        f"{allowed:.1e}",
        f"{proven:.1e}",
        f"{found:.1e}",
        "-" if bound is None else f"{bound:.1e}",
        f"{apart:.1e}" if tolerance == 0.0 else "",
        why,
        "" if left is None else f"{left.parameters} at {left.deviation:.1e}",
        f"{seconds:.1f}",
    ]
    return Measured(row, small.parameters, result.time_was_up, why, "; ".join(broken))


def _found(problem: Problem, result: Compression, small: Network) -> float:
    """The largest difference that gradient ascent finds between MODEL and the file, and between modules."""
    network, stability = result.original, result.stability
    others = [small]
    if not isinstance(problem.model, Path):
        others.append(as_network(result.model, input_shape=network.input.shape))
    region, points = stability.problem.region(), samples(stability, None)
    most = 0.0
    for other in others:
        apart = climb(network, other, region, points, starts=_STARTS, steps=_STEPS)
        most = max(most, certain_difference(network, other, apart))
    return most


if __name__ == "__main__":
    main(sys.argv[1:])
