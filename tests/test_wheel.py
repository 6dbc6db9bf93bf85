"""The wheel holds everything that the package needs, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", folder, ROOT], check=True)
    (found,) = folder.glob("relutrim-*.whl")
    return found


def test_every_file_of_the_package_is_in_the_wheel_and_no_other(wheel):
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "src/relutrim"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if tracked.returncode:
        pytest.skip("not a git checkout")
    assert packed == {name.removeprefix("src/") for name in tracked.stdout.split()}


def test_the_installed_wheel_does_the_main_job(wheel, tmp_path):
    room = tmp_path / "installed"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", room, wheel]
    subprocess.run(install, check=True)
    environment = {**os.environ, "PYTHONPATH": str(room)}
    where = subprocess.run(
        [sys.executable, "-c", "import relutrim; print(relutrim.__file__)"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(where.stdout.strip()).is_relative_to(room)
    subprocess.run(
        [sys.executable, "-m", "relutrim", "demo", "--output", "made"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        check=True,
    )
    assert list((tmp_path / "made").glob("*.onnx"))
