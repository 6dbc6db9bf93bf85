"""The command line. Nothing heavy is imported before a command needs it: ``relutrim --help`` must be
quick.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from relutrim._version import __version__
from relutrim.cli_domain import ManyNumbers, domain_options, take_domain
from relutrim.cli_instances import instances
from relutrim.cli_reproduce import reproduce
from relutrim.cli_talk import completion, console, say, talk_options, verbose
from relutrim.cli_talk import progress as _progress
from relutrim.cli_train import train
from relutrim.errors import InputError, RelutrimError, one_line
from relutrim.formats.arrays import read_array
from relutrim.milp.settings import BIG_M, INJECTIONS, METHODS, SOLVERS, UNTIL
from relutrim.prove.verdict import Evidence
from relutrim.rewrite.cost import Cost

if TYPE_CHECKING:
    from relutrim.holdout import Holdout
    from relutrim.network import Network
    from relutrim.prove.stability import Stability

F = TypeVar("F", bound=Callable[..., Any])
INTERRUPTED = 130


def main() -> None:
    """Entry point: every error becomes one message on stderr and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that cannot be spelt here is no reason to fail
            stream.reconfigure(errors="backslashreplace")
    try:
        code = commands.main(prog_name="relutrim", standalone_mode=False)
    except click.Abort as stop:
        # Click takes the end of a file for the end of a conversation.
        code = _bug(stop.__cause__) if isinstance(stop.__cause__, EOFError) else _interrupted()
    except click.ClickException as error:
        if isinstance(error, click.UsageError) and error.ctx is not None:
            click.echo(f"{error.ctx.get_usage()}\nTry '{error.ctx.command_path} --help'.", err=True)
        code = _say(error.format_message(), error.exit_code)
    except RelutrimError as error:
        code = _say(str(error), error.exit_code)
    except KeyboardInterrupt:
        code = _interrupted()
    except OSError as error:
        if error.filename is None:
            _silence_stdout()
        code = _say(f"{error.filename or 'the output'}: {error.strerror or error}", 2)
    except Exception as error:
        code = _bug(error)
    sys.exit(code if isinstance(code, int) else 0)


def _say(message: str, code: int) -> int:
    click.echo(f"relutrim: error: {one_line(message)}", err=True)
    return code


def _interrupted() -> int:
    return _say("interrupted", INTERRUPTED)


def _bug(error: BaseException) -> int:
    if os.environ.get("RELUTRIM_DEBUG"):
        raise error
    return _say(
        f"internal error ({type(error).__name__}: {error}); set RELUTRIM_DEBUG=1 to see where, and please "
        "report it",
        1,
    )


def _silence_stdout() -> None:
    """What it still holds could not be written, and Python would try again on its way out."""
    with suppress(OSError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, invoke_without_command=True)
