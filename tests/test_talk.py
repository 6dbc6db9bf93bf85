"""How much the commands say, and what they forecast."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_line import call, start
from relutrim.io.onnx import write_onnx
from relutrim.io.torch.module import read_module
from relutrim.report.progress import Pace
from test_cli import BOX, mlp, on_terminal


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    write_onnx(read_module(mlp(3, 8, 6, 2)), Path("m.onnx"))


# The forecast


def test_a_steady_pace_is_carried_on() -> None:
    clock = Clock()
    pace = Pace(clock=clock)
    for decided in range(11):
        pace.saw("trees", decided, 30)
        clock.now += 2
    clock.now -= 2
    assert pace.remaining == pytest.approx(40)
    assert str(pace) == "about 0:40 left"
    clock.now += 5  # the next one takes longer than any before
    assert pace.remaining == pytest.approx(100)


def test_what_an_easier_stage_has_shown_says_nothing() -> None:
    clock = Clock()
    pace = Pace(last_stage=300, clock=clock)
    for decided in (0, 50, 90):
        pace.saw("bounds", decided, 100)
        clock.now += 0.1
    assert str(pace) == ""  # less than a second is not worth reading
    assert pace.saw("trees", 90, 100)
    assert pace.remaining is None
    assert str(pace) == "at most 5:00 left"
    clock.now += 60
    assert not pace.saw("trees", 91, 100)
    assert pace.remaining == pytest.approx(9 * 60)
    assert str(pace) == "at most 4:00 left"  # the limit comes first


def test_searches_within_the_last_stage_belong_to_it() -> None:
    clock = Clock()
    pace = Pace(clock=clock)
    pace.saw("search", 10, 20)
    pace.saw("trees", 12, 20)
    clock.now += 3
    assert not pace.saw("search", 14, 20)
    assert pace.stage == "trees"
    assert not pace.saw("trees", 14, 20)
    assert pace.remaining == pytest.approx(6 * 1.5)


def test_a_smaller_network_is_a_new_start() -> None:
    clock = Clock()
    pace = Pace(clock=clock)
    pace.saw("bounds", 10, 20)
    clock.now += 9
    pace.saw("bounds", 15, 20)
    assert pace.saw("bounds", 3, 8)
    assert pace.remaining is None


@given(
    st.lists(st.tuples(st.floats(0, 50), st.integers(0, 5), st.sampled_from(["a", "trees", "rewrite"]))),
    st.none() | st.floats(0, 1000),
)
def test_no_forecast_is_negative_or_beyond_the_limit(
    steps: list[tuple[float, int, str]], limit: float | None
) -> None:
    clock = Clock()
    pace = Pace(limit, 300, clock)
    decided = 0
    for seconds, more, stage in steps:
        clock.now += seconds
        decided = min(20, decided + more)
        pace.saw(stage, decided, 20)
        assert pace.remaining is None or pace.remaining >= 0
        assert pace.limit_left is None or 0 <= pace.limit_left <= (300 if limit is None else limit) + 1e-6
        assert str(pace) == "" or "left" in str(pace)


# -q and -v


@pytest.mark.parametrize(
    "arguments",
    [["inspect", "m.onnx"], ["analyze", "m.onnx", *BOX], ["compress", "m.onnx", "out.onnx", *BOX], ["demo"]],
    ids=lambda arguments: arguments[0],
)
def test_quiet_says_nothing(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    found = call(capsys, *arguments, "-q")
    assert (found.code, found.out, found.err) == (0, "", "")
    assert call(capsys, *arguments).out != ""


def test_quiet_still_writes_files_prints_json_and_says_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "compress", "m.onnx", "out.onnx", *BOX, "-q").code == 0
    assert Path("out.onnx").exists()
    assert json.loads(call(capsys, "analyze", "m.onnx", *BOX, "-q", "--json").out)["complete"]
    found = call(capsys, "inspect", "none.onnx", "-q")
    assert found.code == 2
    assert found.err.startswith("relutrim: error:")


def test_verbose_names_the_stages_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    found = call(capsys, "compress", "m.onnx", "out.onnx", *BOX, "-v", "--json")
    assert json.loads(found.out)
    stages = [line.split("  ")[-1].partition(":")[0] for line in found.err.splitlines()]
    assert stages[0] == "bounds"
    assert stages[-2:] == ["rewrite", "compare"]
    assert "metadata" not in call(capsys, "inspect", "m.onnx").out
    assert "inputs are not read" in call(capsys, "inspect", "m.onnx", "-v").out


def test_quiet_and_verbose_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    found = call(capsys, "analyze", "m.onnx", *BOX, "-q", "-v")
    assert (found.code, found.out) == (2, "")
    assert "exclude each other" in found.err


# The terminal


def test_what_came_out_is_said_first(capsys: pytest.CaptureFixture[str]) -> None:
    first = call(capsys, "inspect", "m.onnx").out.splitlines()[0]
    assert first == "3-8-6-2: 14 neurons, 84 connections, 100 parameters, float32"
    first = call(capsys, "analyze", "m.onnx", *BOX).out.splitlines()[0]
    assert first.startswith("14 neurons in 2 layers: ")
    first = call(capsys, "compress", "m.onnx", "out.onnx", *BOX).out.splitlines()[0]
    assert "of 14 neurons and" in first
    assert first.endswith("on the whole domain (proven)")


def test_colours_are_for_terminals_that_want_them() -> None:
    shown = on_terminal("compress", "m.onnx", "out.onnx", *BOX, "--no-latency")
    assert "\x1b[32m" in shown  # what is proven is green
    assert "decided, " in shown
    assert "open" in shown
    plain = on_terminal("compress", "m.onnx", "out.onnx", *BOX, "--no-latency", "-q", NO_COLOR="1")
    assert plain == ""
    plain = on_terminal("analyze", "m.onnx", *BOX, NO_COLOR="1")
    assert "\x1b[3" not in plain.replace("\x1b[?", "")  # a bar moves the cursor, and no more
    assert "decided, " in plain


# Completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_the_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = call(capsys, "completion", shell)
    assert found.code == 0
    assert "relutrim" in found.out
    assert f"_RELUTRIM_COMPLETE={shell}_complete" in found.out
    assert call(capsys, "completion", "cmd").code == 2


def test_completion_scripts_are_bash() -> None:
    script = start("completion", "bash").out
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def completed(*words: str) -> list[str]:
    """What the shell is told when the last word is to be completed."""
    environment = {
        "_RELUTRIM_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("relutrim", *words)),
        "COMP_CWORD": str(len(words)),
    }
    script = "import sys; sys.argv = ['relutrim']; from relutrim.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


def test_completion_of_commands_options_and_choices() -> None:
    assert {"inspect", "analyze", "compress"} <= set(completed(""))
    assert "--time-limit" in completed("analyze", "--ti")
    assert completed("analyze", "m.onnx", "--method", "bo") == ["bounds"]
