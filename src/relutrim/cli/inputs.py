"""What the commands read: the network, the domain and the rows of data."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relutrim.cli.domain import take_domain
from relutrim.errors import InputError
from relutrim.io.rows import Rows, read_rows

if TYPE_CHECKING:
    from relutrim.domain import Domain
    from relutrim.graph import Network
    from relutrim.holdout import Holdout
    from relutrim.prove.stability import Stability


def load_network(model: Path, arch: str | None) -> Network:
    """The network. A factory may lie in the current folder, where Python looks only for ``python -m``."""
    from relutrim.io import load

    if arch is None or arch.startswith("mlp:"):
        return load(model, arch=arch)
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        return load(model, arch=arch)
    finally:
        sys.path.remove(here)


def prepared(
    model: Path, options: dict[str, Any], *, optional: bool = False
) -> tuple[Network, dict[str, Any], Any]:
    """The network, the keyword arguments of an analysis, and the labels of the data, from a command's
    options; a domain need not be among them where it is ``optional``.
    """
    from relutrim.io import as_network

    network = as_network(load_network(model, options.pop("arch")), output_relu=options.pop("output_relu"))
    domain = take_domain(options, network, optional=optional)
    path = options.pop("data")
    if path is None:
        return network, {"domain": domain, "data": None, **options}, None
    rows = read_rows(path)
    data = rows.raw(highest(domain))
    return network, {"domain": domain, "data": data, **options}, _fitting(rows, network)


def highest(domain: Domain) -> float:
    """How far up raw inputs reach."""
    return float(domain.hi.max(initial=-math.inf))


def _fitting(rows: Rows, network: Network) -> Any:
    """The labels, if there are any and the network could give them."""
    if rows.labels is None:
        return None
    from relutrim.accuracy import checked_labels

    try:
        return checked_labels(rows.labels, network)
    except InputError as error:
        raise error.at(str(rows.path)) from None


def held_out_rows(options: dict[str, Any]) -> Rows | None:
    """The rows of ``--holdout``, if there are any."""
    path: Path | None = options.pop("holdout")
    if path is not None and options["method"] != "data":
        raise InputError("--holdout says how often data is wrong; use it with --method data")
    return None if path is None else read_rows(path)


def tested_on(stability: Stability, rows: Rows | None) -> Holdout | None:
    """How often verdicts that rest on data are wrong on other rows, if there are any."""
    if rows is None:
        return None
    from relutrim.holdout import held_out

    return held_out(stability, rows.raw(highest(stability.domain)))
