"""How much the commands say: ``-q``, ``-v``, and the shell completion.

Results go to stdout, everything else to stderr. What was asked for is kept in click's context, so that
commands need not pass it on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import Console

    from relutrim.prove.cascade import Progress

F = TypeVar("F", bound=Callable[..., Any])
SHELLS = {
    "bash": 'eval "$(relutrim completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(relutrim completion zsh)" in ~/.zshrc, behind compinit',
    "fish": "relutrim completion fish > ~/.config/fish/completions/relutrim.fish",
}
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


def progress(as_json: bool) -> AbstractContextManager[Progress | None]:
    """What a run reports to: a bar on a terminal, lines with ``-v``, nothing beside ``--json`` alone."""
    from relutrim.report.progress import progress as shown

    limit = click.get_current_context().params.get("time_limit")
    return shown(quiet=quiet() or (as_json and not verbose()), verbose=verbose(), limit=limit)


@click.command(epilog="\b\n" + "\n".join(SHELLS.values()))
@click.argument("shell", type=click.Choice(list(SHELLS)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what makes SHELL complete relutrim's commands, options and file names."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    made = kind(context.find_root().command, {}, "relutrim", "_RELUTRIM_COMPLETE")
    click.echo(made.source_template % made.source_vars())
