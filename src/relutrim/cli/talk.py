"""How much the commands say: ``-q``, ``-v``, and where it goes.

Results go to stdout, everything else to stderr. What was asked for is kept in click's context, so that
commands need not pass it on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from relutrim.errors import one_line

if TYPE_CHECKING:
    from rich.console import Console

    from relutrim.prove.cascade import Progress

F = TypeVar("F", bound=Callable[..., Any])
INTERRUPTED = 130
_QUIET, _VERBOSE = "relutrim.quiet", "relutrim.verbose"


def talk_options(command: F) -> F:
    """Add ``-q`` and ``-v`` to a command."""
    for flags, key, text in (
        (("-v", "--verbose"), _VERBOSE, "Say on stderr when each stage begins, and show more."),
        (("-q", "--quiet"), _QUIET, "Say nothing but errors; files are written, --json is printed."),
    ):
        command = click.option(*flags, is_flag=True, expose_value=False, callback=_kept(key), help=text)(
            command
        )
    return command


def _kept(key: str) -> Callable[[click.Context, click.Parameter, bool], None]:
    def keep(context: click.Context, _: click.Parameter, value: bool) -> None:
        context.meta[key] = value
        if context.meta.get(_QUIET) and context.meta.get(_VERBOSE):
            raise click.UsageError("--quiet and --verbose exclude each other")

    return keep


def quiet() -> bool:
    """Whether ``-q`` was given."""
    return bool(click.get_current_context().meta.get(_QUIET))


def verbose() -> bool:
    """Whether ``-v`` was given."""
    return bool(click.get_current_context().meta.get(_VERBOSE))


def console() -> Console:
    """Where tables go; nowhere with ``-q``."""
    from relutrim.report import tables

    found = tables.console()
    found.quiet = quiet()
    return found


def say(text: str) -> None:
    """A line on stdout, unless ``-q`` was given."""
    if not quiet():
        click.echo(text)


def complain(message: str, code: int) -> int:
    """An error on stderr, ``-q`` or not; the exit code is handed back."""
    click.echo(f"relutrim: error: {one_line(message)}", err=True)
    return code


def progress(as_json: bool) -> AbstractContextManager[Progress | None]:
    """What a run reports to: a bar on a terminal, lines with ``-v``, nothing beside ``--json`` alone."""
    from relutrim.report.progress import progress as shown

    limit = click.get_current_context().params.get("time_limit")
    return shown(quiet=quiet() or (as_json and not verbose()), verbose=verbose(), limit=limit)
