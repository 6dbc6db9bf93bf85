"""``relutrim check``: the independent checker, with the rest of relutrim for what it does not read itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import click

from relutrim.cli.domain import ManyNumbers, domain_options, states_domain, take_domain
from relutrim.cli.inputs import load_network
from relutrim.cli.options import arch_option, json_option
from relutrim.errors import CheckFailed, InputError, one_line

if TYPE_CHECKING:
    from relutrim.certificate.check import Asked
    from relutrim.graph import Network


@click.command(cls=ManyNumbers)
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.argument("certificate", type=click.Path(path_type=Path))
@domain_options
@click.option("--tolerance", type=float, metavar="EPS", help="Fail if the bound is more than EPS.")
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0),
    metavar="S",
    help="Seconds for the whole check; what is not proved by then is not accepted [default: 600].",
)
@click.option("--output-relu", is_flag=True, help="MODEL was compressed with this option.")
@arch_option
@click.option("--out-arch", metavar="A", help="The same for OUT, where it is not --arch's.")
@json_option
def check(
    model: Path,
    out: Path,
    certificate: Path,
    tolerance: float | None,
    time_limit: float | None,
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

    def load(key: str) -> Network:
        from relutrim.io import as_network, suffix

        path, own = (model, arch) if key == "model" else (out, out_arch or arch)
        network = load_network(path, own if suffix(path) == ".pt" else None)
        return as_network(network, output_relu=output_relu and key == "model")

    _run(
        model,
        out,
        certificate,
        tolerance,
        load,
        options,
        seconds=time_limit,
        output_relu=output_relu,
        as_json=as_json,
    )


def _run(
    model: Path,
    out: Path,
    certificate: Path,
    tolerance: float | None,
    load: Callable[[str], Network],
    options: dict[str, Any],
    *,
    seconds: float | None,
    output_relu: bool,
    as_json: bool,
) -> None:
    """Check, and say what was checked; what does not hold is an error. ``load`` reads "model" or "out", where
    the checker does not read it itself.
    """
    from relutrim.certificate.check import SECONDS
    from relutrim.certificate.check import check as prove_anew
    from relutrim.certificate.check.__main__ import content

    proof = content(certificate)

    def translated(key: str) -> bytes:
        from relutrim.certificate.write import exactly_storable
        from relutrim.io.onnx.write import network_to_proto

        try:
            network = load(key)
        except InputError as error:
            name, option = ("MODEL", "--arch") if key == "model" else ("OUT", "--out-arch")
            raise CheckFailed(
                f"not checked: that the ONNX inside the certificate is what {name} computes, because {name} "
                f"cannot be read ({error}); {option} says what a .pt state dict belongs to"
            ) from None
        found: bytes = network_to_proto(exactly_storable(network)).SerializeToString(deterministic=True)
        return found

    asked = _asked(options, proof)
    report = prove_anew(
        content(model),
        content(out),
        proof,
        asked,
        tolerance,
        translated,
        SECONDS if seconds is None else seconds,
        names=(model.name, out.name),
        output_relu=output_relu,
    )
    if as_json:
        bounds = [bound.tolist() for bound in report.bounds]
        found = {"bound": report.bound, "bounds": bounds, "checked": report.lines}
        click.echo(json.dumps({"schema": "relutrim/check/1", "accepted": True, **found}, indent=1))
        return
    for line in report.lines:
        click.echo(one_line(line))
    click.echo(f"accepted: OUT is within {report.bound:.6g} of MODEL on the whole domain")


def _asked(options: dict[str, Any], proof: bytes) -> Asked | None:
    """The domain that was asked for, if any was."""
    from relutrim.certificate.check import Asked
    from relutrim.certificate.check.archive import open_archive

    if not states_domain(options):
        return None
    size = len(open_archive(proof).arrays.get("domain.lo", ()))
    port = SimpleNamespace(size=size, shape=(size,))
    domain = take_domain(options, cast("Network", SimpleNamespace(input=port)))
    rows, lower, upper = domain._all_rows(size)
    return Asked(domain.lo, domain.hi, rows, lower, upper, domain.mean, domain.std)
