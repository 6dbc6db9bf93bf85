"""The paper's table: a line for each architecture and penalty, the paper's numbers beside ours."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from relutrim.paper.reproduce.measured import REWRITES, Measured
from relutrim.paper.reproduce.numbers import deviation, mean, per
from relutrim.paper.reproduce.published import Published, published
from relutrim.paper.reproduce.table import Cell as Value
from relutrim.paper.reproduce.table import Table


@dataclass(frozen=True)
class Cell:
    """All seeds of an architecture and a penalty, and what the paper prints for them."""

    name: str
    architecture: str
    l1: float
    networks: tuple[Measured, ...] = field(repr=False)
    paper: Published | None

    def mean(self, rewrites: str, what: str) -> float | None:
        """How much went, on average."""
        return mean(one.removed(rewrites, what) for one in self.networks)

    @property
    def score(self) -> float | None:
        """Mean accuracy or loss."""
        return mean(one.score for one in self.networks)

    @property
    def seconds(self) -> float | None:
        """Mean time of relutrim's own analysis."""
        return mean(one.seconds("auto") for one in self.networks)

    @property
    def isa_seconds(self) -> float | None:
        """Mean time of ISA, limits that were reached included."""
        return mean(one.seconds("isa") for one in self.networks)

    @property
    def speed_up(self) -> float | None:
        """How often relutrim's mean time goes into the paper's."""
        return None if self.paper is None else per(self.paper.seconds, self.seconds)

    def undecided(self, stage: str) -> int | None:
        """How many networks an analysis left neurons of; None where it ran on none."""
        ran = [one for one in self.networks if stage in one.results]
        return sum(not one.complete(stage) for one in ran) if ran else None


def cells(networks: Sequence[Measured], experiment: str) -> list[Cell]:
    """Networks by architecture and penalty."""
    groups: dict[tuple[str, float], list[Measured]] = defaultdict(list)
    for one in networks:
        groups[one.cell, one.l1].append(one)
    return [
        Cell(name, some[0].architecture, l1, tuple(some), _paper(experiment, some[0], name))
        for (name, l1), some in groups.items()
    ]


def _paper(experiment: str, one: Measured, cell: str) -> Published | None:
    if cell.endswith("-normalized") or one.made_up:
        return None
    return published().get((experiment, one.architecture, one.l1))


def cell_table(found: Sequence[Cell], experiment: str) -> Table:
    """One line each; shares and times are means over the seeds."""
    score = "loss" if experiment == "autoencoder" else "accuracy %"
    columns = [
        "architecture",
        "l1",
        "networks",
        score,
        "± sd",
        f"paper: {score}",
        "auto s",
        "ISA s",
        "paper: s",
        "speed-up",
        "LEO++ neurons %",
        "paper: neurons %",
        "LEO++ connections %",
        "paper: connections %",
        "difference",
        *(f"{name} connections %" for name in REWRITES[1:]),
        "auto undecided",
        "ISA undecided",
        "paper: time-outs",
    ]
    table = Table("cells", "Accuracy, runtime and compression", columns)
    table.note = (
        "Means over the seeds. *auto* is relutrim's own analysis, *ISA* the paper's method (limited, see the "
        "rows' options; networks that reached it are counted as undecided, and with the limit in the mean). "
        "*speed-up* is the paper's mean time over auto's. What auto leaves undecided is not removed. "
        "*all*, *rounding* and *1e-6* are all rewrites: exact, within half a unit in the last place of the "
        "outputs, and within 1e-6 of them. *paper* is Serra et al. (2021), appendix A6."
    )
    if experiment == "autoencoder":
        table.note += (
            " LEO++ folds every layer of stable neurons into the next, as the paper's algorithm says, also "
            "where the product around a bottleneck has more connections than its factors had (all three "
            "layers of 100|10|100 become one matrix of 784 x 784, which is counted as -287 %); *all* folds "
            "only where that is smaller."
        )
    shares = ("neurons %", "connections %", "difference")
    table.formats = {name: ".1f" for name in columns if name.endswith(shares)}
    table.formats |= {score: ".4g" if score == "loss" else ".2f", "l1": "g", "± sd": ".2g"}
    table.formats |= {"auto s": ".3g", "ISA s": ".3g", "speed-up": ".3g"}
    for cell in found:
        table.rows.append(_row(cell))
    return table


def _row(cell: Cell) -> list[Value]:
    paper = cell.paper
    connections = cell.mean("leo++", "connections")
    difference = None if paper is None or connections is None else connections - paper.connections
    return [
        cell.name,
        cell.l1,
        len(cell.networks),
        cell.score,
        deviation(one.score for one in cell.networks),
        None if paper is None else paper.score,
        cell.seconds,
        cell.isa_seconds,
        None if paper is None else paper.seconds,
        cell.speed_up,
        cell.mean("leo++", "neurons"),
        None if paper is None else paper.neurons,
        connections,
        None if paper is None else paper.connections,
        difference,
        *(cell.mean(name, "connections") for name in REWRITES[1:]),
        cell.undecided("auto"),
        cell.undecided("isa"),
        None if paper is None else paper.timeouts,
    ]


def network_table(networks: Sequence[Measured]) -> Table:
    """One line for each network."""
    columns = [
        "network",
        "architecture",
        "l1",
        "seed",
        "score",
        "auto s",
        "auto complete",
        "undecided neurons",
    ]
    columns += ["active", "inactive"]
    columns += [f"{name} {what} %" for name in REWRITES for what in ("neurons", "connections")]
    for stage in ("isa", "bare", "neuron"):
        columns += [f"{stage} s", f"{stage} complete"]
    table = Table("networks", "All networks", columns)
    for one in networks:
        layers = one.layers("auto") if "auto" in one.results else []
        row: list[Value] = [one.name, one.cell, one.l1, one.seed, one.score, one.seconds("auto")]
        row += [
            one.complete("auto"),
            *(sum(layer[i] for layer in layers) if layers else None for i in (3, 1, 2)),
        ]
        row += [one.removed(name, what) for name in REWRITES for what in ("neurons", "connections")]
        for stage in ("isa", "bare", "neuron"):
            row += [one.seconds(stage), one.complete(stage) if stage in one.results else None]
        table.rows.append(row)
    return table
