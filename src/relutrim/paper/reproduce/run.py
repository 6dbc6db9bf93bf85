"""From a grid to lines: train what is missing, measure what is missing, write it down."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from relutrim.paper.dataset import Dataset
from relutrim.paper.reproduce.executors import Executor, Serial
from relutrim.paper.reproduce.grid import Cell, Grid
from relutrim.paper.reproduce.hard import HardNeurons
from relutrim.paper.reproduce.measured import undecided
from relutrim.paper.reproduce.rows import DONE, Appender, Line, appending, file_of, key_of, read_lines
from relutrim.paper.reproduce.stages import STAGES, Measures
from relutrim.paper.reproduce.task import DataRef, Task
from relutrim.paper.trained import Trained, file_name
from relutrim.paper.training import Progress, train_many

Tell = Callable[[str], None]
_WAIT = 0.5


@dataclass(frozen=True)
class Wanted:
    """A network of the grid and what is to be measured on it: stages with options and keys."""

    cell: Cell
    l1: float
    seed: int
    name: str
    stages: tuple[tuple[str, dict[str, Any], str], ...]


@dataclass(frozen=True)
class Reproduction:
    """One run, or one shard of it: ``shard`` (2, 8) has every eighth network, from the second on."""

    grid: Grid
    measures: Measures
    data: DataRef
    output: Path
    device: str = "cpu"
    shard: tuple[int, int] | None = None
    beside: bool | None = None
    """Whether to train beside the tasks; None: on a GPU."""
    undecided: bool = False
    """Only what the rows that are there have left undecided, with another limit say."""
    tell: Tell = print
    progress: Progress | None = None

    def run(self, executor: Executor) -> int:
        """Do all that is not done; how many tasks failed.

        Architectures come one after the other. On a GPU the next one is trained while tasks run on the
        cores; on a CPU training wants these cores for itself.
        """
        dataset = self.data.load()
        lines = {line["key"]: line for line in read_lines(self.output)}
        done = {key: line["sha256"] for key, line in lines.items() if line["status"] == DONE}
        cells = [(cell, self.missing(cell, dataset, done)) for cell in self.grid.cells]
        if self.undecided:
            left = undecided(lines.values(), self.grid.name)
            cells = [(cell, _only(wanted, left)) for cell, wanted in cells]
        cells = [(cell, wanted) for cell, wanted in cells if wanted]
        beside = self.device != "cpu" if self.beside is None else self.beside
        beside = beside and not isinstance(executor, Serial)
        executor = HardNeurons(executor, lines)
        with appending(file_of(self.output, self.shard)) as rows:
            try:
                if not beside:
                    for cell, wanted in cells:
                        self._submit(executor, self._tasks(cell, wanted, dataset, done))
                        self._drain(executor, rows)
                else:
                    for tasks in self._ahead(cells, dataset, done, executor, rows):
                        self._submit(executor, tasks)
                    self._drain(executor, rows)
            finally:
                executor.close()
            return rows.failed

    def _submit(self, executor: Executor, tasks: list[Task]) -> None:
        for task in tasks:
            executor.submit(task)

    def _drain(self, executor: Executor, rows: Appender) -> None:
        while executor.pending:
            self._collect(executor, rows)

    def _collect(self, executor: Executor, rows: Appender) -> None:
        for line in executor.finished(_WAIT):
            rows.write(line)
            self.tell(said(line, executor.pending))

    def _ahead(
        self,
        cells: list[tuple[Cell, list[Wanted]]],
        dataset: Dataset,
        done: dict[str, str],
        executor: Executor,
        rows: Appender,
    ) -> Iterator[list[Task]]:
        """The tasks of one architecture after the other, trained beside those that run already."""
        made: queue.Queue[list[Task] | BaseException | None] = queue.Queue()
        stop = threading.Event()

        def produce() -> None:
            try:
                for cell, wanted in cells:
                    if stop.is_set():
                        return
                    made.put(self._tasks(cell, wanted, dataset, done))
                made.put(None)
            except BaseException as error:  # raised where somebody listens
                made.put(error)

        thread = threading.Thread(target=produce, daemon=True)
        thread.start()
        try:
            while True:
                try:
                    found = made.get(timeout=0 if executor.pending else _WAIT)
                except queue.Empty:
                    self._collect(executor, rows)
                    continue
                if found is None:
                    return
                if isinstance(found, BaseException):
                    raise found
                yield found
        finally:
            stop.set()

    def missing(self, cell: Cell, dataset: Dataset, done: dict[str, str]) -> list[Wanted]:
        """The networks of a cell, in this shard, on which something is still to be measured."""
        return [one for one in self.wanted(cell, dataset) if any(key not in done for _, _, key in one.stages)]

    def wanted(self, cell: Cell, dataset: Dataset) -> Iterator[Wanted]:
        """All networks of a cell that belong to this shard."""
        recipe = replace(self.grid.recipe, normalize=cell.normalize)
        before = 0
        for other in self.grid.cells[: self.grid.cells.index(cell)]:
            before += len(other.l1) * len(other.seeds)
        pairs = [(l1, seed) for l1 in cell.l1 for seed in cell.seeds]
        for number, (l1, seed) in enumerate(pairs, before):
            if self.shard is not None and number % self.shard[1] != self.shard[0] - 1:
                continue
            network = {
                "dataset": dataset.sha256,
                "architecture": cell.architecture,
                "l1": l1,
                "seed": seed,
                "recipe": recipe.describe(),
                "device": self.device.split(":")[0],
            }
            stages = tuple(
                (stage, options, key_of(network, stage, options))
                for stage, options in self.measures.of(cell, seed, dataset.name)
            )
            yield Wanted(cell, l1, seed, file_name(dataset.name, cell.name, l1, seed), stages)

    def _tasks(self, cell: Cell, wanted: list[Wanted], dataset: Dataset, done: dict[str, str]) -> list[Task]:
        """Train the networks of a cell; the tasks that they are for, quick kinds first.

        Where networks were lost and came out differently this time, on another kind of GPU say, a network on
        which something is missing is measured anew in every way: a row must be about one network.
        """
        here = list(self.wanted(cell, dataset))
        count = sum(key not in done for one in wanted for _, _, key in one.stages)
        self.tell(f"{cell.name}: {len(here)} networks, {count} tasks to do")
        recipe = replace(self.grid.recipe, normalize=cell.normalize)
        pairs = [(one.l1, one.seed) for one in here]
        # Other parts of the grid, or other settings, go into folders of their own.
        folder = f"{cell.name}-{key_of(dataset.sha256, recipe.describe(), self.device, pairs)[:8]}"
        made = train_many(
            dataset,
            [cell.architecture],
            networks=pairs,
            recipe=recipe,
            device=self.device,
            output=self.output / "networks" / folder,
            progress=self.progress,
        )
        networks = {(one.l1, one.seed): one for one in made}
        for one in made:
            if one.diverged:
                self.tell(f"{one.name} diverged: its weights are no numbers, and nothing is measured on it")
        tasks = [
            self._task(one, networks[one.l1, one.seed], *stage)
            for one in wanted
            for stage in one.stages
            if not networks[one.l1, one.seed].diverged
            and done.get(stage[2]) != networks[one.l1, one.seed].sha256
        ]
        return sorted(tasks, key=lambda task: task.rank)

    def _task(self, wanted: Wanted, network: Trained, stage: str, options: dict[str, Any], key: str) -> Task:
        assert network.path is not None
        about = {
            "network": wanted.name,
            "sha256": network.sha256,
            "experiment": self.grid.name,
            "dataset": network.dataset,
            "architecture": wanted.cell.architecture,
            "cell": wanted.cell.name,
            "l1": wanted.l1,
            "seed": wanted.seed,
            "epochs": self.grid.recipe.epochs,
            "train_rows": len(self.data.load().x_train),
            "device": self.device,
            **asdict(network.scores),
        }
        return Task(
            key,
            stage,
            options,
            about,
            network.path.read_bytes(),
            self.data,
            wanted.cell.normalize,
            self.measures.hard_limit(stage),
            list(STAGES).index(stage),
        )


def _only(wanted: list[Wanted], left: set[tuple[str, str]]) -> list[Wanted]:
    """What is wanted of these networks and stages."""
    chosen = [
        replace(one, stages=tuple(stage for stage in one.stages if (one.name, stage[0]) in left))
        for one in wanted
    ]
    return [one for one in chosen if one.stages]


def said(line: Line, pending: int) -> str:
    """A line in a few words."""
    result = line.get("result", {})
    if line["status"] != DONE:
        what = f"failed: {line['error']}"
    elif "seconds" in result:
        unknown = sum(layer[3] for layer in result["layers"])
        what = f"{result['seconds']:.2f} s, " + (f"{unknown} unknown" if unknown else "all decided")
    else:
        what = f"{line['task_seconds']:.2f} s"
    return f"{line['network']} {line['stage']}: {what} ({pending} to go)"
