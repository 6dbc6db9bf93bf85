"""``relutrim inspect``: what a model consists of."""

from __future__ import annotations

from pathlib import Path

import click

from relutrim.cli.inputs import load_network
from relutrim.cli.options import arch_option, json_option
from relutrim.cli.talk import console, talk_options, verbose


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@arch_option
@json_option
@talk_options
def inspect(model: Path, arch: str | None, as_json: bool) -> None:
    """Show what MODEL consists of."""
    network = load_network(model, arch)
    if as_json:
        from relutrim.report.json import dumps, inspection_json

        click.echo(dumps(inspection_json(network, model)))
    else:
        from relutrim.report.tables import show_network

        show_network(network, console(), more=verbose())
