"""The paper's figures from our rows, its numbers dashed beside ours where it prints them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from relutrim.io.files import replacing
from relutrim.paper.reproduce.cells import Cell
from relutrim.paper.reproduce.grid import DEEP, WIDE
from relutrim.paper.reproduce.headlines import left_and_accuracy
from relutrim.paper.reproduce.measured import Measured
from relutrim.paper.reproduce.numbers import regression

BLUE, ORANGE, GREEN, GREY = "#0082ba", "#f74d17", "#14a01a", "#777777"
_STYLE = {
    "svg.hashsalt": "relutrim",  # the same rows give the same file
    "font.size": 8,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
}
Pictures = dict[str, tuple[Path, str]]
Drawn = tuple[Any, str] | None


def figures(output: Path, name: str, networks: Sequence[Measured], found: Sequence[Cell]) -> Pictures:
    """Draw what there are rows for, each as SVG and PNG; by name, the SVG and a caption. An ``ImportError``
    says that matplotlib is not there.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn: Pictures = {}
    with pyplot.rc_context(_STYLE):
        for key, draw in (
            ("curves", _curves),
            ("scatter", _scatter),
            ("runtime", _runtime),
            ("regression", _regression),
        ):
            made = draw(pyplot, networks, found, name)
            if made is None:
                continue
            figure, caption = made
            for suffix in ("png", "svg"):
                path = output / f"{name}-{key}.{suffix}"
                with replacing(path) as aside:
                    figure.savefig(aside, dpi=150, metadata={"Date": None} if suffix == "svg" else None)
            pyplot.close(figure)
            drawn[key] = (path, caption)
    return drawn


def _groups(found: Sequence[Cell]) -> dict[str, list[Cell]]:
    groups: dict[str, list[Cell]] = {}
    for cell in found:
        groups.setdefault(cell.name, []).append(cell)
    return {name: sorted(some, key=lambda cell: cell.l1) for name, some in groups.items() if len(some) > 1}


