"""When a command began: its time limit counts from there, reading the model included."""

from __future__ import annotations

import math
import time

import click

from relutrim.errors import InputError

STARTED = "relutrim.started"
"""Where click's context keeps it."""


class Seconds(click.ParamType):  # type: ignore[type-arg]
    """A number of seconds, or ``none``."""

    name = "seconds"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; infinite where there is no limit."""
        if isinstance(value, float):
            return value
        try:
            seconds = math.inf if str(value).lower() == "none" else float(str(value))
        except ValueError:
            self.fail(f"{value!r} is neither a number of seconds nor 'none'")
        if not seconds >= 0:
            raise InputError(f"a time limit of {seconds:g} seconds makes no sense; it must not be negative")
        return seconds


def started() -> float:
    """When the command began, by ``time.monotonic()``."""
    found = click.get_current_context().meta.get(STARTED)
    return time.monotonic() if found is None else float(found)


def left_of(seconds: float | None) -> float | None:
    """What is left of a limit."""
    return None if seconds is None else max(0.0, seconds - (time.monotonic() - started()))
