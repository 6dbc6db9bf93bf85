"""The same work again and again on a GPU, without asking for it operation by operation.

A step on a batch of nodes is a few hundred small operations, and asking for each takes longer than doing it.
As they are the same at every step, on the same tensors, they are recorded once and then replayed (a CUDA
graph).

Recording has a stream of its own, and memory of its own that only replays of what was recorded use. Both are
kept in lanes: as many as are busy at the same time, each for one piece of work after the other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

import torch

Found = TypeVar("Found")


class Replay(Generic[Found]):
    """A function that always works on the same tensors: the first call runs it, the second one records it,
    and every other replays that, into the tensors that the second one returned.

    Outside a lane it is just called.
    """

    def __init__(self, function: Callable[[], Found], lane: Lane | None) -> None:
        self._function, self._lane = function, lane
        self._calls = 0
        self._graph: Any = None

    def __call__(self) -> Found:
        """What the function returns."""
        self._calls += 1
        lane = self._lane
        # The first call also starts the libraries that it uses. Where one function could not be recorded,
        # none is replayed: a recording reads what another one has left behind, where that left it.
        if lane is None or lane.broken or self._calls == 1:
            return self._function()
        if self._graph is None:
            try:
                self._graph, self._found = lane.record(self._function)
            except RuntimeError:  # not everything can be, and there may be no memory
                lane.broken = True
                return self._function()
        self._graph.replay()
        return self._found


class Lane:
    """A stream and memory for recordings, one piece of work at a time."""

    def __init__(self, device: torch.device) -> None:
        self.broken = False
        """Whether something of the work that is on could not be recorded."""
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        with torch.cuda.stream(self.stream):  # as long as one recording is there, its memory is
            self._first = self.record(lambda: torch.zeros(1, device=device))

    def record(self, function: Callable[[], Found]) -> tuple[Any, Found]:
        """What a function does, to be replayed, and what it returns; to be called on the lane's stream."""
        graph = torch.cuda.CUDAGraph()
        with _RECORDING:
            graph.capture_begin(self._pool, capture_error_mode="thread_local")
            try:
                found = function()
            except BaseException:
                with suppress(RuntimeError):  # what went wrong first is what went wrong
                    graph.capture_end()
                raise
            graph.capture_end()
        return graph, found


@contextmanager
def on_lane(device: torch.device) -> Iterator[Lane | None]:
    """Work on a lane of a device; None where it has none. What the work leaves behind is complete at the end,
    whatever stream uses it then.
    """
    own = _taken(device)
    if own is None:
        yield None
        return
    own.broken = False
    own.stream.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.stream(own.stream):
            yield own
    finally:
        own.stream.synchronize()
        with _LOCK:
            _IDLE[device].append(own)


def _taken(device: torch.device) -> Lane | None:
    """An idle lane, or a new one; None where nothing can be recorded."""
    if device.type != "cuda" or device in _UNABLE:
        return None
    with _LOCK:
        idle = _IDLE.setdefault(device, [])
        if idle:
            return idle.pop()
    try:
        return Lane(device)
    except RuntimeError:  # not every device and driver can
        _UNABLE.add(device)
        return None


_LOCK, _RECORDING = threading.Lock(), threading.Lock()
_IDLE: dict[torch.device, list[Lane]] = {}
_UNABLE: set[torch.device] = set()
