"""Small runs for the tests of ``relutrim reproduce``."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from relutrim.paper.recipe import Recipe
from relutrim.paper.reproduce.executors import Executor
from relutrim.paper.reproduce.grid import Cell, Grid
from relutrim.paper.reproduce.rows import Line, read_lines
from relutrim.paper.reproduce.run import Reproduction
from relutrim.paper.reproduce.stages import Measures
from relutrim.paper.reproduce.task import DataRef, Task

CELLS = (
    Cell("2x6", (0.0, 0.01), (0, 1)),
    Cell("1x4-bn", (0.01,), (0, 1)),
    Cell("2x5", (0.01,), (0,), normalize=True),
)


def small(output: Path, **fields: Any) -> Reproduction:
    grid = Grid("mnist", "synthetic-mnist", CELLS, Recipe(epochs=2), rows=300)
    settings: dict[str, Any] = {
        "grid": grid,
        "measures": Measures(("auto", "data", "isa"), time_limit=60, isa_time_limit=60),
        "data": DataRef("synthetic-mnist", None, 300),
        "output": output,
        "tell": lambda text: None,
        **fields,
    }
    return Reproduction(**settings)


def table(output: Path) -> dict[str, Any]:
    """All that was found, by task, without what may differ from run to run: times."""
    return {line["key"]: _timeless(line) for line in read_lines(output)}


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items() if "seconds" not in k}
    return [_timeless(one) for one in value] if isinstance(value, list) else value


def task(name: str, folder: Path, hard_limit: float = 60.0) -> Task:
    return Task(name, "auto", {}, {"folder": str(folder)}, b"", DataRef("", None, None), False, hard_limit)


def dies_at_first(one: Task) -> Line:
    """Leaves its process on the first try of every task whose name says so."""
    mark = Path(one.about["folder"]) / f"{one.key}-{time.monotonic_ns()}"
    tries = len(list(mark.parent.glob(f"{one.key}-*")))
    mark.write_text(str(os.getpid()))
    if one.key.startswith("always") or (one.key.startswith("once") and not tries):
        os._exit(9)
    if one.key.startswith("endless"):
        time.sleep(600)
    return one.line("done", 0.0)


def all_lines(executor: Executor) -> dict[str, Line]:
    """What an executor gives back, each task once."""
    found = {}
    until = time.monotonic() + 120
    while executor.pending and time.monotonic() < until:
        for line in executor.finished(0.2):
            assert line["key"] not in found
            found[line["key"]] = line
    return found


def kill_one(cluster: Any) -> bool:
    """Kill the process of a worker, if one is alive; its nanny will start another."""
    processes = [nanny.process.process for nanny in cluster.workers.values() if nanny.process]
    pids = [one.pid for one in processes if one is not None and one.is_alive() and one.pid]
    if pids:
        os.kill(pids[0], signal.SIGKILL)
    return bool(pids)
