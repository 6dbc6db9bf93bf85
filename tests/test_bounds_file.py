"""``--bounds``: every number in the file is true, and tight enough to be of use."""

from __future__ import annotations

import hashlib
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import oracle
import relutrim
import strategies
from command_line import call
from relutrim.analysis import analyze_network
from relutrim.compression import compress_network
from relutrim.domain import Box, NormalizedBox
from relutrim.prove.deadline import Deadline
from relutrim.prove.ranges import tightest
from relutrim.report.bounds import _decimal, bounds_json, of_compressed
from relutrim.report.json import dumps, model_json, schema
from rewriting import dense, linear
from test_soundness import QUICK, as_domain, slow


def read(text: str) -> dict[str, Any]:
    """The JSON with numbers as the exact decimals that are written there."""
    jsonschema.validate(json.loads(text), schema("bounds"), cls=jsonschema.Draft202012Validator)
    found: dict[str, Any] = json.loads(text, parse_float=Fraction)
    return found


def contains(ends: dict[str, Any], exact: list[tuple[Fraction, Fraction]]) -> None:
    assert len(ends["lower"]) == len(ends["upper"]) == len(exact)
    for lower, upper, (low, high) in zip(ends["lower"], ends["upper"], exact, strict=True):
        assert lower is None or lower <= low
        assert upper is None or high <= upper


@slow
@given(strategies.problems(), st.sampled_from(["auto", "bounds"]), st.booleans())
def test_bounds_hold_in_exact_arithmetic(problem: Any, method: str, late: bool) -> None:
    network, random = problem
    stability = analyze_network(network, as_domain(random), data=None, **{**QUICK, "method": method})
    ranges = tightest(stability, Deadline(0.0) if late else None)
    found = read(dumps(bounds_json(stability, model_json(network), ranges)))
    names = {name for relu in network.relus for name in (relu.name, relu.inputs[0])}
    exact = oracle.exact_value_ranges(network, random.polytope, names | set(network.sources))
    contains(found["input"], list(zip(random.polytope.lo, random.polytope.hi, strict=True)))
    for layer in found["layers"]:
        contains(layer["pre"], exact[layer["reads"]])
        contains(layer["post"], exact[layer["name"]])
        assert all(exact[layer["reads"]][i][0] >= 0 for i in layer["active"])
        assert all(exact[layer["reads"]][i][1] <= 0 for i in layer["inactive"])
        assert not set(layer["active"]) & set(layer["inactive"])
    for output in found["outputs"]:
        contains(output, exact[output["source"]])
    for name, before in stability.ranges.items():  # never wider than what the analysis knew
        assert not bool((ranges[name].lo < before.lo).any())
        assert not bool((ranges[name].hi > before.hi).any())


@settings(slow, max_examples=40)
@given(strategies.problems(), st.sampled_from(["exact", 0.125]))
def test_bounds_of_what_compression_has_stored_hold_too(problem: Any, tolerance: str | float) -> None:
    network, random = problem
    domain = as_domain(random)
    result = compress_network(network, domain, tolerance=tolerance, **QUICK)
    stability = of_compressed(result, domain=domain, data=None, **QUICK)
    found = read(dumps(bounds_json(stability, model_json(result.stored), tightest(stability))))
    names = {name for relu in result.stored.relus for name in (relu.name, relu.inputs[0])}
    exact = oracle.exact_value_ranges(result.stored, random.polytope, names | set(result.stored.sources))
    for layer in found["layers"]:
        contains(layer["pre"], exact[layer["reads"]])
        contains(layer["post"], exact[layer["name"]])
    for output in found["outputs"]:
        contains(output, exact[output["source"]])


@given(end=st.floats(), down=st.booleans())
@example(end=0.1, down=False)
@example(end=5e-324, down=True)
@example(end=1.7976931348623157e308, down=False)
@example(end=0.0, down=True)
def test_decimals_lie_outside_and_next_to_the_number(end: float, down: bool) -> None:
    found = _decimal(end, down=down)
    if found is None:
        assert not np.isfinite(end) or abs(end) == np.finfo(float).max
        return
    text, exact = Fraction(repr(found)), Fraction(end)
    assert text <= exact if down else text >= exact
    assert found in (end, np.nextafter(end, -np.inf if down else np.inf))


