"""Every command and every Python block in the README and the documentation runs as it is shown."""

from __future__ import annotations

import gzip
import re
import shlex
from pathlib import Path
from xml.etree import ElementTree

import pytest

import relutrim
from command_line import call
from relutrim.paper.synthetic_data import synthetic, write_files

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHORTER = {
    "train": ["--epochs", "1", "--rows", "200"],
    "reproduce": [
        *("--epochs", "1", "--rows", "200", "--device", "cpu", "--jobs", "1", "--no-isa"),
        *("--architecture", "2x100", "--l1", "1e-4", "--seed", "0"),
    ],
}
"""What makes commands that take minutes or a GPU small enough; whatever else they say stays."""
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[str, str]]:
    """What a page shows to run, in order: the language and the text."""
    found = _BLOCK.findall(page.read_text(encoding="utf-8"))
    return [(name, text) for name, text in found if name in ("console", "python")]


def commands(text: str) -> list[str]:
    return [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Where a reader would stand: beside a model and a folder with data."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    write_files(synthetic("mnist", train=200, test=100), tmp_path / "data", "mnist")
    (tmp_path / "model.onnx").write_bytes(gzip.decompress(relutrim.demo_model().read_bytes()))
    return tmp_path


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: p.name)
def test_what_is_shown_works(page, folder, capsys):
    space: dict[str, object] = {}
    for language, text in blocks(page):
        if language == "python":
            exec(compile(text.replace('"cuda"', '"cpu"'), str(page), "exec"), space)
            continue
        for line in commands(text):
            program, command, *arguments = shlex.split(line, comments=True)
            assert program == "relutrim", f"{line}: not a command of relutrim's"
            outcome = call(capsys, command, *arguments, *SHORTER.get(command, []))
            assert outcome.code == 0, f"{line}\n{outcome.err}"


@pytest.mark.parametrize("picture", sorted((ROOT / "docs").rglob("*.svg")), ids=lambda p: p.name)
def test_pictures_are_well_formed(picture):
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")
