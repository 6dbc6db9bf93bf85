"""Tasks on a Dask cluster whose workers get killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from relutrim.errors import InputError
from relutrim.paper.reproduce.cluster import Cluster
from relutrim.paper.reproduce.executors import Serial
from reproducing import small, table

distributed = pytest.importorskip("distributed")


def kill_one(cluster: Any) -> bool:
    """Kill the process of a worker, if one is alive; its nanny will start another."""
    processes = [nanny.process.process for nanny in cluster.workers.values() if nanny.process]
    pids = [one.pid for one in processes if one is not None and one.is_alive() and one.pid]
    if pids:
        os.kill(pids[0], signal.SIGKILL)
    return bool(pids)


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


def test_a_scheduler_that_is_not_there_is_named() -> None:
    with pytest.raises(InputError, match=r"127\.0\.0\.1:9"):
        Cluster("tcp://127.0.0.1:9", timeout=1.0)
