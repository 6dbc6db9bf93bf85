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
from contextlib import contextmanager
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
        if self._lane is None or self._calls == 1:  # the first call also starts the libraries that it uses
            return self._function()
        if self._graph is None:
            try:
                self._graph, self._found = self._lane.record(self._function)
            except RuntimeError:  # not every device and driver can
                self._lane = None
                return self._function()
        self._graph.replay()
        return self._found


class Lane:
    """A stream and memory for recordings, one piece of work at a time."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
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
            finally:
                graph.capture_end()
        return graph, found


@contextmanager
def on_lane(device: torch.device) -> Iterator[Lane | None]:
    """Work on a lane of a device; None where it has none. What the work leaves behind is complete at the end,
    whatever stream uses it then.
    """
    if device.type != "cuda":
        yield None
        return
    with _LOCK:
        idle = _IDLE.setdefault(device.index or 0, [])
        own = idle.pop() if idle else None
    own = own or Lane(device)
    own.stream.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.stream(own.stream):
            yield own
    finally:
        own.stream.synchronize()
        with _LOCK:
            idle.append(own)


_LOCK, _RECORDING = threading.Lock(), threading.Lock()
_IDLE: dict[int, list[Lane]] = {}
