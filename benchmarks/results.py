"""Where benchmarks leave their tables: one section of RESULTS.md each, with the machine and the command."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

RESULTS = Path(__file__).with_name("RESULTS.md")
HEADER = "# Results\n\nEvery section is written by the benchmark it names.\n"


def shared() -> Path:
    """The folder with the networks to measure on."""
    named = os.environ.get("RELUTRIM_SHARED")
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        sys.exit(f"{folder} is not there; set RELUTRIM_SHARED to the folder that holds networks/")
    return folder


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def machine() -> str:
    """The processor, cores and library versions, as far as they can be told."""
    import numpy
    import torch

    names = re.findall(r"model name\s*: (.*)", _read("/proc/cpuinfo"))
    cpu = names[0] if names else platform.processor() or platform.machine()
    return (
        f"{cpu}, {_cores()} cores, Python {platform.python_version()}, "
        f"torch {torch.__version__}, numpy {numpy.__version__}, {_numba()}"
    )


def _numba() -> str:
    try:
        return f"numba {version('numba')}"
    except PackageNotFoundError:
        return "no numba"


_REPORTING = """
import atexit, re, sys
from pathlib import Path
hwm = lambda: re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text()).group(1)
atexit.register(lambda: print(hwm(), file=sys.stderr))
from relutrim.cli import main
main()
"""


def command_memory_mb(arguments: list[str]) -> float:
    """The peak resident size of the command line in a process of its own, by its own account.

    ``getrusage`` would not do: a child starts with its parent's peak.
    """
    done = subprocess.run([sys.executable, "-c", _REPORTING, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"relutrim {' '.join(arguments)} failed: {done.stderr}")
    return int(done.stderr.split()[-1]) / 1024


def _cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def write_section(name: str, text: str, command: str | None = None) -> None:
    """Put a section in place of its older version, or at the end, with the command that makes it."""
    command = command or f"python -m benchmarks.{name}"
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    section = f"{begin}\n## {name}\n\n`{command}`, {date.today()}, {machine()}\n\n{text}\n{end}"
    old = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else HEADER
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    new = pattern.sub(lambda _: section, old) if pattern.search(old) else f"{old.rstrip()}\n\n{section}\n"
    RESULTS.write_text(new, encoding="utf-8")
    print(section)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
