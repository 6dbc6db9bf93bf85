"""From a grid to rows: all of it once, whoever does it and whatever happens on the way."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from relutrim.errors import InputError
from relutrim.paper.reproduce import run as running
from relutrim.paper.reproduce.executors import ATTEMPTS, Processes, Serial
from relutrim.paper.reproduce.grid import grid
from relutrim.paper.reproduce.measured import measured, undecided
from relutrim.paper.reproduce.options import parsed_shard
from relutrim.paper.reproduce.rows import Line, appending, file_of, read_lines
from relutrim.paper.reproduce.stages import Measures
from relutrim.paper.reproduce.task import DataRef
from reproducing import CELLS, all_lines, dies_at_first, small, table, task

NETWORKS = sum(len(cell.l1) * len(cell.seeds) for cell in CELLS)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in one process that nothing happened to."""
    output = tmp_path_factory.mktemp("whole")
    assert small(output).run(Serial()) == 0
    return output


def test_every_network_is_measured_once_in_every_way(whole: Path) -> None:
    lines = read_lines(whole)
    assert Counter(line["stage"] for line in lines) == {"auto": NETWORKS, "data": NETWORKS, "isa": NETWORKS}
    assert {line["status"] for line in lines} == {"done"}
    assert len({line["network"] for line in lines}) == NETWORKS


def test_methods_agree_and_nothing_proved_is_contradicted(whole: Path) -> None:
    by_network: dict[str, dict[str, Line]] = {}
    for line in read_lines(whole):
        by_network.setdefault(line["network"], {})[line["stage"]] = line["result"]
    for found in by_network.values():
        assert found["auto"]["complete"]
        assert found["isa"]["layers"] == found["auto"]["layers"]
        for proved, seen in zip(found["auto"]["layers"], found["data"]["layers"], strict=True):
            assert proved[2] <= seen[2]  # what can never be on is on for no row


def test_accuracy_is_what_training_measured_and_compression_leaves_it(whole: Path) -> None:
    for line in read_lines(whole):
        if line["stage"] == "auto":
            result = line["result"]
            assert result["accuracy"] == line["test_accuracy"]
            for after in result["rewrites"].values():
                assert after["size"]["neurons"] <= result["size"]["neurons"]
                assert abs(after["accuracy"] - result["accuracy"]) <= 1 / 500


def test_what_is_done_is_not_done_again(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = file_of(whole).read_bytes()
    monkeypatch.setattr(running, "train_many", lambda *_, **__: pytest.fail("trained again"))
    assert small(whole).run(Serial()) == 0
    assert file_of(whole).read_bytes() == before


def test_a_run_that_is_killed_goes_on_to_the_same_table(whole: Path, tmp_path: Path) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path; from reproducing import small\n"
        "from relutrim.paper.reproduce.executors import Serial; small(Path(sys.argv[2])).run(Serial())"
    )
    arguments = [sys.executable, "-c", script, str(Path(__file__).parent), str(tmp_path)]
    path = file_of(tmp_path)
    for wanted in (1, 4):
        process = subprocess.Popen(arguments)
        until = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < until:
            if path.exists() and path.read_bytes().count(b"\n") >= wanted:
                break
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        with path.open("ab") as file:
            file.write(b'{"schema": "relutrim/repro')
    done = set(table(tmp_path))
    assert small(tmp_path).run(Serial()) == 0
    assert table(tmp_path) == table(whole)
    assert 0 < len(done) < len(table(whole))
    assert path.read_bytes().count(b'"status": "done"') == len(table(whole))  # none was done twice


def test_processes_come_to_the_same_table(whole: Path, tmp_path: Path) -> None:
    assert small(tmp_path, beside=True).run(Processes(2)) == 0
    assert table(tmp_path) == table(whole)


def test_shards_make_the_whole(whole: Path, tmp_path: Path) -> None:
    counts = []
    for number in (1, 2, 3):
        assert small(tmp_path, shard=(number, 3)).run(Serial()) == 0
        counts.append(file_of(tmp_path, (number, 3)).read_bytes().count(b"\n"))
    assert sum(counts) == len(table(whole))
    assert max(counts) - min(counts) <= 3
    assert table(tmp_path) == table(whole)


def test_other_settings_are_other_rows(whole: Path, tmp_path: Path) -> None:
    data = DataRef("synthetic-mnist", None, 300).load()

    def keys(**fields: object) -> set[str]:
        run = small(tmp_path, **fields)
        wanted = (one for cell in run.grid.cells for one in run.wanted(cell, data))
        return {key for one in wanted for _, _, key in one.stages}

    plain = keys()
    assert plain == set(table(whole))
    longer = keys(measures=Measures(("auto", "data", "isa"), time_limit=60, isa_time_limit=61))
    assert len(plain & longer) == 2 * NETWORKS  # isa alone knows of its limit
    assert not plain & keys(grid=small(tmp_path).grid.only(epochs=3))
    assert not plain & keys(device="cuda")


