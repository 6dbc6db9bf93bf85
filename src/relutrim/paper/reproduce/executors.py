"""Who does the tasks: this process, or others on this machine (other machines: :mod:`.cluster`).

An executor takes tasks and gives back lines, in the order in which they end. A process that dies costs the
task it was at, which is tried again elsewhere; a task that kills processes one after the other is given up.
"""

from __future__ import annotations

import heapq
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Protocol

from relutrim.paper.reproduce.rows import Line
from relutrim.paper.reproduce.task import Task, lost, perform

ATTEMPTS = 3


class Executor(Protocol):
    """Takes tasks, gives back lines."""

    @property
    def pending(self) -> int:
        """Tasks that have no line yet."""

    def submit(self, task: Task) -> None:
        """Take a task."""

    def finished(self, wait: float) -> list[Line]:
        """Lines of tasks that have ended; waits for one, but not much longer than ``wait`` seconds."""

    def close(self) -> None:
        """Give up what is pending."""


class Serial:
    """One task after the other, here."""

    def __init__(self) -> None:
        self._tasks: deque[Task] = deque()

    @property
    def pending(self) -> int:
        """Tasks that have no line yet."""
        return len(self._tasks)

    def submit(self, task: Task) -> None:
        """Take a task."""
        self._tasks.append(task)

    def finished(self, wait: float) -> list[Line]:
        """Do the next task, however long it takes."""
        return [perform(self._tasks.popleft())] if self._tasks else []

    def close(self) -> None:
        """Give up what is pending."""
        self._tasks.clear()


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    task: Task | None = None
    since: float = 0.0


class Processes:
    """Processes that each do one task at a time, on one core."""

    def __init__(self, jobs: int, do: Callable[[Task], Line] = perform) -> None:
        import multiprocessing

        self._context = multiprocessing.get_context("spawn")
        self._jobs, self._do = jobs, do
        self._waiting: list[tuple[int, int, Task]] = []
        self._taken = 0
        self._tries: dict[str, int] = {}
        self._workers: list[_Worker] = []

    @property
    def pending(self) -> int:
        """Tasks that have no line yet."""
        return len(self._waiting) + sum(worker.task is not None for worker in self._workers)

    def submit(self, task: Task) -> None:
        """Take a task."""
        self._wait_for(task)
        self._feed()

    def _wait_for(self, task: Task) -> None:
        self._taken += 1
        heapq.heappush(self._waiting, (task.rank, self._taken, task))

    def finished(self, wait: float) -> list[Line]:
        """Lines of tasks that have ended."""
        from multiprocessing.connection import wait as ready

        self._feed()
        busy = [worker for worker in self._workers if worker.task is not None]
        if not busy:
            return []
        heard = set(ready([worker.pipe for worker in busy], wait))
        lines = []
        for worker in busy:
            line = self._heard(worker) if worker.pipe in heard else self._overdue(worker)
            if line is not None:
                lines.append(line)
        self._feed()
        return lines

    def close(self) -> None:
        """End all processes."""
        self._waiting.clear()
        for worker in list(self._workers):
            self._end(worker)

    def _feed(self) -> None:
        while self._waiting:
            idle = next((worker for worker in self._workers if worker.task is None), None)
            if idle is None and len(self._workers) < self._jobs:
                idle = self._begin()
            if idle is None:
                return
            idle.task, idle.since = heapq.heappop(self._waiting)[2], time.monotonic()
            try:
                idle.pipe.send(idle.task)
            except (OSError, ValueError):  # it died idle
                self._wait_for(idle.task)
                self._end(idle)

    def _begin(self) -> _Worker:
        here, there = self._context.Pipe()
        process = self._context.Process(target=work, args=(there, self._do), daemon=True)
        with one_thread():
            process.start()
        there.close()
        worker = _Worker(process, here)
        self._workers.append(worker)
        return worker

    def _heard(self, worker: _Worker) -> Line | None:
        """The line that a worker sent, or what becomes of the task of one that died."""
        assert worker.task is not None
        try:
            line: Line = worker.pipe.recv()
        except (EOFError, OSError):
            task, code = worker.task, self._end(worker)
            return self._again(task, f"the process that was at it died (exit code {code})")
        worker.task = None
        return line

    def _overdue(self, worker: _Worker) -> Line | None:
        assert worker.task is not None
        spent = time.monotonic() - worker.since
        if spent < worker.task.hard_limit:
            return None
        task = worker.task
        self._end(worker)
        return lost(task, f"it had not ended after {spent:.0f} seconds, far beyond its limit", spent)

    def _again(self, task: Task, why: str) -> Line | None:
        self._tries[task.key] = self._tries.get(task.key, 0) + 1
        if self._tries[task.key] >= ATTEMPTS:
            return lost(task, f"{why}, {ATTEMPTS} times")
        self._wait_for(task)
        return None

    def _end(self, worker: _Worker) -> int | None:
        self._workers.remove(worker)
        worker.pipe.close()
        worker.process.kill()
        worker.process.join()
        code: int | None = worker.process.exitcode
        return code


class one_thread:
    """Numerical libraries read how many threads to use when they are loaded, which in a new process is
    before any code of ours runs.
    """

    _names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

    def __enter__(self) -> None:
        self._kept = {name: os.environ.get(name) for name in self._names}
        os.environ.update(dict.fromkeys(self._names, "1"))

    def __exit__(self, *_: object) -> None:
        for name, value in self._kept.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def work(pipe: Connection, do: Callable[[Task], Line]) -> None:
    """What a process does: tasks, until nobody sends any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal tells all; who sends the tasks decides
    import torch

    torch.set_num_threads(1)
    with suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            pipe.send(do(pipe.recv()))
