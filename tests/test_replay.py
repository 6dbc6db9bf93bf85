"""Work that is recorded on a GPU and replayed: the same numbers, in any number of threads."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from relutrim.prove.hull.replay import Replay, on_lane

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


def _halvings(device: str, steps: int) -> Tensor:
    """1, halved and moved so many times, by a function on the same tensor each time."""
    value, shift = torch.ones(1000, device=device), torch.zeros(1000, device=device)
    with on_lane(value.device) as lane:

        def halve() -> Tensor:
            value.mul_(0.5).add_(shift)
            return value + 0

        halved = Replay(halve, lane)
        for step in range(steps):
            shift.fill_(step)
            found = halved()
        found = found.clone()
    return found.cpu()


def test_without_a_gpu_the_function_is_called_every_time():
    calls = []
    repeated = Replay(lambda: calls.append(1), None)
    for _ in range(5):
        repeated()
    assert len(calls) == 5


class _FakeLane:
    """One that can record only some functions: a recording calls the function when it is replayed."""

    def __init__(self, *able: object) -> None:
        self.broken, self._able = False, able

    def record(self, function):
        if function not in self._able:
            raise RuntimeError("no memory")
        return SimpleNamespace(replay=function), None


def test_where_one_function_cannot_be_recorded_none_is_replayed():
    calls = []

    def one() -> None:
        calls.append(1)

    def other() -> None:
        calls.append(2)

    for able in ((one,), (other,), (), (one, other)):
        lane = _FakeLane(*able)
        first, second = Replay(one, lane), Replay(other, lane)
        calls.clear()
        for _ in range(6):
            first()
            second()
        assert calls == [1, 2] * 6
        assert lane.broken == (len(able) < 2)
        assert (second._graph is not None) == (len(able) == 2)


@cuda
@pytest.mark.parametrize("steps", [1, 2, 3, 20])
def test_replays_compute_what_calls_compute(steps: int):
    assert torch.equal(_halvings("cuda", steps), _halvings("cpu", steps))


@cuda
def test_lanes_do_not_get_in_each_others_way():
    found: dict[int, Tensor] = {}

    def work(number: int) -> None:
        for _ in range(10):
            found[number] = _halvings("cuda", 5 + number)

    threads = [threading.Thread(target=work, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        assert torch.equal(found[number], _halvings("cpu", 5 + number))


@cuda
def test_what_cannot_be_recorded_is_called():
    value = torch.ones(4, device="cuda")
    with on_lane(value.device) as lane:
        # It waits for the device, which no recording can.
        doubled = Replay(lambda: float(value.mul_(2).sum()), lane)
        found = [doubled() for _ in range(4)]
    assert found == [8, 16, 32, 64]
    assert torch.equal(_halvings("cuda", 20), _halvings("cpu", 20))
