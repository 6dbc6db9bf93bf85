"""Lines become networks: one record for each, with everything that was measured on it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from relutrim.paper.reproduce.rows import DONE, Line

REWRITES = ("leo++", "all", "rounding", "1e-6")


@dataclass(frozen=True, eq=False)
class Measured:
    """A network. ``results`` are by stage; ``failed`` are the stages that have an error instead."""

    name: str
    cell: str
    architecture: str
    l1: float
    seed: int
    about: Line = field(repr=False)
    results: dict[str, Any] = field(repr=False)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def made_up(self) -> bool:
        """Whether its data is, so that the paper's numbers mean nothing beside it."""
        return str(self.about["dataset"]).startswith("synthetic-")

    @property
    def score(self) -> float:
        """Accuracy in per cent, or the loss of an autoencoder, on the test set."""
        accuracy = self.about["test_accuracy"]
        found = self.about["test_loss"] if accuracy is None else 100 * accuracy
        return float("nan") if found is None else float(found)

    def seconds(self, stage: str) -> float | None:
        """How long an analysis took."""
        found = self.results.get(stage)
        return None if found is None else float(found["seconds"])

    def complete(self, stage: str) -> bool:
        """Whether an analysis decided every neuron."""
        return stage in self.results and bool(self.results[stage]["complete"])

    def removed(self, rewrites: str, what: str) -> float | None:
        """Per cent of the ``neurons``, ``connections`` or ``parameters`` that went."""
        auto = self.results.get("auto")
        if auto is None:
            return None
        after, before = float(auto["rewrites"][rewrites]["size"][what]), float(auto["size"][what])
        return 100 * (1 - after / before)

    def layers(self, stage: str) -> list[list[int]]:
        """Per layer its size, then active, inactive and unknown neurons."""
        found: list[list[int]] = self.results[stage]["layers"]
        return found


def measured(lines: Iterable[Line], experiment: str) -> tuple[list[Measured], int]:
    """The networks of an experiment, in the order of architectures as they come, penalties and seeds; and how
    many lines were left out.

    Runs with other epochs, rows or devices may share a folder, but not a table: the settings that most lines
    have count. Where one network was trained twice and came out differently, the one with more lines does.
    """
    own = [line for line in lines if line.get("experiment") == experiment]
    settings = Counter(_settings(line) for line in own)
    if not settings:
        return [], 0
    chosen = settings.most_common(1)[0][0]
    groups: dict[str, dict[str, list[Line]]] = defaultdict(lambda: defaultdict(list))
    for line in own:
        if _settings(line) == chosen:
            groups[line["network"]][line["sha256"]].append(line)
    best = {name: max(by_hash.values(), key=len) for name, by_hash in groups.items()}
    networks = [_one(name, some) for name, some in best.items()]
    order = {cell: number for number, cell in enumerate(dict.fromkeys(one.cell for one in networks))}
    networks.sort(key=lambda one: (order[one.cell], one.l1, one.seed))
    return networks, len(own) - sum(map(len, best.values()))


def _settings(line: Line) -> tuple[Any, ...]:
    return tuple(line[name] for name in ("dataset", "epochs", "train_rows", "device"))


def _one(name: str, lines: list[Line]) -> Measured:
    first = lines[0]
    results = {line["stage"]: line["result"] for line in lines if line["status"] == DONE}
    failed = {line["stage"]: line["error"] for line in lines if line["status"] != DONE}
    options = {line["stage"]: line["options"] for line in lines if line["status"] == DONE}
    return Measured(
        name,
        first["cell"],
        first["architecture"],
        first["l1"],
        first["seed"],
        {**first, "options": options},
        results,
        {stage: why for stage, why in failed.items() if stage not in results},
    )
