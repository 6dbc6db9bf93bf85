"""Tasks on the workers of a Dask cluster, one network's measurement each.

Dask gives the task of a worker that is gone to another one; how often that may happen to one task is counted
here, because a cluster that loses workers all the time is no reason to give up tasks. Workers need relutrim,
and the data under the same path as here; the networks travel with the tasks.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

from relutrim.errors import InputError
from relutrim.paper.reproduce.apart import Apart
from relutrim.paper.reproduce.rows import Line
from relutrim.paper.reproduce.task import Task, lost, perform

ATTEMPTS = 20


class Cluster:
    """The executor of ``--cluster``."""

    def __init__(self, address: str, timeout: float = 30.0, do: Callable[[Task], Line] = perform) -> None:
        self._do = do
        try:
            from distributed import Client
        except ImportError:
            raise InputError(
                "--cluster needs Dask, which is not installed; pip install 'relutrim[dask]', or leave "
                "--cluster away for processes on this machine"
            ) from None
        try:
            self._client: Any = Client(address, timeout=timeout, set_as_default=False)
        except (OSError, ValueError) as error:
            raise InputError(f"there is no Dask scheduler to be reached at {address} ({error})") from None
        self._ended: queue.Queue[Any] = queue.Queue()
        self._tasks: dict[str, tuple[Task, int, Any]] = {}

    @property
    def pending(self) -> int:
        """Tasks that have no line yet."""
        return len(self._tasks)

    def submit(self, task: Task) -> None:
        """Take a task."""
        self._try(task, 1)

    def _try(self, task: Task, attempt: int) -> None:
        name = f"relutrim-{task.key}-{attempt}"
        future = self._client.submit(alone, task, self._do, key=name, pure=False, priority=-task.rank)
        self._tasks[name] = (task, attempt, future)
        future.add_done_callback(self._ended.put)

    def finished(self, wait: float) -> list[Line]:
        """Lines of tasks that have ended."""
        lines: list[Line] = []
        while self._tasks:
            try:
                future = self._ended.get(timeout=0 if lines else wait)
            except queue.Empty:
                if self._client.status not in ("running", "connecting"):
                    raise InputError(
                        "the Dask scheduler is gone; start it and give the same command again"
                    ) from None
                break
            line = self._line(future)
            if line is not None:
                lines.append(line)
        return lines

    def _line(self, future: Any) -> Line | None:
        """What came back; a task whose worker died, or whose result did, is sent out again."""
        task, attempt, _ = self._tasks.pop(future.key, (None, 0, None))
        if task is None:
            return None
        try:
            line: Line = future.result(timeout=60)
        except Exception as error:  # KilledWorker, CancelledError, a result lost on the way
            if attempt < ATTEMPTS:
                self._try(task, attempt + 1)
                return None
            return lost(
                task, f"no worker of the cluster came back from it ({type(error).__name__}: {error})"[:500]
            )
        return line

    def close(self) -> None:
        """Give up what is pending."""
        futures = [future for _, _, future in self._tasks.values()]
        self._tasks.clear()
        if futures:
            self._client.cancel(futures, force=True)
        self._client.close()


_APART = Apart()
"""The processes of this worker."""


def alone(task: Task, do: Callable[[Task], Line] = perform) -> Line:
    """Do a task on one core of a worker, since a cluster's cores are shared out by its scheduler; in a
    process apart, since a worker's thread could not be stopped.
    """
    return _APART.perform(task, do)
