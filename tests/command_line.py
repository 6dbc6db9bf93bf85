"""Run the command line in this process, or for real."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest

from relutrim.cli import main


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


def call(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Outcome:
    """``main()`` as the console script calls it."""
    capsys.readouterr()
    with (
        mock.patch.object(sys, "argv", ["relutrim", *map(str, arguments)]),
        pytest.raises(SystemExit) as stop,
    ):
        main()
    captured = capsys.readouterr()
    assert isinstance(stop.value.code, int)
    return Outcome(stop.value.code, captured.out, captured.err)


def start(*arguments: str | Path) -> Outcome:
    """A process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "relutrim", *map(str, arguments)], capture_output=True, text=True, timeout=120
    )
    return Outcome(done.returncode, done.stdout, done.stderr)
