"""``relutrim instances``: VNN-COMP's lists."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from command_line import Outcome, call
from relutrim.compression import SECONDS
from relutrim.errors import InputError
from relutrim.io.instances import read_instances
from relutrim.io.onnx import write_onnx
from relutrim.io.torch.module import read_module
from relutrim.report.json import schema
from test_cli import fails, mlp, outputs

PROPERTY = "".join(
    f"(declare-const X_{i} Real)\n(assert (>= X_{i} 0))\n(assert (<= X_{i} 1))\n" for i in range(3)
)
PROPERTY += "(declare-const Y_0 Real)\n(assert (<= Y_0 0))\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A benchmark as VNN-COMP ships it: everything in folders, and some of it packed."""
    monkeypatch.chdir(tmp_path)
    for name in ("bench/onnx", "bench/vnnlib"):
        Path(name).mkdir(parents=True)
    write_onnx(read_module(mlp(3, 8, 6, 2)), Path("bench/onnx/net.onnx"))
    Path("bench/onnx/packed.onnx.gz").write_bytes(gzip.compress(Path("bench/onnx/net.onnx").read_bytes()))
    Path("bench/vnnlib/p.vnnlib").write_text(PROPERTY)
    Path("bench/vnnlib/q.vnnlib.gz").write_bytes(gzip.compress(PROPERTY.encode()))


def listing(*lines: str) -> Path:
    path = Path("bench/instances.csv")
    path.write_text("\n".join(lines) + "\n")
    return path


def lines(found: Outcome) -> list[dict]:
    made = [json.loads(line) for line in found.out.splitlines()]
    for one in made:
        jsonschema.validate(one, schema("instance"), cls=jsonschema.Draft202012Validator)
    return made


def test_every_instance_gets_a_network_that_computes_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    path = listing(
        "onnx/net.onnx,vnnlib/p.vnnlib,100",
        "./onnx/packed.onnx, vnnlib/q.vnnlib ,60.5",  # packed, and not named so
        "",
        "onnx/packed.onnx.gz,vnnlib/p.vnnlib",
        "onnx/net.onnx,vnnlib/p.vnnlib,100",
    )
    found = call(capsys, "instances", path, "out", "--json", "--bounds")
    assert (found.code, found.err) == (0, "")
    made = lines(found)
    assert [one["line"] for one in made] == [1, 2, 4, 5]
    names = ["net_p.onnx", "packed_q.onnx", "packed_p.onnx", "net_p_2.onnx"]
    assert [Path(one["output"]).name for one in made] == names
    x = np.random.default_rng(0).uniform(0, 1, (50, 3))
    for one in made:
        assert one["neurons"]["after"] < one["neurons"]["before"] == 14
        np.testing.assert_allclose(
            outputs(one["output"], x), outputs("bench/onnx/net.onnx", x), rtol=1e-4, atol=1e-3
        )
        bounds = json.loads(Path(one["output"]).with_suffix(".json").read_text())
        jsonschema.validate(bounds, schema("bounds"))
    rows = list(csv.reader(Path("out/instances.csv").read_text().splitlines()))
    assert [row[0] for row in rows] == names
    assert [row[2:] for row in rows] == [["100"], ["60.5"], [], ["100"]]
    again = read_instances(Path("out/instances.csv"))
    assert all(one.network.exists() and one.specification.exists() for one in again)


def test_failures_do_not_end_the_run_but_show_in_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bench/vnnlib/two.vnnlib").write_text(PROPERTY.replace("X_2", "X_3"))
    path = listing(
        "onnx/net.onnx,vnnlib/p.vnnlib,100",
        "onnx/none.onnx,vnnlib/p.vnnlib,100",
        "onnx/net.onnx,vnnlib/two.vnnlib,100",
        "onnx/net.onnx,vnnlib/q.vnnlib.gz,100",
    )
    found = call(capsys, "instances", path, "out", "--json")
    assert found.code == 2
    made = lines(found)
    assert [one["code"] for one in made] == [0, 2, 2, 0]
    assert "no such file" in made[1]["error"]
    assert [one["output"] is None for one in made] == [False, True, True, False]
    rows = list(csv.reader(Path("out/instances.csv").read_text().splitlines()))
    assert rows[1][0] == "../bench/onnx/none.onnx"
    text = call(capsys, "instances", path, "out").out
    assert "2 of 4 instances done, 2 failed" in text
    assert "net.onnx on p.vnnlib: 14 -> " in text


def test_bugs_are_counted_and_do_not_end_the_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relutrim.compression.compress_network", fails(ZeroDivisionError("oh")))
    found = call(capsys, "instances", listing("onnx/net.onnx,vnnlib/p.vnnlib,9"), "out", "--json")
    assert found.code == 1
    assert lines(found)[0]["error"] == "internal error (ZeroDivisionError: oh)"


def test_an_interruption_keeps_what_is_done(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from relutrim import compression

    real, calls = compression.compress_network, []

    def second_time(*arguments, **options):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    monkeypatch.setattr(compression, "compress_network", second_time)
    path = listing(*["onnx/net.onnx,vnnlib/p.vnnlib,9"] * 3)
    found = call(capsys, "instances", path, "out", "--json")
    assert found.code == 130
    assert len(lines(found)) == 1
    rows = list(csv.reader(Path("out/instances.csv").read_text().splitlines()))
    assert [row[0] for row in rows] == ["net_p.onnx"] + ["../bench/onnx/net.onnx"] * 2


def test_time_limits_are_a_share_of_those_in_the_list(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def look(*_, time_limit, **__):
        seen.append(time_limit)
        raise InputError("seen")

    monkeypatch.setattr("relutrim.compression.compress_network", look)
    path = listing("onnx/net.onnx,vnnlib/p.vnnlib,100", "onnx/net.onnx,vnnlib/p.vnnlib")
    for options in ([], ["--time-limit", "7"], ["--share", "0.5"]):
        call(capsys, "instances", path, "out", "-q", *options)
    assert seen == [25, SECONDS, 7, 7, 50, SECONDS]


@pytest.mark.parametrize(
    "line", ["onnx/net.onnx", "a,b,c,d", "onnx/net.onnx,vnnlib/p.vnnlib,soon", ",b,1", "a,b,-1", "a,b,nan"]
)
def test_lines_that_make_no_sense(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = call(capsys, "instances", listing("onnx/net.onnx,vnnlib/p.vnnlib,1", line), "out")
    assert (found.code, found.out) == (2, "")
    assert "instances.csv: line 2: " in found.err


def test_nothing_that_is_read_is_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    write_onnx(read_module(mlp(3, 8, 6, 2)), Path("bench/net_p.onnx"))
    before = {path: path.read_bytes() for path in Path("bench").rglob("*") if path.is_file()}
    path = listing("onnx/net.onnx,vnnlib/p.vnnlib,1", "net_p.onnx,vnnlib/p.vnnlib,1")
    for target in ("bench", "bench/."):
        found = call(capsys, "instances", path, target)
        assert found.code == 2
        assert "would replace" in found.err
    assert all(name.read_bytes() == content for name, content in before.items())
    assert call(capsys, "instances", listing(""), "out").code == 2
    assert call(capsys, "instances", "none.csv", "out").code == 2
