"""The same function on many items, on several cores, with an outcome that does not depend on how many.

Threads, not processes: what takes the time here is the linear solver, which runs outside the interpreter's
lock. Nothing has to be copied or started, and an interruption leaves what was finished.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from relutrim.prove.deadline import Deadline

Item = TypeVar("Item")
Found = TypeVar("Found")


def spread(
    function: Callable[[Item], Found],
    items: Sequence[Item],
    jobs: int,
    deadline: Deadline,
    done: Callable[[Item, Found], None],
) -> None:
    """Call ``done`` with each item and what ``function`` made of it, in the order of the items.

    Items that are not begun when the deadline passes are left out. An interruption calls the deadline off and
    waits for the functions that still run, because the interpreter would abort if it ended under one; what is
    finished is still handed over, in order.
    """
    if jobs <= 1 or len(items) <= 1:
        for item in items:
            if deadline.passed:
                return
            done(item, function(item))
        return
    found: dict[int, Found] = {}
    failed: list[BaseException] = []
    waiting = iter(enumerate(items))
    lock = threading.Lock()

    def work(ended: threading.Event) -> None:
        try:
            while not (deadline.passed or failed):
                with lock:
                    at, _ = next(waiting, (-1, None))
                if at < 0:
                    return
                found[at] = function(items[at])
        except BaseException as error:  # handed on to the caller below
            failed.append(error)
        finally:
            ended.set()

    # Events, because an interrupted Thread.join takes its thread for ended (Python 3.11).
    ends = [threading.Event() for _ in range(min(jobs, len(items)))]
    threads = [threading.Thread(target=work, args=[ended], daemon=True) for ended in ends]
    try:
        for thread in threads:
            thread.start()
        for ended in ends:
            ended.wait()
    except KeyboardInterrupt:
        deadline.call_off()
        for thread, ended in zip(threads, ends, strict=True):
            if thread.ident is not None:  # the others find the deadline passed
                ended.wait()
        raise
    finally:
        for at in sorted(found.copy()):
            done(items[at], found[at])
    if failed:
        raise failed[0]
