"""Origins in the metadata, and the model card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings

import relutrim
import relutrim.origins
import strategies
from command_line import call
from relutrim.compression import compress_network
from relutrim.domain import Box, Everywhere, NormalizedBox
from relutrim.graph import Network
from relutrim.io import load
from relutrim.origins import KEY
from relutrim.prove.verdict import Verdict
from relutrim.report.json import dumps, schema
from rewriting import dense, linear
from test_drop_channels import conv, network
from test_soundness import QUICK, as_domain, slow


def written(result: Any) -> dict[str, Any]:
    """What the compressed network says of where its units are from; one that is unchanged says nothing."""
    if result.unchanged:
        return {}
    made: dict[str, Any] = json.loads(result.stored.metadata[KEY])
    assert list(made) == [relu.name for relu in result.stored.relus]
    return made


def test_kept_units_name_their_places_and_carriers_have_none() -> None:
    result = relutrim.compress(relutrim.demo_model(), Box(0, 1))
    made = written(result)
    for layer, first in zip(result.stability.layers, (True, False), strict=True):
        found = made[layer.name]
        assert found["layer"] == layer.name
        known = [unit for unit in found["units"] if unit is not None]
        if first:  # inactive units went, and nothing else happened
            assert found["units"] == sorted(set(range(100)) - set(layer.which(Verdict.INACTIVE)))
        else:  # ten carriers stand for all that is active
            assert sorted(known) == layer.which(Verdict.UNSTABLE)
            assert found["units"].count(None) == 10
    assert result.stored.metadata["test_accuracy_or_loss"]  # what was there before


def depended_on(network: Network) -> dict[str, np.ndarray]:
    """Of each value the entries that an output depends on; of others only the weights are what they were."""
    shapes = network.shapes
    found = {name: np.full(shape, network.is_output(name)) for name, shape in shapes.items()}
    for node in reversed(network.nodes):
        reads = node.operator.reads(found[node.name], [shapes[name] for name in node.inputs])
        for name, read in zip(node.inputs, reads, strict=True):
            found[name] |= read
    return {name: mask.reshape(-1) for name, mask in found.items()}


@settings(slow, max_examples=50)
@given(strategies.problems(extreme=False))
def test_an_origin_computes_the_same_up_to_a_positive_number(problem: Any) -> None:
    small, random = problem
    result = compress_network(small, as_domain(random), **QUICK)
    box = result.stability.problem.region()
    x = box.sample(64, torch.Generator().manual_seed(77))
    before, after = small.run(x), result.stored.run(x)
    needed = depended_on(result.stored)
    for name, found in written(result).items():
        mine = after[name].reshape(len(x), -1)
        assert len(found["units"]) == mine.shape[1]
        for unit, origin in enumerate(found["units"]):
            if origin is None or not needed[name][unit]:
                continue
            theirs = before[found["layer"]].reshape(len(x), -1)[:, origin]
            if theirs.max() > 0 and mine[:, unit].max() > 0:
                scale = mine[:, unit].max() / theirs.max()
                torch.testing.assert_close(
                    mine[:, unit], scale * theirs, rtol=1e-3, atol=1e-3 * float(mine[:, unit].max())
                )


def test_a_multiple_is_an_origin_and_a_shifted_or_bent_copy_is_not() -> None:
    """Two collinear neurons become one; u and -u are none of each other."""
    small = dense(
        linear([[1, -1], [2, -2], [-1, 1], [1, 1]], [0.25, 0.5, 0.5, -0.5]),
        linear([[1, 1, 1, 1], [1, 0, 2, 3]]),
    )
    result = relutrim.compress(small, Box(0, 1))
    (found,) = written(result).values()
    kept = [unit for unit in found["units"] if unit is not None]
    assert len(found["units"]) == 3
    assert len(kept) == 3
    assert len({0, 1} & set(kept)) == 1
    assert {2, 3} <= set(kept)


def test_compressed_twice_the_first_network_counts(tmp_path: Path) -> None:
    first = relutrim.compress(relutrim.demo_model(), Box(0, 1))
    first.save(tmp_path / "first.onnx")
    second = relutrim.compress(tmp_path / "first.onnx", Box(0, 0.5))
    once, twice = written(first), written(second)
    for name, found in twice.items():
        known = [unit for unit in found["units"] if unit is not None]
        assert known
        assert set(known) <= set(once[name]["units"])
        original, small = load(relutrim.demo_model()), second.stored
        x = torch.rand(200, 784, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) / 2
        mine, theirs = small.run(x)[name], original.run(x)[name]
        for unit, origin in enumerate(found["units"]):
            if origin is not None and theirs[:, origin].max() > 0:
                scale = mine[:, unit].max() / theirs[:, origin].max()
                torch.testing.assert_close(mine[:, unit], scale * theirs[:, origin], rtol=1e-3, atol=1e-4)


NONSENSE = (
    *("", "{", "[1]", "[" * 100_000, '{"relu1": 3}', '{"relu1": {"units": ["a"]}}'),
    *('{"relu1": {"layer": 5, "units": [0]}}', '{"relu1": {"layer": "relu1", "units": "0"}}'),
    *('{"relu1": {"layer": null, "units": [-1]}}', '{"relu1": {"layer": null, "units": [true]}}'),
)


@pytest.mark.parametrize("nonsense", NONSENSE, ids=range(len(NONSENSE)))
def test_nonsense_in_the_metadata_is_not_taken_for_origins(nonsense: str) -> None:
    small = dense(linear([[1, -1], [-1, -1]], [0, -1]), linear([[1, 1]]))
    small = Network(small.input, small.nodes, small.outputs, small.dtype, {KEY: nonsense, "mine": "stays"})
    result = relutrim.compress(small, Box(0, 1))
    assert written(result)["relu1"] == {"layer": "relu1", "units": [0]}
    assert result.stored.metadata["mine"] == "stays"
    as_it_was = relutrim.compress(small, Everywhere())
    assert as_it_was.unchanged
    assert as_it_was.origins == {}


def test_channels_have_origins() -> None:
    small = network(
        (2, 5, 5),
        ("c1", conv(2, 4, dead=(1,)), "x"),
        ("r1", relutrim.graph.Relu(), "c1"),
        ("c2", conv(4, 3), "r1"),
    ).edit(dtype="float64")
    result = relutrim.compress(small, Box(0, 1))
    assert written(result)["r1"] == {"layer": "r1", "units": [0, 2, 3]}
    assert reported(result) == written(result)


def test_normalised_inputs_have_origins() -> None:
    small = dense(linear([[1, -1], [-1, -1], [1, 2]], [0, -2, -1]), linear([[1, 1, 1], [0, 1, 2]]))
    result = relutrim.compress(small, NormalizedBox(0, 1, 0.25, 0.5))
    (found,) = written(result).values()
    assert found["units"] == [0, 2]


@pytest.mark.parametrize("size", [1e300, 1e-300])
def test_numbers_beyond_all_measure_have_no_origins_and_do_no_harm(size: float) -> None:
    small = dense(linear([[size], [-size]]), linear([[size, 1.0]]), linear([[1.0]]))
    for units in written(relutrim.compress(small, Box(-1, 1), time_limit=5)).values():
        assert all(unit is None or unit < 2 for unit in units["units"])


def test_metadata_changes_nothing_that_is_computed(tmp_path: Path) -> None:
    result = relutrim.compress(relutrim.demo_model(), Box(0, 1))
    result.save(tmp_path / "with.onnx")
    proto = onnx.load(tmp_path / "with.onnx")
    assert {entry.key for entry in proto.metadata_props} >= {KEY, "test_accuracy_or_loss"}
    x = torch.rand(10, 784, dtype=torch.float64)
    # The same weights may lie otherwise in memory, and be summed in another order.
    torch.testing.assert_close(load(tmp_path / "with.onnx")(x), result.stored(x), rtol=0, atol=1e-12)


# The report


def reported(result: Any) -> dict[str, Any]:
    """The origins in the JSON, which fits its schema."""
    report = result.report
    jsonschema.validate(report, schema("compression"))
    found: dict[str, Any] = json.loads(dumps(report))["origins"]
    return found


def test_the_report_says_what_the_metadata_say() -> None:
    result = relutrim.compress(relutrim.demo_model(), Box(0, 1))
    assert result.origins == reported(result) == written(result)


def test_the_report_leaves_out_relus_that_have_all_of_their_units() -> None:
    small = dense(
        linear([[1, -1], [-1, 1]]), linear([[1, 1], [-1, -1], [1, -1]], [0, -1, 0.25]), linear([[1, 1, 2]])
    )
    result = relutrim.compress(small, Box(0, 1))
    assert written(result) == {
        "relu1": {"layer": "relu1", "units": [0, 1]},
        "relu2": {"layer": "relu2", "units": [0, 2]},
    }
    assert list(reported(result)) == ["relu2"]


def test_a_prefix_is_not_all_of_the_units() -> None:
    small = dense(linear([[1, -1], [-1, 1], [-1, -1]], [0, 0, -1]), linear([[1, 1, 1]]))
    found = reported(relutrim.compress(small, Box(0, 1)))
    assert found == {"relu1": {"layer": "relu1", "units": [0, 1]}}


def test_what_comes_back_as_it_was_has_nothing_to_report() -> None:
    result = relutrim.compress(dense(linear([[1, -1], [-1, 1]]), linear([[1, 1]])), Box(0, 1))
    assert result.unchanged
    assert reported(result) == {}


def test_compressed_twice_every_relu_is_reported_as_a_part_of_the_first_network(tmp_path: Path) -> None:
    first = relutrim.compress(relutrim.demo_model(), Box(0, 1))
    first.save(tmp_path / "first.onnx")
    second = relutrim.compress(tmp_path / "first.onnx", Box(0, 0.5))
    assert not second.unchanged
    assert reported(second) == written(second)
    again = relutrim.compress(tmp_path / "first.onnx", Everywhere(), tolerance=0)
    assert again.unchanged
    assert reported(again) == written(first)


# The model card


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.chdir(tmp_path)

    def make(*options: str) -> str:
        found = call(
            capsys, "compress", relutrim.demo_model(), "out.onnx", *options, "--model-card", "CARD.md", "-q"
        )
        assert (found.code, found.out, found.err) == (0, "", "")
        return Path("CARD.md").read_text()

    return make


def test_the_card_says_what_was_done_and_what_is_proven(card: Any) -> None:
    text = card("--box", "0", "1")
    assert text.startswith("## Compression\n")
    assert "every number between 0 and 1. Nothing is promised for any other input" in text
    assert "**Proven**: on every input below" in text
    assert "| parameters | 89,610 | 52,499 |" in text
    assert "49 are proven to be 0" in text
    assert "- drop-inactive at relu1.out: removed 37 inactive of 100 neurons" in text
    assert "$ relutrim compress " in text
    assert "Not exact" not in text


def test_the_card_does_not_call_data_a_proof(card: Any) -> None:
    np.save("d.npy", np.random.default_rng(0).uniform(0, 1, (50, 784)))
    text = card("--box", "0", "1", "--method", "data", "--data", "d.npy", "--evidence", "data")
    assert "**Not exact.**" in text
    assert "**Proven**" not in text
    assert "on weaker evidence" in text


def test_the_card_states_domains_exactly(card: Any) -> None:
    text = card(
        "--normalized-box",
        "0",
        "1.00000001",
        "--mean",
        "0.1307",
        "--std",
        "0.3081",
        "--sum-between",
        "9",
        "99",
    )
    assert (
        "between 0 and 1.00000001 before normalisation by mean 0.1307 and standard deviation 0.3081" in text
    )
    assert "subject to 1 linear constraint." in text
