"""A file is what its name says, for all who read it: bytes that are two models are refused, and ONNX is read
by the checker itself.
"""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

from certifying import certified, edited, entries, files, packed, proof_of, small
from command_line import call
from relutrim.certificate.check import check, read_front
from relutrim.certificate.check.__main__ import main as check_alone
from relutrim.certificate.check.archive import sha256
from relutrim.errors import CheckFailed, InputError, RelutrimError
from relutrim.io import load, save

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")


def varint(number: int, length: int = 5) -> bytes:
    """A number in so many bytes of seven bits, more than it needs."""
    return bytes((number >> 7 * k) & 127 | (128 if k < length - 1 else 0) for k in range(length))


def with_zip_inside(model: bytes, parts: dict[str, bytes]) -> bytes:
    """The model with a zip archive in a field that ONNX does not know, whose offsets count from the front."""

    def made(size: int) -> bytes:
        target = io.BytesIO(model + varint(1000 << 3 | 2) + varint(size))
        with zipfile.ZipFile(target, "a") as archive:
            for name, content in parts.items():
                archive.writestr(name, content)
        return target.getvalue()

    return made(len(made(0)) - len(model) - 10)


@pytest.fixture
def both(tmp_path) -> Path:
    """A ``.pt2`` that torch reads as a program, and any ONNX reader as a model."""
    program = tmp_path / "m.pt2"
    torch.export.save(torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(1, 2),)), program)
    program.write_bytes(with_zip_inside(files(certified(small()))[0], entries(program.read_bytes())))
    torch.export.load(program)
    assert onnx.load(program).graph.node
    return program


def test_a_program_that_is_onnx_too_is_neither(both, tmp_path, capsys):
    """The certificate is about the ONNX, and torch would load the program."""
    _, out, proof = files(certified(small()))
    content = both.read_bytes()
    proof = edited(proof, lambda document: document["model"].update(sha256=sha256(content)))
    paths = [both, tmp_path / "out.onnx", tmp_path / "c.zip"]
    for path, raw in zip(paths[1:], (out, proof), strict=True):
        path.write_bytes(raw)
    assert check_alone([str(path) for path in paths]) == 2
    assert "an ONNX model is inside" in capsys.readouterr().err
    done = call(capsys, "check", *paths)
    assert done.code == 2
    assert "an ONNX model is inside" in done.err
    with pytest.raises(InputError, match="begin"):
        load(both)
    with pytest.raises(InputError, match="zip archive"):
        check(content, out, proof)


def test_a_model_with_an_archive_inside_is_refused_by_all(both, tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(both.read_bytes())
    with pytest.raises(InputError, match="zip archive"):
        load(path)
    with pytest.raises(InputError, match="zip archive"):
        read_front(path.read_bytes(), "model")


@pytest.mark.parametrize("name", ["m.pt2", "m.onnx"])
def test_no_certificate_is_written_for_two_formats(both, tmp_path, name):
    path = tmp_path / name
    path.write_bytes(both.read_bytes())
    with pytest.raises(InputError, match=r"ONNX model is inside|zip archive"):
        proof_of(certified(small())).content(out=path)


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("model.pt2", bytes, "does not end in .onnx"),
        ("model", bytes, "does not end in .onnx"),
        ("model.onnx", gzip.compress, "packed by gzip"),
        ("model.onnx.gz", bytes, "not packed"),
    ],
)
def test_name_and_content_agree(name, change, why):
    model, out, proof = files(certified(small()))
    check(model, out, proof, names=("MODEL.ONNX", "out.onnx"))
    check(gzip.compress(model), out, proof, names=("model.onnx.gz", ""))
    with pytest.raises(InputError, match=why):
        check(change(model), out, proof, names=(name, "out.onnx"))


# What the checker does not read.


def with_largest(tmp_path: Path) -> Path:
    """A model that relutrim reads and the checker does not."""
    weight = numpy_helper.from_array(np.array([[1, -1], [2, 1]], np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Max", ["h", "lo"], ["c"]),
        helper.make_node("MatMul", ["c", "w"], ["y"]),
    ]
    ends = [numpy_helper.from_array(np.float32(0), "lo")]
    shapes = [helper.make_tensor_value_info(name, 1, ["n", 2]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", shapes[:1], shapes[1:], [weight, *ends])
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_what_the_checker_does_not_read_is_not_checked_through_another_reader(tmp_path, capsys):
    model, out, proof = (with_largest(tmp_path), tmp_path / "out.onnx", tmp_path / "c.zip")
    result = certified(load(model))
    save(result.stored, out)
    with pytest.raises(RelutrimError, match="Max"):
        proof_of(result).content(model=model, out=out)
    parts = entries(proof_of(result).content(out=out))
    document = json.loads(parts["certificate.json"])
    given = {"sha256": sha256(model.read_bytes()), "suffix": ".onnx"}
    document["model"] |= {"embedded": True, "given": given}
    content = {
        "certificate.json": json.dumps(document).encode(),
        "model.onnx": proof_of(result).models["model"],
    }
    proof.write_bytes(packed({**parts, **content}))
    done = call(capsys, "check", model, out, proof)
    assert done.code == 1
    assert "not about MODEL itself" in done.err


def test_an_onnx_file_in_which_the_checker_reads_the_same_is_certified_by_its_own_hash(tmp_path):
    result = certified(small())
    model, out, _ = files(result)
    other = onnx.ModelProto.FromString(out)
    other.producer_name = "someone else"
    path = tmp_path / "out.onnx"
    path.write_bytes(other.SerializeToString())
    check(model, path.read_bytes(), proof_of(result).content(out=path), names=("", path.name))
    other.graph.initializer[0].CopyFrom(
        numpy_helper.from_array(
            2 * numpy_helper.to_array(other.graph.initializer[0]), other.graph.initializer[0].name
        )
    )
    path.write_bytes(other.SerializeToString())
    with pytest.raises(CheckFailed, match="something else"):
        proof_of(result).content(out=path)


def test_output_relus_are_asked_for_on_both_sides(tmp_path, capsys):
    model, out, proof = (tmp_path / name for name in ("model.onnx", "out.onnx", "c.zip"))
    save(small(), model)
    arguments = (model, out, proof)
    for given in ((), ("--output-relu",)):
        more = ("--box", "0", "1", "--no-latency", "--certificate", proof, *given)
        assert call(capsys, "compress", model, out, *more).code == 0
        assert check_alone([*map(str, arguments), *given]) == 0
        assert call(capsys, "check", *arguments, *given).code == 0
        for other in {(), ("--output-relu",)} - {given}:
            assert call(capsys, "check", *arguments, *other).code == 1
            assert check_alone([*map(str, arguments), *other]) == 1
            assert "not checked" in capsys.readouterr().err
