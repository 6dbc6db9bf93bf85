"""The options that several commands have, apart from those that state a domain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from relutrim.cli.clock import Seconds
from relutrim.cli.memory import Memory
from relutrim.cli.talk import talk_options
from relutrim.milp.settings import BIG_M, INJECTIONS, METHODS, SOLVERS, UNTIL

F = TypeVar("F", bound=Callable[..., Any])

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object on stdout and nothing else."
)
arch_option = click.option(
    "--arch", metavar="A", help="What a .pt state dict belongs to: mlp:784-100-10 or package.module:factory."
)
_ANALYSIS = (
    click.option(
        "--method",
        type=click.Choice(["auto", *METHODS, "bounds", "data"]),
        default="auto",
        show_default=True,
        help="auto proves and searches; isa is the paper's, one mixed-integer program for all neurons, layer "
        "has one per layer, neuron one per neuron and direction; bounds only proves, data only looks at "
        "--data (inexact).",
    ),
    click.option(
        "--solver",
        type=click.Choice(SOLVERS),
        default="highs",
        show_default=True,
        help="Who solves the programs of isa, layer and neuron.",
    ),
    click.option(
        "--big-m",
        type=click.Choice(BIG_M),
        default="best",
        show_default=True,
        help="Where those programs' constants come from; interval is the paper's.",
    ),
    click.option(
        "--inject",
        type=click.Choice(INJECTIONS),
        default="relaxation",
        show_default=True,
        help="Inputs tried while isa and layer are solved.",
    ),
    click.option(
        "--until",
        type=click.Choice(UNTIL),
        default="sign",
        show_default=True,
        help="When a program of neuron ends: at the sign (Serra et al. 2020) or the optimum (Tjeng et al.).",
    ),
    click.option(
        "--data",
        type=click.Path(path_type=Path),
        metavar="X.npy",
        help="Inputs in raw units, one a row; with labels in an .npz archive (x and y), or beside MNIST's "
        "files, compress reports accuracies.",
    ),
    click.option(
        "--holdout",
        type=click.Path(path_type=Path),
        metavar="X.npy",
        help="Other inputs, to see how often --method data is wrong.",
    ),
    click.option(
        "--mask",
        type=click.Path(path_type=Path),
        metavar="M.npz",
        help="Write which units are always 0, one array of bools per layer (of OUT, where there is one).",
    ),
    click.option(
        "--report",
        type=click.Path(path_type=Path),
        metavar="R.html",
        help="Write a report for people: one HTML file with pictures that loads nothing from anywhere.",
    ),
    click.option(
        "--bounds",
        type=click.Path(path_type=Path),
        metavar="B.json",
        help="Write proven ranges of every neuron, before and behind its ReLU, and of the outputs (of OUT, "
        "where there is one).",
    ),
    click.option(
        "--time-limit",
        type=Seconds(),
        metavar="S|none",
        help="Be done after S seconds, reading and writing included; what is not decided by then stays "
        "unknown. Without it compress takes 60 seconds, and of an analysis only the last stage has a limit, "
        "of five minutes; none lifts both.",
    ),
    click.option(
        "--memory",
        type=Memory(),
        metavar="BYTES",
        help="Size batches for so much memory, such as 2G or 512M: less is slower. The network itself comes "
        "on top [default: a quarter of the machine's].",
    ),
    click.option(
        "--journal",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="Keep what is found in DIR as it is found: the same command goes on from there, whatever ended "
        "the run.",
    ),
    click.option("--jobs", type=click.IntRange(1), metavar="N", help="Trees grown at once [default: cores]."),
    click.option("--device", default="cpu", show_default=True, metavar="cpu|cuda", help="Where to compute."),
    click.option(
        "--output-relu", is_flag=True, help="Put a ReLU behind outputs that have none (autoencoders)."
    ),
    click.option(
        "--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Seed of the search."
    ),
    arch_option,
    click.option("--details", is_flag=True, help="Bounds, margin and evidence of every neuron in the JSON."),
    json_option,
    talk_options,
)


def analysis_options(command: F) -> F:
    """The options of everything that analyses."""
    for option in reversed(_ANALYSIS):
        command = option(command)
    return command
