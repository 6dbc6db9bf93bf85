"""Accuracy before and after, from data with labels: what is read, what is counted, and where it is shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relutrim
from command_line import Outcome, call
from relutrim.graph import Network, Node, Output, Port, Relu
from relutrim.io.idx import write_idx
from relutrim.io.rows import read_rows
from relutrim.report.json import schema
from report_pages import Page
from rewriting import compressed, linear

BOX = ("--box", "0", "1")
Cli = Callable[..., Outcome]


def sign(outputs: int = 2) -> Network:
    """Class 0 where x0 + x1 < 1, class 1 elsewhere; one of three neurons is always off."""
    first = linear([[1.0, 1.0], [-1.0, -1.0], [-1.0, -1.0]], [-1.0, 1.0, -1.0])
    rows = [[-1.0, 1.0, 3.0], [1.0, -1.0, 2.0], [-9.0, -9.0, 1.0]][:outputs]
    nodes = (Node("a", first, ("x",)), Node("relu", Relu(), ("a",)), Node("b", linear(rows), ("relu",)))
    return Network(Port("x", (2,)), nodes, (Output("y", "b"),))


X = np.array([[0.0, 0.25], [0.75, 0.75], [1.0, 0.5], [0.25, 0.25], [5.0, 5.0]], np.float32)
Y = np.array([0, 1, 0, 0, 0])
"""One of the four rows in the box has the wrong label; the last row lies outside."""


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    monkeypatch.chdir(tmp_path)
    relutrim.save(sign(3), "m.onnx")
    return lambda *arguments: call(capsys, *arguments)


def scored(found: Outcome) -> dict[str, object] | None:
    assert (found.code, found.err) == (0, "")
    made = json.loads(found.out)
    jsonschema.validate(made, schema("compression"))
    return made["accuracy"]


QUARTERS = st.integers(-1, 5).map(lambda n: n / 4)


@given(st.lists(st.tuples(QUARTERS, QUARTERS, st.integers(0, 1)), max_size=8))
def test_rows_within_the_domain_are_counted(rows):
    network = sign(3)
    result = compressed(network, 0, 1)
    data = np.array([row[:2] for row in rows], np.float32).reshape(-1, 2)
    inside = [row for row in rows if min(row[:2]) >= 0 and max(row[:2]) <= 1]
    right = sum(label == (a + b > 1) for a, b, label in inside)  # at 1 all are 0, and the first one counts
    found = result.accuracy(data, [row[2] for row in rows])
    if not inside:
        assert found is None
    else:
        assert (found.rows, found.dtype) == (len(inside), "float32")
        assert found.before == found.after == right / len(inside)


@pytest.mark.parametrize("names", [("x", "y"), ("inputs", "labels"), ("x_test", "y_test")])
def test_an_archive_with_labels(cli: Cli, names: tuple[str, str]) -> None:
    np.savez("d.npz", **dict(zip(names, (X, Y), strict=True)))
    found = scored(cli("compress", "m.onnx", "out.onnx", *BOX, "--data", "d.npz", "--json"))
    assert found == {"rows": 4, "before": 0.75, "after": 0.75, "dtype": "float32"}


def test_where_it_is_shown(cli: Cli) -> None:
    np.savez("d.npz", x=X, y=Y[:, None])
    files = ("--report", "r.html", "--model-card", "card.md")
    found = cli("compress", "m.onnx", "out.onnx", *BOX, "--data", "d.npz", *files)
    assert "accuracy in float32 on 4 rows of the data: 75.00% before, 75.00% after" in found.out
    assert "1 of 5 data rows do not provably lie in the domain" in found.out
    page = Page(Path("r.html").read_text())
    assert "75.00% accuracy 75.00% before" in page.text
    assert page.json("report")["accuracy"]["rows"] == 4
    assert "| accuracy (float32, 4 rows) | 75.00% | 75.00% |" in Path("card.md").read_text()


def test_without_labels_nothing_is_said(cli: Cli) -> None:
    np.save("x.npy", X)
    np.savez("x.npz", x=X)
    for data in ((), ("--data", "x.npy"), ("--data", "x.npz")):
        assert scored(cli("compress", "m.onnx", "out.onnx", *BOX, *data, "--json")) is None
    found = cli("compress", "m.onnx", "out.onnx", *BOX, "--data", "x.npy", "--report", "r.html")
    assert "accuracy" not in found.out
    assert "accuracy" not in Page(Path("r.html").read_text()).text


@pytest.mark.parametrize("packed", ["", ".gz"])
def test_mnist_files(cli: Cli, packed: str) -> None:
    """Bytes are pixels between 0 and 1, and the labels are in the file beside."""
    pixels = np.array([[[0, 64]], [[255, 128]], [[200, 200]]], np.uint8)
    images = Path(f"t10k-images-idx3-ubyte{packed}")
    write_idx(images, pixels)
    assert scored(cli("compress", "m.onnx", "out.onnx", *BOX, "--data", images, "--json")) is None
    write_idx(Path(f"t10k-labels-idx1-ubyte{packed}"), np.array([0, 1, 0], np.uint8))
    found = scored(cli("compress", "m.onnx", "out.onnx", *BOX, "--data", images, "--json"))
    assert found == {"rows": 3, "before": 2 / 3, "after": 2 / 3, "dtype": "float32"}
    assert read_rows(images).raw(1.0)[1].tolist() == [[1.0, pytest.approx(128 / 255)]]
    labels = Path(f"t10k-labels-idx1-ubyte{packed}").read_bytes()
    refused = cli("analyze", "m.onnx", *BOX, "--data", images, "-o", f"t10k-labels-idx1-ubyte{packed}")
    assert refused.code == 2
    assert "would replace the input" in refused.err
    assert Path(f"t10k-labels-idx1-ubyte{packed}").read_bytes() == labels


def test_held_out_rows_may_have_labels(cli: Cli) -> None:
    np.savez("d.npz", x=X, y=Y)
    options = ("--method", "data", "--data", "d.npz", "--holdout", "d.npz", "--json")
    found = json.loads(cli("analyze", "m.onnx", *BOX, *options).out)
    assert (found["data"]["rows"], found["holdout"]["contradicted"]) == (5, 0)


def test_networks_that_are_no_classifiers(cli: Cli) -> None:
    """One number, or as many as inputs: there is no class that a label could name."""
    np.savez("d.npz", x=X, y=Y)
    for outputs in (1, 2):
        relutrim.save(sign(outputs), "other.onnx")
        assert scored(cli("compress", "other.onnx", "out.onnx", *BOX, "--data", "d.npz", "--json")) is None


@pytest.mark.parametrize(
    ("y", "said"),
    [
        ([0, 1, 2, 3, 0], "from 0 to 3, and the network has 3 outputs"),
        ([0, 1, -1, 0, 0], "whole numbers from 0 on are needed"),
        ([0.0, 1.0, 0.5, 0.0, 0.0], "whole numbers from 0 on are needed"),
        (np.eye(5, dtype=int), "whole numbers from 0 on are needed"),
        ([0, 1], "2 labels do not go with 5 rows"),
    ],
)
def test_labels_that_cannot_be(cli: Cli, y: object, said: str) -> None:
    np.savez("d.npz", x=X, y=np.array(y))
    found = cli("compress", "m.onnx", "out.onnx", *BOX, "--data", "d.npz")
    assert (found.code, found.out) == (2, "")
    assert said in found.err
    assert "d.npz" in found.err
    assert not Path("out.onnx").exists()


def test_archives_that_hold_something_else(cli: Cli) -> None:
    np.savez("d.npz", a=X)
    found = cli("compress", "m.onnx", "out.onnx", *BOX, "--data", "d.npz")
    assert (found.code, found.out) == (2, "")
    assert "it holds a; x is missing" in found.err


def test_bytes_on_a_domain_that_is_not_of_pixels(cli: Cli) -> None:
    np.savez("d.npz", x=X.astype(np.uint8), y=Y)
    found = cli("compress", "m.onnx", "out.onnx", "--box", "0", "255", "--data", "d.npz")
    assert (found.code, found.out) == (2, "")
    assert "the domain reaches up to 255" in found.err
