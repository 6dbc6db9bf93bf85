"""The time of a command, and Ctrl-C while it runs."""

from __future__ import annotations

import math
import signal
import threading
import time
from dataclasses import replace

import pytest

import relutrim.compression
from certifying import small
from command_line import call
from relutrim.analysis import analyze_network
from relutrim.clock import GRACE, Clock
from relutrim.io import load, save
from rewriting import compressed
from test_again import hidden_line

CERTIFY = "relutrim.certificate.write.certify"


@pytest.fixture(autouse=True)
def default_handler():
    """Ignored in background processes, and inherited."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_stages_share_what_is_left():
    clock = Clock(100.0, started=time.monotonic() - 20.0)
    assert clock.left == pytest.approx(80.0, abs=1.0)
    assert clock.stage(0.5).left == pytest.approx(40.0, abs=1.0)
    assert Clock(1.0, started=time.monotonic() - 5.0).left == 0.0
    assert Clock(1.0, started=time.monotonic() - 5.0).stage().passed


@pytest.mark.parametrize("seconds", [None, math.inf])
def test_without_a_limit_no_stage_has_one(seconds):
    clock = Clock(seconds)
    assert clock.left == math.inf
    assert not clock.stage(0.5).passed
    assert clock.stage(0.5).left == math.inf


def test_the_first_ctrl_c_ends_the_stage_and_leaves_the_others_a_little():
    clock = Clock()
    stage = clock.stage()
    with clock.stopping(stage):
        signal.raise_signal(signal.SIGINT)
        assert stage.passed
    assert clock.interrupted
    assert 0 < clock.left <= GRACE
    assert not clock.stage().passed
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_second_ctrl_c_is_an_interruption_like_any_other():
    clock = Clock()
    stage = clock.stage()
    with clock.stopping(stage):
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    later = clock.stage()
    with pytest.raises(KeyboardInterrupt), clock.stopping(later):
        signal.raise_signal(signal.SIGINT)
    assert not later.passed


def test_an_interruption_that_was_taken_in_elsewhere_counts_as_the_first():
    clock = Clock()
    clock.interrupt()
    with pytest.raises(KeyboardInterrupt), clock.stopping(clock.stage()):
        signal.raise_signal(signal.SIGINT)


def test_an_analysis_within_a_stage_takes_the_interruption_in_itself():
    clock = Clock()
    stage = clock.stage()
    with clock.stopping(stage):
        with pytest.raises(KeyboardInterrupt), clock.raising():
            signal.raise_signal(signal.SIGINT)
        assert not stage.passed
        clock.interrupt()  # what an analysis that was interrupted leads to
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_ends_the_analysis_of_what_rewriting_has_left(monkeypatch):
    calls = []

    def analysed(network, domain, **options):
        calls.append(network)
        if len(calls) > 1:
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        return replace(analyze_network(network, domain, **options), interrupted=len(calls) > 1)

    monkeypatch.setattr(relutrim.compression, "analyze_network", analysed)
    result = compressed(hidden_line(), -1, 1)
    assert len(calls) == 2
    assert result.interrupted
    assert result.stored.neurons < hidden_line().neurons


@pytest.mark.parametrize("stage", ["_allowance", "_rewritten", "_observed"])
def test_ctrl_c_between_the_analyses_leaves_a_result(monkeypatch, stage):
    real = getattr(relutrim.compression, stage)

    def interrupted(*arguments, **options):
        signal.raise_signal(signal.SIGINT)
        return real(*arguments, **options)

    monkeypatch.setattr(relutrim.compression, stage, interrupted)
    assert compressed(hidden_line(), -1, 1).interrupted


@pytest.mark.parametrize("stage", ["relutrim.certificate.groundwork.Groundwork.of", CERTIFY])
def test_ctrl_c_while_a_certificate_is_made_leaves_a_result_without_one(monkeypatch, tmp_path, capsys, stage):
    def interrupted(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(stage, interrupted)
    model, out, proof = (tmp_path / name for name in ("model.onnx", "out.onnx", "proof.zip"))
    save(small(), model)
    done = call(capsys, "compress", model, out, "--box", "0", "1", "--certificate", proof)
    assert done.code == 130
    assert "no certificate was written" in done.err
    assert load(out).neurons < small().neurons
    assert not proof.exists()


def test_a_handler_of_the_programs_own_is_left_alone():
    seen = []
    signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    clock = Clock()
    with clock.stopping(clock.stage()):
        signal.raise_signal(signal.SIGINT)
    assert seen == [1]
    assert not clock.interrupted


def test_other_threads_have_no_signals():
    def work() -> None:
        clock = Clock()
        with clock.stopping(clock.stage()):
            done.append(clock.left)

    done: list[float] = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [math.inf]
