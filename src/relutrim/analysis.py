"""From a model and a domain to verdicts: ``relutrim.analyze``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from relutrim.domain.domain import Domain, Everywhere, Problem
from relutrim.errors import InputError
from relutrim.graph.graph import Network, Node, Output
from relutrim.graph.operators import Relu
from relutrim.memory import AMPLE, MemoryBudget
from relutrim.milp.settings import METHODS as MILP_METHODS
from relutrim.milp.settings import Settings
from relutrim.prove.deadline import Deadline
from relutrim.prove.stability import Stability, judge

if TYPE_CHECKING:
    from torch import Tensor

    from relutrim.journal.journal import Journal
    from relutrim.prove.cascade import Cascade, Known, Progress
    from relutrim.prove.useful import Relevance

METHODS = ("auto", *MILP_METHODS, "bounds", "data")
_BATCH, _BATCH_BYTES = 4096, 256 * 2**20


def analyze(
    model: Any,
    domain: Domain | None = None,
    *,
    data: Any = None,
    method: str = "auto",
    time_limit: float | None = None,
    device: str = "cpu",
    output_relu: bool = False,
    seed: int = 0,
    jobs: int | None = None,
    solver: str = "highs",
    big_m: str = "best",
    inject: str = "relaxation",
    until: str = "sign",
    memory: str | int | None = None,
    journal: str | Path | None = None,
    input_shape: tuple[int, ...] | None = None,
    example_input: Any = None,
    progress: Progress | None = None,
) -> Stability:
    """Decide for every ReLU neuron of ``model`` whether it is always on, always off, or neither on
    ``domain`` (None: on all real inputs, :func:`relutrim.Everywhere`).

    ``model`` is a path, an ``nn.Module`` or a :class:`Network`; ``data`` an array of inputs in the domain's
    raw units, used where it provably lies in the domain. A module that does not tell the shape of its input
    needs ``input_shape`` (of one input), ``example_input`` (a batch, or a tuple of all inputs), or a domain
    with a shape. ``method``: ``auto`` proves and searches, ``bounds`` only proves, ``data`` only looks at the
    data (the paper's inexact mode; its verdicts carry evidence ``data``). ``output_relu`` puts a ReLU behind
    outputs that have none. ``jobs`` trees are grown at once (None: one per core); unless time runs
    out, the outcome does not depend on it.

    ``isa`` is the paper's method, one mixed-integer program for all neurons; ``layer`` has one per layer,
    ``neuron`` one per neuron and direction, searched ``until`` its ``sign`` is known or to its ``optimal``
    value. They use a ``solver`` (``highs``, ``scip``, ``gurobi``), constants (``big_m``) from ``interval``
    bounds, ``linear`` ones or the ``best`` the prover has, and ``inject`` inputs on the way: those of the
    solver's ``relaxation``, ``random`` ones, or none (``off``). What only the solver says has evidence
    ``solver``.

    ``memory`` is what batches are sized by, in bytes or as in ``"2G"`` (None: a quarter of the machine's);
    less is slower.

    Whatever stops the analysis early (the limit in seconds, Ctrl-C) leaves neurons ``unknown``, never wrong.
    Without a limit only the last stage has one, of five minutes; ``time_limit=math.inf`` lifts that too.

    ``journal`` is a folder for what a long run finds, written as soon as it is found: the same call goes on
    from there, whatever ended the run before. Nothing in it is believed. What is of another model, domain or
    method is refused (:class:`JournalError`).

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> for parameter, value in zip(model.parameters(), (1.0, -0.5, 1.0, 0.0)):
    ...     _ = nn.init.constant_(parameter, value)  # three times relu(x - 0.5)
    >>> import relutrim
    >>> for high in (0.5, 1):
    ...     print(str(relutrim.analyze(model, relutrim.Box(0, high))).partition(" (")[0])
    3 neurons in 1 layers: 0 active, 3 inactive, 0 unstable, 0 unknown
    3 neurons in 1 layers: 0 active, 0 inactive, 3 unstable, 0 unknown
    """
    from relutrim.io import as_network

    domain = Everywhere() if domain is None else domain
    input_shape = shape_for(model, domain, input_shape, example_input)
    return analyze_network(
        as_network(model, output_relu=output_relu, input_shape=input_shape, example_input=example_input),
        domain,
        data=data,
        method=method,
        time_limit=time_limit,
        device=device,
        seed=seed,
        jobs=jobs,
        solver=solver,
        big_m=big_m,
        inject=inject,
        until=until,
        memory=memory,
        journal=journal,
        progress=progress,
    )


def analyze_network(
    network: Network,
    domain: Domain,
    *,
    data: Any,
    method: str,
    time_limit: float | None,
    device: str,
    seed: int,
    progress: Progress | None,
    jobs: int | None = None,
    memory: str | int | MemoryBudget | None = None,
    journal: str | Path | None = None,
    among: frozenset[tuple[str, int]] | None = None,
    known: Known | None = None,
    relevance: Relevance | None = None,
    **milp: str,
) -> Stability:
    """:func:`analyze` for a model that is a :class:`Network` already; ``milp`` are the options of its mixed-
    integer programs. With ``among`` the last stage of ``auto`` is for these neurons (a ReLU's name and a
    number) alone; ``known`` is what other runs know, and ``relevance`` says for which neurons the searches
    and the last stage are.
    """
    deadline = Deadline(time_limit)
    if method not in METHODS:
        raise InputError(f"there is no method {method!r}; choose one of {', '.join(METHODS)}")
    if method == "data" and data is None:
        raise InputError("method 'data' needs data; give it some, or use method 'auto'")
    budget = MemoryBudget.of(memory)
    problem = domain.fit(network)
    rows = as_rows(data, problem) if method != "bounds" else None

    from relutrim.prove.cascade import Cascade
    from relutrim.search.climb import gradients

    settings = Settings(**milp)
    device, jobs = _checked_device(device), _checked_jobs(jobs)
    solving = asdict(settings) if method in MILP_METHODS else {}
    with (
        gradients(),
        _journal(
            journal, network, domain, problem, rows, {"method": method, "seed": seed, **solving}
        ) as notes,
    ):
        cascade = Cascade(
            problem,
            deadline,
            device=device,
            seed=seed,
            jobs=jobs,
            progress=progress,
            journal=notes,
            among=among,
            known=known,
            memory=budget,
            relevance=relevance,
        )
        found = _decided(cascade, domain, method, settings, rows)
        if notes is None:
            return found
        if not (found.interrupted or deadline.passed):
            notes.end(found)
        return replace(found, remarks=(*found.remarks, *notes.remarks))


@contextmanager
def _journal(
    folder: str | Path | None,
    network: Network,
    domain: Domain,
    problem: Problem,
    rows: Tensor | None,
    settings: dict[str, Any],
) -> Iterator[Journal | None]:
    """The journal in a folder, ours as long as the block lasts."""
    if folder is None:
        yield None
        return
    from relutrim.journal.identity import content_digest, identity
    from relutrim.journal.journal import Journal

    settings["data"] = None if rows is None else content_digest(rows.numpy())
    notes = Journal(Path(folder), identity(network, domain, problem, settings))
    try:
        yield notes
    finally:
        notes.close()


def _decided(
    cascade: Cascade, domain: Domain, method: str, settings: Settings, rows: Tensor | None
) -> Stability:
    """What a method makes of a problem; an interruption ends it with what is known by then."""
    from relutrim.prove.cascade import LAST_SECONDS

    milps = None
    if method in MILP_METHODS:
        from relutrim.milp.methods import Milps

        milps = Milps(cascade, settings, cascade.deadline.or_within(LAST_SECONDS))
    interrupted, counted, deadline = False, 0, cascade.deadline
    try:
        if method == "data":
            counted = cascade.observe(batches(rows, cascade.memory))
        elif method == "bounds":
            cascade.bound(search=False)
        elif milps is not None:
            counted = cascade.observe(batches(rows, cascade.memory))
            if cascade.journal is not None:
                cascade.recall_rest()
                cascade.witnesses.noted = cascade.journal.overhear
            milps.run(method)
        else:
            counted = cascade.run(batches(rows, cascade.memory))
    except KeyboardInterrupt:
        interrupted = True
    given = 0 if rows is None else len(rows)
    found = _conclude(cascade, deadline, domain, method, interrupted, given, counted)
    return found if milps is None else replace(found, **milps.conclude(found.layers))


def shape_for(
    model: Any, domain: Domain, input_shape: tuple[int, ...] | None, example_input: Any
) -> tuple[int, ...] | None:
    """The shape of one input of a module, as far as anything but its example says that."""
    from relutrim.io import is_proto

    if input_shape is None and example_input is None:
        return shape_of(domain)
    if isinstance(model, str | Path | Network) or is_proto(model):
        raise InputError("a file says the shape of its input; input_shape and example_input go with a module")
    return input_shape


def shape_of(domain: Domain) -> tuple[int, ...] | None:
    """The shape of one input, if the domain's ends have more than one axis."""
    shape = np.broadcast_shapes(domain.lo.shape, domain.hi.shape)
    return shape if len(shape) > 1 else None


def with_output_relu(network: Network) -> Network:
    """The network with a ReLU behind each output that has none; a tail is in the way of that."""
    nodes, outputs, added = list(network.nodes), [], dict[str, str]()
    for output in network.outputs:
        if output.tail:
            raise InputError(
                f"output {output.name!r} goes through {output.tail[0].kind}, so it cannot also "
                "go through a ReLU; "
                "leave --output-relu away"
            )
        source = output.source
        if source not in network or not isinstance(network[source].operator, Relu):
            source = added.get(output.source, f"{source}.relu")
            if output.source not in added:
                while source in network or source == network.input.name:
                    source += "_"
                nodes.append(Node(source, Relu(), (output.source,)))
                added[output.source] = source
        outputs.append(Output(output.name, source))
    return replace(network, nodes=tuple(nodes), outputs=tuple(outputs))


def _conclude(
    cascade: Cascade,
    deadline: Deadline,
    domain: Domain,
    method: str,
    interrupted: bool,
    rows: int,
    counted: int,
) -> Stability:
    """``deadline`` is that of all of it: the last stage of a cascade may have had one of its own."""
    finished = not (interrupted or deadline.passed)
    layers = []
    for relu in cascade.network.relus:
        seen = cascade.witnesses.seen[relu.name]
        pre = cascade.values[relu.inputs[0]]
        observed = seen.highest.isfinite() & cascade.witnesses.radii[relu.name].isfinite()
        layers.append(
            judge(
                relu.name,
                cascade.network.shapes[relu.name],
                pre,
                seen.active,
                seen.inactive,
                by_data=observed if method == "data" and finished else None,
            )
        )
    return Stability(
        problem=cascade.problem,
        domain=domain,
        layers=tuple(layers),
        witnesses=cascade.witnesses.inputs().cpu().numpy(),
        ranges=dict(cascade.values),
        method=method,
        seconds=deadline.elapsed,
        interrupted=interrupted,
        data_rows=rows,
        data_rows_outside=rows - counted if finished else 0,
        proofs=tuple(cascade.proofs),
        nodes=cascade.nodes,
        left=len(cascade.missing()),
        spared=cascade.spared,
    )


def as_rows(data: Any, problem: Problem) -> Tensor | None:
    """Data of any array kind as (rows, inputs) in its own dtype; batches become float64 one at a time."""
    if data is None:
        return None
    import numpy as np
    import torch

    if isinstance(data, torch.Tensor):
        array = data.detach().cpu()
    else:
        found = np.asarray(data)
        if found.dtype.kind not in "fiub":
            raise InputError(f"the data holds {found.dtype} values; real numbers are needed")
        # Torch knows neither foreign byte orders nor long doubles.
        kind = found.dtype.newbyteorder("=") if found.dtype.itemsize <= 8 else np.dtype(np.float64)
        array = torch.as_tensor(found.astype(kind, copy=False))
    size = problem.network.input.size
    if array.ndim < 1 or array[0:1].numel() != size * min(1, len(array)):
        raise InputError(
            f"the data has shape {tuple(array.shape)}, but the network's input has shape "
            f"{problem.network.input.shape}: "
            "one row per input is needed"
        )
    if array.is_complex():
        raise InputError("the data holds complex numbers; real inputs are needed")
    return array.reshape(len(array), size)


def batches(rows: Tensor | None, memory: MemoryBudget = AMPLE) -> Iterator[Tensor]:
    """Rows in float64, some at a time."""
    if rows is not None:
        import torch

        most = memory.share(_BATCH_BYTES) // (8 * max(1, rows.shape[1]))
        for batch in torch.split(rows, max(1, min(_BATCH, most))):
            yield batch.to(torch.float64)


def _checked_jobs(jobs: int | None) -> int:
    import os

    if jobs is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if jobs < 1:
        raise InputError(f"{jobs} jobs were asked for; at least one is needed")
    return jobs


def _checked_device(device: str) -> str:
    import re

    import torch

    if device == "cpu":
        return device
    if not re.fullmatch(r"cuda(:\d{1,3})?", device):
        raise InputError(f"there is no device {device!r}; use cpu or cuda")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(device[5:] or 0) >= count:
        raise InputError(
            f"device {device!r} was asked for, but torch sees {count or 'no'} CUDA device(s) here; use "
            "--device cpu"
        )
    return device
