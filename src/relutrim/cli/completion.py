"""``relutrim completion``: what makes a shell complete commands, options and file names."""

from __future__ import annotations

import click

SHELLS = {
    "bash": 'eval "$(relutrim completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(relutrim completion zsh)" in ~/.zshrc, behind compinit',
    "fish": "relutrim completion fish > ~/.config/fish/completions/relutrim.fish",
}


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
