"""A time limit that is asked, never enforced: work stops at the next place where stopping is safe."""

from __future__ import annotations

import time


class Deadline:
    """So many seconds from now, or never; or now, once it is called off."""

    def __init__(self, seconds: float | None = None, outer: Deadline | None = None) -> None:
        self.started = time.monotonic()
        self.seconds = seconds
        self._outer = outer
        self._off = False

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    @property
    def left(self) -> float:
        """Seconds until the end; infinite without a limit."""
        if self._off:
            return 0.0
        return float("inf") if self.seconds is None else self.seconds - self.elapsed

    @property
    def limited(self) -> bool:
        """Whether it ever ends by itself."""
        return self.left < float("inf")

    def within(self, seconds: float) -> Deadline:
        """A deadline so many seconds from now, or this one if it comes first."""
        return Deadline(min(self.left, seconds), self)

    def or_within(self, seconds: float) -> Deadline:
        """This deadline; where it is never, one so many seconds from now."""
        return self.within(seconds) if self.seconds is None else self

    def call_off(self) -> None:
        """Let everything that asks stop at once."""
        self._off = True

    @property
    def passed(self) -> bool:
        """Whether to stop."""
        if self._off or (self._outer is not None and self._outer.passed):
            return True
        return self.seconds is not None and self.elapsed >= self.seconds
