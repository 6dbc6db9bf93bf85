"""The command line. Nothing heavy is imported before a command needs it: ``relutrim --help`` must be
quick.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from relutrim._version import __version__
from relutrim.cli_domain import ManyNumbers, domain_options, read_array, take_domain
from relutrim.errors import InputError, RelutrimError

if TYPE_CHECKING:
    from rich.console import Console

    from relutrim.network import Network
    from relutrim.prove.cascade import Progress
    from relutrim.prove.stability import Stability

F = TypeVar("F", bound=Callable[..., Any])
INTERRUPTED = 130


def main() -> None:
    """Entry point: every error becomes one message on stderr and an exit code."""
    try:
        code = commands.main(standalone_mode=False)
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    except click.Abort:
        code = INTERRUPTED
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except RelutrimError as error:
        code = _say(str(error), error.exit_code)
    except KeyboardInterrupt:
        code = _say("interrupted", INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except Exception as error:
        if os.environ.get("RELUTRIM_DEBUG"):
            raise
        code = _say(
            f"internal error ({type(error).__name__}: {error}); set RELUTRIM_DEBUG=1 to see "
            "where, and please report it",
            1,
        )
    sys.exit(code if isinstance(code, int) else 0)


def _say(message: str, code: int) -> int:
    click.echo(f"relutrim: error: {message}", err=True)
    return code


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="relutrim")
def commands() -> None:
    """Make trained ReLU networks smaller without changing what they compute, and prove it."""


_json = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object on stdout and nothing else."
)
_arch = click.option(
    "--arch", metavar="A", help="What a .pt state dict belongs to: mlp:784-100-10 or package.module:factory."
)
_ANALYSIS = (
    click.option(
        "--method",
        type=click.Choice(["auto", "bounds", "data"]),
        default="auto",
        show_default=True,
        help="auto proves and searches, bounds only proves, data only looks at --data (inexact).",
    ),
    click.option(
        "--data", type=click.Path(path_type=Path), metavar="X.npy", help="Inputs in raw units, one a row."
    ),
    click.option(
        "--time-limit", type=float, metavar="S", help="Stop after S seconds; the rest stays unknown."
    ),
    click.option("--device", default="cpu", show_default=True, metavar="cpu|cuda", help="Where to compute."),
    click.option(
        "--output-relu", is_flag=True, help="Put a ReLU behind outputs that have none (autoencoders)."
    ),
    click.option("--seed", type=int, default=0, show_default=True, help="Seed of the search."),
    _arch,
    click.option("--details", is_flag=True, help="Bounds, margin and evidence of every neuron in the JSON."),
    _json,
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
def inspect(model: Path, arch: str | None, as_json: bool) -> None:
    """Show what MODEL consists of."""
    from relutrim.formats import load

    network = load(model, arch=arch)
    if as_json:
        from relutrim.report.json import dumps, inspection_json

        click.echo(dumps(inspection_json(network, model)))
    else:
        from relutrim.report.tables import show_network

        show_network(network, _console())


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

    _keep_apart(model, output)
    network, arguments = _prepared(model, options)
    if output is not None:
        from relutrim.formats.files import check_target

        check_target(output)
    from relutrim.analysis import analyze_network

    with _progress(as_json) as progress:
        stability = analyze_network(network, progress=progress, **arguments)
    text = dumps(analysis_json(stability, model_json(network, model), details=details))
    if output is not None:
        from relutrim.formats.files import write_text

        write_text(output, text + "\n")
    if as_json:
        click.echo(text)
    else:
        from relutrim.report.tables import show_stability

        show_stability(stability, _console())
    _stop_if_interrupted(stability)


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
    metavar="exact",
    help="How much the function may change.",
)
@click.option(
    "--evidence",
    type=click.Choice(["proof", "solver", "data"]),
    default="proof",
    show_default=True,
    help="The weakest evidence to rewrite on; anything but proof is not exact.",
)
def compress(
    model: Path,
    out: Path,
    as_json: bool,
    details: bool,
    rewrites: str,
    tolerance: str,
    evidence: str,
    **options: Any,
) -> None:
    """Write to OUT a smaller network that computes the same as MODEL on the domain."""
    from relutrim.formats import check_writable
    from relutrim.report.json import compression_json, dumps, model_json

    _keep_apart(model, out)
    check_writable(out)
    network, arguments = _prepared(model, options)
    from relutrim.compression import compress_network

    with _progress(as_json) as progress:
        result = compress_network(
            network, progress=progress, rewrites=rewrites, tolerance=tolerance, evidence=evidence, **arguments
        )
    _stop_if_interrupted(result.stability)
    result.save(out)
    if as_json:
        click.echo(dumps(compression_json(result, model_json(network, model), details=details)))
    else:
        from relutrim.report.tables import show_compression

        console = _console()
        show_compression(result, console)
        console.print(f"written: {out}")


@commands.command()
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("demo-output"),
    show_default=True,
    help="Where the compressed network goes.",
)
def demo(output: Path) -> None:
    """Compress the MNIST classifier that comes with relutrim, and show what happened."""
    from relutrim.compression import compress as run
    from relutrim.domain import Box
    from relutrim.examples import demo_model
    from relutrim.report.tables import show_compression

    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder cannot be made ({error.strerror})", where=str(output)) from None
    console = _console()
    console.print(
        "An MNIST classifier 784-100-100-10, trained with l1 regularisation; all inputs in [0, 1].\n"
    )
    with _progress(False) as progress:
        result = run(demo_model(), Box(0, 1), progress=progress)
    target = output / "mnist_2x100_smaller.onnx"
    result.save(target)
    show_compression(result, console)
    console.print(f"written: {target}")


def _prepared(model: Path, options: dict[str, Any]) -> tuple[Network, dict[str, Any]]:
    """The network, and the keyword arguments of an analysis, from a command's options."""
    from relutrim.formats import as_network, load

    limit = options["time_limit"]
    if limit is not None and not limit >= 0:
        raise InputError(f"a time limit of {limit:g} seconds makes no sense; it must not be negative")
    network = as_network(load(model, arch=options.pop("arch")), output_relu=options.pop("output_relu"))
    domain = take_domain(options, network)
    path = options.pop("data")
    data = None if path is None else read_array(path)
    return network, {"domain": domain, "data": data, **options}


def _keep_apart(model: Path, output: Path | None) -> None:
    """Input models are never changed, so no output may take the place of one."""
    if output is not None and output.exists() and model.exists() and output.samefile(model):
        raise InputError("the output would replace the input model; choose another name", where=str(output))


def _stop_if_interrupted(stability: Stability) -> None:
    if stability.interrupted:
        click.echo("relutrim: interrupted; undecided neurons are unknown", err=True)
        raise click.exceptions.Exit(INTERRUPTED)


def _console() -> Console:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 120, highlight=False)


@contextmanager
def _progress(quiet: bool) -> Iterator[Progress | None]:
    """A bar on stderr that shows the stage and how many neurons are decided; none where nobody watches."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description:>8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("decided"),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("start", total=None)
        yield lambda stage, done, total: bar.update(task, description=stage, completed=done, total=total)


if __name__ == "__main__":
    main()
