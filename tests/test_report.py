"""The HTML report: what it says is what the JSON says, and nothing in a model can change what it is."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import os
import re
import socket
import struct
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from torch import nn

import relutrim
from command_line import call
from relutrim.analysis import analyze_network
from relutrim.domain import Box
from relutrim.graph import Network, Node, Output, Port
from relutrim.graph.operators import Linear, Relu
from relutrim.holdout import Holdout
from relutrim.latency import Latency, Timing
from relutrim.prove.stability import LayerStability
from relutrim.prove.verdict import Evidence, Verdict
from relutrim.report.html import neuron_map
from relutrim.report.html.neuron_map import CELL, Layout, payload
from relutrim.report.html.numbers import at_least, at_most, spans
from relutrim.report.html.page import analysis_page, compression_page
from relutrim.report.html.prose import domain_words
from relutrim.report.html.scale import log_places
from relutrim.report.json import compression_json, model_json, schema
from relutrim.report.tables import _widths, show_compression
from relutrim.result import Compression
from report_pages import HOSTILE, Page, channels, three
from rewriting import QUICK, compressed, dense, linear

BOX = ("--box", "0", "1")
HEADINGS = {f"h{level}": level for level in range(1, 7)}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    relutrim.save(three(), "m.onnx")
    return tmp_path


def page_of(network: Network, **options) -> Page:
    return Page(compression_page(compressed(network, 0, 1, method="auto", **options)))


def pages() -> dict[str, str]:
    """Every kind of report."""
    seen = three()
    stability = analyze_network(seen, Box(0, 1), data=None, **QUICK)
    timing = Latency(10, 5, "onnxruntime 1", (Timing(1, 3.0, 2.0, 7),))
    told = compressed(seen, 0, 1, method="data", data=np.array([[0.1]]), evidence="data")
    return {
        "compress": compression_page(compressed(seen, 0, 1, method="auto"), latency=timing),
        "unknown": compression_page(compressed(seen, 0, 1)),
        "not exact": compression_page(told, holdout=Holdout(5, 3, 1)),
        "analyze": analysis_page(stability, model_json(seen)),
        "channels": compression_page(compressed(channels(), 0, 1, method="auto")),
        "no relu": compression_page(compressed(dense(linear([[1.0]])), 0, 1)),
        "collapsed": compression_page(compressed(dense(linear([[-1.0]]), linear([[1.0]], [1.0])), 0, 1)),
        "not measured": compression_page(compressed(seen, 0, 1), latency=Latency(1, 1, remark="why")),
    }


@pytest.fixture(scope="module")
def every() -> dict[str, str]:
    return pages()


KINDS = (
    "compress",
    "unknown",
    "not exact",
    "analyze",
    "channels",
    "no relu",
    "collapsed",
    "not measured",
)


# what a page is


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_tidy_and_accessible(every, kind):
    page = Page(every[kind])
    assert every[kind].startswith("<!DOCTYPE html>")
    assert page.elements[0] == ("html", {"lang": "en"})
    for landmark in ("header", "nav", "main", "footer", "h1"):
        assert page.tags.count(landmark) == 1
    ids = page.attributes("id")
    assert len(set(ids)) == len(ids)
    assert set(page.attributes("aria-labelledby")) <= set(ids)
    assert {href[1:] for href in page.attributes("href") if href.startswith("#")} <= set(ids)
    levels = [HEADINGS[tag] for tag in page.tags if tag in HEADINGS]
    assert all(after <= before + 1 for before, after in pairwise(levels))
    for tag, attrs in page.elements:
        if attrs.get("role") in ("img", "region"):
            assert attrs["aria-label"]
        elif tag == "svg":
            assert attrs["aria-hidden"] == "true"
        elif tag == "th":
            assert attrs["scope"] in ("row", "col")
        assert "style" not in attrs  # the page's own rules forbid it


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_loads_nothing(every, kind):
    page = Page(every[kind])
    for attribute in ("src", "srcset", "action", "background", "poster", "data", "ping"):
        assert page.attributes(attribute) == []
    assert all(href.startswith("#") or href == "data:," for href in page.attributes("href"))
    (style,) = page.inside["style"]
    assert "@import" not in style
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", style))
    assert not re.search(r"https?:|[\"'(]//", every[kind])
    assert page.tags.count("script") == 3
    (policy,) = [a["content"] for t, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    for text, directive in ((page.inside["script"][-1], "script-src"), (style, "style-src")):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in (policy or "")
    assert (policy or "").startswith("default-src 'none'")


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_no_name_becomes_markup(name):
    tame = page_of(three())
    page = page_of(three(name, f"out {name}", f"source {name}"))
    assert page.tags == tame.tags
    assert [sorted(attrs) for _, attrs in page.elements] == [sorted(attrs) for _, attrs in tame.elements]
    assert page.json("report")["layers"][0]["name"] == name
    assert relutrim.errors.one_line(name)[:200] in page.text.replace("  ", " ")


@pytest.mark.parametrize("name", HOSTILE[:8], ids=range(8))
def test_neither_do_file_names_and_commands(name, capsys):
    path = Path(name.replace("/", "|") + ".onnx")
    Path("m.onnx").rename(path)
    found = call(capsys, "compress", path, "o.onnx", *BOX, "--report", "r.html", "--no-latency")
    assert found.code == 0
    page = Page(Path("r.html").read_text(encoding="utf-8"))
    assert page.tags.count("script") == 3
    assert not [key for _, attrs in page.elements for key in attrs if key.startswith("on")]


def test_a_page_tells_nothing_about_the_machine(capsys, folder):
    assert call(capsys, "compress", "m.onnx", "o.onnx", *BOX, "--report", "r.html").code == 0
    text = Path("r.html").read_text(encoding="utf-8")
    for private in (socket.gethostname(), str(folder), os.path.expanduser("~") + "/", os.environ.get("USER")):
        assert not private or len(private) < 5 or private not in text
    assert "relutrim compress m.onnx o.onnx --box 0 1 --report r.html" in Page(text).text


# what a page says


def test_numbers_are_those_of_the_json(capsys):
    found = call(capsys, "compress", "m.onnx", "o.onnx", *BOX, "--report", "r.html", "--json")
    assert found.code == 0
    report = json.loads(found.out)
    page = Page(Path("r.html").read_text(encoding="utf-8"))
    assert page.json("report") == report
    shown = page.data()
    for side in ("original", "compressed"):
        assert {float(report[side][key]) for key in ("neurons", "connections", "parameters")} <= shown
    for key in ("proven", "proven_float64", "found", "observed", "original_error"):
        assert report["deviation"][key] in shown
    for timing in report["latency"]["timings"]:
        assert {timing["before_us"], timing["after_us"]} <= shown
    assert report["model"]["sha256"] in page.text
    (layer,) = report["layers"]
    for word in ("active", "inactive", "unknown"):
        assert f"{word} {len(layer[word])}" in page.text
    assert f"unstable {layer['unstable_count']}" in page.text


def test_neurons_are_those_of_the_details(every):
    result = compressed(channels(), 0, 1, method="auto")
    report = compression_json(result, details=True)
    for told, layer in zip(Page(every["channels"]).json("data"), report["layers"], strict=True):
        bounds = struct.iter_unpack("<ff", base64.b64decode(told["bounds"]))
        for letter, (lower, upper), neuron in zip(told["codes"], bounds, layer["neurons"], strict=True):
            verdict, evidence = divmod(ord(letter) - ord("A"), len(Evidence))
            assert Verdict(verdict).word == neuron["verdict"]
            assert Evidence(evidence).word == neuron["evidence"]
            assert lower <= neuron["lower"]
            assert neuron["upper"] <= upper
            assert (lower, upper) == pytest.approx((neuron["lower"], neuron["upper"]), rel=1e-6)


def test_a_claim_is_as_strong_as_what_was_proved(every):
    proved, weak = Page(every["compress"]).text, Page(every["not exact"]).text
    assert "no output of the smaller network is farther than" in proved
    assert "real arithmetic" in proved
    assert "Not promised: anything outside of the domain" in proved
    assert "Not exact" not in proved
    assert "Not exact" in weak
    assert "No deviation is proven" in weak
    assert "of the smaller network is farther" not in weak
    assert "only because no row of the data contradicts it" in weak
    assert "1 (33.33%) are not on 5 held-out rows" in weak


def test_a_network_that_is_the_same_is_called_equal():
    text = page_of(dense(linear([[1.0], [-1.0]], [-0.5, -1.0]), linear([[1.0, 1.0]]))).text
    assert "Proven equal" in text
    assert "computes exactly what the original does" in text


def test_what_is_unknown_is_called_unknown(every):
    text = Page(every["unknown"]).text
    assert "1 is unknown: neither a proof nor a pair of inputs was found" in text
    assert "unknown 1" in text
    page = Page(every["analyze"])
    assert "Partly decided" in page.text
    assert "unstable 0" in page.text


def test_an_interruption_is_mentioned():
    stability = analyze_network(three(), Box(0, 1), data=None, **QUICK)
    text = Page(analysis_page(replace(stability, interrupted=True), model_json(three()))).text
    assert "The analysis was interrupted; what was not decided by then is unknown." in text


def test_a_certificate_is_named_by_its_hash():
    Path("c.cert").write_bytes(b"proof")
    text = compression_page(compressed(three(), 0, 1), certificate=Path("c.cert"))
    assert hashlib.sha256(b"proof").hexdigest() in Page(text).text
    assert 'id="certificate"' not in compression_page(compressed(three(), 0, 1))


def test_channels_that_go_are_seen(every):
    page = Page(every["channels"])
    assert "Channels that are inactive at every position: 1 of 3" in page.text
    assert "3 channels of 4×4" in page.text
    assert "dropped 16" in page.text
    assert "left 32" in page.text


def test_kept_units_are_named_by_their_places_in_the_original():
    page = page_of(relutrim.load(relutrim.demo_model()))
    first, second = page.json("report")["origins"].items()
    assert f"{first[0]} (63) {spans(first[1]['units'])}" in page.text
    assert f"{second[0]} (41) {spans(second[1]['units'][:31])}; 10 new" in page.text
    assert second[1]["units"][31:] == [None] * 10
    assert "relu (2) 0, 1" in page_of(channels()).text
    assert "origins" not in page_of(dense(linear([[1, -1], [-1, 1]]), linear([[1, 1]]))).attributes("id")


def test_a_model_that_is_no_longer_of_its_class_has_the_reason_everywhere():
    """Its forward() holds a size."""

    class Sized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(2, 4), nn.Linear(4, 1)
            with torch.no_grad():
                self.first.weight[1], self.first.bias[1] = 0, -1

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.first(x).relu().view(-1, 4))

    torch.manual_seed(0)
    result = relutrim.compress(Sized().eval(), relutrim.Box(0, 1, shape=(2,)), tolerance=0)
    assert not isinstance(result.model, Sized)
    assert "\nno longer of the module's class: with smaller layers its forward() " in summary(result)
    assert_says_why(result, "remark", "What came back is no longer of the module's class: ")


def test_a_model_that_cannot_say_its_edits_has_the_reason_everywhere():
    result = replace(compressed(three(), 0, 1), obstacle="a size\nis its own")
    assert_says_why(result, "obstacle", "Left as it is, since the model cannot say what would be left: ")
    as_it_was = compressed(dense(linear([[1, -1], [-1, 1]]), linear([[1, 1]])), 0, 1)
    assert "what would be left: a size is its own; the model" in summary(
        replace(as_it_was, obstacle="a size\nis its own")
    )


def summary(result: Compression) -> str:
    console = Console(width=10_000, file=io.StringIO(), markup=False)
    show_compression(result, console)
    return console.file.getvalue()


def assert_says_why(result: Compression, key: str, words: str) -> None:
    jsonschema.validate(result.report, schema("compression"))
    reason = getattr(result, key)
    assert result.report[key] == reason
    assert sum(result.report[other] is None for other in ("remark", "obstacle")) == 1
    told = f"{words}{relutrim.errors.one_line(reason)}"
    assert told in Page(compression_page(result)).text
    assert told in Page(result._repr_html_()).text


def test_thousands_of_units_fit_into_a_page():
    network = channels(12, 32)
    text = compression_page(compressed(network, 0, 1))
    assert network.neurons == 10_800
    assert len(text.encode()) < 1_000_000


def test_a_map_that_no_page_can_show_is_left_out(monkeypatch):
    monkeypatch.setattr("relutrim.report.html.page.MOST", 2)
    page = page_of(three())
    assert "more than a page can show" in page.text
    assert page.json("data") == []


def test_domains_in_words():
    box = relutrim.Box([0, -2.5], [1, 3]).sum_between(0, 1).describe()
    assert domain_words(box, 2) == (
        "all inputs whose 2 entries lie within their own ranges, the widest of them from -2.5 to 3, cut by 1 "
        "linear constraint"
    )
    raw = relutrim.NormalizedBox(0, 1, 0.5, 2).describe()
    assert domain_words(raw, 1).endswith(
        "between 0 and 1, in raw units, before the normalisation (x - mean) / std"
    )


# where neurons are drawn


SHAPES = st.lists(st.integers(1, 7), min_size=1, max_size=4).map(tuple) | st.tuples(st.integers(1, 3000))


@given(SHAPES, st.randoms(use_true_random=False))
def test_every_neuron_has_one_square(shape, random):
    layout = Layout.of(shape)
    verdict = np.array([random.randrange(4) for _ in range(math.prod(shape))])
    squares: dict[tuple[int, int], int] = {}
    for code in range(4):
        for x, y, wide in re.findall(r"M(\d+) (\d+)h(\d+)", layout.path(verdict == code)):
            assert (int(wide) + 2) % CELL == 0
            for k in range((int(wide) + 2) // CELL):
                corner = int(x) - 1 + CELL * k, int(y) - CELL // 2
                assert corner not in squares
                squares[corner] = code
    width, height = layout.view
    assert all(0 <= x <= width - CELL and 0 <= y <= height - CELL for x, y in squares)
    assert len(squares) == verdict.size
    across, gap = layout.across, 1
    for index, code in enumerate(verdict):
        tile, inside = divmod(index, layout.width * layout.height)
        row, column = divmod(inside, layout.width)
        x = (tile % across) * (layout.width + gap) + column
        y = (tile // across) * (layout.height + gap) + row
        assert squares[CELL * x, CELL * y] == code


def layer_with(lower: list[float], upper: list[float]) -> LayerStability:
    size = len(lower)
    nothing, none = np.zeros(size, np.int8), np.full(size, -1)
    return LayerStability("a", (size,), nothing, nothing, np.array(lower), np.array(upper), none, none)


@given(st.lists(st.floats(allow_nan=True), min_size=1, max_size=5))
def test_bounds_are_rounded_outward_only(ends):
    bounds = base64.b64decode(payload(layer_with(ends, ends))["bounds"])
    for end, (lower, upper) in zip(ends, struct.iter_unpack("<ff", bounds), strict=True):
        if math.isnan(end):
            assert math.isnan(lower)
            assert math.isnan(upper)
        else:
            assert lower <= end <= upper


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_shortened_bounds_claim_no_more_than_was_proved(value):
    low, high = (Decimal(text.replace(",", "")) for text in (at_least(value), at_most(value)))
    assert low <= Decimal(value) <= high
    assert float(high - low) <= 0.0101 * abs(value) + 1e-320


@given(st.sets(st.integers(0, 40)))
def test_spans_name_every_index(chosen):
    found = set()
    for part in filter(None, spans(sorted(chosen)).split(", ")):
        first, _, last = part.partition("–")
        found |= set(range(int(first), int(last or first) + 1))
    assert found == chosen


@given(st.lists(st.floats(0, 1e300), max_size=5))
def test_places_on_a_logarithmic_axis_keep_the_order(values):
    places, ticks = log_places(values)
    known = [(value, place) for value, place in zip(values, places, strict=True) if place is not None]
    assert len(known) == sum(value > 0 for value in values)
    assert all(0 <= place <= 100 for _, place in known)
    by_value = [place for _, place in sorted(known)]
    assert by_value == sorted(by_value)
    assert bool(ticks) == bool(known)


# where it goes


@pytest.mark.parametrize("command", [("compress", "m.onnx", "o.onnx"), ("analyze", "m.onnx")])
@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("r.txt", "reports are written as .html"),
        ("nowhere/r.html", "does not exist"),
        ("d.html", "this is a directory"),
    ],
)
def test_a_report_that_cannot_be_written_stops_everything_else(capsys, command, target, reason):
    Path("d.html").mkdir()
    found = call(capsys, *command, *BOX, "--report", target)
    assert found.code == 2
    assert reason in found.err
    assert sorted(path.name for path in Path().iterdir()) == ["d.html", "m.onnx"]


def test_a_report_takes_the_place_of_nothing(capsys):
    found = call(capsys, "analyze", "m.onnx", *BOX, "-o", "r.html", "--report", "r.html")
    assert found.code == 2
    assert "would replace another output" in found.err
    np.save("x.npy", np.zeros((1, 1)))
    Path("x.npy").rename("x.html")
    found = call(capsys, "analyze", "m.onnx", *BOX, "--data", "x.html", "--report", "x.html")
    assert found.code == 2
    assert "would replace the input" in found.err


def test_an_older_report_stays_where_a_new_one_fails(capsys, monkeypatch):
    Path("r.html").write_text("old")
    monkeypatch.setattr(neuron_map, "drawing", None)
    monkeypatch.setattr("relutrim.report.html.page.drawing", None)
    assert call(capsys, "analyze", "m.onnx", *BOX, "--report", "r.html").code == 1
    assert Path("r.html").read_text() == "old"
    assert sorted(path.name for path in Path().iterdir()) == ["m.onnx", "r.html"]


def test_an_analysis_has_a_report_too(capsys):
    found = call(capsys, "analyze", "m.onnx", *BOX, "--report", "r.html", "--json")
    assert found.code == 0
    page = Page(Path("r.html").read_text(encoding="utf-8"))
    assert page.json("report") == json.loads(found.out)
    assert "Every neuron decided" in page.text


def test_the_demo_has_a_report_that_does_not_say_where_relutrim_lies(capsys):
    assert call(capsys, "demo", "--output", "demo").code == 0
    text = Path("demo/report.html").read_text(encoding="utf-8")
    assert str(relutrim.demo_model().parent) not in text
    assert "784-63-41-10" in Page(text).text


def test_the_example_for_programs_runs(capsys):
    page = (Path(__file__).parents[1] / "docs" / "report.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    commands = re.findall(r"^\$ relutrim (.*)$", page, re.MULTILINE)
    Path("m.onnx").rename("model.onnx")
    for command in commands:
        assert call(capsys, *command.split()).code == 0
    result = relutrim.compress("model.onnx", relutrim.Box(0, 1))
    exec(example, {})
    assert capsys.readouterr().out == f"{result.deviation.proven}\n"


def test_python_writes_reports_too():
    relutrim.compress("m.onnx", relutrim.Box(0, 1)).save_report("r.html")
    assert "Made from Python" in Page(Path("r.html").read_text(encoding="utf-8")).text


def test_the_paper_s_widest_network_has_a_small_report(shared, capsys):
    model = shared / "networks" / "paper" / "mnist_2x800_l1_0.0001_s0.onnx"
    found = call(capsys, "compress", model, "o.onnx", *BOX, "--report", "r.html", "--no-latency", "--json")
    assert found.code == 0
    assert Path("r.html").stat().st_size < 3_000_000


# notebooks


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_notebooks_show_tables(name):
    result = compressed(three(name), 0, 1, method="auto")
    for text in (result._repr_html_(), result.stability._repr_html_()):
        page = Page(text)
        assert set(page.tags) <= {"table", "thead", "tbody", "tr", "th", "td", "p", "strong"}
        assert "1 active, 1 inactive, 1 unstable, 0 unknown" in page.text
    assert "Proven deviation on the whole domain: at most" in Page(result._repr_html_()).text
    told = compressed(three(), 0, 1, method="data", data=np.array([[0.1]]), evidence="data")
    assert "no deviation is proven" in told._repr_html_()


# What a bound on float32 says.


def summary_of(result: Compression) -> str:
    shown = io.StringIO()
    show_compression(result, Console(file=shown, width=1000, markup=False, highlight=False))
    return shown.getvalue()


def shifted(by: float) -> Network:
    """The sum of two inputs, on a way that takes it far up and down again."""
    return dense(linear([[1.0, 1.0]], [by]), linear([[1.0]], [-by]), dtype="float32")


@pytest.mark.parametrize("tolerance", ["exact", 1e-3])
def test_a_bound_on_float32_that_is_below_the_outputs_is_said(tolerance):
    result = compressed(shifted(2.0**10), 0, 1, tolerance=tolerance)
    assert 0 < result.deviation.proven_float32 < 1
    assert f"{result.deviation.proven_float32:.2e} (proven)" in summary_of(result)


@pytest.mark.parametrize("tolerance", ["exact", 1e-3, 10.0])
def test_one_that_is_above_every_output_is_not(tolerance):
    result = compressed(shifted(2.0**26), 0, 1, tolerance=tolerance)
    assert result.deviation.proven_float32 > 2  # and no output is
    assert "order of summation" not in summary_of(result)
    assert result.report["deviation"]["proven_float32"] == result.deviation.proven_float32


# widths in the terminal's tables


def test_the_terminal_counts_channels_where_there_are_positions():
    assert _widths(channels(12, 32)) == "1-12-2"


def test_the_terminal_leaves_out_the_middle_of_many_layers():
    nodes, before = [], "x"
    for number in range(40):
        linear, relu = f"l{number}", f"r{number}"
        nodes += [Node(linear, Linear(np.eye(2), np.zeros(2)), (before,)), Node(relu, Relu(), (linear,))]
        before = relu
    told = _widths(Network(Port("x", (2,)), tuple(nodes), (Output("y", before),)))
    assert "..." in told
    assert len(told) < 60
