"""A hard neuron is a task of its own.

An analysis that leaves a few neurons undecided has given each of them a share of one process's time. With a
limit for neurons, ``auto`` is done in three steps instead: the whole network first; each neuron that is left,
alone, wherever there is a process for it; then the network once more, with what is known of these. Every
step has a line and a key of its own, so that whatever is lost, a worker or the whole run, costs one step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from relutrim.paper.reproduce.executors import Executor
from relutrim.paper.reproduce.rows import DONE, Line, key_of
from relutrim.paper.reproduce.task import Task, lost

STAGE = "hard"
LIMIT = "neuron_time_limit"
"""The option of a task that is done in these steps."""


@dataclass
class _Parts:
    """Where a task stands: its first line, and which neurons are still out."""

    whole: Task
    first: Line
    out: set[str]
    found: list[Line] = field(default_factory=list)


class HardNeurons:
    """An executor that does tasks with a limit for neurons in steps, and others as they are.

    ``lines`` are those of earlier runs, by key.
    """

    def __init__(self, executor: Executor, lines: Mapping[str, Line]) -> None:
        self._executor, self._lines = executor, lines
        self._whole: dict[str, Task] = {}
        self._parts: dict[str, _Parts] = {}
        self._of: dict[str, str] = {}
        """Whose part a task is, by keys."""

    @property
    def pending(self) -> int:
        """Tasks that have no line yet."""
        return self._executor.pending

    def submit(self, task: Task) -> None:
        """Take a task."""
        if LIMIT not in task.options:
            self._executor.submit(task)
            return
        first = replace(task, key=key_of(task.key, "first"), options=_without_limit(task))
        self._whole[first.key] = task
        known = self._known(first)
        if known is None:
            self._executor.submit(first)
        else:
            self._split(task, known)

    def finished(self, wait: float) -> list[Line]:
        """Lines of tasks that have ended; what they lead to is submitted by then."""
        return [line for ended in self._executor.finished(wait) for line in self._next(ended)]

    def close(self) -> None:
        """Give up what is pending."""
        self._executor.close()

    def _known(self, task: Task) -> Line | None:
        """What an earlier run found, if it was about the very same network and is as it was written: bounds
        of a neuron are taken at their word, so a number that was damaged since must not be.
        """
        line = self._lines.get(task.key)
        if line is None or line["status"] != DONE or line["sha256"] != task.about["sha256"]:
            return None
        if task.stage == STAGE and line["result"].get("seal") != key_of(line["result"].get("known")):
            return None
        return line

    def _next(self, line: Line) -> list[Line]:
        """The lines to write when one comes back."""
        if (whole := self._whole.pop(line["key"], None)) is not None:
            if line["status"] != DONE or not _left(line):
                return [_as(whole, line)]
            self._split(whole, line)
        elif (owner := self._of.pop(line["key"], None)) is not None:
            parts = self._parts[owner]
            parts.out.discard(line["key"])
            parts.found.append(line)
            if not parts.out:
                return [line, *self._join(parts)]
        elif (ended := self._parts.pop(line["key"], None)) is not None:
            return [_summed(ended, line)]
        return [line]

    def _split(self, whole: Task, first: Line) -> None:
        """A task for each neuron that the first step left."""
        parts = self._parts[whole.key] = _Parts(whole, first, set())
        tasks = [_neuron(whole, relu, neuron) for relu, neuron in _left(first)]
        for task in tasks:
            known = self._known(task)
            if known is None:
                parts.out.add(task.key)
                self._of[task.key] = whole.key
                self._executor.submit(task)
            else:
                parts.found.append(known)
        if not parts.out:
            self._join(parts)

    def _join(self, parts: _Parts) -> list[Line]:
        """The last step. A neuron whose task failed is to be tried again by the next run, so it fails the
        whole; the first step's line is there meanwhile.
        """
        failed = [line for line in parts.found if line["status"] != DONE]
        if failed:
            why = f"{len(failed)} of its neurons' tasks failed: {failed[0]['error']}"
            return [lost(self._parts.pop(parts.whole.key).whole, why)]
        self._executor.submit(_joined(parts))
        return []


def _left(line: Line) -> list[tuple[str, int]]:
    return [(relu, neuron) for relu, neuron in line["result"]["undecided"]]


def _without_limit(task: Task) -> dict[str, Any]:
    return {name: value for name, value in task.options.items() if name != LIMIT}


def _neuron(whole: Task, relu: str, neuron: int) -> Task:
    options = {"relu": relu, "neuron": neuron, "time_limit": whole.options[LIMIT]}
    limit = whole.hard_limit + 2 * whole.options[LIMIT]
    return replace(whole, key=key_of(whole.key, relu, neuron), stage=STAGE, options=options, hard_limit=limit)


def _joined(parts: _Parts) -> Task:
    """The network once more, with what the neurons' tasks have found."""
    found = [line["result"]["known"] for line in parts.found]
    known = sorted(found, key=lambda one: (one["relu"], one["neuron"]))
    return replace(parts.whole, options={**_without_limit(parts.whole), "known": known})


def _as(whole: Task, line: Line) -> Line:
    """A line of a step as that of the task."""
    return {**line, "key": whole.key, "options": dict(whole.options)}


def _summed(parts: _Parts, line: Line) -> Line:
    """The task's line: its time is that of all steps, but for the last, which only repeats the first."""
    line = _as(parts.whole, line)
    if line["status"] == DONE:
        alone = [one["result"]["seconds"] for one in parts.found]
        seconds = round(parts.first["result"]["seconds"] + sum(alone), 4)
        line["result"] = {**line["result"], "seconds": seconds, "hard_neurons": len(alone)}
    return line
