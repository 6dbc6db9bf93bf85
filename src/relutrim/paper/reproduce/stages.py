"""What is measured on a network, one thing at a time, and which networks it is measured on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from relutrim.errors import InputError
from relutrim.milp.settings import BIG_M
from relutrim.paper.architecture import Kind, parse_architecture
from relutrim.paper.reproduce.grid import BASELINE, WIDE, Cell

STAGES = {
    "auto": "relutrim's own analysis, then LEO++ and all rewrites, accuracies, magnitude pruning",
    "data": "what the training set alone calls stable, and how often the test set says otherwise",
    "outputs": "auto with the output layer: is an autoencoder affine on its domain?",
    "isa": "the paper's method, with the training set as preprocessing",
    "sum": "auto and isa with the bound on the sum of all inputs (MNIST)",
    "bare": "isa without preprocessing",
    "neuron": "the baseline: a program for each neuron and direction, without preprocessing",
}
SUM = (15.0, 320.0)
"""Between which MNIST's training images sum up, as the paper says."""


@dataclass(frozen=True)
class Measures:
    """What to measure and for how long.

    ``isa_share`` is the share of seeds on which the slower methods run: all of them with 1, the first seed
    alone with anything small, none with 0. The baseline runs on the first seed.
    """

    stages: tuple[str, ...] = tuple(STAGES)
    time_limit: float = 300.0
    isa_time_limit: float = 60.0
    isa_share: float = 1.0
    solver: str = "highs"
    big_m: str = "interval"
    """Where the constants of mixed-integer programs come from; the paper's are from interval arithmetic."""
    neuron_time_limit: float | None = None
    """For each neuron that auto leaves undecided, as a task of its own; None: there is no such task."""

    def __post_init__(self) -> None:
        for stage in self.stages:
            if stage not in STAGES:
                raise InputError(f"there is no stage {stage!r}; there are {', '.join(STAGES)}")
        for name in ("time_limit", "isa_time_limit", "neuron_time_limit"):
            given = getattr(self, name)
            if given is not None and not 0 < given < math.inf:
                raise InputError(f"a {name.replace('_', ' ')} of {given:g} seconds makes no sense")
        if self.big_m not in BIG_M:
            raise InputError(f"there are no constants {self.big_m!r}; there are {', '.join(BIG_M)}")
        if not 0 <= self.isa_share <= 1:
            raise InputError(f"a share of {self.isa_share:g} makes no sense; it lies between 0 and 1")

    def of(self, cell: Cell, seed: int, dataset: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """The stages of a network, each with the options that its outcome depends on."""
        kind = parse_architecture(cell.architecture)
        slow = seed in _first(cell.seeds, self.isa_share)
        programs = kind.kind is not Kind.LENET or kind.batch_norm  # no rows for maxima
        for stage in STAGES:
            wanted = {
                "outputs": kind.kind is Kind.AUTOENCODER,
                "isa": slow and programs,
                "sum": slow
                and programs
                and not cell.side
                and dataset.removeprefix("synthetic-") == "mnist"
                and kind.kind is Kind.MLP,
                "bare": slow and cell.architecture == WIDE[0] and not cell.side,
                "neuron": bool(self.isa_share)
                and seed == cell.seeds[0]
                and not cell.side
                and (cell.architecture in BASELINE or kind.kind is Kind.AUTOENCODER),
            }
            if stage in self.stages and wanted.get(stage, True):
                yield stage, self._options(stage)

    def _options(self, stage: str) -> dict[str, Any]:
        programs: dict[str, Any] = {
            "time_limit": self.isa_time_limit,
            "solver": self.solver,
            "big_m": self.big_m,
        }
        hard = {} if self.neuron_time_limit is None else {"neuron_time_limit": self.neuron_time_limit}
        own: dict[str, dict[str, Any]] = {
            "auto": {"time_limit": self.time_limit, **hard},
            "outputs": {"time_limit": self.time_limit},
            "data": {},
            "sum": {**programs, "auto_time_limit": self.time_limit, "between": list(SUM)},
            # As the paper's baseline: only what a solver finds by itself is an input that shows a state.
            "neuron": {**programs, "inject": "off"},
        }
        return own.get(stage, programs)

    def hard_limit(self, stage: str) -> float:
        """Seconds after which a task is given up: a solver may not notice its own limit."""
        own = {
            "auto": 2 * self.time_limit,
            "outputs": 2 * self.time_limit,
            "data": 0.0,
            "sum": self.time_limit + 2 * self.isa_time_limit,
        }.get(stage, 2 * self.isa_time_limit)
        return 600.0 + own


def _first(seeds: Sequence[int], share: float) -> Sequence[int]:
    """The first seeds, at least one of them if there is any share."""
    return seeds[: max(1, round(share * len(seeds)))] if share else ()