def test_a_single_layer_is_exact() -> None:
    """On a box the range of one linear layer is attained, and stable neurons are listed."""
    network = dense(linear([[1, -1], [1, 1], [-1, -1]], [0, 0.5, -0.25]), linear([[1, 1, 1]]))
    stability = relutrim.analyze(network, Box(0, 1))
    found = bounds_json(stability, model_json(network), tightest(stability))
    (layer,) = found["layers"]
    np.testing.assert_allclose(layer["pre"]["lower"], [-1, 0.5, -2.25], rtol=0, atol=1e-14)
    np.testing.assert_allclose(layer["pre"]["upper"], [1, 2.5, -0.25], rtol=0, atol=1e-14)
    assert layer["post"]["lower"][0] == 0
    assert layer["post"]["upper"][2] == 0
    assert (layer["active"], layer["inactive"]) == ([1], [2])
    (output,) = found["outputs"]
    assert output["upper"][0] < 3.6  # 2.5 at (1, 1), 2.5 at (1, 0): intervals would say 3.5


def test_normalisation_gives_both_inputs() -> None:
    network = dense(linear([[2.0]]), linear([[1.0]]))
    stability = relutrim.analyze(network, NormalizedBox(0, 1, 0.5, 0.25))
    found = bounds_json(stability, model_json(network))
    jsonschema.validate(found, schema("bounds"))
    assert (found["raw_input"]["lower"], found["raw_input"]["upper"]) == ([0], [1])
    assert found["input"]["name"] == "x"
    assert found["input"]["lower"] == pytest.approx([-2])
    assert found["layers"][0]["pre"]["upper"] == pytest.approx([4])


def test_unknown_is_null() -> None:
    network = dense(linear([[1e200]]), linear([[1e200]]), linear([[1.0]]))
    stability = relutrim.analyze(network, Box(-1e20, 1e20), time_limit=5)
    found = bounds_json(stability, model_json(network), tightest(stability))
    jsonschema.validate(found, schema("bounds"))
    assert found["layers"][1]["pre"]["upper"] == [None]
    assert found["layers"][1]["post"] == {"lower": [0], "upper": [None]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_commands(capsys: pytest.CaptureFixture[str]) -> None:
    model = relutrim.demo_model()
    found = call(capsys, "analyze", model, "--box", "0", "1", "--bounds", "b.json", "-q")
    assert (found.code, found.err) == (0, "")
    mine = json.loads(Path("b.json").read_text())
    jsonschema.validate(mine, schema("bounds"))
    assert [(len(one["active"]), len(one["inactive"])) for one in mine["layers"]] == [(33, 37), (57, 12)]
    found = call(capsys, "compress", model, "o.onnx", "--box", "0", "1", "--bounds", "o.json", "--json")
    assert found.code == 0
    smaller = json.loads(Path("o.json").read_text())
    jsonschema.validate(smaller, schema("bounds"))
    assert smaller["model"]["sha256"] == hashlib.sha256(Path("o.onnx").read_bytes()).hexdigest()
    written = onnx.load("o.onnx")
    names = {value for node in written.graph.node for value in node.output}
    assert {layer["name"] for layer in smaller["layers"]} <= names
    assert [len(one["pre"]["lower"]) for one in smaller["layers"]] == [63, 41]
    assert not any(one["inactive"] for one in smaller["layers"])


@pytest.mark.usefixtures("folder")
def test_a_target_that_cannot_be_written_is_found_before_anything_else(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for option in ("no/where.json", "."):
        found = call(
            capsys, "analyze", relutrim.demo_model(), "--box", "0", "1", "--bounds", option, "-o", "v.json"
        )
        assert found.code == 2
        assert not Path("v.json").exists()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "options",
    [
        ["--bounds", "o.onnx"],
        ["--model-card", "./o.onnx"],
        ["--bounds", "a", "--model-card", "a"],
        ["--mask", "a.npz", "--bounds", "a.npz"],
    ],
)
def test_no_output_takes_the_place_of_another(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    found = call(capsys, "compress", relutrim.demo_model(), "o.onnx", "--box", "0", "1", *options)
    assert found.code == 2
    assert "two outputs" in found.err
    assert not any(Path().iterdir())
