"""The commands by name. Each is imported when it is called, and its module imports nothing heavy before it
runs: ``relutrim --help`` must be quick.
"""

from __future__ import annotations

import time
from importlib import import_module

import click

from relutrim._version import __version__
from relutrim.cli.clock import STARTED

NAMES = (
    "analyze",
    "check",
    "completion",
    "compress",
    "demo",
    "inspect",
    "instances",
    "reproduce",
    "train",
)


class _Commands(click.Group):
    """The command ``name`` is the function ``name`` of the module ``name`` beside this one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the alphabet, as click would have it."""
        return list(NAMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now."""
        if cmd_name not in NAMES:
            return None
        command = getattr(import_module(f"relutrim.cli.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]}, invoke_without_command=True
)
@click.version_option(__version__, prog_name="relutrim")
@click.pass_context
def commands(context: click.Context) -> None:
    """Make trained ReLU networks smaller without changing what they compute, and prove it."""
    context.meta[STARTED] = time.monotonic()
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(2)
