"""Files that are small until they are read, and what takes long to compute with."""

from __future__ import annotations

import io
import os
import resource
import struct
import subprocess
import sys
import time
import tracemalloc
import zipfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import onnx_models
from attacks.forging import accepted, forged, onnx_of, repacked, unpacked
from relutrim.certificate.check import archive, check, expressions, fields, proofs, read_front
from relutrim.certificate.check.domain import Domain
from relutrim.certificate.check.ranges import Ranges
from relutrim.errors import CheckFailed, InputError, UnsupportedError
from relutrim.io import sizes

node = helper.make_node


def relu(size: int) -> bytes:
    return onnx_of([node("Relu", ["x"], ["y"])], [1, size], {})


def changed(model: bytes, size: int, **arrays) -> bytes:
    """A certificate of a model and itself on [0, 1], with other arrays."""
    document, held, others = unpacked(forged(model, model, [0.0] * size, [1.0] * size, bound=1.0))
    held |= {name.replace("_", "."): array for name, array in arrays.items()}
    return repacked(document, held, others)


def constrained(size: int, rows, lower: float, upper: float, model: bytes | None = None) -> bytes:
    ends = {"domain_lower": np.full(len(rows), lower), "domain_upper": np.full(len(rows), upper)}
    return changed(model or relu(size), size, domain_rows=np.asarray(rows, float), **ends)


def peak(called) -> int:
    """How much memory a call takes, at most."""
    tracemalloc.start()
    try:
        called()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_constraints_take_no_longer_than_the_limit():
    rows = np.random.default_rng(0).random((1024, 400))
    with pytest.raises(CheckFailed, match="constraints take longer than the limit"):
        check(relu(400), relu(400), constrained(400, rows, 40.0, 240.0), seconds=1.0)


def test_windows_take_no_longer_than_the_limit():
    """The window of each of 1,000 entries is nearly all of them: a billion products, from 8 kilobytes."""
    nodes = [node("Conv", ["x", "w"], ["a"], pads=[500, 500]), node("Relu", ["a"], ["y"])]
    model = onnx_of(nodes, [1, 1, 1000], {"w": np.ones((1, 1, 1001))})
    graph, ends = read_front(model, "model"), np.ones(1000)
    ranges = Ranges(graph, Domain(-ends, ends, np.zeros((0, 1000)), np.zeros(0), np.zeros(0)))
    ranges.symbols.deadline = time.monotonic()  # reached only where windows are computed
    with pytest.raises(CheckFailed, match="windows of a model take longer"):
        ranges.advance()


def test_a_long_array_is_in_memory_once():
    """A file of 524 kilobytes can hold 2^27 of them."""
    words = np.full(2**22, 7, "<i4")
    content = changed(relu(1), 1, proof_words=words)

    def refused():
        with pytest.raises(InputError, match="not in its place"):
            check(relu(1), relu(1), content)

    assert peak(refused) < 1.6 * words.nbytes


def test_constraints_on_many_inputs_take_little_memory():
    """Of 4,000 inputs, a matrix of each with each would take 128 megabytes, several times."""
    content = constrained(4000, np.ones((1, 4000)), 0.0, 1e9)
    domain = archive.open_archive(content).arrays
    rows = Domain(*(domain[f"domain.{name}"] for name in ("lo", "hi", "rows", "lower", "upper")))
    assert peak(rows.narrowed) < 2**29


def test_constraints_on_many_outputs_take_little_memory():
    where = {"s": np.array([0]), "e": np.array([1]), "a": np.array([1]), "p": np.array([0, 0, 0, 30_000])}
    nodes = [node("Slice", ["x", "s", "e", "a"], ["u"]), node("Pad", ["u", "p"], ["y"])]
    model = onnx_of(nodes, [1, 1000], where)
    content = constrained(1000, np.ones((1, 1000)), 0.0, 600.0, model)
    # All outputs' coefficients of all inputs would take 240 megabytes, several times.
    assert peak(lambda: accepted(model, model, content, seconds=5.0)) < 2**29