@click.version_option(__version__, prog_name="relutrim")
@click.pass_context
def commands(context: click.Context) -> None:
    """Make trained ReLU networks smaller without changing what they compute, and prove it."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(2)


commands.add_command(completion)
commands.add_command(instances)
_json = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object on stdout and nothing else."
)
_arch = click.option(
    "--arch", metavar="A", help="What a .pt state dict belongs to: mlp:784-100-10 or package.module:factory."
)
_ANALYSIS = (
    click.option(
        "--method",
        type=click.Choice(["auto", *METHODS, "bounds", "data"]),
        default="auto",
        show_default=True,
        help="auto proves and searches; isa is the paper's, one mixed-integer program for all neurons, layer "
        "has one per layer, neuron one per neuron and direction; bounds only proves, data only looks at "
        "--data (inexact).",
    ),
    click.option(
        "--solver",
        type=click.Choice(SOLVERS),
        default="highs",
        show_default=True,
        help="Who solves the programs of isa, layer and neuron.",
    ),
    click.option(
        "--big-m",
        type=click.Choice(BIG_M),
        default="best",
        show_default=True,
        help="Where those programs' constants come from; interval is the paper's.",
    ),
    click.option(
        "--inject",
        type=click.Choice(INJECTIONS),
        default="relaxation",
        show_default=True,
        help="Inputs tried while isa and layer are solved.",
    ),
    click.option(
        "--until",
        type=click.Choice(UNTIL),
        default="sign",
        show_default=True,
        help="When a program of neuron ends: at the sign (Serra et al. 2020) or the optimum (Tjeng et al.).",
    ),
    click.option(
        "--data", type=click.Path(path_type=Path), metavar="X.npy", help="Inputs in raw units, one a row."
    ),
    click.option(
        "--holdout",
        type=click.Path(path_type=Path),
        metavar="X.npy",
        help="Other inputs, to see how often --method data is wrong.",
    ),
    click.option(
        "--mask",
        type=click.Path(path_type=Path),
        metavar="M.npz",
        help="Write which units are always 0, one array of bools per layer (of OUT, where there is one).",
    ),
    click.option(
        "--report",
        type=click.Path(path_type=Path),
        metavar="R.html",
        help="Write a report for people: one HTML file with pictures that loads nothing from anywhere.",
    ),
    click.option(
        "--bounds",
        type=click.Path(path_type=Path),
        metavar="B.json",
        help="Write proven ranges of every neuron, before and behind its ReLU, and of the outputs (of OUT, "
        "where there is one).",
    ),
    click.option(
        "--time-limit",
        type=float,
        metavar="S",
        help="Stop after S seconds; the rest stays unknown. Without it only the last stage has a limit, of "
        "five minutes; inf lifts that too.",
    ),
    click.option(
        "--journal",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="Keep what is found in DIR as it is found: the same command goes on from there, whatever ended "
        "the run.",
    ),
    click.option(
        "--jobs", type=click.IntRange(1), metavar="N", help="Linear programs solved at once [default: cores]."
    ),
    click.option("--device", default="cpu", show_default=True, metavar="cpu|cuda", help="Where to compute."),
    click.option(
        "--output-relu", is_flag=True, help="Put a ReLU behind outputs that have none (autoencoders)."
    ),
    click.option(
        "--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Seed of the search."
    ),
    _arch,
    click.option("--details", is_flag=True, help="Bounds, margin and evidence of every neuron in the JSON."),
    _json,
    talk_options,
)


def analysis_options(command: F) -> F:
    """The options of everything that analyses."""
    for option in reversed(_ANALYSIS):
        command = option(command)
    return command


@commands.command()
@click.argument("model", type=click.Path(path_type=Path))
@_arch
@_json
@talk_options
def inspect(model: Path, arch: str | None, as_json: bool) -> None:
    """Show what MODEL consists of."""
    network = _loaded(model, arch)
    if as_json:
        from relutrim.report.json import dumps, inspection_json

        click.echo(dumps(inspection_json(network, model)))
    else:
        from relutrim.report.tables import show_network

        show_network(network, console(), more=verbose())


@commands.command(cls=ManyNumbers)
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

    if output is not None:
        from relutrim.formats.files import check_target

        _keep_apart(output, model, options)
        check_target(output)
    mask, page = _mask_target(model, options), _report_target(model, options, output)
    bounds = _target("bounds", model, options, output, mask)
    holdout = _held_out_rows(options)
    network, arguments = _prepared(model, options)
    source = model_json(network, model)
    from relutrim.analysis import analyze_network

    with _progress(as_json) as progress:
        stability = analyze_network(network, progress=progress, **arguments)
    tested = _tested(stability, holdout)
    if mask is not None:
        from relutrim.masks import inactive_units, write_masks

        weakest = Evidence.DATA if stability.method == "data" else Evidence.PROOF
        write_masks(mask, inactive_units(stability, weakest))
    if bounds is not None:
        from relutrim.report.bounds import write_bounds

        write_bounds(bounds, stability, source, arguments["time_limit"])
    text = dumps(analysis_json(stability, source, details=details, holdout=tested))
    if output is not None:
        from relutrim.formats.files import write_text

        write_text(output, text + "\n")
    if page is not None:
        from relutrim.formats.files import write_text
        from relutrim.report.html.environment import command_line
        from relutrim.report.html.page import analysis_page

        write_text(page, analysis_page(stability, source, holdout=tested, command=command_line()))
    if as_json:
        click.echo(text)
    else:
        from relutrim.report.tables import show_stability

        show_stability(stability, console(), tested)
    if stability.interrupted:
        raise click.exceptions.Exit(_say("interrupted; undecided neurons are unknown", INTERRUPTED))


@commands.command(cls=ManyNumbers)
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
    help="How far an output may move on the domain: by nothing but the rounding of re-written weights, by "
    "half a unit in the last place of its largest value, or by EPS.",
)
@click.option(
    "--cost",
    type=click.Choice([cost.value for cost in Cost]),
    default="parameters",
    show_default=True,
    help="What to make smaller: the numbers in the file, or the multiplications of one evaluation.",
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
    help="Write what 'relutrim check' needs to prove the result anew; an error if it could not.",
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
    evidence: str,
    dtype: str | None,
    certificate: Path | None,
    latency: bool,
    **options: Any,
) -> None:
    """Write to OUT a smaller network that computes the same as MODEL on the domain."""
    from relutrim.formats import check_writable
    from relutrim.report.json import compression_json, dumps, model_json

    _keep_apart(out, model, options)
    check_writable(out)
    if certificate is not None:
        from relutrim.formats.files import check_target

        _keep_apart(certificate, model, options)
        check_target(certificate)
        if certificate.absolute() == out.absolute():
            raise InputError("OUT and the certificate cannot be one file", where=str(certificate))
    mask, page = _mask_target(model, options), _report_target(model, options, out)
    bounds = _target("bounds", model, options, out, mask)
    card = _target("model_card", model, options, out, mask, bounds)
    holdout = _held_out_rows(options)
    plain = not options["output_relu"]
    network, arguments = _prepared(model, options)
    source = model_json(network, model)
    from relutrim.compression import compress_network, onnx_of

    with _progress(as_json) as progress:
        result = compress_network(
            network,
            progress=progress,
            rewrites=rewrites,
            tolerance=tolerance,
            cost=cost,
            evidence=evidence,
            dtype=dtype,
            certificate=certificate is not None,
            source=onnx_of(model) if certificate is not None and plain else None,
            **arguments,
        )
    result.save(out)
    if certificate is not None and result.certificate is not None:
        result.certificate.save(certificate, model=model, out=out)
    if mask is not None:
        from relutrim.masks import write_masks

        write_masks(mask, result.masks)
    if bounds is not None:
        from relutrim.report.bounds import of_compressed, write_bounds

        again = of_compressed(result, **arguments)
        write_bounds(bounds, again, model_json(result.stored, out), arguments["time_limit"])
    if card is not None:
        from shlex import join

        from relutrim.formats.files import write_text
        from relutrim.report.card import model_card

        made = model_json(result.stored, out)
        write_text(card, model_card(result, source, made, join(["relutrim", *sys.argv[1:]])))
    tested = _tested(result.stability, holdout)
    measured = result.latency() if latency else None
    if page is not None:
        from relutrim.formats.files import write_text
        from relutrim.report.html.environment import command_line
        from relutrim.report.html.page import compression_page

        text = compression_page(
            result,
            source,
            out=out,
            latency=measured,
            holdout=tested,
            command=command_line(),
            certificate=certificate,
        )
        write_text(page, text)
    if as_json:
        report = compression_json(result, source, details=details, latency=measured, holdout=tested)
        click.echo(dumps(report))
    else:
        from relutrim.report.tables import show_compression

        show_compression(result, console(), measured, tested)
        say(f"written: {one_line(str(out))}" + (f", {one_line(str(page))}" if page else ""))
        if certificate is not None and result.certificate is not None:
            own = result.deviation.proven
            say(
                f"certified within {result.certificate.bound:.2e} on the whole domain (the prover's own "
                f"bound: {'none' if own is None else f'{own:.2e}'}): {one_line(str(certificate))}"
            )


@commands.command(cls=ManyNumbers)
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.argument("certificate", type=click.Path(path_type=Path))
@domain_options
@click.option("--tolerance", type=float, metavar="EPS", help="Fail if the bound is more than EPS.")
@click.option("--output-relu", is_flag=True, help="MODEL was compressed with this option.")
@_arch
@click.option("--out-arch", metavar="A", help="The same for OUT, where it is not --arch's.")
@_json
def check(
    model: Path,
    out: Path,
    certificate: Path,
    tolerance: float | None,
    output_relu: bool,
    arch: str | None,
    out_arch: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Prove anew, from CERTIFICATE, that OUT computes the same as MODEL, on a domain that contains the one
    given.

    The checker is independent of everything else here; where only numpy and onnx are installed,
    python -m relutrim.certificate.check does the same.
    """
    from relutrim.cli_check import run_check

    def load(key: str) -> Network:
        from relutrim.formats import as_network, suffix

        path, own = (model, arch) if key == "model" else (out, out_arch or arch)
        network = _loaded(path, own if suffix(path) == ".pt" else None)
        return as_network(network, output_relu=output_relu and key == "model")

    run_check(model, out, certificate, tolerance, load, options, as_json=as_json)


