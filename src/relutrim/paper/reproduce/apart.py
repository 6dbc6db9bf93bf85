"""Tasks in a process apart, which can be ended when it does not come to an end by itself.

A thread cannot be stopped, and the workers of a cluster do their tasks in threads: a solver that does not
notice its limit would hold a worker for good. So a worker keeps a process and sends it one task after the
other, as pickles through its standard input; lines come back through its standard output. Workers are
daemons, for which :mod:`multiprocessing` starts no processes, so this is :mod:`subprocess`.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, Any

from relutrim.paper.reproduce.executors import ATTEMPTS, one_thread
from relutrim.paper.reproduce.rows import Line
from relutrim.paper.reproduce.task import Task, lost, perform

Do = Callable[[Task], Line]


class Apart:
    """A process that does tasks; more than one of them for threads that ask at the same time."""

    def __init__(self) -> None:
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()

    def perform(self, task: Task, do: Do = perform) -> Line:
        """Do a task, and give it up at its hard limit. It is tried again where its process dies, and given up
        in the end: what kills three of them is the task.
        """
        code: int | None = None
        for _ in range(ATTEMPTS):
            process, begun = self._process(), time.monotonic()
            overdue = threading.Event()
            clock = threading.Timer(task.hard_limit, _end, (process, overdue))
            clock.daemon = True
            clock.start()
            try:
                line: Line | None = _asked(process, (do, task))
            except BaseException:
                process.kill()
                raise
            finally:
                clock.cancel()
            if line is not None:
                self._idle.put(process)
                return line
            process.kill()
            code = process.wait()
            if overdue.is_set():
                spent = time.monotonic() - begun
                return lost(task, f"it had not ended after {spent:.0f} seconds, far beyond its limit", spent)
        return lost(task, f"the process that was at it died (exit code {code}), {ATTEMPTS} times")

    def close(self) -> None:
        """End the processes that are idle."""
        while not self._idle.empty():
            process = self._idle.get()
            process.kill()
            process.wait()

    def _process(self) -> subprocess.Popen[bytes]:
        """One that is idle, or a new one. It finds modules where this one does."""
        while not self._idle.empty():
            process = self._idle.get()
            if process.poll() is None:
                return process
        with one_thread():
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        return subprocess.Popen(
            [sys.executable, "-m", "relutrim.paper.reproduce.apart"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )


def _end(process: subprocess.Popen[bytes], overdue: threading.Event) -> None:
    overdue.set()
    process.kill()


def _asked(process: subprocess.Popen[bytes], what: Any) -> Line | None:
    """The line that a process answers with; None from one that died."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(pickle.dumps(what))
        process.stdin.flush()
        line: Line = pickle.load(process.stdout)
    except (OSError, EOFError, pickle.UnpicklingError):
        return None
    return line


def main() -> None:
    """What the process does: tasks, until nobody is there any more to ask for them. Whoever asked is gone
    when standard input ends, in the middle of a task too.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal tells all; who asks decides
    import torch

    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what solvers print is no line
    tasks: queue.SimpleQueue[tuple[Do, Task]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, tasks), daemon=True).start()
    while True:
        do, task = tasks.get()
        answers.write(pickle.dumps(do(task)))
        answers.flush()


def _listen(asked: IO[bytes], tasks: queue.SimpleQueue[tuple[Do, Task]]) -> None:
    try:
        while True:
            tasks.put(pickle.load(asked))
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
