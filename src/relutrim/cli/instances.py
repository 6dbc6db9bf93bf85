"""``relutrim instances``: a list of VNN-COMP instances, each with a smaller network for verifiers.

An instance that fails does not end the run. It has its line in the summary, with the exit code that it would
have had alone, and the run ends with the first of those that is not 0.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from relutrim.cli.talk import INTERRUPTED, console, progress, talk_options
from relutrim.errors import InputError, RelutrimError, one_line

if TYPE_CHECKING:
    from relutrim.io.instances import Instance
    from relutrim.prove.cascade import Progress
    from relutrim.result import Compression

_BUG = 1
_LIST = "instances.csv"


@click.command()
@click.argument("csv", type=click.Path(path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--time-limit",
    type=click.FloatRange(0),
    metavar="S",
    help="At most S seconds for the analysis of each instance, whatever the list allows.",
)
@click.option(
    "--share",
    type=click.FloatRange(0, 1),
    default=0.25,
    show_default=True,
    help="The part of a line's time limit that the analysis may take; the rest is the verifier's.",
)
@click.option(
    "--tolerance", default="exact", show_default=True, metavar="exact|rounding|EPS", help="As for compress."
)
@click.option("--bounds", is_flag=True, help="Write proven ranges of every neuron beside each network.")
@click.option("--device", default="cpu", show_default=True, metavar="cpu|cuda", help="Where to compute.")
@click.option("--jobs", type=click.IntRange(1), metavar="N", help="Trees grown at once.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per instance, as it ends.")
@talk_options
def instances(csv: Path, folder: Path, as_json: bool, **options: Any) -> None:
    """Compress every network of a VNN-COMP list on the inputs of its property.

    CSV has lines network,property,seconds; files may be packed (.gz). FOLDER gets one network per instance,
    and an instances.csv that names them with the unchanged properties, so that a verifier can be given either
    list. The first failure decides the exit code, but does not end the run.
    """
    from relutrim.io.instances import read_instances
    from relutrim.wish import parsed_tolerance

    parsed_tolerance(options["tolerance"])
    listed = read_instances(csv)
    targets = _targets(csv, listed, folder)
    results: list[dict[str, Any]] = []
    code = 0
    for instance, target in zip(listed, targets, strict=True):
        try:
            with progress(as_json) as watched:
                result = _one(instance, target, options, watched)
        except KeyboardInterrupt:
            click.echo(f"relutrim: error: interrupted at line {instance.line}", err=True)
            code = INTERRUPTED
            break
        results.append(result)
        code = code or result["code"]
        if as_json:
            click.echo(json.dumps(result, allow_nan=False))
        else:
            _show(result)
    _write_list(folder, listed, targets, results)
    if not as_json:
        bad = sum(result["code"] != 0 for result in results)
        console().print(f"{len(results) - bad} of {len(listed)} instances done, {bad} failed", style="bold")
    raise click.exceptions.Exit(code)


def _targets(csv: Path, listed: list[Instance], folder: Path) -> list[Path]:
    """A file for each instance, all of them different and none of them an input."""
    read = {path.resolve() for one in listed for path in (one.network, one.specification)} | {csv.resolve()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder cannot be made ({error.strerror})", where=str(folder)) from None
    targets: list[Path] = []
    for instance in listed:
        target, count = folder / f"{instance.name}.onnx", 1
        while target in targets:
            count += 1
            target = folder / f"{instance.name}_{count}.onnx"
        targets.append(target)
    for target in (*targets, folder / _LIST):
        if target.resolve() in read:
            raise InputError("this would replace what is read; choose another folder", where=str(target))
    return targets


def _one(
    instance: Instance, target: Path, options: dict[str, Any], watched: Progress | None
) -> dict[str, Any]:
    """What came of one instance. Only an interruption, or memory that is not there, ends the run."""
    started = time.perf_counter()
    found: dict[str, Any] = {
        "schema": "relutrim/instance/1",
        "line": instance.line,
        "network": str(instance.network),
        "property": str(instance.specification),
        "output": None,
        "code": 0,
        "error": None,
    }
    try:
        result = _compressed(instance, target, options, watched)
        found |= {"output": str(target), **_sizes(result)}
    except RelutrimError as error:
        found |= {"code": error.exit_code, "error": one_line(str(error))}
    except (KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:
        found |= {"code": _BUG, "error": one_line(f"internal error ({type(error).__name__}: {error})")}
    return found | {"seconds": round(time.perf_counter() - started, 3)}


def _compressed(
    instance: Instance, target: Path, options: dict[str, Any], watched: Progress | None
) -> Compression:
    from relutrim.cli.domain import from_vnnlib
    from relutrim.compression import SECONDS, compress_network
    from relutrim.io import load
    from relutrim.io.source import Source

    source = Source.of(instance.network)
    source.check(target)
    network = load(instance.network)
    domain = from_vnnlib(instance.specification, network)
    limits = [
        options["time_limit"],
        None if instance.seconds is None else options["share"] * instance.seconds,
    ]
    analysis = {
        "method": "auto",
        "time_limit": min((limit for limit in limits if limit is not None), default=SECONDS),
        "device": options["device"],
        "jobs": options["jobs"],
        "seed": 0,
        "progress": watched,
    }
    result = compress_network(
        network,
        domain,
        tolerance=options["tolerance"],
        source=source,
        target=target,
        **analysis,
    )
    result.save(target)
    if options["bounds"]:
        from relutrim.report.bounds import of_compressed, write_bounds
        from relutrim.report.json import model_json

        again = of_compressed(result, domain=domain, data=None, **analysis)
        write_bounds(target.with_suffix(".json"), again, model_json(result.stored, target), limits[0])
    return result


def _sizes(result: Compression) -> dict[str, Any]:
    from relutrim.prove.verdict import Verdict

    before, after = result.original, result.stored
    return {
        "neurons": {"before": before.neurons, "after": after.neurons},
        "parameters": {"before": before.parameters, "after": after.parameters},
        "unstable": result.stability.count(Verdict.UNSTABLE),
        "unknown": result.stability.count(Verdict.UNKNOWN),
        "deviation": result.deviation.proven,
    }


def _show(result: dict[str, Any]) -> None:
    from relutrim.report.tables import WARNING

    name = f"{Path(result['network']).name} on {Path(result['property']).name}"
    if result["code"]:
        console().print(f"{one_line(name)}: {result['error']}", style=WARNING, soft_wrap=True)
        return
    neurons, parameters = result["neurons"], result["parameters"]
    proven = "nothing proven" if result["deviation"] is None else f"deviation <= {result['deviation']:.1e}"
    console().print(
        f"{one_line(name)}: {neurons['before']:,} -> {neurons['after']:,} neurons, "
        f"{parameters['before']:,} -> {parameters['after']:,} parameters, {proven} "
        f"({result['seconds']:.2f} s)",
        soft_wrap=True,
    )


def _write_list(
    folder: Path, listed: list[Instance], targets: list[Path], results: list[dict[str, Any]]
) -> None:
    """The same list with the smaller networks; with the network that it had where there is none."""
    import csv
    import io
    import os

    from relutrim.io.files import write_text

    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    done = [result["code"] == 0 for result in results]
    done += [False] * (len(listed) - len(done))
    for instance, target, good in zip(listed, targets, done, strict=True):
        network = target if good else instance.network
        paths = [os.path.relpath(path, folder) for path in (network, instance.specification)]
        writer.writerow([*paths, *([] if instance.seconds is None else [f"{instance.seconds:g}"])])
    write_text(folder / _LIST, lines.getvalue())
