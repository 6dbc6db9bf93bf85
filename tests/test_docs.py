"""Every command and every Python block in the README and the documentation runs as it is shown."""

from __future__ import annotations

import gzip
import re
import shlex
from pathlib import Path

import pytest

import relutrim
from command_line import call

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [text for name, text in _BLOCK.findall(page.read_text(encoding="utf-8")) if name == language]


def commands(page: Path) -> list[str]:
    lines = "".join(blocks(page, "console")).replace("\\\n", " ").splitlines()
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Where a reader would stand: beside a model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.onnx").write_bytes(gzip.decompress(relutrim.demo_model().read_bytes()))
    return tmp_path


@pytest.mark.parametrize("page", [p for p in PAGES if commands(p)], ids=lambda p: p.name)
def test_commands_that_are_shown_work(page, folder, capsys):
    for line in commands(page):
        program, *arguments = shlex.split(line)
        assert program == "relutrim", f"{line}: not a command of relutrim's"
        outcome = call(capsys, *arguments)
        assert outcome.code == 0, f"{line}\n{outcome.err}"


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=lambda p: p.name)
def test_python_that_is_shown_works(page, folder):
    space: dict[str, object] = {}
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), space)
