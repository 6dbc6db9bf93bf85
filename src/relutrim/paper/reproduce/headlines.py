"""The paper's headline numbers beside ours."""

from __future__ import annotations

from collections.abc import Sequence

from relutrim.paper.reproduce import published as paper
from relutrim.paper.reproduce.cells import Cell
from relutrim.paper.reproduce.grid import BASELINE
from relutrim.paper.reproduce.measured import Measured
from relutrim.paper.reproduce.numbers import geometric_mean, median, per, regression
from relutrim.paper.reproduce.table import Table


def headline_table(networks: Sequence[Measured], found: Sequence[Cell], experiment: str) -> Table:
    """What the abstract and the text of the paper say, as far as rows allow."""
    real = experiment if not networks[0].made_up else ""
    table = Table("headlines", "Headline numbers", ["what", "paper", "ours", "over"])
    baseline = [one.about["options"]["neuron"] for one in networks if "neuron" in one.results]
    helped = any(options.get("inject") != "off" for options in baseline)
    inputs = "with inputs injected on the way, unlike" if helped else "without inputs injected on the way, as"
    table.note = (
        "*auto* is relutrim's own analysis, *ISA* the paper's method, *programs per neuron* its baseline: a "
        f"program for each neuron and direction, searched until the sign is known, {inputs} "
        "in the paper. *A over B* is how many times longer B took, where A decided every neuron."
    )
    add = table.rows.append
    add(["networks with undecided neurons: auto", None, *_undecided(networks, "auto")])
    add(["networks with undecided neurons: ISA", _timeouts(found), *_undecided(networks, "isa")])
    ups = [cell.speed_up for cell in found if cell.speed_up is not None]
    many = f"{len(ups)} cells"
    add(["auto against the paper's mean time: median speed-up", None, median(ups), many])
    add(["auto against the paper's mean time: geometric mean", None, geometric_mean(ups), many])
    add(["auto against the paper's mean time: smallest", None, min(ups, default=None), many])
    _programs(table, networks, real)
    if any(one.cell == BASELINE[0] for one in networks):
        _compression(table, networks, found, real)
    return table


def _undecided(networks: Sequence[Measured], stage: str) -> tuple[int | None, str]:
    ran = [one for one in networks if stage in one.results]
    left = sum(not one.complete(stage) for one in ran)
    return left if ran else None, f"{len(ran)} networks"


def _timeouts(found: Sequence[Cell]) -> int | None:
    printed = [cell.paper.timeouts for cell in found if cell.paper is not None]
    return sum(printed) if printed else None


def ratios(networks: Sequence[Measured], slow: str, quick: str) -> tuple[list[float], int]:
    """How many times longer one analysis took than another, where the quicker one decided everything; and how
    many of these are lower bounds, since the slower one was stopped.
    """
    both = [one for one in networks if one.complete(quick) and slow in one.results]
    values = [per(one.seconds(slow), one.seconds(quick)) for one in both]
    return [value for value in values if value is not None], sum(not one.complete(slow) for one in both)


def _programs(table: Table, networks: Sequence[Measured], experiment: str) -> None:
    lines = [("ISA over programs per neuron: median", "neuron", "isa", paper.ISA_OVER_NEURON.get(experiment))]
    lines.append(("auto over programs per neuron: median", "neuron", "auto", None))
    lines.append(("auto over ISA: median", "isa", "auto", None))
    if experiment == "mnist":
        lines.append(("preprocessing, ISA at 2x100: median", "bare", "isa", paper.PREPROCESSING))
    for what, slow, quick, printed in lines:
        _ratio(table, what, networks, slow, quick, printed)
    for architecture in BASELINE if experiment == "mnist" else ():
        some = [one for one in networks if one.cell == architecture]
        printed = paper.ISA_OVER_NEURON_BY_ARCHITECTURE[architecture]
        _ratio(table, f"ISA over programs per neuron, {architecture}", some, "neuron", "isa", printed)


def _ratio(
    table: Table, what: str, networks: Sequence[Measured], slow: str, quick: str, printed: float | None
) -> None:
    values, bounds = ratios(networks, slow, quick)
    over = f"{len(values)} networks" + (f", {bounds} of them stopped: at least" if bounds else "")
    table.rows.append([what, printed, median(values), over])


def _compression(table: Table, networks: Sequence[Measured], found: Sequence[Cell], experiment: str) -> None:
    printed = paper.CONNECTIONS_WITHOUT_LOSS.get(experiment)
    for rewrites in ("leo++", "all", "rounding"):
        for slack, words in ((0.0, "no loss of accuracy"), (1.0, "at most a point lost")):
            best = without_loss(found, rewrites, slack)
            shown = printed if rewrites == "leo++" and not slack else None
            over = "-" if best is None else f"{best[1].name}, l1 = {best[1].l1:g}"
            what = f"largest mean share of connections removed with {words}: {rewrites} (%)"
            table.rows.append([what, shown, None if best is None else best[0], over])
    x, y = left_and_accuracy(networks)
    line = regression(x, y)
    share = None if line is None else 100 * line[2]
    what = "accuracy by neurons left at 2x100: R² (%)"
    table.rows.append([what, paper.R_SQUARED.get(experiment), share, f"{len(x)} compressible networks"])


def without_loss(found: Sequence[Cell], rewrites: str, slack: float) -> tuple[float, Cell] | None:
    """The cell of which most connections go, among those whose accuracy is that of its architecture without
    a penalty, or at most ``slack`` points less.
    """
    plain = {cell.name: cell.score for cell in found if cell.l1 == 0}
    shares = []
    for cell in found:
        before, share = plain.get(cell.name), cell.mean(rewrites, "connections")
        if not cell.l1 or before is None or share is None or cell.score is None:
            continue
        if cell.score >= before - slack:
            shares.append((share, cell))
    return max(shares, key=lambda pair: pair[0], default=None)


def left_and_accuracy(networks: Sequence[Measured]) -> tuple[list[float], list[float]]:
    """Neurons left by LEO++ and the accuracy of the 2x100 networks that lost any."""
    pairs = [
        (float(one.results["auto"]["rewrites"]["leo++"]["size"]["neurons"]), one.score)
        for one in networks
        if one.cell == BASELINE[0] and (one.removed("leo++", "neurons") or 0) > 0
    ]
    return [left for left, _ in pairs], [score for _, score in pairs]
