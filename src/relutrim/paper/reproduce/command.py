"""``relutrim reproduce``, however its options were parsed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relutrim.errors import InputError
from relutrim.paper.reproduce.options import cores, parsed_shard

if TYPE_CHECKING:
    from relutrim.paper.reproduce.executors import Executor
    from relutrim.paper.reproduce.run import Reproduction


def reproduce(name: str, options: dict[str, Any], tell: Callable[[str], None]) -> int:
    """Do the experiment ``name``; the exit code."""
    output: Path | None = options["output"]
    if output is None:
        raise InputError("say where rows, tables and figures go: --output FOLDER")
    failed = 0
    if not options["tables_only"]:
        failed = _measured(name, options, output, tell)
    from relutrim.paper.reproduce.collect import collect

    for path in collect(output, name, tell):
        tell(f"written: {path}")
    if failed:
        tell(f"{failed} tasks failed; the same command tries them again")
    return 1 if failed else 0


def _measured(name: str, options: dict[str, Any], output: Path, tell: Callable[[str], None]) -> int:
    run = prepared(name, options, output, tell)
    return run.run(executor_for(options))


def prepared(name: str, options: dict[str, Any], output: Path, tell: Callable[[str], None]) -> Reproduction:
    """The run that options describe."""
    from relutrim.paper.reproduce.grid import grid
    from relutrim.paper.reproduce.run import Reproduction
    from relutrim.paper.reproduce.stages import STAGES, Measures
    from relutrim.paper.reproduce.task import DataRef

    if options["quick"] and options["paper"]:
        raise InputError("--quick and --paper exclude each other")
    mode = "quick" if options["quick"] else "paper" if options["paper"] else "standard"
    plan = grid(name, mode, synthetic=options["synthetic"]).only(
        options["architecture"], options["l1"], options["seed"], options["epochs"], options["rows"]
    )
    slow = ("isa", "sum", "bare", "neuron")
    stages = tuple(options["stage"] or STAGES)
    measures = Measures(
        tuple(stage for stage in stages if not (options["no_isa"] and stage in slow)),
        _or(options["time_limit"], 30.0 if options["quick"] else 300.0),
        _or(options["isa_time_limit"], 5.0 if options["quick"] else 60.0),
        options["isa_share"],
        options["solver"],
        options["big_m"],
        neuron_time_limit=options["neuron_time_limit"],
    )
    folder = None if options["data_dir"] is None else str(options["data_dir"].resolve())
    data = DataRef(plan.dataset, folder, plan.rows)
    return Reproduction(
        plan,
        measures,
        data,
        output,
        options["device"],
        parsed_shard(options["shard"]),
        undecided=options["undecided"],
        tell=tell,
    )


def _or(given: float | None, otherwise: float) -> float:
    return otherwise if given is None else given


def executor_for(options: dict[str, Any]) -> Executor:
    """Who does the tasks."""
    from relutrim.paper.reproduce.executors import Processes, Serial

    if options["cluster"]:
        from relutrim.paper.reproduce.cluster import Cluster

        return Cluster(options["cluster"])
    jobs = cores() if options["jobs"] is None else options["jobs"]
    if jobs < 1:
        raise InputError(f"{jobs} jobs were asked for; at least one is needed")
    return Serial() if jobs == 1 else Processes(jobs)
