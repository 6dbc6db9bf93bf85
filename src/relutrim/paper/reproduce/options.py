"""What ``relutrim reproduce`` understands, apart from how a command line is parsed: the command line proper
needs click, ``python -m relutrim.paper.reproduce`` only what the measurements need.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relutrim.errors import InputError

NAMES = ("mnist", "cifar10", "cifar100", "autoencoder", "lenet")


@dataclass(frozen=True)
class Option:
    """One option. ``kind`` is bool for a flag; ``many`` takes as many values as follow."""

    name: str
    help: str
    kind: Callable[[str], Any] = str
    default: Any = None
    metavar: str | None = None
    many: bool = False

    @property
    def variable(self) -> str:
        """Its name in Python."""
        return self.name.removeprefix("--").replace("-", "_")


OPTIONS = (
    Option("--quick", "A small part of the grid, trained shorter: minutes, and no GPU needed.", bool, False),
    Option("--paper", "The paper's grid in full, with five seeds.", bool, False),
    Option("--data-dir", "Where the data set's standard files lie.", Path, metavar="FOLDER"),
    Option("--output", "Where rows, networks, tables and figures go.", Path, metavar="FOLDER"),
    Option("--cluster", "A Dask scheduler whose workers do the tasks.", metavar="ADDRESS"),
    Option(
        "--jobs",
        "Processes on this machine [default: one per core]; 1 does all in this one.",
        int,
        metavar="N",
    ),
    Option(
        "--shard", "Only every n-th network, from the i-th on; n such runs make the whole.", metavar="i/n"
    ),
    Option("--device", "Where to train.", default="cpu", metavar="cpu|cuda"),
    Option("--architecture", "Only these architectures.", metavar="A..", many=True),
    Option("--l1", "These penalties instead of the grid's.", float, metavar="L..", many=True),
    Option("--seed", "These seeds instead of the grid's.", int, metavar="S..", many=True),
    Option("--epochs", "Train for so many epochs instead of the grid's.", int, metavar="N"),
    Option("--rows", "Train on the first N rows only.", int, metavar="N"),
    Option(
        "--stage",
        "Only these measurements: auto, data, outputs, isa, sum, bare, neuron.",
        metavar="S..",
        many=True,
    ),
    Option(
        "--time-limit",
        "Seconds for relutrim's own analysis of a network [default: 300; quick: 30].",
        float,
        None,
        "S",
    ),
    Option(
        "--neuron-time-limit",
        "Seconds for each neuron that it leaves undecided, as a task of its own [default: no such tasks].",
        float,
        None,
        "S",
    ),
    Option(
        "--isa-time-limit",
        "Seconds for each analysis by mixed-integer programs [default: 60; quick: 5].",
        float,
        None,
        "S",
    ),
    Option("--isa-share", "The share of seeds on which these run.", float, 1.0, "SHARE"),
    Option("--no-isa", "No mixed-integer programs at all.", bool, False),
    Option("--solver", "Who solves them: highs, scip or gurobi.", default="highs", metavar="NAME"),
    Option(
        "--big-m",
        "Where their constants come from: interval (as in the paper), linear or best.",
        default="interval",
        metavar="NAME",
    ),
    Option(
        "--undecided",
        "Only the measurements that the rows in --output have left undecided; with longer limits, say.",
        bool,
        False,
    ),
    Option("--synthetic", "Made-up data of the same form, no files needed.", bool, False),
    Option(
        "--tables-only", "Make tables and figures of the rows that are there, and nothing else.", bool, False
    ),
)


def parsed_shard(text: str | None) -> tuple[int, int] | None:
    """A shard and how many there are, both counted from 1.

    >>> parsed_shard("2/8")
    (2, 8)
    """
    if text is None:
        return None
    first, slash, count = text.partition("/")
    if not (slash and first.isdecimal() and count.isdecimal() and 1 <= int(first) <= int(count)):
        raise InputError(
            f"the shard {text!r} is not understood; write 1/4, 2/4, 3/4 and 4/4 for four of them"
        )
    return int(first), int(count)


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
