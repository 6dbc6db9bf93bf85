"""How far a run is, on stderr: a bar where somebody watches, a line per stage with ``-v``.

**When it will be over** is told by the run's own pace, and only as far as that is believable. Easy neurons
are decided first, so the past is looked at no further back than as many decisions as are left, never beyond
the stage that runs now; and while the next decision is due for longer than that, the pace is that of waiting.
Where nothing was decided in a stage yet there is no pace, and only the time limit is shown.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from relutrim.prove.cascade import Progress

LIMITED = ("splitting", "trees", "isa", "highs", "scip", "gurobi")
"""The stages that have a limit of their own where the run has none."""
STEADY = ("rewrite", "compare", "certify")
"""The stages in which no neuron is decided."""
_SHORT = 1.0
"""A forecast of less than so many seconds is not worth reading."""


class Pace:
    """Decisions and when they fell, and what they say about the rest."""

    def __init__(
        self,
        limit: float | None = None,
        last_stage: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stage = ""
        self.decided = 0
        self.total: int | None = None
        self._clock = clock
        self._started = clock()
        self._end = None if limit is None else self._started + limit
        self._last_stage = last_stage
        self._seen: list[tuple[float, int]] = []

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._started

    @property
    def open(self) -> int:
        """How many neurons are not decided."""
        return 0 if self.total is None else self.total - self.decided

    def saw(self, stage: str, decided: int, total: int) -> bool:
        """Note what a run reports. Returns whether a new stage has begun."""
        now = self._clock()
        if stage == "search" and self.stage in LIMITED and total == self.total:
            stage = self.stage  # the last stages search on from what they find
        fresh = (stage, total) != (self.stage, self.total)
        if fresh:
            self._seen = [(now, decided)]
            if self._end is None and self._last_stage is not None and stage in LIMITED:
                self._end = now + self._last_stage
        elif decided > self.decided:
            self._seen.append((now, decided))
        self.stage, self.decided, self.total = stage, decided, total
        return fresh

    @property
    def limit_left(self) -> float | None:
        """Seconds until a limit ends the run, as far as there is one."""
        return None if self._end is None else max(0.0, self._end - self._clock())

    @property
    def remaining(self) -> float | None:
        """Seconds that deciding the rest takes at the present pace, None where that cannot be told."""
        if not self.open or len(self._seen) < 2 or self.stage in STEADY:
            return None
        last, decided = self._seen[-1]
        since, before = next(
            (seen for seen in reversed(self._seen[:-1]) if decided - seen[1] >= self.open), self._seen[0]
        )
        each = max((last - since) / (decided - before), self._clock() - last)
        return each * self.open

    def __str__(self) -> str:
        """``about 0:12 left``, ``at most 4:31 left``, or nothing."""
        remaining, limit = self.remaining, self.limit_left
        if self.stage in STEADY:
            return ""
        if remaining is not None and (limit is None or remaining < limit):
            return f"about {_minutes(remaining)} left" if remaining >= _SHORT else ""
        return f"at most {_minutes(limit)} left" if limit is not None and limit != float("inf") else ""


@contextmanager
def progress(
    *, quiet: bool = False, verbose: bool = False, limit: float | None = None
) -> Iterator[Progress | None]:
    """What a run is to call, or None where nobody listens."""
    terminal = sys.stderr is not None and sys.stderr.isatty()
    if quiet or sys.stderr is None or not (terminal or verbose):
        yield None
        return
    from relutrim.prove.cascade import LAST_SECONDS

    pace = Pace(limit, LAST_SECONDS)
    if not terminal:

        def line(stage: str, decided: int, total: int) -> None:
            if pace.saw(stage, decided, total):
                print(_told(pace), file=sys.stderr, flush=True)

        yield line
        return
    console = stderr()
    with _bar(console, pace) as (bar, task):

        def draw(stage: str, decided: int, total: int) -> None:
            if pace.saw(stage, decided, total) and verbose:
                console.print(_told(pace))
            bar.update(task, description=pace.stage, completed=decided, total=total)

        yield draw


def stderr() -> Console:
    """Standard error, without colours where those are not wanted."""
    from rich.console import Console

    return Console(
        stderr=True,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        highlight=False,
        markup=False,
        emoji=False,
    )


@contextmanager
def _bar(console: Console, pace: Pace) -> Iterator[tuple[Any, Any]]:
    from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar
    from rich.text import Text

    class Counts(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{pace.decided:,} decided, {pace.open:,} open")

    class Left(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(str(pace))

    columns = (TextColumn("{task.description:>9}"), BarColumn(), Counts(), TimeElapsedColumn(), Left())
    with Bar(*columns, console=console, transient=True) as bar:
        yield bar, bar.add_task("start", total=None)


def _told(pace: Pace) -> str:
    return f"{pace.elapsed:8.2f} s  {pace.stage}: {pace.decided:,} of {pace.total:,} neurons decided"


def _minutes(seconds: float) -> str:
    """Minutes and seconds, or hours too.

    >>> _minutes(71.6), _minutes(7261)
    ('1:12', '2:01:01')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
