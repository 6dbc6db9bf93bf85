"""The checker in a virtual environment that has numpy and onnx, and nothing else of what relutrim needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from certifying import certified, files, for_out, small
from relutrim.io import save

ROOT = Path(__file__).resolve().parents[1]
ABSENT = ("torch", "highspy", "click", "rich", "onnxruntime", "jinja2", "scipy")

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A new environment's python, which finds a copy of the package's source."""
    folder = tmp_path_factory.mktemp("bare")
    room, source = folder / "venv", folder / "source"
    subprocess.run([sys.executable, "-m", "venv", room], check=True)
    python = room / ("Scripts" if os.name == "nt" else "bin") / "python"
    # Nothing of this environment: neither its paths nor its packages.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    install = [python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", "numpy", "onnx"]
    done = subprocess.run(install, env=environment, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"pip cannot install numpy and onnx here: {done.stderr.strip()[-300:]}")
    shutil.copytree(
        ROOT / "src" / "relutrim", source / "relutrim", ignore=shutil.ignore_patterns("__pycache__")
    )

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python, "-s", *arguments],
            cwd=folder,
            env={**environment, "PYTHONPATH": str(source)},
            capture_output=True,
            text=True,
        )

    return run


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """MODEL, OUT and the certificate of a small compression."""
    found = [tmp_path / name for name in ("model.onnx", "out.onnx", "c.zip")]
    for path, content in zip(found, files(certified(small())), strict=True):
        path.write_bytes(content)
    return found


def check(bare: Run, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return bare("-m", "relutrim.certificate.check", *arguments)


@pytest.mark.parametrize("name", ABSENT)
def test_the_environment_is_as_bare_as_it_should_be(bare, name):
    assert "No module named" in bare("-c", f"import {name}").stderr


def test_the_package_is_the_copy(bare):
    done = bare("-c", "import relutrim; print(relutrim.__file__)")
    assert not Path(done.stdout.strip()).is_relative_to(ROOT)


def test_what_is_true_is_accepted(bare, paths):
    done = check(bare, *paths, "--box", "0", "1", "--tolerance", "1e-5")
    assert (done.returncode, done.stderr) == (0, "")
    assert "accepted" in done.stdout


def test_what_is_false_is_rejected(bare, paths):
    assert check(bare, *paths, "--box", "0", "2").returncode == 1
    swapped = check(bare, paths[1], paths[0], paths[2])
    assert (swapped.returncode, "Traceback" in swapped.stderr) == (1, False)


def test_bad_usage_and_damage_are_told_apart_from_that(bare, paths):
    assert check(bare, *paths, "--sum-between", "0", "1").returncode == 2
    paths[2].write_bytes(b"PK")
    damaged = check(bare, *paths)
    assert (damaged.returncode, "Traceback" in damaged.stderr) == (2, False)


def test_an_operator_it_does_not_read_is_an_answer_too(bare, paths):
    proto = onnx.load(paths[1])
    for node in proto.graph.node:
        if node.op_type == "Relu":
            node.op_type = "Elu"
    paths[1].write_bytes(proto.SerializeToString())
    paths[2].write_bytes(for_out(paths[2].read_bytes(), paths[1].read_bytes()))
    done = check(bare, *paths)
    assert done.returncode == 3
    assert "Elu" in done.stderr


def test_that_another_format_holds_the_onnx_is_left_open(bare, tmp_path):
    """Reading a ``.pt2`` takes torch; the ONNX inside the certificate is checked, and that is said."""
    made = certified(small())
    model, out, proof = (tmp_path / name for name in ("model.onnx", "out.pt2", "c.zip"))
    model.write_bytes(files(made)[0])
    save(made.network, out)
    assert made.certificate is not None
    made.certificate.save(proof, model=model, out=out)
    done = check(bare, model, out, proof)
    assert done.returncode == 1
    assert "not checked" in done.stderr
