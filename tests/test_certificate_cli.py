"""``compress --certificate`` and ``check``, as a user calls them."""

from __future__ import annotations

import json

import onnx
import pytest

from certifying import small
from command_line import call
from relutrim.io import save
from relutrim.io.onnx import network_to_proto


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.onnx"
    save(small(), path)
    return path


def compress(capsys, model, out, proof, *more):
    return call(
        capsys, "compress", model, out, "--box", "0", "1", "--no-latency", "--certificate", proof, *more
    )


def test_what_compress_certifies_check_accepts(capsys, tmp_path, model):
    out, proof = tmp_path / "out.onnx", tmp_path / "proof.zip"
    done = compress(capsys, model, out, proof)
    assert (done.code, done.err) == (0, "")
    assert "certified within" in done.out
    checked = call(capsys, "check", model, out, proof, "--box", "0", "1", "--tolerance", "1e-5")
    assert (checked.code, checked.err) == (0, "")
    assert checked.out.splitlines()[-1].startswith("accepted")
    found = json.loads(call(capsys, "check", model, out, proof, "--json").out)
    assert found["accepted"] is True
    assert found["bound"] < 1e-5


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["--box", "0", "1.5"], 1, "does not contain"),
        (["--box", "-1", "1"], 1, "does not contain"),
        (["--tolerance", "0"], 1, "asked for"),
        (["--tolerance", "nan"], 2, "makes no sense"),
        (["--time-limit", "0"], 1, "longer"),
        (["--time-limit", "-1"], 2, "time-limit"),
        (["--sum-between", "0", "1"], 2, "exactly one of"),
        (["--normalized-box", "0", "1", "--mean", "0", "--std", "1"], 1, "normalisation"),
    ],
)
def test_what_is_asked_for_must_be_covered(capsys, tmp_path, model, arguments, code, why):
    out, proof = tmp_path / "out.onnx", tmp_path / "proof.zip"
    compress(capsys, model, out, proof)
    done = call(capsys, "check", model, out, proof, *arguments)
    assert (done.code, done.out) == (code, "")
    assert why in done.err


def test_swapped_files_and_missing_ones(capsys, tmp_path, model):
    out, proof = tmp_path / "out.onnx", tmp_path / "proof.zip"
    compress(capsys, model, out, proof)
    assert call(capsys, "check", out, model, proof).code == 1
    assert call(capsys, "check", model, out, model).code == 2
    assert call(capsys, "check", model, out, tmp_path / "none").code == 2


@pytest.mark.parametrize("more", [(), ("--json",), ("-q",)])
def test_a_certificate_that_there_was_no_time_for_is_said_to_be_missing(capsys, tmp_path, model, more):
    out, proof = tmp_path / "out.onnx", tmp_path / "proof.zip"
    done = compress(capsys, model, out, proof, "--time-limit", "0", *more)
    assert done.code == 1
    assert "no certificate was written" in done.err
    assert out.exists()
    assert not proof.exists()


def test_nothing_is_written_where_nothing_can_be_certified(capsys, tmp_path, model):
    out, proof = tmp_path / "out.onnx", tmp_path / "proof.zip"
    assert compress(capsys, model, out, proof, "--evidence", "solver").code == 2
    assert compress(capsys, model, out, out).code == 2
    assert compress(capsys, model, out, model).code == 2
    assert compress(capsys, model, out, tmp_path / "no" / "folder").code == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx"]


def test_other_formats_are_certified_through_onnx(capsys, tmp_path):
    import torch

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    model, out, proof = (tmp_path / name for name in ("model.pt", "out.pt2", "proof.zip"))
    torch.save(module.state_dict(), model)
    arch = ("--arch", "mlp:3-4-2")
    assert compress(capsys, model, out, proof, *arch).code == 0
    assert call(capsys, "check", model, out, proof, *arch).code == 0
    # Without the means to read them, that the ONNX inside is theirs is left open.
    alone = call(capsys, "check", model, out, proof)
    assert alone.code == 1
    assert "not checked" in alone.err


