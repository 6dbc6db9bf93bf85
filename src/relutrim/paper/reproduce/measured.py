"""Lines become networks: one record for each, with everything that was measured on it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from relutrim.paper.reproduce.rows import DONE, Line
from relutrim.paper.reproduce.stages import STAGES

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


_SCORES = ("train_loss", "test_loss")


def measured(lines: Iterable[Line], experiment: str) -> tuple[list[Measured], int]:
    """The networks of an experiment, in the order of architectures as they come, penalties and seeds; and how
    many lines were left out.

    Runs with other epochs, rows or devices may share a folder, but not a table: the settings that most lines
    have count. Where one network was trained twice and came out differently, the one with more lines does.
    Where a stage was done more than once, with other limits say, see :func:`_counts`.
    """
    own = [line for line in lines if line.get("experiment") == experiment and line["stage"] in STAGES]
    settings = Counter(_settings(line) for line in own)
    if not settings:
        return [], 0
    chosen = settings.most_common(1)[0][0]
    groups: dict[str, dict[Any, list[Line]]] = defaultdict(lambda: defaultdict(list))
    for line in own:
        if _settings(line) == chosen:
            groups[line["network"]][_outcome(line)].append(line)
    best = {name: max(by_hash.values(), key=len) for name, by_hash in groups.items()}
    networks = [_one(name, some) for name, some in best.items()]
    order = {cell: number for number, cell in enumerate(dict.fromkeys(one.cell for one in networks))}
    networks.sort(key=lambda one: (order[one.cell], one.l1, one.seed))
    return networks, len(own) - sum(map(len, best.values()))


def undecided(lines: Iterable[Line], experiment: str) -> set[tuple[str, str]]:
    """Networks and stages of an experiment that were left undecided."""
    networks, _ = measured(lines, experiment)
    return {
        (one.name, stage)
        for one in networks
        for stage, result in one.results.items()
        if result.get("complete") is False
    }


def _outcome(line: Line) -> Any:
    """What tells networks apart that were trained with the same settings: their losses, to the last digit.
    Files of the same weights differ between versions, in what they say of their origin.
    """
    return tuple(line[name] for name in _SCORES) if all(name in line for name in _SCORES) else line["sha256"]


def _settings(line: Line) -> tuple[Any, ...]:
    return tuple(line[name] for name in ("dataset", "epochs", "train_rows", "device"))


def _one(name: str, lines: list[Line]) -> Measured:
    first = lines[0]
    stages: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        stages[line["stage"]].append(line)
    counted = {stage: _counts(some) for stage, some in stages.items()}
    done = {stage: line for stage, line in counted.items() if line is not None}
    results = {stage: line["result"] for stage, line in done.items()}
    options = {stage: line["options"] for stage, line in done.items()}
    failed = {stage: some[-1]["error"] for stage, some in stages.items() if stage not in done}
    return Measured(
        name,
        first["cell"],
        first["architecture"],
        first["l1"],
        first["seed"],
        {**first, "options": options},
        results,
        failed,
    )


def _counts(lines: list[Line]) -> Line | None:
    """The line of a stage that counts: the last one, unless it ran out of time where one that differs in its
    limits alone did not. So a network that was left undecided can be given more time and keep its place in
    the table, and less time takes nothing away.
    """
    done = [line for line in lines if line["status"] == DONE]
    if not done:
        return None
    alike = [line for line in done if _unlimited(line) == _unlimited(done[-1])]
    complete = [line for line in alike if line["result"].get("complete", True)]
    return (complete or alike)[-1]


def _unlimited(line: Line) -> dict[str, Any]:
    return {name: value for name, value in line["options"].items() if not name.endswith("time_limit")}