def test_a_failure_is_written_down_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from relutrim.paper.reproduce.measure import MEASURES

    def broken(*_: object, **__: object) -> dict[str, object]:
        raise MemoryError("too large")

    with monkeypatch.context() as patch:
        patch.setitem(MEASURES, "isa", broken)
        assert small(tmp_path).run(Serial()) == NETWORKS
    errors = {line["error"] for line in read_lines(tmp_path) if line["status"] == "failed"}
    assert errors == {"MemoryError: too large"}
    assert small(tmp_path).run(Serial()) == 0
    assert {line["status"] for line in read_lines(tmp_path)} == {"done"}


def test_a_row_is_about_one_network_even_if_training_came_out_differently(tmp_path: Path) -> None:
    seen = small(tmp_path, measures=Measures(("data",)))
    assert seen.run(Serial()) == 0
    path = file_of(tmp_path)
    hashes = {line["network"]: line["sha256"] for line in read_lines(tmp_path)}
    some = min(hashes)
    path.write_text(path.read_text().replace(hashes[some], "0" * 64))  # as if another GPU had trained it
    assert seen.run(Serial()) == 0  # everything has its row
    assert small(tmp_path, measures=Measures(("data", "auto"))).run(Serial()) == 0
    assert {line["network"]: line["sha256"] for line in read_lines(tmp_path)} == hashes
    assert path.read_text().count('"stage": "data"') == NETWORKS + 1


def test_a_process_that_dies_costs_its_task_alone(tmp_path: Path) -> None:
    executor = Processes(2, dies_at_first)
    names = ["plain", "once", "other", "always", "once-more", "last"]
    for name in names:
        executor.submit(task(name, tmp_path))
    try:
        found = all_lines(executor)
    finally:
        executor.close()
    assert set(found) == set(names)
    assert {name for name, line in found.items() if line["status"] == "failed"} == {"always"}
    assert "exit code 9" in found["always"]["error"]
    tries = Counter(path.name.rpartition("-")[0] for path in tmp_path.iterdir())
    assert tries == {"plain": 1, "once": 2, "other": 1, "always": ATTEMPTS, "once-more": 2, "last": 1}


def test_a_task_that_does_not_end_is_given_up(tmp_path: Path) -> None:
    executor = Processes(1, dies_at_first)
    executor.submit(task("endless", tmp_path, hard_limit=3.0))
    executor.submit(task("plain", tmp_path))
    try:
        found = all_lines(executor)
    finally:
        executor.close()
    assert found["endless"]["status"] == "failed"
    assert found["plain"]["status"] == "done"


@pytest.mark.parametrize("text", ["0/4", "5/4", "1", "a/b", "1/0", "-1/4", ""])
def test_a_shard_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="shard"):
        parsed_shard(text)


def test_the_papers_grid_is_the_papers() -> None:
    cells = {cell.name: cell for cell in grid("mnist", "paper").cells if not cell.side}
    assert list(cells) == ["2x100", "2x200", "2x400", "2x800", "3x100", "4x100", "5x100"]
    assert [len(cell.l1) for cell in cells.values()] == [17, 9, 9, 9, 9, 9, 9]
    assert all(cell.seeds == (0, 1, 2, 3, 4) for cell in cells.values())
    assert cells["2x100"].l1[-1] == 4e-4
    assert cells["5x100"].l1[-1] == 2e-4
    assert len([cell for cell in grid("autoencoder", "paper").cells if cell.l1 == (0, 2e-5, 2e-4)]) == 6


def test_a_second_run_on_the_same_rows_is_refused(tmp_path: Path) -> None:
    with appending(file_of(tmp_path)), pytest.raises(InputError, match="another run"):
        small(tmp_path).run(Serial())


def test_what_is_left_undecided_is_measured_again_with_more_time(tmp_path: Path) -> None:
    hurried, patient = (Measures(("auto", "data"), time_limit=limit) for limit in (1e-6, 60))
    assert small(tmp_path, measures=hurried).run(Serial()) == 0
    before = read_lines(tmp_path)
    left = {line["network"] for line in before if not line["result"]["complete"]}
    assert 0 < len(left) < NETWORKS
    assert undecided(before, "mnist") == {(name, "auto") for name in left}
    for _ in range(2):  # the second time there is nothing left to do
        assert small(tmp_path, measures=patient, undecided=True).run(Serial()) == 0
        again = [line for line in read_lines(tmp_path) if line not in before]
        assert sorted(line["network"] for line in again) == sorted(left)
    networks, left_out = measured(read_lines(tmp_path), "mnist")
    assert left_out == 0
    for one in networks:
        assert one.complete("auto")
        assert one.about["options"]["auto"] == {"time_limit": 60 if one.name in left else 1e-6}


def test_less_time_takes_nothing_away(tmp_path: Path) -> None:
    assert small(tmp_path, measures=Measures(("auto",), time_limit=60)).run(Serial()) == 0
    assert small(tmp_path, measures=Measures(("auto",), time_limit=1e-6)).run(Serial()) == 0
    networks, _ = measured(read_lines(tmp_path), "mnist")
    assert all(one.complete("auto") for one in networks)
