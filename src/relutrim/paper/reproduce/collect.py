"""Rows become tables and figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from relutrim.errors import InputError
from relutrim.io.files import write_text
from relutrim.paper.recipe import Recipe
from relutrim.paper.reproduce.cells import cell_table, cells, network_table
from relutrim.paper.reproduce.headlines import headline_table
from relutrim.paper.reproduce.measured import Measured, measured
from relutrim.paper.reproduce.rows import read_lines
from relutrim.paper.reproduce.side import side_tables
from relutrim.paper.reproduce.table import Table

_TITLES = {
    "mnist": "MNIST classifiers",
    "cifar10": "CIFAR-10 classifiers",
    "cifar100": "CIFAR-100 classifiers",
    "autoencoder": "MNIST autoencoders",
    "lenet": "LeNet on CIFAR-10",
}

_ROWS = {"mnist": 60_000, "cifar10": 50_000, "cifar100": 50_000}


def collect(output: Path, name: str, tell: Callable[[str], None]) -> list[Path]:
    """Write what can be made of the rows in a folder; the files. Figures need matplotlib; without it there is
    a remark in their place, and the same rows give them elsewhere (``--tables-only``).
    """
    networks, left_out = measured(read_lines(output), name)
    if not networks:
        raise InputError(f"there are no rows of the experiment {name} here", where=str(output))
    if left_out:
        tell(f"{left_out} lines belong to runs with other settings and are left out")
    found = cells(networks, name)
    tables = [headline_table(networks, found, name), cell_table(found, name)]
    tables += side_tables(networks, found, name)
    every = [*tables, network_table(networks)]
    written = [_write(output / f"{name}-{table.name}.csv", table.csv()) for table in every]
    try:
        from relutrim.paper.reproduce.figures import figures

        pictures = figures(output, name, networks, found)
    except ImportError:
        pictures = {}
        tell("no figures: matplotlib is not installed (pip install 'relutrim[plot]', then --tables-only)")
    report = _report(name, networks, tables, pictures)
    return [_write(output / f"{name}.md", report), *written, *(path for path, _ in pictures.values())]


def _write(path: Path, text: str) -> Path:
    write_text(path, text)
    return path


def _report(
    name: str, networks: list[Measured], tables: list[Table], pictures: dict[str, tuple[Path, str]]
) -> str:
    about = networks[0].about
    failed = sum(len(one.failed) for one in networks)
    kinds = len({one.cell for one in networks})
    about_all = (
        f"{len(networks)} networks of {kinds} kinds ({about['dataset']}, "
        f"{about['train_rows']} training rows, {about['epochs']} epochs, trained on {about['device']}). "
        f"{_limits(networks)} "
        f"{f'{failed} measurements failed and are missing. ' if failed else ''}"
        "Made by `relutrim reproduce`; docs/reproduce.md says what is measured and how."
    )
    parts = [f"# {_TITLES[name]}: the paper's experiments", about_all]
    if about["epochs"] != Recipe().epochs or about["train_rows"] < _ROWS.get(about["dataset"], 0):
        parts.append(
            "**These networks were trained shorter, or on less data, than the paper's**, so their accuracies "
            "and what can be removed from them are not to be compared with its numbers."
        )
    parts += [table.markdown() for table in tables[:1]]
    parts += [f"![{caption}]({path.name})\n\n{caption}" for path, caption in pictures.values()]
    parts += [table.markdown() for table in tables[1:]]
    return "\n\n".join(parts) + "\n"


def _limits(networks: list[Measured]) -> str:
    """What the time limits were."""
    words = []
    for stage, what in (("auto", "auto"), ("isa", "ISA")):
        options = [one.about["options"].get(stage) for one in networks]
        limits = {o["time_limit"] for o in options if o}
        if len(limits) == 1:
            words.append(f"{what} was limited to {limits.pop():g} s a network")
        elif limits:
            words.append(f"{what} was limited to {min(limits):g} to {max(limits):g} s a network")
    return f"{', '.join(words)}, on one core each." if words else ""
