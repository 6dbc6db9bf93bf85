"""``relutrim demo``: the classifier that comes with relutrim, made smaller."""

from __future__ import annotations

from pathlib import Path

import click

from relutrim.cli.talk import console, progress, say, talk_options
from relutrim.errors import InputError, one_line


@click.command()
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("demo-output"),
    show_default=True,
    help="Where the compressed network and its report go.",
)
@talk_options
def demo(output: Path) -> None:
    """Compress the MNIST classifier that comes with relutrim, and show what happened."""
    from relutrim.compression import compress as run
    from relutrim.domain import Box
    from relutrim.examples import demo_model
    from relutrim.io import check_writable
    from relutrim.io.files import check_target, write_text
    from relutrim.report.html.environment import command_line
    from relutrim.report.html.page import compression_page
    from relutrim.report.json import model_json
    from relutrim.report.tables import show_compression

    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder cannot be made ({error.strerror})", where=str(output)) from None
    target, page = output / "mnist_2x100_smaller.onnx", output / "report.html"
    check_writable(target)
    check_target(page)
    say("An MNIST classifier 784-100-100-10, trained with l1 regularisation; all inputs in [0, 1].\n")
    with progress(False) as watched:
        result = run(demo_model(), Box(0, 1), progress=watched)
    result.save(target)
    measured = result.latency()
    source = {**model_json(result.original, demo_model()), "path": demo_model().name}
    write_text(page, compression_page(result, source, out=target, latency=measured, command=command_line()))
    show_compression(result, console(), measured)
    say(f"written: {one_line(str(target))}, {one_line(str(page))}")