@commands.command()
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
    from relutrim.formats import check_writable
    from relutrim.formats.files import check_target, write_text
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
    with _progress(False) as progress:
        result = run(demo_model(), Box(0, 1), progress=progress)
    result.save(target)
    measured = result.latency()
    source = {**model_json(result.original, demo_model()), "path": demo_model().name}
    write_text(page, compression_page(result, source, out=target, latency=measured, command=command_line()))
    show_compression(result, console(), measured)
    say(f"written: {one_line(str(target))}, {one_line(str(page))}")


def _prepared(model: Path, options: dict[str, Any]) -> tuple[Network, dict[str, Any]]:
    """The network, and the keyword arguments of an analysis, from a command's options."""
    from relutrim.formats import as_network

    limit = options["time_limit"]
    if limit is not None and not limit >= 0:
        raise InputError(f"a time limit of {limit:g} seconds makes no sense; it must not be negative")
    network = as_network(_loaded(model, options.pop("arch")), output_relu=options.pop("output_relu"))
    domain = take_domain(options, network)
    path = options.pop("data")
    data = None if path is None else read_array(path)
    return network, {"domain": domain, "data": data, **options}


def _target(option: str, model: Path, options: dict[str, Any], *others: Path | None) -> Path | None:
    """Where another file goes, if it is wanted; that it can go there is known before anything long starts."""
    path: Path | None = options.pop(option)
    if path is not None:
        from relutrim.formats.files import check_target

        _keep_apart(path, model, options)
        if any(other is not None and other.resolve() == path.resolve() for other in others):
            raise InputError("two outputs have this name; choose another for one of them", where=str(path))
        check_target(path)
    return path