def _curves(pyplot: Any, networks: Sequence[Measured], found: Sequence[Cell], name: str) -> Drawn:
    """Accuracy and nodes removed against l1, one picture for each architecture."""
    groups = _groups(found)
    if not groups:
        return None
    across = min(4, len(groups))
    down = -(-len(groups) // across)
    figure, axes = pyplot.subplots(down, across, figsize=(2.6 * across, 2.1 * down), squeeze=False)
    for axis in axes.flat[len(groups) :]:
        axis.set_visible(False)
    for axis, (title, some) in zip(axes.flat, groups.items(), strict=False):
        x = [1e4 * cell.l1 for cell in some]
        printed = [(1e4 * cell.l1, cell.paper) for cell in some if cell.paper is not None]
        axis.plot(x, [cell.score for cell in some], color=BLUE, marker=".")
        axis.plot([at for at, _ in printed], [p.score for _, p in printed], color=BLUE, ls="--", lw=0.8)
        axis.tick_params(axis="y", colors=BLUE)
        right = axis.twinx()
        right.grid(False)
        for rewrites, color in (("leo++", ORANGE), ("all", GREEN)):
            right.plot(x, [cell.mean(rewrites, "neurons") for cell in some], color=color, marker=".")
        right.plot([at for at, _ in printed], [p.neurons for _, p in printed], color=ORANGE, ls="--", lw=0.8)
        right.set_ylim(-2, 102)
        right.tick_params(axis="y", colors=ORANGE)
        axis.set_title(title)
        axis.set_xlabel("l1 / 1e-4")
        if axis.get_subplotspec().is_first_col():
            axis.set_ylabel("loss" if name == "autoencoder" else "accuracy (%)", color=BLUE)
        if axis.get_subplotspec().is_last_col():
            right.set_ylabel("neurons removed (%)", color=ORANGE)
    score = "Test loss" if name == "autoencoder" else "Test accuracy (%)"
    caption = (
        f"{score} (blue) and neurons removed (%) by LEO++ (orange) and by all rewrites (green), against l1; "
    )
    return figure, caption + "dashed: the paper."


def _scatter(pyplot: Any, networks: Sequence[Measured], found: Sequence[Cell], name: str) -> Drawn:
    """Times of one network by two methods, against the baseline and against no preprocessing."""
    pairs = (("neuron", "programs per neuron (s)"), ("bare", "ISA without preprocessing (s)"))
    shown = [(slow, label) for slow, label in pairs if any(slow in one.results for one in networks)]
    if not shown:
        return None
    figure, axes = pyplot.subplots(1, len(shown), figsize=(3.4 * len(shown), 3.2), squeeze=False)
    for axis, (slow, label) in zip(axes.flat, shown, strict=True):
        times = []
        for quick, color in (("isa", ORANGE), ("auto", BLUE)):
            some = [one for one in networks if slow in one.results and quick in one.results]
            for ended, marker in ((True, "o"), (False, "x")):
                part = [one for one in some if (one.complete(slow) and one.complete(quick)) == ended]
                x, y = ([one.seconds(stage) for one in part] for stage in (quick, slow))
                times += x + y
                axis.scatter(
                    x, y, s=12, color=color, marker=marker, alpha=0.7, label=quick if ended else None
                )
        ends = [min(t for t in times if t), max(t for t in times if t)]
        axis.plot(ends, ends, color=GREY, lw=0.8)
        axis.set(xscale="log", yscale="log", xlabel="ISA (orange), auto (blue) (s)", ylabel=label)
    caption = (
        "Runtimes to decide all neurons; every point is a network, a cross one where a method was stopped."
    )
    return figure, caption


def _runtime(pyplot: Any, networks: Sequence[Measured], found: Sequence[Cell], name: str) -> Drawn:
    """Runtime against l1, by width and by depth."""
    groups = _groups(found)
    rows = {"width": [n for n in WIDE if n in groups], "depth": [n for n in (WIDE[0], *DEEP) if n in groups]}
    if name == "autoencoder":
        rows = {"architecture": list(groups)}
    shown = {title: names for title, names in rows.items() if names}
    if not shown:
        return None
    figure, axes = pyplot.subplots(1, len(shown), figsize=(3.6 * len(shown), 3), squeeze=False)
    for axis, (title, names) in zip(axes.flat, shown.items(), strict=True):
        for number, architecture in enumerate(names):
            some, color = groups[architecture], f"C{number}"
            x = [1e4 * cell.l1 for cell in some]
            axis.plot(x, [cell.seconds for cell in some], color=color, marker=".", label=architecture)
            isa = [(at, cell.isa_seconds) for at, cell in zip(x, some, strict=True) if cell.isa_seconds]
            axis.plot(
                [at for at, _ in isa], [value for _, value in isa], color=color, ls=":", marker="x", ms=3
            )
            printed = [(at, cell.paper.seconds) for at, cell in zip(x, some, strict=True) if cell.paper]
            axis.plot(
                [at for at, _ in printed], [value for _, value in printed], color=color, ls="--", lw=0.8
            )
        axis.set(yscale="log", xlabel="l1 / 1e-4", ylabel="runtime (s)", title=f"by {title}")
        axis.legend(fontsize=6)
    return figure, "Mean runtime against l1: auto (solid), ISA as limited here (dotted), the paper (dashed)."


def _regression(pyplot: Any, networks: Sequence[Measured], found: Sequence[Cell], name: str) -> Drawn:
    """Neurons left against accuracy at 2x100."""
    x, y = left_and_accuracy(networks)
    line = regression(x, y)
    if line is None:
        return None
    slope, intercept, share = line
    figure, axis = pyplot.subplots(figsize=(3.4, 2.8))
    axis.scatter(x, y, s=12, color=BLUE, alpha=0.7)
    ends = [min(x), max(x)]
    axis.plot(ends, [slope * at + intercept for at in ends], color=ORANGE)
    axis.set(xlabel="neurons left by LEO++", ylabel="test accuracy (%)", title=f"R² = {share:.0%}")
    return figure, "Accuracy by neurons left, compressible 2x100 networks, with the line of least squares."
