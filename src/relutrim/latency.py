"""Size and speed as a deployment sees them: the bytes of the ONNX file, and onnxruntime's time.

A model that was read from ONNX is measured as that file is, and whatever else is written to ONNX in memory
first. Both run in turns, so that whatever else the machine does hits both; the median of the runs is what
counts. One thread.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from relutrim.errors import RelutrimError, one_line
from relutrim.graph.graph import Network

if TYPE_CHECKING:
    from relutrim.io.onnx.beside import Files

BATCH = 64
"""How many inputs the larger batch has, where the file leaves that open."""

_SECONDS = 0.4
_LEAST_RUNS = 5
_LONGEST = 3.0
"""Seconds that a larger batch may take."""
_NUMBERS = 2**27
"""How many numbers all values may have in a larger batch."""
_MOST_RUNS = 300
_WARM_UP = 3


@dataclass(frozen=True)
class Timing:
    """Microseconds for a batch of ``inputs``, medians of ``runs`` runs of each network."""

    inputs: int
    before_us: float
    after_us: float
    runs: int


@dataclass(frozen=True)
class Latency:
    """What was measured; the bytes are those of the model and of its data. ``bytes_before`` and
    ``bytes_after`` are None where a network cannot be written as ONNX, ``timings`` is empty where nothing
    could be run; ``remark`` then says why.
    """

    bytes_before: int | None
    bytes_after: int | None
    runtime: str | None = None
    timings: tuple[Timing, ...] = ()
    remark: str | None = None


def measure(
    before: Network,
    after: Network,
    file: Files | None = None,
    edited: Files | None = None,
    seconds: float = math.inf,
) -> Latency:
    """The size and the time of two networks with the same inputs. It never fails: what cannot be measured, or
    not in so many seconds, is left out. ``file`` is the ONNX that the first was read from, if it was, and
    ``edited`` what became of that; a network that is the same has the same file.
    """
    from relutrim.io.onnx.beside import session

    deadline = time.perf_counter() + seconds
    try:
        first = _file(before) if file is None else file
        files = [first, first if after is before else _file(after) if edited is None else edited]
    except Exception as error:  # protobuf's exceptions differ between its implementations
        reason = str(error) if isinstance(error, RelutrimError) else f"{type(error).__name__}: {error}"
        return Latency(None, None, remark=f"a network cannot be written as ONNX ({one_line(reason)})")
    sizes = files[0].size, files[1].size
    late = Latency(*sizes, remark="there was no time left for it")
    if time.perf_counter() > deadline:
        return late
    try:
        import onnxruntime
    except ImportError:
        return Latency(*sizes, remark="to measure it, install onnxruntime: pip install 'relutrim[runtime]'")
    except Exception as error:  # an installation that does not fit the others around it
        return Latency(*sizes, remark=f"onnxruntime cannot be loaded ({one_line(str(error))})")
    try:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4  # what is wrong comes as an exception
        timings: tuple[Timing, ...] = ()
        batches = _batches(before)
        if not batches:
            return Latency(
                *sizes, remark=f"{before.input.batch} inputs, as its file has it, take much memory"
            )
        with ExitStack() as stack:
            sessions = [stack.enter_context(session(file, options)) for file in files]
            for inputs in batches:
                if not timings and not _in_time(sessions, before, inputs, deadline):
                    return late
                if not timings or (_worth_it(timings[-1], inputs) and time.perf_counter() < deadline):
                    timings += (_in_turns(sessions, before, inputs),)
    except Exception as error:
        return Latency(*sizes, remark=f"onnxruntime cannot run a network ({one_line(str(error))})")
    return Latency(*sizes, f"onnxruntime {onnxruntime.__version__}", timings)


def _file(network: Network) -> Files:
    from relutrim.io.onnx import network_to_proto
    from relutrim.io.onnx.beside import Files

    return Files(network_to_proto(network).SerializeToString(deterministic=True))


def _batches(network: Network) -> tuple[int, ...]:
    """The batches to try: one input, and many if memory does; or as many as the file has it, if it does."""
    batch, each = network.input.batch, sum(map(network.size, network.shapes))
    if isinstance(batch, int):
        return (batch,) if batch * each <= max(each, _NUMBERS) else ()
    return (1, BATCH) if batch is not None and BATCH * each <= _NUMBERS else (1,)


def _worth_it(one: Timing, inputs: int) -> bool:
    """Whether a larger batch can be measured in little time, going by the smaller one."""
    each = 1e-6 * (one.before_us + one.after_us) * inputs / one.inputs
    return each * (_WARM_UP + _LEAST_RUNS) < _LONGEST


def _in_time(sessions: Sequence[Any], network: Network, inputs: int, deadline: float) -> bool:
    """Whether there is time for the fewest runs, going by one of each network."""
    started, feed = time.perf_counter(), _feed(network, inputs)
    for session in sessions:
        session.run(None, feed)
    now = time.perf_counter()
    return now + (_WARM_UP + _LEAST_RUNS) * (now - started) < deadline


def _feed(network: Network, inputs: int) -> dict[str, Any]:
    rows = () if network.input.batch is None else (inputs,)
    x = np.random.default_rng(0).random((*rows, *network.input.shape)).astype(network.dtype)
    return {network.input.name: x}


def _in_turns(sessions: Sequence[Any], network: Network, inputs: int) -> Timing:
    feed = _feed(network, inputs)
    for session in sessions:
        for _ in range(_WARM_UP):
            session.run(None, feed)
    times: list[list[float]] = [[], []]
    end = time.perf_counter() + _SECONDS
    while len(times[0]) < _LEAST_RUNS or (len(times[0]) < _MOST_RUNS and time.perf_counter() < end):
        for which in (0, 1) if len(times[0]) % 2 else (1, 0):
            started = time.perf_counter()
            sessions[which].run(None, feed)
            times[which].append(time.perf_counter() - started)
    before, after = (1e6 * statistics.median(own) for own in times)
    return Timing(inputs, before, after, len(times[0]))
