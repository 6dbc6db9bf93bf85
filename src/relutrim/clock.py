"""The time of a whole command, divided among its stages, and the first Ctrl-C.

A stage gets a deadline of its own: a part of what is left. What it does not use is left for those behind it.
The first Ctrl-C ends the stage that is running, as if its time were up, and leaves the others a few seconds,
so that what is known by then is written; the second one is a ``KeyboardInterrupt`` like any other.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from relutrim.prove.deadline import Deadline

GRACE = 10.0
"""Seconds for everything behind an interruption."""


class Clock:
    """So many seconds in all, counted from ``started`` (``time.monotonic()``; None: from now)."""

    def __init__(self, seconds: float | None = None, started: float | None = None) -> None:
        self.seconds = math.inf if seconds is None else seconds
        self.started = time.monotonic() if started is None else started
        self.interrupted = False
        self._handlers: list[Any] = []
        """Those of the blocks that are running, the innermost last."""

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    @property
    def left(self) -> float:
        """Seconds until the end."""
        return max(0.0, self.seconds - self.elapsed)

    def stage(self, part: float = 1.0) -> Deadline:
        """A deadline that leaves the stages behind this one their part."""
        left = part * self.left
        return Deadline() if math.isinf(left) else Deadline(left)

    def interrupt(self) -> None:
        """Hurry: an interruption has been taken in."""
        self.interrupted = True
        self.seconds = min(self.seconds, self.elapsed + GRACE)

    @contextmanager
    def stopping(self, deadline: Deadline) -> Iterator[None]:
        """Let the first Ctrl-C within the block end the stage of this deadline. Where signals belong to
        someone else (another thread, a handler of the program's own), they stay theirs.
        """
        before = signal.getsignal(signal.SIGINT)
        ours = threading.current_thread() is threading.main_thread() and before is signal.default_int_handler
        if self.interrupted or not ours:
            yield
            return

        def first(*_: Any) -> None:
            signal.signal(signal.SIGINT, before)
            if self.interrupted:  # within `raising`
                raise KeyboardInterrupt
            self.interrupt()
            deadline.call_off()

        signal.signal(signal.SIGINT, first)
        self._handlers.append(first)
        try:
            yield
        finally:
            self._handlers.remove(first)
            signal.signal(signal.SIGINT, before)

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Let Ctrl-C within the block, which may lie in one of :meth:`stopping`, be a ``KeyboardInterrupt``:
        an analysis takes it in itself.
        """
        before = signal.getsignal(signal.SIGINT)
        if before not in self._handlers:
            yield
            return
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