def test_a_state_dict_of_another_architecture_is_read_with_its_own(capsys, tmp_path):
    import torch

    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
    module.load_state_dict(
        {
            "0.weight": torch.tensor([[1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]),
            "0.bias": torch.tensor([0.0, 0.0, -1.0]),  # the last is never active
            "2.weight": torch.ones(1, 3),
            "2.bias": torch.zeros(1),
        }
    )
    model, out, proof = (tmp_path / name for name in ("model.pt", "out.pt", "proof.zip"))
    torch.save(module.state_dict(), model)
    arch = ("--arch", "mlp:2-3-1")
    assert compress(capsys, model, out, proof, *arch, "--rewrites", "leo++").code == 0
    alone = call(capsys, "check", model, out, proof, *arch)
    assert alone.code == 1
    assert "not checked" in alone.err
    assert "--out-arch" in alone.err
    assert call(capsys, "check", model, out, proof, *arch, "--out-arch", "mlp:2-2-1").code == 0
    assert call(capsys, "check", model, out, proof, *arch, "--out-arch", "mlp:2-3-1").code == 1


@pytest.mark.parametrize("suffix", [".pt2", ".pt"])
def test_a_batch_norm_is_certified_with_its_own_numbers(capsys, tmp_path, suffix):
    import torch

    norm = torch.nn.BatchNorm1d(3).eval()
    norm.running_var = torch.tensor([0.3, 0.7, 1.1])
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), norm, torch.nn.ReLU(), torch.nn.Linear(3, 1)).eval()
    model, out, proof = (tmp_path / name for name in (f"model{suffix}", f"out{suffix}", "proof.zip"))
    arch: tuple[str, ...] = ()
    if suffix == ".pt2":
        torch.export.save(torch.export.export(module, (torch.zeros(1, 2),)), model)
    else:
        torch.save(module.state_dict(), model)
        arch = ("--arch", f"{__name__}:normed")
    done = compress(capsys, model, out, proof, *arch)
    assert done.code == 0, done.err
    if suffix == ".pt2":
        accepted = call(capsys, "check", model, out, proof)
        assert accepted.code == 0, accepted.err


def test_what_the_checker_does_not_read_is_refused_before_the_analysis(capsys, tmp_path, monkeypatch):
    def never(*_, **__):
        raise AssertionError("this was known before")

    monkeypatch.setattr("relutrim.compression.analyze_network", never)
    model, out, proof = (tmp_path / name for name in ("model.onnx", "out.onnx", "proof.zip"))
    onnx.save(
        network_to_proto(small()), model, save_as_external_data=True, location="w.bin", size_threshold=0
    )
    done = compress(capsys, model, out, proof)
    assert done.code == 3
    assert "cannot be certified" in done.err
    assert sorted(path.name for path in tmp_path.iterdir()) == [model.name, "w.bin"]


def normed():
    """The architecture of the batch norm above."""
    import torch

    parts = (torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
    return torch.nn.Sequential(*parts).eval()


def test_another_program_is_not_what_the_certificate_is_about(capsys, tmp_path):
    """The hash of the file itself counts, and so does what it computes."""
    import torch

    torch.manual_seed(0)
    paths = [tmp_path / name for name in ("model.pt2", "other.pt2")]
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    for path in paths:
        torch.export.save(torch.export.export(module, (torch.zeros(1, 3),)), path)
        with torch.no_grad():
            module[0].weight[0, 0] += 1e-6
    out, proof = tmp_path / "out.pt2", tmp_path / "proof.zip"
    assert compress(capsys, paths[0], out, proof).code == 0
    assert call(capsys, "check", paths[0], out, proof, "--box", "0", "1").code == 0
    other = call(capsys, "check", paths[1], out, proof)
    assert other.code == 1
    assert "sha256" in other.err


def test_output_relus_are_part_of_what_is_certified(capsys, tmp_path, model):
    out, proof = tmp_path / "out.onnx", tmp_path / "proof.zip"
    assert compress(capsys, model, out, proof, "--output-relu").code == 0
    assert call(capsys, "check", model, out, proof, "--output-relu").code == 0
    done = call(capsys, "check", model, out, proof)
    assert done.code == 1
    assert "not checked" in done.err
