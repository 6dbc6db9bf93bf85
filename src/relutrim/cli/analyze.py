"""``relutrim analyze``: a verdict for every neuron."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from relutrim.cli.clock import left_of
from relutrim.cli.domain import ManyNumbers, domain_options
from relutrim.cli.inputs import held_out_rows, prepared, tested_on
from relutrim.cli.options import analysis_options
from relutrim.cli.talk import INTERRUPTED, complain, console, progress
from relutrim.cli.targets import MASKS, REPORT, Targets
from relutrim.prove.verdict import Evidence


@click.command(cls=ManyNumbers)
@click.argument("model", type=click.Path(path_type=Path))
@domain_options
@analysis_options
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="VERDICTS.json",
    help="Write the JSON to a file.",
)
def analyze(model: Path, output: Path | None, as_json: bool, details: bool, **options: Any) -> None:
    """Decide for every neuron of MODEL whether it is always on, always off, or neither on the domain."""
    from relutrim.report.json import analysis_json, dumps, model_json

    targets = Targets(model, options)
    targets.add(output)
    mask = targets.add(options.pop("mask"), "masks", MASKS)
    page = targets.add(options.pop("report"), "reports", REPORT)
    bounds = targets.add(options.pop("bounds"))
    holdout = held_out_rows(options)
    network, arguments, _ = prepared(model, options)
    source = model_json(network, model)
    arguments["time_limit"] = left_of(arguments["time_limit"])
    from relutrim.analysis import analyze_network

    with progress(as_json) as watched:
        stability = analyze_network(network, progress=watched, **arguments)
    tested = tested_on(stability, holdout)
    if mask is not None:
        from relutrim.masks import inactive_units, write_masks

        weakest = Evidence.DATA if stability.method == "data" else Evidence.PROOF
        write_masks(mask, inactive_units(stability, weakest))
    if bounds is not None:
        from relutrim.report.bounds import write_bounds

        write_bounds(bounds, stability, source, arguments["time_limit"])
    text = dumps(analysis_json(stability, source, details=details, holdout=tested))
    if output is not None:
        from relutrim.io.files import write_text

        write_text(output, text + "\n")
    if page is not None:
        from relutrim.io.files import write_text
        from relutrim.report.html.environment import command_line
        from relutrim.report.html.page import analysis_page

        write_text(page, analysis_page(stability, source, holdout=tested, command=command_line()))
    if as_json:
        click.echo(text)
    else:
        from relutrim.report.tables import show_stability

        show_stability(stability, console(), tested)
    if stability.interrupted:
        raise click.exceptions.Exit(complain("interrupted; undecided neurons are unknown", INTERRUPTED))
