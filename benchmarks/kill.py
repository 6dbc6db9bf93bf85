"""How a run with a journal stands ``kill -9``: the same verdicts as without, and never half an output file.

``relutrim compress MODEL OUT --box 0 1 --journal DIR`` is started, killed at a random moment and started
again, until it comes to its end in spite of that, has been killed ``--each`` times, or has been killed with
its journal complete; then it is left alone to come to its end, and a new journal is begun, until ``--kills``
is reached for the network. The moment is uniform over what an uninterrupted run takes, so analysing,
rewriting and writing are all hit. Whatever is at OUT after a kill is read, and the verdicts in the end are
compared with those of the uninterrupted run. Journals of runs that came to their end before they could be
killed say nothing about going on, so they are not counted among those that did.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import relutrim.compression
import relutrim.journal.journal
import relutrim.observe
import relutrim.prove.programs
import relutrim.prove.splitting
import relutrim.rewrite.pipeline  # noqa: F401
from benchmarks.results import shared, table, write_section
from relutrim.cli import main as command_line
from relutrim.formats import load
from relutrim.journal import NAME
from relutrim.journal.frames import frames
from relutrim.journal.records import unpacked
from relutrim.network import Network

HEADER = (
    *("network", "seconds", "kills", "no journal yet", "journal begun", "journal complete", "OUT there"),
    *("torn records", "journals gone on from", "never killed", "partial outputs", "other verdicts"),
    *("other networks", "largest journal kB", "last run s"),
)
_NETWORKS = ("mnist_2x100_l1_0.0002_s0:60", "mnist_2x200_l1_0.00015_s0:110", "mnist_3x100_l1_0.000175_s0:30")
_POLL = 0.002


@dataclass
class Counted:
    """What became of one network's runs."""

    seconds: float = 0.0
    kills: int = 0
    early: int = 0
    complete: int = 0
    written: int = 0
    torn: int = 0
    journals: int = 0
    spared: int = 0
    partial: int = 0
    verdicts: int = 0
    networks: int = 0
    largest: int = 0
    last: list[float] = field(default_factory=list)

    def row(self, name: str) -> list[Any]:
        """A line of the table."""
        begun = self.kills - self.early - self.complete - self.written
        return [
            *(name, f"{self.seconds:.1f}", self.kills, self.early, begun, self.complete, self.written),
            *(self.torn, self.journals, self.spared, self.partial, self.verdicts, self.networks),
            *(f"{self.largest / 1024:.0f}", f"{statistics.median(self.last):.1f}"),
        ]


@dataclass(frozen=True)
class Case:
    """A model, where its compression goes, and its journal."""

    model: Path
    out: Path
    journal: Path | None

    def start(self) -> int:
        """A process that runs the command; its number."""
        sys.stdout.flush()
        child = os.fork()
        if child:
            return child
        report = os.open(self.report, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(report, 1)
        sys.argv = ["relutrim", "compress", str(self.model), str(self.out), "--box", "0", "1", "--jobs", "1"]
        sys.argv += ["--json", "--no-latency", *(["--journal", str(self.journal)] if self.journal else [])]
        try:
            command_line()
        except SystemExit as end:
            sys.stdout.flush()
            os._exit(end.code if isinstance(end.code, int) else 1)
        finally:
            os._exit(1)

    @property
    def report(self) -> Path:
        """Where the command's JSON goes."""
        return self.out.with_suffix(".json")

    def ended(self, child: int) -> list[Any]:
        """The verdicts of a run that is left alone."""
        if os.waitpid(child, 0)[1] != 0:
            sys.exit(f"{self.model}: a run that nobody killed failed")
        return self.verdicts()

    def verdicts(self) -> list[Any]:
        """Those of a finished run."""
        layers = json.loads(self.report.read_text())["layers"]
        words = ("active", "inactive", "unknown", "unstable_count")
        return [[layer[word] for word in words] for layer in layers]

    def network(self) -> Network | None:
        """What is written, if it can be read."""
        try:
            return load(self.out)
        except Exception as error:
            print(f"{self.out}: {error}", file=sys.stderr)
            return None


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kill", description=__doc__)
    parser.add_argument("--kills", type=int, default=70, metavar="N", help="for each network [70]")
    parser.add_argument("--each", type=int, default=10, metavar="N", help="at most, for each journal [10]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--section", metavar="NAME", help="the section of RESULTS.md to write")
    parser.add_argument("networks", nargs="*", metavar="NAME_OR_PATH[:KILLS]", default=_NETWORKS)
    options = parser.parse_args(arguments)
    rows = []
    for argument in options.networks:
        name, _, kills = argument.partition(":")
        path = Path(name) if Path(name).is_file() else shared() / "networks" / "paper" / f"{name}.onnx"
        counted = kill(path, int(kills or options.kills), options.each, random.Random(options.seed))
        rows.append(counted.row(path.stem))
        print(*rows[-1], flush=True)
    kills, journals, partial, verdicts, networks = (sum(row[at] for row in rows) for at in (2, 8, 10, 11, 12))
    text = (
        f"{kills} kills, {journals} journals gone on from to the end: {partial} partial output files, "
        f"{verdicts} runs with other verdicts than an uninterrupted one, {networks} with a network of other "
        "widths. Every neuron of these networks is decided, so the verdicts say that nothing was lost or "
        "wrong, not how a run that stays incomplete would go on."
        f"\n\n{table(HEADER, rows)}"
    )
    if options.section:
        write_section(options.section, text, shlex.join(["python", "-m", "benchmarks.kill", *arguments]))
    else:
        print(text)


def kill(model: Path, kills: int, each: int, chance: random.Random) -> Counted:
    """So many kills of one network's compression."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = Case(model, folder / "whole.onnx", None)
        begin = time.monotonic()
        expected = whole.ended(whole.start())
        counted = Counted(seconds=time.monotonic() - begin)
        widths = load(whole.out).widths
        while counted.kills < kills:
            number, before = counted.journals + counted.spared, counted.kills
            case = Case(model, folder / f"out{number}.onnx", folder / f"journal{number}")
            found = _killed(case, min(each, kills - counted.kills), chance, counted, widths)
            counted.journals += counted.kills > before
            counted.spared += counted.kills == before
            written = case.network()
            counted.verdicts += found != expected
            counted.networks += written is None or written.widths != widths
            counted.largest = max(counted.largest, len(_journal(case)))
            print(f"{model.stem}: {counted.kills} kills", file=sys.stderr, flush=True)
    return counted


def _killed(case: Case, most: int, chance: random.Random, counted: Counted, widths: list[int]) -> list[Any]:
    """Kill a run until it comes to its end in spite of that, or has been killed often enough."""
    for _ in range(most):
        begin = time.monotonic()
        child, moment = case.start(), begin + chance.uniform(0, counted.seconds)
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if time.monotonic() >= moment:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                break
            time.sleep(_POLL)
        else:
            counted.last.append(time.monotonic() - begin)
            return case.verdicts()
        if _look(case, counted, widths):
            break
    begin = time.monotonic()
    found = case.ended(case.start())
    counted.last.append(time.monotonic() - begin)
    return found


def _look(case: Case, counted: Counted, widths: list[int]) -> bool:
    """What a kill has left; whether the journal is complete."""
    counted.kills += 1
    data = _journal(case)
    whole = list(frames(data))
    counted.torn += max((one.end for one in whole), default=0) < len(data)
    complete = bool(whole) and unpacked(whole[-1].content)["kind"] == "end"
    if case.out.exists():
        counted.written += 1
        written = case.network()
        counted.partial += written is None or written.widths != widths
    elif complete:
        counted.complete += 1
    elif not whole:
        counted.early += 1
    return complete


def _journal(case: Case) -> bytes:
    assert case.journal is not None
    path = case.journal / NAME
    return path.read_bytes() if path.exists() else b""


if __name__ == "__main__":
    main(sys.argv[1:])