def test_values_that_nobody_reads_any_more_are_forgotten():
    """Each of 100 values would take two megabytes."""
    count, size = 100, 512
    nodes = [node("Mul", [f"v{k}" if k else "x", "c"], [f"v{k + 1}"]) for k in range(count)]
    out = onnx_of([*nodes, node("Relu", [f"v{count}"], ["y"])], [1, size], {"c": np.array([1 + 2.0**-40])})
    content = forged(relu(size), out, [0.0] * size, [1.0] * size, bound=1.0)
    assert peak(lambda: check(relu(size), out, content)) < 100 * 2**20


def test_all_that_is_kept_is_bounded(monkeypatch):
    nodes = [node("Relu", [f"v{k}" if k else "x"], [f"v{k + 1}"]) for k in range(20)]
    model = onnx_of(nodes, [1, 64], {}, "v20")
    content = forged(model, model, [-1.0] * 64, [1.0] * 64, bound=1.0)
    assert accepted(model, model, content)
    monkeypatch.setattr(expressions, "MOST_KEPT", 10 * 64 * 64)
    with pytest.raises(CheckFailed, match="together are too large"):
        check(model, model, content)


def test_a_proof_of_very_many_levels_is_refused_before_it_is_read():
    model = onnx_of([node("Relu", ["x"], ["a"]), node("Relu", ["a"], ["y"])], [1, 1], {})
    words = np.zeros(4 + 3 * 2**20 + 1, "<i4")
    words[:4] = [1, 0, 1, 2**20]
    words[-1] = proofs.PACKED
    with pytest.raises(CheckFailed, match="levels"):
        check(model, model, changed(model, 1, proof_words=words))


def test_a_list_of_very_many_entries_is_not_read():
    entry = b"PK\1\2\x14\0\x14\0\0\0\0\0\0\0\x21\0" + b"\0" * 12 + b"\1\0" + b"\0" * 16 + b"a"
    count = 60_000
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, count * len(entry), 0, 0)
    content = entry * count + end
    assert len(zipfile.ZipFile(io.BytesIO(content)).infolist()) == count

    def refused():
        with pytest.raises(InputError):
            archive.open_archive(content)

    assert peak(refused) < 2**20


def test_a_model_of_very_many_empty_nodes_is_not_parsed(monkeypatch):
    """Two bytes each; in memory, seventy times as much."""
    monkeypatch.setattr(fields, "MOST_FIELDS", 2**12)
    model = onnx.ModelProto.FromString(relu(1))
    model.graph.node.extend([onnx.NodeProto()] * 2**12)
    with pytest.raises(UnsupportedError, match="parts"):
        read_front(model.SerializeToString(), "model")


def test_fields_are_counted_as_they_are_parsed():
    content = relu(1)
    assert fields.count_fields(content, onnx.ModelProto.DESCRIPTOR) < 40
    for cut in range(1, len(content)):
        try:
            onnx.ModelProto.FromString(content[:cut])
        except Exception:
            with pytest.raises(InputError):
                fields.count_fields(content[:cut], onnx.ModelProto.DESCRIPTOR)
    with pytest.raises(InputError, match="groups"):
        fields.count_fields(b"\x0b\x0c", onnx.ModelProto.DESCRIPTOR)


# A whole command.

GIGA = 2**30
ONE = {"w": np.ones((1, 1, 1), np.float32)}


def compressed(proto: onnx.ModelProto, folder: Path, *options: str) -> tuple[int, float, int]:
    """The exit code of ``relutrim compress`` with five seconds, how many it took, and how much memory."""
    onnx.save(proto, folder / "model.onnx")
    command = ["compress", "model.onnx", "out.onnx", "--box", "0", "1", "--time-limit", "5", *options]
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "relutrim", *command],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=_spare_the_machine,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, time.monotonic() - started, 1024 * usage.ru_maxrss


