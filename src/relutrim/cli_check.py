"""``relutrim check``: the independent checker, with the rest of relutrim for what it does not read itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import click

from relutrim.cli_domain import take_domain
from relutrim.errors import InputError, one_line

if TYPE_CHECKING:
    from relutrim.certificate.check import Asked
    from relutrim.network import Network


def run_check(
    model: Path,
    out: Path,
    certificate: Path,
    tolerance: float | None,
    load: Callable[[Path], Network],
    options: dict[str, Any],
    *,
    as_json: bool,
) -> None:
    """Check, and say what was checked; what does not hold is an error."""
    from relutrim.certificate.check import check
    from relutrim.certificate.check.__main__ import content

    proof = content(certificate)

    def translated(key: str) -> bytes | None:
        from relutrim.certificate.write import exactly_storable
        from relutrim.formats.onnx.write import network_to_proto

        try:
            network = load(model if key == "model" else out)
        except InputError:
            return None
        found: bytes = network_to_proto(exactly_storable(network)).SerializeToString(deterministic=True)
        return found

    asked = _asked(options, proof)
    report = check(content(model), content(out), proof, asked, tolerance, translated)
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

    if all(value is None or value == () for value in options.values()):
        return None
    size = len(open_archive(proof).arrays.get("domain.lo", ()))
    port = SimpleNamespace(size=size, shape=(size,))
    domain = take_domain(options, cast("Network", SimpleNamespace(input=port)))
    rows, lower, upper = domain._all_rows(size)
    return Asked(domain.lo, domain.hi, rows, lower, upper, domain.mean, domain.std)
