"""Tasks on a Dask cluster whose workers get killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from relutrim.errors import InputError
from relutrim.paper.reproduce.cluster import Cluster
from relutrim.paper.reproduce.executors import ATTEMPTS, Serial
from reproducing import all_lines, dies_at_first, kill_one, small, table, task

distributed = pytest.importorskip("distributed")


def test_a_cluster_that_loses_workers_comes_to_the_same_table(tmp_path: Path) -> None:
    assert small(tmp_path / "alone").run(Serial()) == 0
    killed, said = [], []
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:

        def tell(text: str) -> None:
            said.append(text)
            if len(said) in (1, 3, 6, 10):  # when tasks are out, and then while some are being done
                killed.append(kill_one(cluster))

        executor = Cluster(cluster.scheduler_address)
        assert small(tmp_path / "cluster", tell=tell).run(executor) == 0
    assert sum(killed) >= 3
    assert table(tmp_path / "cluster") == table(tmp_path / "alone")


def test_a_task_that_does_not_end_is_ended_on_a_cluster_too(tmp_path: Path) -> None:
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        executor = Cluster(cluster.scheduler_address, do=dies_at_first)
        executor.submit(task("endless", tmp_path, hard_limit=5.0))
        executor.submit(task("always", tmp_path))
        executor.submit(task("once", tmp_path))
        try:
            found = all_lines(executor)
        finally:
            executor.close()
    assert {name: line["status"] for name, line in found.items()} == {
        "endless": "failed",
        "always": "failed",
        "once": "done",
    }
    assert "beyond its limit" in found["endless"]["error"]
    assert "exit code 9" in found["always"]["error"]
    assert len(list(tmp_path.glob("endless-*"))) == 1  # it is not tried again
    assert len(list(tmp_path.glob("always-*"))) == ATTEMPTS


def test_a_process_ends_with_whoever_asked_it(tmp_path: Path) -> None:
    """A worker that is killed leaves nothing running behind."""
    script = (
        "import sys, threading; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path; from reproducing import dies_at_first, task\n"
        "from relutrim.paper.reproduce.apart import Apart\n"
        "Apart().perform(task('endless', Path(sys.argv[2])), dies_at_first)"
    )
    arguments = [sys.executable, "-c", script, str(Path(__file__).parent), str(tmp_path)]
    worker = subprocess.Popen(arguments)
    until = time.monotonic() + 60
    while not (marks := list(tmp_path.glob("endless-*"))) and time.monotonic() < until:
        time.sleep(0.05)
    assert marks
    child = int(marks[0].read_text())
    assert alive(child)
    worker.kill()
    worker.wait()
    while alive(child) and time.monotonic() < until:
        time.sleep(0.05)
    assert not alive(child)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_scheduler_that_is_not_there_is_named() -> None:
    with pytest.raises(InputError, match=r"127\.0\.0\.1:9"):
        Cluster("tcp://127.0.0.1:9", timeout=1.0)
