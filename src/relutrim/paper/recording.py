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
    and what those runs changed is put back.
    """
    if device.type != "cuda":
        return step
    kept = [tensor.detach().clone() for tensor in mutable()]
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(_WARM_UP):
            step()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    with torch.no_grad():
        for tensor, before in zip(mutable(), kept, strict=True):
            tensor.copy_(before)
    return graph.replay
