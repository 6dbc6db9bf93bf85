"""Tasks on a Dask cluster whose workers get killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from relutrim.errors import InputError
from relutrim.paper.reproduce.cluster import Cluster
from relutrim.paper.reproduce.executors import Serial
from reproducing import small, table

distributed = pytest.importorskip("distributed")


@contextmanager
def killing(cluster: Any, every: float) -> Iterator[list[int]]:
    """Kill a worker's process again and again; the list of those killed."""
    killed: list[int] = []
    stop = threading.Event()

    def kill() -> None:
        while not stop.wait(every):
            processes = [nanny.process.process for nanny in cluster.workers.values() if nanny.process]
            alive = [one.pid for one in processes if one is not None and one.is_alive() and one.pid]
            if alive:
                pid = alive[len(killed) % len(alive)]
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    try:
        yield killed
    finally:
        stop.set()
        thread.join()


def test_a_cluster_that_loses_workers_comes_to_the_same_table(tmp_path: Path) -> None:
    assert small(tmp_path / "alone").run(Serial()) == 0
    with distributed.LocalCluster(
        n_workers=4, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        begun = time.monotonic()
        executor = Cluster(cluster.scheduler_address)
        with killing(cluster, every=3.0) as killed:
            assert small(tmp_path / "cluster").run(executor) == 0
            while not killed and time.monotonic() - begun < 30:
                time.sleep(0.1)
    assert killed
    assert table(tmp_path / "cluster") == table(tmp_path / "alone")


def test_a_scheduler_that_is_not_there_is_named() -> None:
    with pytest.raises(InputError, match=r"127\.0\.0\.1:9"):
        Cluster("tcp://127.0.0.1:9", timeout=1.0)
