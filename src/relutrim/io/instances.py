"""VNN-COMP's ``instances.csv``: one line per instance, ``network,property,seconds``.

Rules:

1. There is no header; empty lines and lines that begin with ``#`` are passed over.
2. Paths are relative to the folder of the list. Where a named file is not there, the same name with ``.gz``
   behind it is taken, and the other way round: benchmarks are shipped packed, and their lists do not say so.
3. The time limit is a positive number of seconds; a line may leave it out.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

from relutrim.errors import InputError
from relutrim.io.files import read_text


@dataclass(frozen=True)
class Instance:
    """A network, the property whose inputs are the domain, and how long a verifier would have."""

    line: int
    network: Path
    specification: Path
    seconds: float | None

    @property
    def name(self) -> str:
        """Network and property in one word, as result files name them.

        >>> Instance(1, Path("onnx/net.onnx.gz"), Path("vnnlib/prop_1.vnnlib"), None).name
        'net_prop_1'
        """
        return f"{_stem(self.network)}_{_stem(self.specification)}"


def read_instances(path: Path) -> list[Instance]:
    """The instances of a list. What a line names is looked for, but not opened; a line that makes no sense is
    an error of the list, since what follows may make none either.
    """
    found = []
    rows = csv.reader(read_text(path).removeprefix("\ufeff").splitlines())
    for row in rows:
        cells = [cell.strip() for cell in row]
        if not any(cells) or cells[0].startswith("#"):
            continue
        where = f"{path}: line {rows.line_num}"
        if len(cells) not in (2, 3) or not all(cells[:2]):
            raise InputError(
                f"it has {len(cells)} columns; an instance is network,property,seconds", where=where
            )
        network, specification = (_found(path.parent / name) for name in cells[:2])
        found.append(Instance(rows.line_num, network, specification, _seconds(cells[2:], where)))
    if not found:
        raise InputError("the list holds no instance", where=str(path))
    return found


def _seconds(cells: list[str], where: str) -> float | None:
    if not cells or not cells[0]:
        return None
    try:
        seconds = float(cells[0])
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise InputError(f"{cells[0]!r} is no time limit; it is a number of seconds", where=where)
    return seconds


def _found(path: Path) -> Path:
    """The file, packed or not; as it was named where there is neither."""
    other = path.with_suffix("") if path.suffix.lower() == ".gz" else path.with_name(f"{path.name}.gz")
    return other if not path.exists() and other.exists() else path


def _stem(path: Path) -> str:
    name = path.name
    for ending in (".gz", ".onnx", ".vnnlib"):
        if name.lower().endswith(ending):
            name = name[: -len(ending)]
    return name
