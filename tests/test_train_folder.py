"""Runs that write to a folder: their files, going on after a stop, what is refused, the command line."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import relutrim
from command_line import call
from relutrim.errors import InputError
from relutrim.paper import Dataset, Epoch, Recipe, Trained, synthetic, train_many
from relutrim.paper.folder import claimed
from relutrim.report.json import schema

RECIPE = Recipe(epochs=6, batch_size=50)
ARGUMENTS = ["synthetic-mnist", "1x6", "8|3|8", "--l1", "0", "1e-3", "--seed", "0", "7", "--rows", "300"]


class Stopped(Exception):
    """The test's own kill."""


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return synthetic("mnist", train=200, test=60)


def run(digits: Dataset, folder: Path, names: tuple[str, ...] = ("2x8",), **options: object) -> list[Trained]:
    settings = {"l1": [0, 1e-3], "seeds": [0, 1], "recipe": RECIPE, "checkpoint_every": 0.0, **options}
    return train_many(digits, names, output=folder, **settings)  # type: ignore[arg-type]


def networks(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix != ".json"}


def stop_after(batch: str, epoch: int):
    def tell(done: Epoch) -> None:
        if (done.batch, done.epoch) == (batch, epoch):
            raise Stopped

    return tell


def test_files_are_named_like_the_papers_networks_and_nothing_else_is_left(
    digits: Dataset, tmp_path: Path
) -> None:
    made = run(digits, tmp_path / "new" / "run", l1=[0, 2e-4], seeds=[0], state_dicts=True)
    names = ["synthetic-mnist_2x8_l1_0.0002_s0", "synthetic-mnist_2x8_l1_0_s0"]
    found = sorted(path.name for path in (tmp_path / "new" / "run").iterdir())
    assert found == sorted([f"{name}.{end}" for name in names for end in ("onnx", "pt")] + ["train.json"])
    assert [one.path.name for one in made if one.path] == [f"{name}.onnx" for name in reversed(names)]


