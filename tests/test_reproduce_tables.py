"""Rows become tables and figures: whose numbers stand where, and what is made without any."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from command_line import call
from relutrim.paper.reproduce.collect import collect
from relutrim.paper.reproduce.measured import measured
from relutrim.paper.reproduce.published import published
from relutrim.paper.reproduce.rows import appending, file_of

PLOT = importlib.util.find_spec("matplotlib") is not None


def network(
    l1: float, seed: int, accuracy: float, seconds: float, left: int, cell: str = "2x100", **more: Any
) -> list[dict[str, Any]]:
    """The lines of a network of which LEO++ leaves some neurons."""
    size = {"neurons": 200, "connections": 89_400, "parameters": 89_610, "hidden": [100, 100]}
    after = {**size, "neurons": left, "connections": 447 * left}
    about = {
        "experiment": "mnist",
        "network": f"mnist_{cell}_{l1}_{seed}",
        "sha256": f"{cell}{l1}{seed}",
        "dataset": "mnist",
        "architecture": cell.removesuffix("-normalized"),
        "cell": cell,
        "l1": l1,
        "seed": seed,
        "epochs": 120,
        "train_rows": 60_000,
        "device": "cuda",
        "test_loss": 0.1,
        "test_accuracy": accuracy,
        "status": "done",
        **more,
    }
    layers = [[100, 20, 10, 0], [100, 5, 5, 0]]
    verdicts = {"complete": True, "layers": layers, "by_solver": 0, "remarks": []}
    rewritten = {"size": after, "proven": 0.0, "accuracy": accuracy, "changed": 0}
    auto = {
        **verdicts,
        "seconds": seconds,
        "size": size,
        "accuracy": accuracy,
        "rewrites": dict.fromkeys(("leo++", "all", "rounding", "1e-6"), rewritten),
        "magnitude": {
            "connections": 1000,
            "removable": 200,
            "median": 0.5,
            "last": 0.995,
            "beyond_99": 0.01,
            "missed": 50,
        },
    }
    stopped = {**verdicts, "complete": False}
    data = {
        **verdicts,
        "seconds": 1.0,
        "stable": 80,
        "contradicted": 2,
        "accuracy": accuracy,
        "masked": {"accuracy": accuracy - 0.001},
    }
    cut = {**verdicts, "seconds": seconds / 2}
    results = {
        "auto": ({"time_limit": 300.0}, auto),
        "data": ({}, data),
        "isa": ({"time_limit": 60.0}, {**verdicts, "seconds": 10 * seconds}),
        "neuron": ({"time_limit": 60.0}, {**stopped, "seconds": 60.0}),
        "sum": ({}, {"auto": cut, "isa": {**cut, "seconds": 20 * seconds}}),
    }
    return [
        {**about, "key": f"{about['network']}{stage}", "stage": stage, "options": options, "result": result}
        for stage, (options, result) in results.items()
    ]


def written(folder: Path, *networks: list[dict[str, Any]]) -> dict[str, list[dict[str, str]]]:
    """The CSV files that come of lines, by name."""
    with appending(file_of(folder)) as rows:
        for line in (line for lines in networks for line in lines):
            rows.write(line)
    collect(folder, "mnist", lambda text: None)
    return {
        path.stem.removeprefix("mnist-"): list(csv.DictReader(path.open(encoding="utf-8")))
        for path in folder.glob("*.csv")
    }


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, list[dict[str, str]]]:
    return written(
        tmp_path,
        network(0.0, 0, 0.979, 1.0, 200),
        network(2e-4, 0, 0.98, 0.5, 160),
        network(2e-4, 1, 0.978, 0.2, 150),
        network(3e-4, 0, 0.96, 0.1, 100),
        network(2e-4, 0, 0.97, 0.1, 140, "2x100-normalized"),
    )


def headline(tables: dict[str, list[dict[str, str]]], what: str) -> dict[str, str]:
    return next(row for row in tables["headlines"] if row["what"] == what)


def test_files_that_differ_are_one_network_if_its_losses_are_the_same():
    """Another version of the tool writes other bytes for the same weights; other losses are other weights."""
    slow = network(0.0, 0, 0.98, 60.0, 180, train_loss=0.031)
    again = network(0.0, 0, 0.98, 90.0, 180, train_loss=0.031, sha256="other")
    slow[0]["result"]["complete"] = False
    slow[0]["options"], again[0]["options"] = {"time_limit": 60.0}, {"time_limit": 300.0}
    (one,), left_out = measured([*slow, again[0]], "mnist")
    assert left_out == 0
    assert one.results["auto"]["complete"]
    elsewhere = network(0.0, 0, 0.97, 90.0, 180, train_loss=0.032, sha256="other")
    (one,), left_out = measured([*slow, elsewhere[0]], "mnist")
    assert left_out == 1
    assert not one.results["auto"]["complete"]


def test_means_stand_beside_the_papers(tables: dict[str, list[dict[str, str]]]) -> None:
    cell = next(row for row in tables["cells"] if (row["architecture"], row["l1"]) == ("2x100", "0.0002"))
    assert cell["networks"] == "2"
    assert float(cell["accuracy %"]) == pytest.approx(97.9)
    assert float(cell["paper: accuracy %"]) == 97.91
    assert float(cell["auto s"]) == pytest.approx(0.35)
    assert float(cell["speed-up"]) == pytest.approx(3.5 / 0.35)
    assert float(cell["LEO++ neurons %"]) == pytest.approx(22.5)
    assert float(cell["difference"]) == pytest.approx(22.5 - 31)


def test_what_the_paper_does_not_print_has_no_number(tables: dict[str, list[dict[str, str]]]) -> None:
    cell = next(row for row in tables["cells"] if row["architecture"] == "2x100-normalized")
    assert cell["paper: s"] == cell["speed-up"] == cell["difference"] == ""


def test_headlines(tables: dict[str, list[dict[str, str]]]) -> None:
    # Programs per neuron were stopped after 60 s on all five networks; ISA took 10, 5, 2, 1 and 1.
    ratio = headline(tables, "ISA over programs per neuron: median")
    assert float(ratio["ours"]) == 30
    assert "5 of them stopped: at least" in ratio["over"]
    best = headline(tables, "largest mean share of connections removed with no loss of accuracy: leo++ (%)")
    assert float(best["ours"]) == pytest.approx(22.5)  # 3e-4 removes more, but loses accuracy
    assert "l1 = 0.0002" in best["over"]
    line = headline(tables, "accuracy by neurons left at 2x100: R² (%)")
    assert line["over"] == "3 compressible networks"
    assert float(line["ours"]) == pytest.approx(100 * 0.99412**2, abs=2)


def test_side_experiments(tables: dict[str, list[dict[str, str]]]) -> None:
    missed = next(
        row for row in tables["magnitude"] if row["what"].startswith("missed") and "of them" in row["what"]
    )
    assert (float(missed["ours"]), float(missed["paper"])) == (25.0, 18.0)
    faster = next(row for row in tables["sum"] if row["what"].startswith("faster"))
    assert (float(faster["auto"]), float(faster["ISA"])) == (100.0, 0.0)
    slower = next(row for row in tables["sum"] if row["what"].startswith("geometric"))
    assert float(slower["auto"]) == pytest.approx(50)
    assert float(slower["ISA"]) == pytest.approx(-100)
    every = next(row for row in tables["inexact"] if row["architecture"] == "all")
    assert every["networks"] == "4"  # the normalised one is there for its own sake
    assert float(every["not stable on the test set %"]) == pytest.approx(2.5)
    assert float(every["accuracy change if masked"]) == pytest.approx(-0.1)


def test_made_up_data_is_not_held_against_the_paper(tmp_path: Path) -> None:
    tables = written(tmp_path, network(2e-4, 0, 1.0, 1.0, 180, dataset="synthetic-mnist"))
    assert tables["cells"][0]["paper: s"] == ""
    assert headline(tables, "ISA over programs per neuron: median")["paper"] == ""


def test_runs_with_other_settings_do_not_share_a_table(tmp_path: Path) -> None:
    quick = network(0.0, 0, 0.9, 1.0, 200, epochs=3)
    for line in quick:
        line["key"] += "quick"
    tables = written(tmp_path, quick, network(0.0, 0, 0.98, 1.0, 200), network(0.0, 1, 0.98, 1.0, 200))
    assert float(tables["cells"][0]["accuracy %"]) == pytest.approx(98)


def test_the_line_that_counts() -> None:
    """More time counts where it decided more; other constants are another measurement, whatever came out."""
    plain = network(1e-4, 0, 0.98, 1.0, 200)
    auto, isa = (next(line for line in plain if line["stage"] == stage) for stage in ("auto", "isa"))

    def seconds(*lines: dict[str, Any]) -> float | None:
        return measured(lines, "mnist")[0][0].seconds(lines[0]["stage"])

    def again(line: dict[str, Any], took: float, complete: bool, **options: Any) -> dict[str, Any]:
        result = {**line["result"], "seconds": took, "complete": complete}
        return {**line, "options": {**line["options"], **options}, "result": result}

    stopped = again(auto, 9, False, time_limit=9)
    assert seconds(stopped, auto) == seconds(auto, stopped) == 1.0
    assert seconds(stopped, again(auto, 20, False, time_limit=20)) == 20
    assert seconds(auto, again(auto, 2, True, neuron_time_limit=5)) == 2
    assert seconds(isa, again(isa, 60, False, big_m="interval")) == 60
    assert seconds(again(isa, 60, False, big_m="interval"), isa) == 10


def test_the_papers_tables_are_whole() -> None:
    counts = {
        name: sum(key[0] == name for key in published())
        for name in ("mnist", "cifar10", "cifar100", "autoencoder")
    }
    assert counts == {"mnist": 64, "cifar10": 71, "cifar100": 70, "autoencoder": 18}
    line = published()["cifar10", "5x100", 1.5e-4]
    assert (line.score, line.seconds, line.neurons, line.connections, line.timeouts) == (
        51.4,
        1000,
        20,
        27,
        4,
    )


def test_a_whole_run_from_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ["reproduce", "mnist", "--quick", "--synthetic", "--output", tmp_path, "--jobs", "1"]
    arguments += [
        "--architecture",
        "2x8",
        "1x6-bn",
        "--l1",
        "0.003",
        "0.01",
        "--epochs",
        "2",
        "--rows",
        "300",
    ]
    arguments += ["--isa-time-limit", "20"]
    done = call(capsys, *arguments)
    assert done.code == 0, done.err
    assert ("no figures" in done.err) != PLOT
    names = {path.name for path in tmp_path.iterdir()}
    assert {"mnist.md", "mnist-cells.csv", "mnist-networks.csv", "rows.jsonl"} <= names
    assert ("mnist-curves.svg" in names) == PLOT
    text = (tmp_path / "mnist.md").read_text(encoding="utf-8")
    assert "1x6-bn" in text
    before = (tmp_path / "rows.jsonl").read_bytes()
    (tmp_path / "mnist.md").unlink()
    assert call(capsys, "reproduce", "mnist", "--output", tmp_path, "--tables-only").code == 0
    assert (tmp_path / "mnist.md").read_text(encoding="utf-8") == text
    assert call(capsys, *arguments).code == 0
    assert (tmp_path / "rows.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--quick", "--paper"], "exclude"),
        (["--shard", "3/2"], "shard"),
        (["--stage", "isa", "magic"], "magic"),
        (["--jobs", "0", "--synthetic"], "jobs"),
        (["--time-limit", "inf"], "time limit"),
        (["--isa-share", "2"], "share"),
        (["--data-dir", "."], "not there"),
        (["--tables-only"], "no rows"),
        (["--architecture", "2y100"], "2y100"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    outcome = call(capsys, "reproduce", "mnist", "--output", tmp_path / "out", *arguments)
    assert outcome.code == 2
    assert message in outcome.err


def test_without_a_folder_nothing_begins(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "reproduce", "mnist", "--synthetic").code == 2


def test_where_dask_is_missing_the_extra_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    outcome = call(
        capsys, "reproduce", "mnist", "--synthetic", "--output", tmp_path, "--cluster", "tcp://x:1"
    )
    assert outcome.code == 2
    assert "relutrim[dask]" in outcome.err