def _mask_target(model: Path, options: dict[str, Any]) -> Path | None:
    """Where masks go, if they are wanted; that they can go there is known before anything long starts."""
    path: Path | None = options.pop("mask")
    if path is not None:
        from relutrim.formats.files import check_target

        _keep_apart(path, model, options)
        if path.suffix != ".npz":
            raise InputError("masks are written as .npz; give the file that ending", where=str(path))
        check_target(path)
    return path


def _report_target(model: Path, options: dict[str, Any], other: Path | None) -> Path | None:
    """Where the report goes, if one is wanted; it takes the place of no input and of no ``other`` output."""
    path: Path | None = options.pop("report")
    if path is not None:
        from relutrim.formats.files import check_target

        _keep_apart(path, model, options)
        if path.suffix.lower() not in (".html", ".htm"):
            raise InputError("reports are written as .html; give the file that ending", where=str(path))
        if other is not None and path.resolve() == other.resolve():
            raise InputError("the report would replace another output; choose another name", where=str(path))
        check_target(path)
    return path


def _held_out_rows(options: dict[str, Any]) -> Any:
    path: Path | None = options.pop("holdout")
    if path is not None and options["method"] != "data":
        raise InputError("--holdout says how often data is wrong; use it with --method data")
    return None if path is None else read_array(path)


def _tested(stability: Stability, rows: Any) -> Holdout | None:
    if rows is None:
        return None
    from relutrim.holdout import held_out

    return held_out(stability, rows)


def _loaded(model: Path, arch: str | None) -> Network:
    """The network. A factory may lie in the current folder, where Python looks only for ``python -m``."""
    from relutrim.formats import load

    if arch is None or arch.startswith("mlp:"):
        return load(model, arch=arch)
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        return load(model, arch=arch)
    finally:
        sys.path.remove(here)


def _keep_apart(output: Path, model: Path, options: dict[str, Any]) -> None:
    """What is read is never changed, so no output may take its place."""
    from relutrim.journal import NAME

    for path in (
        model,
        options["journal"] and options["journal"] / NAME,
        options["data"],
        options.get("holdout"),
        options["center"],
        options["vnnlib"],
        *options["constraint"],
    ):
        if path is not None and path.exists() and output.exists() and output.samefile(path):
            raise InputError(
                f"the output would replace the input {path}; choose another name", where=str(output)
            )


commands.add_command(train)
commands.add_command(reproduce)

if __name__ == "__main__":
    main()
