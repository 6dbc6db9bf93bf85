"""Masks of units that are always 0, and how often data is wrong about neurons."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings

import relutrim
from channelled import channelled
from command_line import call
from oracle import Polytope, exact_ranges
from relutrim.analysis import analyze_network
from relutrim.domain import Box
from relutrim.holdout import held_out
from relutrim.masks import inactive_units, write_masks
from relutrim.report.json import schema
from rewriting import QUICK, compressed, dense, linear

DATA = {**QUICK, "method": "data"}


def three() -> relutrim.Network:
    """Neurons that are always on, always off, and on where x > 0.9."""
    return dense(linear([[1.0], [-1.0], [1.0]], [1.0, -1.0, -0.9]), linear([[1.0, 1.0, 1.0]]))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    relutrim.save(three(), "m.onnx")


def test_masks_show_what_is_always_0(capsys):
    found = call(capsys, "analyze", "m.onnx", "--box", "0", "1", "--mask", "masks.npz")
    assert found.code == 0
    with np.load("masks.npz", allow_pickle=False) as masks:
        assert {name: masks[name].tolist() for name in masks} == {"relu1": [False, True, False]}


def test_masks_of_a_compressed_network_are_its_own(capsys):
    """The neuron that is always 0 is gone."""
    found = call(capsys, "compress", "m.onnx", "out.onnx", "--box", "0", "1", "--mask", "masks.npz")
    assert found.code == 0
    with np.load("masks.npz") as masks:
        assert [masks[name].tolist() for name in masks] == [[False, False]]
    assert compressed(three(), 0, 1, rewrites="leo++").masks["relu1"].tolist() == [False, False]


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(channelled(steps=4, neurons=9, largest=2))
def test_what_a_mask_says_is_true_of_every_input(network):
    """Against the exact ranges of all units, of the network and of what it was compressed to."""
    assume(network.input.size <= 3 and network.relus)
    ends = [np.full(network.input.shape, end) for end in (-1.0, 1.0)]
    box = Polytope.of(*(end.ravel() for end in ends))
    result = compressed(network, *ends)
    for one, masks in ((network, inactive_units(result.stability)), (result.stored, result.masks)):
        exact = exact_ranges(one, box)
        assert masks.keys() == {relu.name for relu in one.relus}
        for name, mask in masks.items():
            assert mask.shape == one.shapes[name]
            assert all(most <= 0 for (_, most), off in zip(exact[name], mask.ravel(), strict=True) if off)


def test_layers_may_have_any_name():
    write_masks(
        Path("m.npz"), {"file": np.array([True]), "allow_pickle": np.array([False]), "/a/b": np.ones(2) > 0}
    )
    with np.load("m.npz") as masks:
        assert sorted(masks) == ["/a/b", "allow_pickle", "file"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--mask", "m.txt"], ".npz"),
        (["--mask", "nowhere/m.npz"], "does not exist"),
        (["--holdout", "other.npy"], "--method data"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(capsys, arguments, reason):
    np.save("other.npy", np.zeros((1, 1)))
    found = call(capsys, "analyze", "m.onnx", "--box", "0", "1", *arguments)
    assert found.code == 2
    assert reason in found.err


def test_held_out_rows_show_how_often_data_is_wrong():
    network = three()
    stability = analyze_network(network, Box(0, 1), data=np.array([[0.1], [0.5]]), **DATA)
    assert held_out(stability, np.array([[0.2], [0.8]])).contradicted == 0
    found = held_out(stability, np.array([[0.2], [0.95], [7.0]]))
    assert (found.rows, found.stable, found.contradicted) == (2, 3, 1)
    assert found.share == pytest.approx(1 / 3)
    proved = analyze_network(network, Box(0, 1), data=None, **{**QUICK, "method": "auto"})
    assert held_out(proved, np.array([[0.95]])).share == 0
    unstable = dense(linear([[1.0]], [-0.5]), linear([[1.0]]))
    both = analyze_network(unstable, Box(0, 1), data=np.array([[0.1], [0.9]]), **DATA)
    assert held_out(both, np.array([[0.3]])).share is None


def test_the_command_says_how_often_data_is_wrong(capsys):
    np.save("data.npy", np.array([[0.1], [0.5]]))
    np.save("other.npy", np.array([[0.95]]))
    inexact = ["--method", "data", "--data", "data.npy", "--holdout", "other.npy"]
    for command, name in (
        (["analyze", "m.onnx"], "analysis"),
        (["compress", "m.onnx", "o.onnx"], "compression"),
    ):
        options = ["--box", "0", "1", *inexact]
        if name == "compression":
            options += ["--evidence", "data", "--no-latency"]
        found = call(capsys, *command, *options, "--json")
        report = json.loads(found.out)
        jsonschema.validate(report, schema(name))
        assert report["holdout"] == {"rows": 1, "stable": 3, "contradicted": 1, "share": pytest.approx(1 / 3)}
        text = call(capsys, *command, *options).out
        assert "NOT EXACT" in text
        assert "1 (33.33%)" in text
