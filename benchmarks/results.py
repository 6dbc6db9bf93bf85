"""Where benchmarks leave their tables: one section of RESULTS.md each, with the machine and the command."""

from __future__ import annotations

import os
import platform
import re
import resource
import sys
from collections.abc import Iterable, Sequence
from datetime import date
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
        f"{cpu}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"torch {torch.__version__}, numpy {numpy.__version__}"
    )


def peak_memory_mb() -> float:
    """The largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def write_section(name: str, text: str) -> None:
    """Put a section in place of its older version, or at the end."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    section = (
        f"{begin}\n## {name}\n\n`python -m benchmarks.{name}`, {date.today()}, {machine()}\n\n{text}\n{end}"
    )
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
