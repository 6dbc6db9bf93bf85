"""``--memory``: what it may say, what is sized by it, and that verdicts do not depend on it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import relutrim
from command_line import call
from relutrim.analysis import batches
from relutrim.domain import Box
from relutrim.errors import InputError
from relutrim.float32 import evaluation_error
from relutrim.io import as_network, save
from relutrim.memory import AMPLE, FULL, LEAST, MemoryBudget, machine_memory
from relutrim.observe import outputs_by_part
from relutrim.prove.cascade import Cascade
from relutrim.prove.deadline import Deadline

LITTLE = MemoryBudget(LEAST)


def images() -> nn.Sequential:
    """Convolutions whose values are wide enough for a small budget to matter; some channels are inactive."""
    torch.manual_seed(0)
    module = nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3, stride=2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(4 * 12 * 12, 6), nn.ReLU(), nn.Linear(6, 2)),
    )
    with torch.no_grad():
        module[0].bias[:3] -= 9
        module[2].bias[1] -= 9
    return module.eval()


def cascade(memory: MemoryBudget) -> Cascade:
    network = as_network(images(), input_shape=(3, 28, 28))
    return Cascade(Box(0, 1).fit(network), Deadline(), memory=memory)


# What may be said.


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("2G", 2 * 2**30),
        ("512M", 512 * 2**20),
        ("65536k", 2**26),
        ("1T", 2**40),
        ("1.5G", 3 * 2**29),
        (" 2 GiB ", 2**31),
        ("2gb", 2**31),
        ("123456789", 123456789),
        (123456789, 123456789),
    ],
)
def test_a_budget_is_a_number_of_bytes_with_or_without_a_unit(said, meant):
    assert MemoryBudget.of(said).bytes == meant


@pytest.mark.parametrize("said", ["", "G", "-2G", "2X", "nan", "inf", "1e9", "0x10", "2 G G", True, -1, "٢G"])
def test_what_is_no_number_of_bytes_is_refused_with_the_way_out(said):
    with pytest.raises(InputError, match=r"makes no sense; give a number of bytes, such as 2G"):
        MemoryBudget.of(said)


@pytest.mark.parametrize("said", ["0", "1K", "63M", 0, LEAST - 1])
def test_too_little_is_refused_with_what_is_enough(said):
    with pytest.raises(InputError, match=r"too small; give at least 64M"):
        MemoryBudget.of(said)


@pytest.mark.parametrize("said", ["much", "1K"])
@pytest.mark.parametrize("command", ["analyze", "compress"])
def test_the_command_line_refuses_the_same(tmp_path, capsys, command, said):
    out = [tmp_path / "out.onnx"] if command == "compress" else []
    done = call(capsys, command, tmp_path / "none.onnx", *out, "--box", "0", "1", "--memory", said)
    assert done.code == 2
    assert "memory" in done.err


def test_the_default_is_a_quarter_of_what_the_machine_has(monkeypatch):
    monkeypatch.setattr("relutrim.memory.machine_memory", lambda: 8 * 2**30)
    assert MemoryBudget.of(None).bytes == 2 * 2**30
    monkeypatch.setattr("relutrim.memory.machine_memory", lambda: 2**20)
    assert MemoryBudget.of(None).bytes == LEAST
    monkeypatch.setattr("relutrim.memory.machine_memory", lambda: None)
    assert MemoryBudget.of(None).bytes == FULL


def test_a_control_group_limits_what_the_machine_has(monkeypatch, tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "memory.max").write_text("max\n")
    (tmp_path / "a" / "memory.max").write_text(f"{2**28}\n")
    monkeypatch.setattr("relutrim.memory._CGROUPS", tmp_path)
    own = tmp_path / "cgroup"
    own.write_text("0::/a/b\n")
    monkeypatch.setattr("relutrim.memory._OWN_GROUPS", own)
    assert machine_memory() == 2**28
    own.write_text("4:cpu:/a\n7:memory:/a\n")
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text(f"{2**27}\n")
    assert machine_memory() == 2**27


# What is sized by it.


def test_from_some_size_on_nothing_gets_larger():
    assert MemoryBudget(64 * FULL).share(1000) == AMPLE.share(1000) == 1000
    assert MemoryBudget(FULL // 4).share(1000) == 250
    assert MemoryBudget(LEAST).share(1) == 1


def test_inputs_and_forms_are_as_many_as_there_is_room_for():
    ample, little = cascade(AMPLE), cascade(LITTLE)
    widest = 8 * max(map(little.network.size, little.network.shapes))
    assert 1 <= little.witnesses.chunk < ample.witnesses.chunk
    assert little.witnesses.chunk * widest <= 2**20
    assert 1 <= little.rows < ample.rows
    assert little.rows * 2 * widest <= 2**21


def test_no_more_inputs_are_run_at_once(monkeypatch):
    little, sizes = cascade(LITTLE), []
    values = little.witnesses._values
    monkeypatch.setattr(
        little.witnesses, "_values", lambda points: sizes.append(len(points)) or values(points)
    )
    little.run()
    assert max(sizes) <= little.witnesses.chunk


def test_data_and_observed_inputs_come_in_batches_of_that_size():
    network, points = little_network(), torch.zeros(200, 3 * 28 * 28, dtype=torch.float64)
    assert [len(part) for part in batches(points, AMPLE)] == [200]
    assert all(part.numel() * 8 <= 2**22 for part in batches(points, LITTLE))
    every = [len(part) for part in outputs_by_part(network, points, memory=LITTLE)]
    assert sum(every) == 200
    assert max(every) * 8 * sum(map(network.size, network.shapes)) <= 2**22
    assert [len(part) for part in outputs_by_part(network, points)] == [200]


def little_network() -> relutrim.Network:
    return as_network(images(), input_shape=(3, 28, 28))


def test_there_is_a_bound_on_float32_with_little_too():
    network = little_network()
    stability = relutrim.analyze(network, Box(0, 1), method="bounds")
    found = evaluation_error(stability.problem, network, stability.ranges, memory=LITTLE)
    assert found is not None
    assert ((found > 0) & found.isfinite()).all()


# Verdicts do not depend on it.


def test_verdicts_and_results_are_the_same_with_little():
    found = [relutrim.analyze(images(), Box(0, 1), input_shape=(3, 28, 28), memory=m) for m in (LEAST, "8G")]
    for one, other in zip(*(stability.layers for stability in found), strict=True):
        assert np.array_equal(one.verdict, other.verdict)
    results = [
        relutrim.compress(images(), Box(0, 1), input_shape=(3, 28, 28), memory=m, time_limit=None)
        for m in (LEAST, "8G")
    ]
    assert results[0].network.parameters == results[1].network.parameters < 3000
    assert not results[0].unchanged


def test_a_command_takes_it(tmp_path, capsys):
    model, out = tmp_path / "m.onnx", tmp_path / "out.onnx"
    save(little_network(), model)
    done = call(capsys, "compress", model, out, "--box", "0", "1", "--memory", "64M", "--no-latency")
    assert done.code == 0, done.err
    assert out.exists()
