"""A hard neuron is a task of its own: the same verdicts as with all the time, whoever does the tasks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from relutrim.paper.reproduce.executors import Processes, Serial
from relutrim.paper.reproduce.hard import STAGE, HardNeurons
from relutrim.paper.reproduce.measure import MEASURES
from relutrim.paper.reproduce.measured import measured
from relutrim.paper.reproduce.rows import DONE, Line, file_of, read_lines
from relutrim.paper.reproduce.stages import Measures
from relutrim.paper.reproduce.task import Task, perform
from reproducing import kill_one, small

ALL = Measures(("auto",), time_limit=60)
STEPS = Measures(("auto",), time_limit=1e-6, neuron_time_limit=60)
"""The first step has time for a few random inputs only; what they do not decide is left."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All networks in one step each."""
    output = tmp_path_factory.mktemp("whole")
    assert small(output, measures=ALL).run(Serial()) == 0
    return output


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in steps."""
    output = tmp_path_factory.mktemp("steps")
    assert small(output, measures=STEPS).run(Serial()) == 0
    return output


def outcome(output: Path) -> dict[str, Any]:
    """Verdicts and what LEO++ makes of them, by network."""
    networks, _ = measured(read_lines(output), "mnist")
    return {
        one.name: (one.complete("auto"), one.layers("auto"), one.results["auto"]["rewrites"]["leo++"]["size"])
        for one in networks
    }


def test_neurons_alone_come_to_the_verdicts_of_the_whole(whole: Path, steps: Path) -> None:
    assert outcome(steps) == outcome(whole)
    assert all(complete for complete, _, _ in outcome(steps).values())


def test_every_neuron_that_is_left_is_a_task_and_its_time_counts(steps: Path) -> None:
    lines = read_lines(steps)
    first = {one["network"]: one for one in lines if one["options"] == {"time_limit": 1e-6}}
    assert first
    for line in lines:
        if "neuron_time_limit" in line["options"]:
            name, result = line["network"], line["result"]
            assert line["options"] == {"time_limit": 1e-6, "neuron_time_limit": 60}
            alone = [one for one in lines if one["stage"] == STAGE and one["network"] == name]
            assert len(alone) == result.get("hard_neurons", 0) == len(left(first.get(name)))
            assert {(one["options"]["relu"], one["options"]["neuron"]) for one in alone} == left(
                first.get(name)
            )
            assert result["seconds"] >= sum(one["result"]["seconds"] for one in alone)


def left(line: Line | None) -> set[tuple[str, int]]:
    return set() if line is None else {(relu, neuron) for relu, neuron in line["result"]["undecided"]}


def test_what_is_decided_at_once_is_one_task(whole: Path, tmp_path: Path) -> None:
    easy = Measures(("auto",), time_limit=60, neuron_time_limit=60)
    assert small(tmp_path, measures=easy).run(Serial()) == 0
    assert {line["stage"] for line in read_lines(tmp_path)} == {"auto"}
    assert len(read_lines(tmp_path)) == len(read_lines(whole))
    assert outcome(tmp_path) == outcome(whole)


def test_a_run_goes_on_between_any_two_steps(steps: Path, tmp_path: Path) -> None:
    lines = file_of(steps).read_bytes().splitlines(keepends=True)
    for kept in (1, 5, 14, len(lines) - 1):
        output = tmp_path / str(kept)
        output.mkdir()
        file_of(output).write_bytes(b"".join(lines[:kept]))
        assert small(output, measures=STEPS).run(Serial()) == 0
        assert outcome(output) == outcome(steps)
        assert file_of(output).read_bytes().count(b"\n") == len(lines)  # no step was done twice
        before = file_of(output).read_bytes()
        assert small(output, measures=STEPS).run(Serial()) == 0
        assert file_of(output).read_bytes() == before


def test_steps_of_another_network_are_not_taken(steps: Path, tmp_path: Path) -> None:
    """As where another kind of GPU has trained the networks anew."""
    lines = [line for line in file_of(steps).read_text().splitlines() if '"neuron_time_limit"' not in line]
    hashes = {line["sha256"] for line in read_lines(steps)}
    text = "\n".join(lines) + "\n"
    for one in hashes:
        text = text.replace(one, "0" * 64)
    file_of(tmp_path).write_text(text)
    assert small(tmp_path, measures=STEPS).run(Serial()) == 0
    new = [line for line in read_lines(tmp_path) if line["sha256"] in hashes]
    assert len(new) == len(read_lines(steps))


def test_a_bound_that_was_damaged_is_not_taken(steps: Path, tmp_path: Path) -> None:
    """Without the seal a neuron would be called stable because of one wrong digit in a file."""
    text, damaged = [], 0
    for raw in file_of(steps).read_text().splitlines():
        line = json.loads(raw)
        if "neuron_time_limit" in line["options"]:
            continue  # the outcome, which is to be made again
        if line["stage"] == STAGE:
            line["result"]["known"]["upper"] = -1.0
            damaged += 1
        text.append(json.dumps(line))
    assert damaged
    file_of(tmp_path).write_text("\n".join(text) + "\n")
    assert small(tmp_path, measures=STEPS).run(Serial()) == 0
    assert outcome(tmp_path) == outcome(steps)


def test_a_neuron_whose_task_fails_is_tried_again_and_nothing_else(
    steps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hard, broken = MEASURES[STAGE], []

    def fails_once(subject: Any, **options: Any) -> dict[str, Any]:
        if not broken:
            broken.append(options)
            raise MemoryError("too large")
        return hard(subject, **options)

    monkeypatch.setitem(MEASURES, STAGE, fails_once)
    assert small(tmp_path, measures=STEPS).run(Serial()) == 2  # the neuron and its network
    assert sum(not complete for complete, _, _ in outcome(tmp_path).values()) == 1
    size = file_of(tmp_path).read_bytes().count(b"\n")
    assert small(tmp_path, measures=STEPS).run(Serial()) == 0
    assert outcome(tmp_path) == outcome(steps)
    assert file_of(tmp_path).read_bytes().count(b"\n") == size + 2


def dies_once(task: Task) -> Line:
    """Leaves its process at the first neuron that it is asked for."""
    mark = Path(os.environ["RELUTRIM_MARK"])
    if task.stage == STAGE and not mark.exists():
        mark.touch()
        os._exit(9)
    return perform(task)


def test_a_process_that_dies_costs_one_neuron(
    steps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELUTRIM_MARK", str(tmp_path / "mark"))
    assert small(tmp_path, measures=STEPS).run(Processes(2, dies_once)) == 0
    assert (tmp_path / "mark").exists()
    assert outcome(tmp_path) == outcome(steps)
    assert all(line["status"] == DONE for line in read_lines(tmp_path))


def test_tasks_without_a_limit_for_neurons_pass_through(whole: Path, tmp_path: Path) -> None:
    class Refuses(Serial):
        def submit(self, task: Task) -> None:
            assert task.stage != STAGE
            super().submit(task)

    executor = HardNeurons(Refuses(), {})
    assert executor.pending == 0
    assert small(tmp_path, measures=ALL).run(executor) == 0
    assert outcome(tmp_path) == outcome(whole)


def test_a_cluster_that_loses_workers_comes_to_the_same_verdicts(steps: Path, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    from relutrim.paper.reproduce.cluster import Cluster

    killed = []
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:

        def tell(text: str) -> None:
            if f" {STAGE}:" in text and len(killed) < 2:  # others of its network are being done
                killed.append(kill_one(cluster))

        executor = Cluster(cluster.scheduler_address)
        assert small(tmp_path, measures=STEPS, tell=tell).run(executor) == 0
    assert killed == [True, True]
    assert outcome(tmp_path) == outcome(steps)
    assert len(read_lines(tmp_path)) == len(read_lines(steps))
