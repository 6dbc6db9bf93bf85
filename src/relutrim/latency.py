"""Size and speed as a deployment sees them: the bytes of the ONNX file, and onnxruntime's time.

Both networks are written to ONNX in memory, whatever format they came from. They run in turns, so that
whatever else the machine does hits both; the median of the runs is what counts. One thread.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relutrim.errors import RelutrimError, one_line
from relutrim.network.graph import Network

BATCH = 64
"""How many inputs the larger batch has, where the file leaves that open."""

_SECONDS = 0.4
_LEAST_RUNS = 5
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
    """What was measured. ``bytes_before`` and ``bytes_after`` are None where a network cannot be written as
    ONNX, ``timings`` is empty where nothing could be run; ``remark`` then says why.
    """

    bytes_before: int | None
    bytes_after: int | None
    runtime: str | None = None
    timings: tuple[Timing, ...] = ()
    remark: str | None = None


def measure(before: Network, after: Network) -> Latency:
    """The size and the time of two networks with the same inputs. It never fails: what cannot be measured is
    left out.
    """
    try:
        files = [_file(network) for network in (before, after)]
    except Exception as error:  # protobuf's exceptions differ between its implementations
        reason = str(error) if isinstance(error, RelutrimError) else f"{type(error).__name__}: {error}"
        return Latency(None, None, remark=f"a network cannot be written as ONNX ({one_line(reason)})")
    sizes = len(files[0]), len(files[1])
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
        sessions = [
            onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"]) for file in files
        ]
        timings = tuple(_in_turns(sessions, before, inputs) for inputs in _batches(before))
    except Exception as error:
        return Latency(*sizes, remark=f"onnxruntime cannot run a network ({one_line(str(error))})")
    return Latency(*sizes, f"onnxruntime {onnxruntime.__version__}", timings)


def _file(network: Network) -> bytes:
    from relutrim.formats.onnx import network_to_proto

    content: bytes = network_to_proto(network).SerializeToString(deterministic=True)
    return content


def _batches(network: Network) -> tuple[int, ...]:
    """The batches to try: one input and many, unless the file has the number fixed."""
    batch = network.input.batch
    return (batch,) if isinstance(batch, int) else (1,) if batch is None else (1, BATCH)


def _in_turns(sessions: Sequence[Any], network: Network, inputs: int) -> Timing:
    rows = () if network.input.batch is None else (inputs,)
    x = np.random.default_rng(0).random((*rows, *network.input.shape)).astype(network.dtype)
    feed = {network.input.name: x}
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
