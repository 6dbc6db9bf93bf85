"""Whether a network read from a module computes what the module computes, tried on random inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils import _pytree

from relutrim.errors import InputError, UnsupportedError
from relutrim.graph import Network
from relutrim.io.tolerance import mismatch

_ROWS = 3


def compare(
    module: Callable[..., object], network: Network, places: Sequence[int], examples: Sequence[Tensor]
) -> None:
    """Refuse a reading that computes something else than ``module`` does. ``places`` are those of the
    network's outputs among the module's results; of the ``examples`` the first one is for the network's
    input, the others are passed on.
    """
    example, *others = examples
    if not example.is_floating_point():
        return
    rows = _ROWS if isinstance(network.input.batch, str) and not others else len(example)
    x = torch.randn(
        rows, *network.input.shape, dtype=example.dtype, generator=torch.Generator().manual_seed(0)
    )
    try:
        results = _pytree.tree_leaves(module(x.clone(), *(other.clone() for other in others)))
    except Exception as error:
        raise InputError(
            f"the module was recorded for inputs of shape {network.input.shape}, and does not run on "
            f"them ({error})"
        ) from error
    if mismatch(network, x, [results[place] for place in places]) is not None:
        raise UnsupportedError(
            "what torch.export recorded computes something else than the module itself; forward() "
            "probably depends on the batch, on state, or on something beside tensors. Rewrite that part"
        )
