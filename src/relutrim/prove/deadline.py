"""A time limit that is asked, never enforced: work stops at the next place where stopping is safe."""

from __future__ import annotations

import time


class Deadline:
    """So many seconds from now, or never."""

    def __init__(self, seconds: float | None = None) -> None:
        self.started = time.monotonic()
        self.seconds = seconds

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    @property
    def left(self) -> float:
        """Seconds until the end; infinite without a limit."""
        return float("inf") if self.seconds is None else self.seconds - self.elapsed

    def within(self, seconds: float) -> Deadline:
        """A deadline so many seconds from now, or this one if it comes first."""
        return Deadline(min(self.left, seconds))

    @property
    def passed(self) -> bool:
        """Whether to stop."""
        return self.seconds is not None and self.elapsed >= self.seconds