def _spare_the_machine() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = 10 * GIGA if hard == resource.RLIM_INFINITY else min(10 * GIGA, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def stretched(stride: int, *behind: onnx.NodeProto) -> onnx.ModelProto:
    """Twenty numbers with zeros between them, and what is made of these."""
    first = onnx_models.op("ConvTranspose", ["x", "w"], "a" if behind else "y", strides=[stride])
    return onnx_models.model([first, *behind], ["n", 1, 20], ONE, opset=13)


def doubled(count: int) -> onnx.ModelProto:
    """One number, ``count`` times as many as before."""
    names = ["x", *(f"t{k}" for k in range(1, count)), "y"]
    nodes = [onnx_models.op("Concat", [one, one], other, axis=1) for one, other in pairwise(names)]
    return onnx_models.model(nodes, ["n", 1])


def image(side: int) -> onnx.ModelProto:
    """Two convolutions over an image, with ReLUs behind them that hardly ever stay off."""
    weights = {"v": onnx_models.numbers(8, 3, 3, 3), "u": onnx_models.numbers(8, 8, 3, 3)}
    op, pads = onnx_models.op, [1] * 4
    nodes = [
        op("Conv", ["x", "v"], "a", pads=pads),
        op("Relu", ["a"], "b"),
        op("Conv", ["b", "u"], "c", pads=pads),
        op("Relu", ["c"]),
    ]
    return onnx_models.model(nodes, ["n", 3, side, side], weights)


relu_and_sum = (
    onnx_models.op("Relu", ["a"], "b"),
    onnx_models.op("ReduceSum", ["b"], keepdims=0),
)
LARGEST = {
    "zeros between few numbers": stretched(100_000),
    "their sum": stretched(100_000, *relu_and_sum),
    "as many zeros as a small file may have": stretched(sizes.FREE // 40),
    "as many ReLUs": stretched(sizes.FREE // 60, onnx_models.op("Relu", ["a"])),
    "a number doubled as often as it may be": doubled(22),
    "an input as long as it may be": onnx_models.model(
        [onnx_models.op("Relu", ["x"])], ["n", sizes.FREE // 2]
    ),
    "an image as large as it may be": image(int((sizes.FREE / 35) ** 0.5)),
}


@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted in other units")
@pytest.mark.parametrize("case", LARGEST)
def test_a_small_file_takes_little_memory_and_hardly_more_time_than_it_may(case, tmp_path):
    code, seconds, memory = compressed(LARGEST[case], tmp_path)
    assert code == 0
    assert memory < 3 * GIGA
    assert seconds < 30  # five on a machine that does nothing else, and what cannot be cut short


def long_constant(size: int) -> onnx.ModelProto:
    """A sum with as many zeros, of which ONNX's own inference would make a list."""
    nodes = [onnx_models.op("ConstantOfShape", ["s"], "c"), onnx_models.op("Add", ["x", "c"])]
    return onnx_models.model(nodes, ["n", 1], {"s": np.array([size])})


@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted in other units")
@pytest.mark.parametrize("proto", [doubled(25), long_constant(2**25)], ids=["doubled", "long constant"])
def test_a_small_file_that_asks_for_more_is_refused_at_once(proto, tmp_path):
    code, _, memory = compressed(proto, tmp_path)
    assert code == 3
    assert memory < GIGA


@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted in other units")
def test_a_batch_that_a_file_has_fixed_is_not_run_where_it_is_large(tmp_path):
    """Ten million images, of which a channel goes: the result is tried, and timed, on fewer or not at all."""
    op, weights = onnx_models.op, {"v": onnx_models.numbers(8, 3, 3, 3), "u": onnx_models.numbers(2, 8, 1, 1)}
    weights["b"] = np.array([-1e3] * 4 + [1.0] * 4, np.float32)
    nodes = [op("Conv", ["x", "v", "b"], "a"), op("Relu", ["a"], "c"), op("Conv", ["c", "u"])]
    proto = onnx_models.model(nodes, [10**7, 3, 16, 16], weights)
    code, _, memory = compressed(proto, tmp_path)
    assert code == 0
    assert (tmp_path / "out.onnx").stat().st_size < (tmp_path / "model.onnx").stat().st_size
    assert memory < GIGA
