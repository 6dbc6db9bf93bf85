"""Size and speed: what is measured, and what is said where nothing can be. No time is ever asserted."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import pytest

import relutrim
from command_line import call
from onnx_models import model, op
from relutrim.graph import Port
from relutrim.io.onnx import network_from_proto, network_to_proto
from relutrim.latency import BATCH, Timing, _in_turns, measure
from relutrim.report.json import schema
from rewriting import dense, linear

SMALL = dense(linear([[1.0, 2.0]]), linear([[1.0]]), dtype="float32")
LARGE = dense(linear([[1.0, 2.0], [0.5, -1.0]]), linear([[1.0, 1.0]]), dtype="float32")


def test_bytes_are_those_of_the_files(tmp_path):
    found = measure(LARGE, SMALL)
    for network, size in ((LARGE, found.bytes_before), (SMALL, found.bytes_after)):
        relutrim.save(network, tmp_path / "file.onnx")
        assert (tmp_path / "file.onnx").stat().st_size == size


@pytest.mark.parametrize(("batch", "inputs"), [("batch", [1, BATCH]), (3, [3]), (None, [1])])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_batches_are_what_the_file_allows(batch, inputs, dtype):
    fixed = [replace(network, input=Port("x", (2,), batch), dtype=dtype) for network in (LARGE, SMALL)]
    found = measure(*fixed)
    assert [timing.inputs for timing in found.timings] == inputs
    assert all(timing.runs >= 5 for timing in found.timings)
    assert found.runtime.startswith("onnxruntime ")
    assert found.remark is None


def shared() -> onnx.ModelProto:
    """Smaller: one weight in five places."""
    nodes = []
    for k in range(5):
        nodes += [op("Add", [f"r{k}" if k else "x", "b"], f"a{k}"), op("MatMul", [f"a{k}", "w"], f"m{k}")]
        nodes.append(op("Relu", [f"m{k}"], f"r{k + 1}" if k < 4 else "y"))
    weight = np.random.default_rng(0).normal(size=(40, 40)).astype(np.float32)
    return model(nodes, ["n", 40], {"w": weight, "b": np.ones(40, np.float32)})


def padded() -> onnx.ModelProto:
    """Larger than what is written of its network."""
    proto = shared()
    proto.doc_string = "trained with much patience; " * 5000
    return proto


@pytest.mark.parametrize(("make", "larger"), [(padded, True), (shared, False)])
def test_the_size_before_is_that_of_the_file(make, larger, tmp_path, capsys):
    path, out = tmp_path / "model.onnx", tmp_path / "out.onnx"
    onnx.save(make(), path)
    apart = replace(network_from_proto(make()), shared=())  # every reader with its own copy
    written = network_to_proto(apart).ByteSize()
    assert path.stat().st_size > 1.2 * written if larger else path.stat().st_size < written / 1.2
    sizes = _sizes_said(capsys, path, out)
    assert sizes == {"before": path.stat().st_size, "after": out.stat().st_size}


def test_the_size_before_is_that_of_the_file_where_nothing_goes(tmp_path, capsys):
    path, out = tmp_path / "model.onnx", tmp_path / "out.onnx"
    onnx.save(shared(), path)
    sizes = _sizes_said(capsys, path, out, "--tolerance", "0")
    assert sizes == {"before": path.stat().st_size, "after": path.stat().st_size}


def _sizes_said(capsys: pytest.CaptureFixture[str], path: Path, out: Path, *options: str) -> dict[str, int]:
    command = ["compress", path, out, "--box", "0", "1", "--method", "bounds", "--json", *options]
    sizes: dict[str, int] = json.loads(call(capsys, *command).out)["latency"]["onnx_bytes"]
    return sizes


def test_no_batch_is_measured_that_takes_much_memory(monkeypatch):
    monkeypatch.setattr(relutrim.latency, "_NUMBERS", BATCH * 5)
    found = measure(LARGE, SMALL)  # 7 numbers for each input
    assert [timing.inputs for timing in found.timings] == [1]
    fixed = [replace(network, input=Port("x", (2,), 10**9)) for network in (LARGE, SMALL)]
    found = measure(*fixed)
    assert not found.timings
    assert "1000000000 inputs" in found.remark


def test_what_there_is_no_time_for_is_left_out():
    found = measure(LARGE, SMALL, seconds=0.0)
    assert found.bytes_before > found.bytes_after
    assert not found.timings
    assert "no time left" in found.remark


class Session:
    def __init__(self, name, log):
        self.name, self.log = name, log

    def run(self, names, feed):
        self.log.append((self.name, feed["x"].shape))


def test_both_run_in_turns():
    log: list[tuple[str, tuple[int, ...]]] = []
    found = _in_turns([Session("before", log), Session("after", log)], SMALL, 7)
    assert isinstance(found, Timing)
    assert {shape for _, shape in log} == {(7, 2)}
    measured = [name for name, _ in log[-2 * found.runs :]]
    for first, second in zip(measured[::2], measured[1::2], strict=True):
        assert {first, second} == {"before", "after"}
    assert measured[0] != measured[2]  # neither always goes first


def test_without_onnxruntime_the_way_to_get_it_is_named(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    found = measure(LARGE, SMALL)
    assert found.bytes_before > found.bytes_after
    assert found.timings == ()
    assert "relutrim[runtime]" in found.remark
    command = [
        "compress",
        relutrim.demo_model(),
        tmp_path / "out.onnx",
        "--box",
        "0",
        "1",
        "--method",
        "bounds",
    ]
    done = call(capsys, *command)
    assert (done.code, done.err) == (0, "")
    assert "pip install 'relutrim[runtime]'" in done.out
    made = json.loads(call(capsys, *command, "--json").out)
    jsonschema.validate(made, schema("compression"))
    assert made["latency"]["timings"] == []
    assert made["latency"]["onnx_bytes"]["after"] == (tmp_path / "out.onnx").stat().st_size


def test_what_cannot_be_written_is_not_measured():
    huge = dense(linear([[1e300, 2.0]]), linear([[1.0]]), dtype="float32")
    found = measure(huge, SMALL)
    assert (found.bytes_before, found.timings) == (None, ())
    assert "1e+300" in found.remark


def test_what_cannot_be_run_is_not_measured():
    other_input = replace(SMALL, input=Port("z", (2,)), nodes=tuple(_renamed(SMALL)))
    found = measure(SMALL, other_input)
    assert found.timings == ()
    assert "onnxruntime cannot run" in found.remark


def test_a_broken_installation_is_no_failure(monkeypatch, tmp_path):
    (tmp_path / "onnxruntime.py").write_text("raise RuntimeError('compiled against another numpy')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    found = measure(SMALL, SMALL)
    assert (found.bytes_before, found.timings) == (found.bytes_after, ())
    assert "cannot be loaded (compiled against another numpy)" in found.remark


def _renamed(network):
    return [
        replace(node, inputs=tuple("z" if n == "x" else n for n in node.inputs)) for node in network.nodes
    ]


def test_the_command_measures_unless_told_not_to(tmp_path, capsys):
    command = [
        "compress",
        relutrim.demo_model(),
        tmp_path / "out.onnx",
        "--box",
        "0",
        "1",
        "--method",
        "bounds",
    ]
    made = json.loads(call(capsys, *command, "--json").out)
    jsonschema.validate(made, schema("compression"))
    assert [timing["inputs"] for timing in made["latency"]["timings"]] == [1, BATCH]
    text = call(capsys, *command).out
    assert "ONNX file: " in text
    assert "latency: one input " in text
    made = json.loads(call(capsys, *command, "--no-latency", "--json").out)
    jsonschema.validate(made, schema("compression"))
    assert made["latency"] is None
    assert "latency" not in call(capsys, *command, "--no-latency").out
