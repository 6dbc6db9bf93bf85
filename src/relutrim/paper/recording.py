"""A step that is recorded once and replayed (CUDA graphs).

The networks of the paper are so small that a GPU is done with an operation before the host has asked for the
next one; replaying asks for all of a step's operations in one go.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_WARM_UP = 3


def recorded(
    step: Callable[[], None], mutable: Callable[[], list[Tensor]], device: torch.device
) -> Callable[[], None]:
    """Something that does the same as ``step``: ``step`` itself on a CPU, its recording on a GPU.

    ``mutable`` names everything that a step changes: before a step can be recorded it has to run a few times,
    and what each of those runs changed is put back. Recording itself runs nothing.
    """
    if device.type != "cuda":
        return step
    with torch.cuda.device(device):
        return _record(step, mutable)


def _record(step: Callable[[], None], mutable: Callable[[], list[Tensor]]) -> Callable[[], None]:
    kept = [tensor.detach().clone() for tensor in mutable()]
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM_UP):
            step()
            with torch.no_grad():
                for tensor, before in zip(mutable(), kept, strict=True):
                    tensor.copy_(before)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay
