"""How a run with a journal stands ``kill -9``: the same verdicts as without, and never half an output file.

``relutrim compress MODEL OUT --box 0 1 --journal DIR`` is started, killed at a random moment and started
again, until it comes to its end in spite of that, has been killed ``--each`` times, or has been killed with
its journal complete; then it is left alone to come to its end, and a new journal is begun, until ``--kills``
is reached for the network. The moment is uniform over what an uninterrupted run takes, so analysing,
rewriting and writing are all hit. Whatever is at OUT after a kill is read. Journals of runs that came to
their end before they could be killed say nothing about going on, so they are not counted among those that
did.

The verdicts in the end are compared, neuron by neuron, with those of the uninterrupted run. A neuron that has
another verdict is a *contradiction*, and grave: one of the two is wrong. One that only the uninterrupted run
decides is *less decided*, and something was lost; one that only the resumed run decides is *more decided*.
``--time-limit`` is far beyond what any run needs, because a run that time has cut short says how busy the
machine was, and not what a journal is good for. Runs that it stopped nevertheless are counted apart.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import shutil
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
import relutrim.prove.splitting
import relutrim.prove.tree_search
import relutrim.rewrite.pipeline  # noqa: F401
from benchmarks.results import shared, table, write_section
from relutrim.cli import main as command_line
from relutrim.graph import Network
from relutrim.io import load
from relutrim.journal import NAME
from relutrim.journal.frames import frames
from relutrim.journal.records import unpacked

HEADER = (
    *("network", "seconds", "kills", "no journal yet", "journal begun", "journal complete", "OUT there"),
    *("torn records", "journals gone on from", "never killed", "partial outputs", "contradictions"),
    *("less decided", "more decided", "out of time", "other networks", "largest journal kB", "last run s"),
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
    contradictions: int = 0
    less: int = 0
    more: int = 0
    late: int = 0
    networks: int = 0
    largest: int = 0
    last: list[float] = field(default_factory=list)

    def row(self, name: str) -> list[Any]:
        """A line of the table."""
        begun = self.kills - self.early - self.complete - self.written
        return [
            *(name, f"{self.seconds:.1f}", self.kills, self.early, begun, self.complete, self.written),
            *(self.torn, self.journals, self.spared, self.partial, self.contradictions),
            *(self.less, self.more, self.late, self.networks),
            *(f"{self.largest / 1024:.0f}", f"{statistics.median(self.last):.1f}"),
        ]

    def compare(self, where: str, expected: Outcome, found: Outcome) -> None:
        """Count what a run found otherwise than the one that nobody interrupted."""
        differ = {
            neuron: (before, found.verdicts[neuron])
            for neuron, before in expected.verdicts.items()
            if found.verdicts[neuron] != before
        }
        for (layer, neuron), (before, after) in differ.items():
            print(f"{where}: {layer} {neuron} is {after}, not {before}", file=sys.stderr, flush=True)
        self.contradictions += any("unknown" not in pair for pair in differ.values())
        self.less += any(after == "unknown" for _, after in differ.values())
        self.more += any(before == "unknown" for before, _ in differ.values())
        self.late += found.late


@dataclass(frozen=True)
class Outcome:
    """The verdict of every neuron by its layer and number, and whether time ran out."""

    verdicts: dict[tuple[str, int], str]
    late: bool


@dataclass(frozen=True)
class Case:
    """A model, where its compression goes, and its journal."""

    model: Path
    out: Path
    journal: Path | None
    seconds: float

    def start(self) -> int:
        """A process that runs the command; its number."""
        sys.stdout.flush()
        child = os.fork()
        if child:
            return child
        report = os.open(self.report, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(report, 1)
        sys.argv = ["relutrim", "compress", str(self.model), str(self.out), "--box", "0", "1", "--jobs", "1"]
        sys.argv += ["--json", "--no-latency", "--time-limit", str(self.seconds)]
        sys.argv += ["--journal", str(self.journal)] if self.journal else []
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

    def ended(self, child: int) -> Outcome:
        """What a run that is left alone finds."""
        if os.waitpid(child, 0)[1] != 0:
            sys.exit(f"{self.model}: a run that nobody killed failed")
        return self.outcome()

    def outcome(self) -> Outcome:
        """What a finished run has found."""
        report = json.loads(self.report.read_text())
        verdicts = {}
        for layer in report["layers"]:
            own = dict.fromkeys(range(layer["size"]), "unstable")
            for word in ("active", "inactive", "unknown"):
                own.update(dict.fromkeys(layer[word], word))
            verdicts.update({(layer["name"], neuron): word for neuron, word in own.items()})
        return Outcome(verdicts, report["seconds"] >= self.seconds)

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
    parser.add_argument("--time-limit", type=float, default=3600, metavar="S", help="for each run [3600]")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where journals of other verdicts go")
    parser.add_argument("--section", metavar="NAME", help="the section of RESULTS.md to write")
    parser.add_argument("networks", nargs="*", metavar="NAME_OR_PATH[:KILLS]", default=_NETWORKS)
    options = parser.parse_args(arguments)
    rows = []
    for argument in options.networks:
        name, _, kills = argument.partition(":")
        path = Path(name) if Path(name).is_file() else shared() / "networks" / "paper" / f"{name}.onnx"
        counted = kill(path, int(kills or options.kills), options)
        rows.append(counted.row(path.stem))
        print(*rows[-1], flush=True)
    total = {
        name: sum(row[at] for row in rows) for at, name in enumerate(HEADER) if 2 <= at < len(HEADER) - 2
    }
    text = (
        f"{total['kills']} kills, {total['journals gone on from']} journals gone on from to the end: "
        f"{total['partial outputs']} partial output files. Against the verdicts of an uninterrupted run: "
        f"{total['contradictions']} runs that contradict them, {total['less decided']} that decide less, "
        f"{total['more decided']} that decide more; {total['out of time']} ran out of time, "
        f"{total['other networks']} came to a network of other widths. Every neuron of these networks is "
        "decided by an uninterrupted run, so this says that nothing was lost or wrong, not how a run that "
        "stays incomplete would go on."
        f"\n\n{table(HEADER, rows)}"
    )
    if options.section:
        write_section(options.section, text, shlex.join(["python", "-m", "benchmarks.kill", *arguments]))
    else:
        print(text)


def kill(model: Path, kills: int, options: argparse.Namespace) -> Counted:
    """So many kills of one network's compression."""
    chance, each, limit = random.Random(options.seed), options.each, options.time_limit
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = Case(model, folder / "whole.onnx", None, limit)
        begin = time.monotonic()
        expected = whole.ended(whole.start())
        counted = Counted(seconds=time.monotonic() - begin)
        widths = load(whole.out).widths
        while counted.kills < kills:
            number, before = counted.journals + counted.spared, counted.kills
            journal = folder / f"journal{number}"
            case = Case(model, folder / f"out{number}.onnx", journal, limit)
            found = _killed(case, min(each, kills - counted.kills), chance, counted, widths)
            counted.journals += counted.kills > before
            counted.spared += counted.kills == before
            written = case.network()
            counted.compare(f"{model.stem}, {counted.last[-1]:.1f} s", expected, found)
            if found.verdicts != expected.verdicts and options.keep is not None:
                shutil.copytree(journal, options.keep / f"{model.stem}-{number}")
            counted.networks += written is None or written.widths != widths
            counted.largest = max(counted.largest, len(_journal(case)))
            print(f"{model.stem}: {counted.kills} kills", file=sys.stderr, flush=True)
    return counted


def _killed(case: Case, most: int, chance: random.Random, counted: Counted, widths: list[int]) -> Outcome:
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
            return case.outcome()
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
