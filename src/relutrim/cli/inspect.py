"""``relutrim inspect``: what a model consists of."""

from __future__ import annotations

from pathlib import Path

import click

from relutrim.cli.inputs import load_network
from relutrim.cli.options import arch_option, json_option
from relutrim.cli.talk import console, talk_options, verbose
from relutrim.errors import one_line
from relutrim.io import suffix


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@arch_option
@json_option
@talk_options
def inspect(model: Path, arch: str | None, as_json: bool) -> None:
    """Show what MODEL consists of."""
    network = load_network(model, arch)
    is_onnx = suffix(model) in (".onnx", ".onnx.gz")
    constants = _constant_inputs(model) if is_onnx else []
    if as_json:
        from relutrim.report.json import dumps, inspection_json

        click.echo(dumps(inspection_json(network, model, constants)))
    else:
        from relutrim.report.tables import show_network

        show_network(network, console(), constants, more=verbose())
        if verbose() and is_onnx:
            from relutrim.io.onnx.read import reading_of

            for reason in reading_of(model).opaque.values():
                console().print(f"not known: {one_line(reason)}", soft_wrap=True, markup=False)


def _constant_inputs(model: Path) -> list[str]:
    from relutrim.io.files import read_bytes
    from relutrim.io.onnx.parse import constant_inputs, parse

    return constant_inputs(parse(read_bytes(model)))
