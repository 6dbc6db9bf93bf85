"""``relutrim compress``: a smaller network that computes the same."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from relutrim.cli.clock import started
from relutrim.cli.domain import ManyNumbers, domain_options, states_domain
from relutrim.cli.inputs import held_out_rows, prepared, tested_on
from relutrim.cli.options import analysis_options
from relutrim.cli.talk import INTERRUPTED, complain, console, progress, quiet, say
from relutrim.cli.targets import MASKS, REPORT, Targets
from relutrim.errors import CheckFailed, one_line
from relutrim.rewrite.cost import Cost


@click.command(cls=ManyNumbers)
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@domain_options
@analysis_options
@click.option(
    "--rewrites",
    type=click.Choice(["leo++", "all"]),
    default="all",
    show_default=True,
    help="leo++ is the paper's algorithm; all never makes the network larger.",
)
@click.option(
    "--tolerance",
    default="exact",
    show_default=True,
    metavar="exact|rounding|EPS",
    help="How far an output may provably move on the domain. 0: not at all. rounding: by 2^-24 times the "
    "largest value it was seen to take (float32's unit roundoff, for every file). exact: by as much, but "
    "only for the rounding of re-written weights. EPS: by that much.",
)
@click.option(
    "--cost",
    type=click.Choice([cost.value for cost in Cost]),
    default="parameters",
    show_default=True,
    help="What to make smaller: the numbers in the file, or the multiplications of one evaluation.",
)
@click.option(
    "--fold-batch-norm",
    is_flag=True,
    help="Fold batch norms into the layers beside them. It rounds every weight, which counts as deviation; "
    "otherwise they stay as they are.",
)
@click.option(
    "--evidence",
    type=click.Choice(["proof", "solver", "data"]),
    default="proof",
    show_default=True,
    help="The weakest evidence to rewrite on; anything but proof is not exact.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float64", "bfloat16-check"]),
    help="The type to observe both networks in, the one you deploy; OUT keeps MODEL's [default: MODEL's].",
)
@click.option(
    "--certificate",
    type=click.Path(path_type=Path),
    metavar="C",
    help="Write what 'relutrim check' needs to prove the result anew; an error if it could not, or if there "
    "was no time left for it.",
)
@click.option(
    "--suggest", is_flag=True, help="Say what --tolerance rounding would remove beyond this; takes a while."
)
@click.option(
    "--latency/--no-latency",
    default=True,
    show_default=True,
    help="Measure the time of both networks with onnxruntime, if it is installed (a second at most for small "
    "ones).",
)
@click.option(
    "--model-card",
    type=click.Path(path_type=Path),
    metavar="CARD.md",
    help="Write a section for a model card: what was done, on which inputs, and what is proven.",
)
def compress(
    model: Path,
    out: Path,
    as_json: bool,
    details: bool,
    rewrites: str,
    tolerance: str,
    cost: str,
    fold_batch_norm: bool,
    evidence: str,
    dtype: str | None,
    certificate: Path | None,
    latency: bool,
    suggest: bool,
    **options: Any,
) -> None:
    """Write to OUT a smaller network that computes the same as MODEL on the domain, or on all real inputs
    where none is stated.

    Where nothing can be removed within the tolerance, OUT is MODEL, byte for byte. The first Ctrl-C makes OUT
    of what is proved by then; the second one writes nothing.
    """
    from relutrim.clock import Clock
    from relutrim.io import check_writable
    from relutrim.io.source import Source
    from relutrim.report.json import compression_json, dumps, model_json, suggestion_json

    targets = Targets(model, options)
    targets.add(out)
    check_writable(out)
    given = Source.of(model)
    given.keep_from(out)
    file = None if options["output_relu"] else given
    if file is not None:
        file.check(out)
    targets.add(certificate)
    mask = targets.add(options.pop("mask"), "masks", MASKS)
    page = targets.add(options.pop("report"), "reports", REPORT)
    bounds = targets.add(options.pop("bounds"))
    card = targets.add(options.pop("model_card"))
    for target in (certificate, mask, page, bounds, card):
        if target is not None:
            given.keep_from(target)
    holdout = held_out_rows(options)
    stated = states_domain(options)
    network, arguments, labels = prepared(model, options, optional=True)
    source = model_json(network, model)
    from relutrim.compression import SECONDS, compress_network

    limit = arguments.pop("time_limit")
    clock = Clock(SECONDS if limit is None else limit, started())
    with progress(as_json) as watched:
        result = compress_network(
            network,
            progress=watched,
            clock=clock,
            target=out,
            rewrites=rewrites,
            tolerance=tolerance,
            cost=cost,
            fold_batch_norm=fold_batch_norm,
            evidence=evidence,
            dtype=dtype,
            certificate=certificate is not None,
            source=file,
            **arguments,
        )
    result.save(out)
    if certificate is not None and result.certificate is not None:
        result.certificate.save(certificate, model=model, out=out)
    scored = result.accuracy(arguments["data"], labels) if labels is not None else None
    if mask is not None:
        from relutrim.masks import write_masks

        write_masks(mask, result.masks)
    if bounds is not None:
        from relutrim.report.bounds import of_compressed, write_bounds

        again = of_compressed(result, time_limit=clock.left, **arguments)
        write_bounds(bounds, again, model_json(result.stored, out), clock.left)
    if card is not None:
        from shlex import join

        from relutrim.io.files import write_text
        from relutrim.report.card import model_card

        made = model_json(result.stored, out)
        write_text(card, model_card(result, source, made, join(["relutrim", *sys.argv[1:]]), scored))
    tested = tested_on(result.stability, holdout)
    measured = result.latency(clock.left) if latency else None
    if page is not None:
        from relutrim.io.files import write_text
        from relutrim.report.html.environment import command_line
        from relutrim.report.html.page import compression_page

        text = compression_page(
            result,
            source,
            out=out,
            latency=measured,
            holdout=tested,
            accuracy=scored,
            command=command_line(),
            certificate=certificate,
        )
        write_text(page, text)
    asked = suggest and (as_json or not quiet())
    more = result.suggestion(clock.left) if asked else None
    late = asked and clock.left == 0
    if as_json:
        report = compression_json(
            result, source, details=details, latency=measured, holdout=tested, accuracy=scored
        )
        click.echo(dumps(report | ({"suggestion": suggestion_json(more, late=late)} if asked else {})))
    else:
        from relutrim.report.tables import show_compression, show_suggestion

        show_compression(result, console(), measured, tested, scored)
        if not stated:
            say(
                "no domain was given, so this holds for all real inputs; a box such as --box 0 1 may allow "
                "for more"
            )
        if asked:
            show_suggestion(result, more, console(), late=late)
        say(f"written: {one_line(str(out))}" + (f", {one_line(str(page))}" if page else ""))
        if certificate is not None and result.certificate is not None:
            own = result.deviation.proven
            say(
                f"certified within {result.certificate.bound:.2e} on the whole domain (the prover's own "
                f"bound: {'none' if own is None else f'{own:.2e}'}): {one_line(str(certificate))}"
            )
    missing = certificate is not None and result.certificate is None
    if missing and not result.interrupted:
        raise CheckFailed(
            f"no certificate was written: time was up before it was made; {out} is written, and a larger "
            "--time-limit makes both",
            where=str(certificate),
        )
    if result.interrupted:
        said = "interrupted; what was proved by then is written"
        said += f"; no certificate was written to {certificate}" if missing else ""
        raise click.exceptions.Exit(complain(said, INTERRUPTED))
