"""``relutrim reproduce``: the paper's tables and figures, from data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from relutrim.cli.domain import ManyNumbers
from relutrim.cli.talk import INTERRUPTED
from relutrim.paper.reproduce.options import NAMES, OPTIONS, Option


class _ManyValues(ManyNumbers):
    """Penalties, seeds and names come in numbers."""

    many = tuple(option.name for option in OPTIONS if option.many)

    def takes(self, option: str, argument: str) -> bool:
        """Names end where the next option begins."""
        if option in ("--architecture", "--stage"):
            return not argument.startswith("-")
        return super().takes(option, argument)


def _as_click(option: Option) -> Any:
    extra: dict[str, Any] = {"metavar": option.metavar, "multiple": option.many}
    if option.kind is bool:
        extra = {"is_flag": True}
    elif option.kind is not str:
        extra["type"] = click.Path(path_type=Path) if option.kind is Path else option.kind
    if option.default is not None and option.kind is not bool:
        extra |= {"default": option.default, "show_default": True}
    return click.option(option.name, option.variable, help=option.help, **extra)


def _with_options(command: Any) -> Any:
    for option in reversed(OPTIONS):
        command = _as_click(option)(command)
    return command


@click.command(cls=_ManyValues)
@click.argument("name", type=click.Choice(NAMES))
@_with_options
def reproduce(name: str, **options: Any) -> None:
    """Train the networks of the paper's experiment NAME, measure them, and make its tables and figures.

    Without --quick or --paper: nine penalties and three seeds. A run that was stopped goes on if the same
    command is given again; what is done is not done twice.
    """
    from relutrim.paper.reproduce.command import reproduce as run

    try:
        code = run(name, options, lambda text: click.echo(text, err=True))
    except KeyboardInterrupt:
        click.echo("relutrim: interrupted; the same command goes on", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    if code:
        raise click.exceptions.Exit(code)