@pytest.mark.parametrize("name", ["2x8", "2x8-bn", "9|4|9", "lenet", "lenet-bn"])
def test_what_is_written_computes_what_torch_computes(name: str, digits: Dataset, tmp_path: Path) -> None:
    made = run(digits, tmp_path, (name,), recipe=Recipe(epochs=1), state_dicts=True)
    for one in made:
        assert one.module is not None
        x = digits.x_test.astype(np.float32).reshape(60, *one.input_shape) / 255
        session = onnxruntime.InferenceSession(one.path, providers=["CPUExecutionProvider"])
        got = session.run(None, {session.get_inputs()[0].name: x})[0]
        with torch.no_grad():
            expected = one.module(torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
        assert one.path is not None
        state = torch.load(one.path.with_suffix(".pt"), weights_only=True)
        assert all(torch.equal(value, one.module.state_dict()[key]) for key, value in state.items())


def test_the_onnx_file_says_how_it_came_about(digits: Dataset, tmp_path: Path) -> None:
    one = run(digits, tmp_path)[-1]
    props = {prop.key: prop.value for prop in onnx.load(one.path).metadata_props}
    assert props["l1"] == "0.001"
    assert props["seed"] == "1"
    assert props["domain"] == "--box 0 1"
    assert float(props["test_accuracy"]) == one.scores.test_accuracy


def test_the_report_follows_its_schema(digits: Dataset, tmp_path: Path) -> None:
    made = run(digits, tmp_path, ("2x8", "9|4|9"))
    report = json.loads((tmp_path / "train.json").read_text())
    jsonschema.validate(report, schema("training"))
    assert report["complete"]
    listed = [entry["name"] for batch in report["batches"].values() for entry in batch["networks"]]
    assert listed == [one.name for one in made]


def test_the_same_run_writes_the_same_bytes_and_smaller_batches_the_same_networks(
    digits: Dataset, tmp_path: Path
) -> None:
    run(digits, tmp_path / "all", ("2x8", "9|4|9"), state_dicts=True)
    run(digits, tmp_path / "again", ("2x8", "9|4|9"), state_dicts=True)
    assert networks(tmp_path / "all") == networks(tmp_path / "again")
    run(digits, tmp_path / "apart", ("2x8", "9|4|9"), at_once=1, state_dicts=True)
    assert networks(tmp_path / "apart").keys() == networks(tmp_path / "all").keys()


@pytest.mark.parametrize("name", ["2x8", "2x8-bn", "lenet-bn", "9|4|9"])
@pytest.mark.parametrize("epoch", [1, 4, 6])
def test_a_stopped_run_goes_on_to_the_very_same_files(
    name: str, epoch: int, digits: Dataset, tmp_path: Path
) -> None:
    run(digits, tmp_path / "whole", (name,))
    batch = name if "|" not in name else "ae9-4-9"
    with pytest.raises(Stopped):
        run(digits, tmp_path / "stopped", (name,), progress=stop_after(batch, epoch))
    assert (tmp_path / "stopped" / f"checkpoint-{batch}.pt").exists() == (epoch > 1)
    seen: list[int] = []
    run(digits, tmp_path / "stopped", (name,), progress=lambda done: seen.append(done.epoch))
    assert seen == list(range(epoch, 7))  # the epoch in which it was stopped is not in the checkpoint
    assert networks(tmp_path / "stopped") == networks(tmp_path / "whole")
    report = json.loads((tmp_path / "stopped" / "train.json").read_text())
    assert report["batches"][batch]["resumed_after_epoch"] == (epoch - 1 or None)


def test_what_is_finished_is_not_trained_again(digits: Dataset, tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        run(digits, tmp_path, ("2x8", "3x4"), progress=stop_after("3x4", 2))
    assert not json.loads((tmp_path / "train.json").read_text())["complete"]
    seen: list[str] = []
    again = run(digits, tmp_path, ("2x8", "3x4"), progress=lambda done: seen.append(done.batch))
    assert set(seen) == {"3x4"}
    third = run(digits, tmp_path, ("2x8", "3x4"), progress=lambda done: seen.append("none"))
    assert "none" not in seen
    assert [one.describe() for one in third] == [one.describe() for one in again]
    assert third[0].network().widths == [784, 8, 8, 10]


def test_a_run_killed_between_its_networks_and_its_report_writes_them_again(
    digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(digits, tmp_path / "whole")
    from relutrim.paper import training

    save, saved = training.save, []

    def die(network: object, path: Path) -> None:
        if len(saved) == 2:
            raise Stopped
        saved.append(path)
        save(network, path)  # type: ignore[arg-type]

    monkeypatch.setattr(training, "save", die)
    with pytest.raises(Stopped):
        run(digits, tmp_path / "killed")
    monkeypatch.undo()
    seen: list[int] = []
    run(digits, tmp_path / "killed", progress=lambda done: seen.append(done.epoch))
    assert seen == []
    assert networks(tmp_path / "killed") == networks(tmp_path / "whole")


@pytest.mark.parametrize(
    "options",
    [
        {"recipe": Recipe(epochs=7, batch_size=50)},
        {"recipe": Recipe(epochs=6, batch_size=50, normalize=True)},
        {"l1": [0]},
        {"seeds": [0, 2]},
        {"at_once": 1},
        {"state_dicts": True},
    ],
)
@pytest.mark.parametrize("finished", [False, True])
def test_other_settings_are_refused_and_nothing_is_touched(
    options: dict[str, object], finished: bool, digits: Dataset, tmp_path: Path
) -> None:
    if finished:
        run(digits, tmp_path)
    else:
        with pytest.raises(Stopped):
            run(digits, tmp_path, progress=stop_after("2x8", 3))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(InputError, match=r"other settings.*there and.*here.*--fresh"):
        run(digits, tmp_path, **options)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    run(digits, tmp_path, fresh=True, **options)


def test_other_data_is_other_settings(digits: Dataset, tmp_path: Path) -> None:
    run(digits, tmp_path)
    with pytest.raises(InputError, match=r"dataset\.sha256"):
        run(synthetic("mnist", train=200, test=60, seed=1), tmp_path)


@pytest.mark.parametrize("how", ["cut", "other", "pickle", "weights", "epoch"])
def test_a_damaged_checkpoint_is_named_and_not_used(how: str, digits: Dataset, tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        run(digits, tmp_path, progress=stop_after("2x8", 3))
    path = tmp_path / "checkpoint-2x8.pt"
    if how == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif how == "other":
        path.write_bytes(b"hello")
    elif how == "pickle":
        torch.save({"version": 1, "key": Stopped}, path)
    else:
        content = torch.load(path, weights_only=True)
        if how == "weights":
            content["state"]["parameter:fc1.weight"] = torch.zeros(3)
        else:
            content["epoch"] = 1000
        torch.save(content, path)
    with pytest.raises(InputError, match=r"checkpoint-2x8\.pt: .*cannot be used.*--fresh"):
        run(digits, tmp_path)
    assert len(run(digits, tmp_path, fresh=True)) == 4


def test_files_that_are_not_ours_are_not_overwritten(digits: Dataset, tmp_path: Path) -> None:
    mine = tmp_path / "synthetic-mnist_2x8_l1_0_s0.onnx"
    mine.write_bytes(b"precious")
    with pytest.raises(InputError, match=r"would be overwritten.*--fresh"):
        run(digits, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [mine.name]
    assert mine.read_bytes() == b"precious"
    run(digits, tmp_path, fresh=True)


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": "other"}', "\x00"])
def test_a_report_that_is_none_is_not_overwritten(text: str, digits: Dataset, tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text(text)
    with pytest.raises(InputError, match=r"train\.json.*no report"):
        run(digits, tmp_path)
    assert (tmp_path / "train.json").read_text() == text


@pytest.mark.parametrize("gone", [True, False])
def test_a_network_that_was_changed_afterwards_is_noticed(
    gone: bool, digits: Dataset, tmp_path: Path
) -> None:
    path = run(digits, tmp_path)[1].path
    assert path is not None
    if gone:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(InputError, match=rf"{path.name}.*missing or not"):
        run(digits, tmp_path)


def test_leftovers_of_a_killed_writer_go_and_other_hidden_files_stay(digits: Dataset, tmp_path: Path) -> None:
    for name in (
        ".train.json.abc.json",
        ".checkpoint-2x8.pt.x.pt",
        ".synthetic-mnist_2x8_l1_0_s0.onnx.y.onnx",
    ):
        (tmp_path / name).write_bytes(b"half")
    (tmp_path / ".mine").write_bytes(b"whole")
    run(digits, tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == [".mine"]


def test_two_runs_do_not_share_a_folder(digits: Dataset, tmp_path: Path) -> None:
    with claimed(tmp_path), pytest.raises(InputError, match="another run"):
        run(digits, tmp_path)
    run(digits, tmp_path)


def command(folder: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "relutrim", "train", *ARGUMENTS, "-o", str(folder), *more]


def test_kill_9_in_the_middle_costs_nothing_but_time(tmp_path: Path) -> None:
    options = ("--epochs", "60", "--checkpoint-every", "0", "--json")
    process = subprocess.Popen(command(tmp_path / "killed", *options), stdout=subprocess.DEVNULL)
    checkpoint, deadline = tmp_path / "killed" / "checkpoint-1x6.pt", time.monotonic() + 100
    while not checkpoint.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert checkpoint.exists()
    done = subprocess.run(command(tmp_path / "killed", *options), capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    assert report["complete"]
    assert report["batches"]["1x6"]["resumed_after_epoch"] > 0
    subprocess.run(command(tmp_path / "whole", *options), capture_output=True, check=True)
    assert networks(tmp_path / "killed") == networks(tmp_path / "whole")


def interrupted(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Ctrl-C, as often as it takes: an interrupt that Python meets in a destructor is lost."""
    for _ in range(12):
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=10)
    process.kill()
    return process.communicate()


def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored in background processes, and inherited
    try:
        process = subprocess.Popen(
            command(tmp_path, "--epochs", "100000", "--checkpoint-every", "0"),
            stderr=subprocess.PIPE,
            text=True,
        )
    finally:
        signal.signal(signal.SIGINT, before)
    deadline = time.monotonic() + 100
    while not (tmp_path / "checkpoint-1x6.pt").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    _, err = interrupted(process)
    assert process.returncode == 130
    assert "goes on from the last checkpoint" in err
    assert "Traceback" not in err


def test_the_command_prints_json_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = call(capsys, "train", *ARGUMENTS, "-o", tmp_path, "--epochs", "1", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    report = json.loads(outcome.out)
    jsonschema.validate(report, schema("training"))
    assert report["output"] == str(tmp_path)
    assert report["settings"]["dataset"]["train_rows"] == 300
    assert [len(batch["networks"]) for batch in report["batches"].values()] == [4, 4]


def test_the_command_shows_a_table_and_the_domain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = call(capsys, "train", *ARGUMENTS, "-o", tmp_path, "--epochs", "1", "--normalize")
    assert outcome.code == 0
    assert "synthetic-mnist_1x6_l1_0.001_s7" in outcome.out
    assert "--normalized-box 0 1 --mean" in outcome.out


def test_what_was_trained_goes_on_to_the_other_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--epochs", "3", "--l1", "0.01", "-o", tmp_path, "--rows", "500", "--normalize")
    assert call(capsys, "train", "synthetic-mnist", "1x20", *options).code == 0
    (path,) = tmp_path.glob("*.onnx")
    domain = relutrim.load(path).metadata["domain"].split()
    outcome = call(capsys, "compress", path, tmp_path / "smaller.onnx", *domain, "--no-latency", "--json")
    assert outcome.code == 0
    assert json.loads(outcome.out)["original"]["widths"] == [784, 20, 10]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("mnits", "2x4"), "no data set"),
        (("synthetic-mnist", "2y4"), "not understood"),
        (("synthetic-mnist", "2x4", "--epochs", "-1"), "epochs"),
        (("synthetic-mnist", "2x4", "--l1", "-1"), "penalty"),
        (("synthetic-mnist", "2x4", "--device", "warp"), "device"),
        (("mnist", "2x4"), "--data-dir"),
        (("mnist", "2x4", "--data-dir", "."), "are not there"),
    ],
)
def test_bad_usage_is_one_message_and_leaves_no_folder(
    arguments: tuple[str, ...], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = call(capsys, "train", *arguments, "-o", tmp_path / "out")
    assert outcome.code == 2
    assert reason in outcome.err
    assert "Traceback" not in outcome.err
    assert not (tmp_path / "out").exists()


def test_progress_is_for_terminals_only(tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    arguments = [sys.executable, "-m", "relutrim", "train", "synthetic-mnist", "1x4", "--epochs", "30"]
    done = subprocess.run(
        [*arguments, "-o", str(tmp_path / "a")],
        stderr=follower,
        stdout=subprocess.PIPE,
        timeout=120,
        check=True,
    )
    os.close(follower)
    shown = os.read(leader, 100_000).decode(errors="replace")  # it may end within a character
    os.close(leader)
    assert "1x4 (1)" in shown
    assert "epochs, loss" in shown
    assert b"epochs, loss" not in done.stdout
    done = subprocess.run(
        [*arguments, "-o", str(tmp_path / "b")], capture_output=True, timeout=120, check=True
    )
    assert done.stderr == b""


def test_state_dicts_are_read_back_by_the_architectures_named_for_them(tmp_path: Path) -> None:
    pictures = synthetic("cifar10", train=60, test=20)
    options = {"recipe": Recipe(epochs=1), "output": tmp_path, "state_dicts": True}
    dense, lenet, lenet_bn = train_many(pictures, ["2x7", "lenet", "lenet-bn"], **options)  # type: ignore[arg-type]
    architectures = {
        dense: "mlp:3072-7-7-10",
        lenet: "relutrim.paper.modules:lenet",
        lenet_bn: "relutrim.paper.modules:lenet_bn",
    }
    for one, architecture in architectures.items():
        assert one.path is not None
        read = relutrim.load(one.path.with_suffix(".pt"), arch=architecture)
        x = torch.rand(3, *one.input_shape, dtype=torch.float64)
        torch.testing.assert_close(read(x), one.network()(x), rtol=1e-6, atol=1e-7)


def test_networks_that_diverged_are_named_and_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--l1", "0", "1e38", "--epochs", "2", "-o", tmp_path, "--json")
    outcome = call(capsys, "train", "synthetic-mnist", "1x4", *options)
    assert outcome.code == 1
    assert "synthetic-mnist_1x4_l1_1e+38_s0" in outcome.err
    assert [path.name for path in tmp_path.glob("*.onnx")] == ["synthetic-mnist_1x4_l1_0_s0.onnx"]
    jsonschema.validate(json.loads(outcome.out), schema("training"))
    assert call(capsys, "train", "synthetic-mnist", "1x4", *options).code == 1
