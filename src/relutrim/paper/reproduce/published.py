"""What the paper prints: Serra, Yu, Kumar, Ramalingam, *Scaling Up Exact Neural Network Compression by ReLU
Stability* (NeurIPS 2021), its tables of appendix A6 in ``published.csv`` and the numbers of its text here.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True)
class Published:
    """A line of a table: means over five seeds, those left out that timed out after three hours."""

    score: float
    score_sd: float | None
    seconds: float
    neurons: float
    connections: float
    timeouts: int


@cache
def published() -> dict[tuple[str, str, float], Published]:
    """By experiment, architecture and penalty."""
    text = resources.files("relutrim.paper.reproduce").joinpath("published.csv").read_text("utf-8")
    return {
        (row["experiment"], row["architecture"], float(row["l1"])): Published(
            float(row["score"]),
            float(row["score_sd"]) if row["score_sd"] else None,
            float(row["seconds"]),
            float(row["neurons"]),
            float(row["connections"]),
            int(row["timeouts"]),
        )
        for row in csv.DictReader(text.splitlines())
    }


ISA_OVER_NEURON = {"mnist": 83.0, "cifar10": 183.0, "cifar100": 137.0, "autoencoder": 159.0}
ISA_OVER_NEURON_BY_ARCHITECTURE = {"2x100": 77.0, "2x200": 153.0, "2x400": 193.0}
PREPROCESSING = 3.2
CONNECTIONS_WITHOUT_LOSS = {"mnist": 40.0, "cifar10": 56.0}
R_SQUARED = {"mnist": 69.0, "cifar10": 91.0, "cifar100": 61.0}
DATA_STABLE = {"mnist": 31.93, "cifar10": 40.86, "cifar100": 41.98}
DATA_WRONG = {"mnist": 1.16, "cifar10": 0.60, "cifar100": 1.19, "lenet": 1.06}
SUM_FASTER, SUM_MEAN = 69.6, 17.7
MISSED_OF_ALL, MISSED_OF_REMOVABLE = 10.0, 18.0
LENET = {0.0: (68.7, 10.98), 0.000175: (70.02, 11.86)}
"""Accuracy, and the share of units that the training set calls inactive."""
