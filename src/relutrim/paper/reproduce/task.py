"""A task: one thing measured on one network, wherever there is a process to do it.

It carries the network itself, so that only the data has to be where the process is. Done twice it has the
same outcome, times apart.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from relutrim.paper.reproduce.rows import DONE, FAILED, Line

if TYPE_CHECKING:
    from relutrim.paper.dataset import Dataset


@dataclass(frozen=True)
class DataRef:
    """A data set by name and folder, for processes that read it themselves."""

    name: str
    folder: str | None
    rows: int | None

    def load(self) -> Dataset:
        """Read it, or take what this process has read before."""
        return _loaded(self)


@lru_cache(maxsize=1)
def _loaded(reference: DataRef) -> Dataset:
    from relutrim.paper.sources import load_dataset

    data = load_dataset(reference.name, reference.folder)
    return data if reference.rows is None else data.head(reference.rows)


@dataclass(frozen=True)
class Task:
    """``about`` goes into the line as it is: what network this is. ``hard_limit`` is when to give it up.
    Tasks of a lower ``rank`` come first.
    """

    key: str
    stage: str
    options: Mapping[str, Any]
    about: Mapping[str, Any]
    network: bytes = field(repr=False)
    data: DataRef
    normalize: bool
    hard_limit: float
    rank: int = 0

    def line(self, status: str, seconds: float, **rest: Any) -> Line:
        """What is written about it."""
        return {
            "key": self.key,
            "status": status,
            "stage": self.stage,
            **self.about,
            "options": dict(self.options),
            "task_seconds": round(seconds, 3),
            **rest,
        }


def perform(task: Task) -> Line:
    """Do a task. Whatever goes wrong is written down and decides nothing."""
    from relutrim.paper.reproduce.measure import MEASURES, opened

    begun = time.monotonic()
    try:
        result = MEASURES[task.stage](opened(task), **task.options)
        return task.line(DONE, time.monotonic() - begun, result=result)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        return task.line(FAILED, time.monotonic() - begun, error=why[:500])


def lost(task: Task, why: str, seconds: float = 0.0) -> Line:
    """The line of a task that no process came back from."""
    return task.line(FAILED, seconds, error=why)
