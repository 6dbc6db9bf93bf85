"""How often the largest output is the one that a label names, before and after.

Both networks run in the type of the deployment, on all rows that provably lie in the domain; outside of it
nothing is promised, and what a smaller network does there says nothing about this one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from relutrim.analysis import as_rows, batches
from relutrim.errors import InputError
from relutrim.graph.graph import Network
from relutrim.graph.operators import Fresh
from relutrim.observe import DTYPES, behind_normalisation

if TYPE_CHECKING:
    from relutrim.prove.stability import Stability


@dataclass(frozen=True)
class Accuracy:
    """Shares of ``rows`` rows, computed in ``dtype``."""

    rows: int
    before: float
    after: float
    dtype: str


def classes(network: Network) -> int | None:
    """How many classes the network tells apart; None where it is no classifier: it has several outputs, one
    number, or as many numbers as inputs (an autoencoder); or where only the model itself can tell.
    """
    fresh = any(isinstance(node.operator, Fresh) for node in network.nodes)
    if fresh or len({output.source for output in network.outputs}) != 1:
        return None
    count = network.size(network.outputs[0].source)
    return count if 1 < count != network.input.size else None


def checked_labels(labels: Any, network: Network) -> torch.Tensor | None:
    """Labels that the network can give, or None where it is no classifier."""
    count = classes(network)
    if labels is None or count is None:
        return None
    found = torch.as_tensor(labels).detach().cpu()
    fine = not found.numel() or not (found.is_floating_point() or found.is_complex())
    if found.ndim != 1 or not fine:
        raise InputError(
            f"labels of shape {tuple(found.shape)} and type {found.dtype} are no classes; give one whole "
            "number for each row"
        )
    least, most = (int(found.min()), int(found.max())) if found.numel() else (0, 0)
    if not 0 <= least <= most < count:
        raise InputError(
            f"the labels go from {least} to {most}, and the network has {count} outputs, 0 to {count - 1}; "
            "are these the labels of another data set?"
        )
    return found.to(torch.int64)


def accuracy(
    original: Network, stored: Network, stability: Stability, data: Any, labels: Any, dtype: str
) -> Accuracy | None:
    """Of both networks, on data in raw units; None where there is nothing to count."""
    known, rows = checked_labels(labels, original), as_rows(data, stability.problem)
    if known is None or rows is None:
        return None
    if len(known) != len(rows):
        raise InputError(f"{len(known)} labels do not go with {len(rows)} rows of data")
    region = stability.problem.region()
    kind = torch.float64 if original.dtype == "float64" else torch.float32
    total, right, start = 0, [0, 0], 0
    for batch in batches(rows):
        inside = region.inside(batch)
        truth = known[start : start + len(batch)][inside]
        start += len(batch)
        total += len(truth)
        if len(truth):
            inputs = (
                behind_normalisation(stability.problem, original, batch[inside]).to(kind).to(DTYPES[dtype])
            )
            for at, network in enumerate((original, stored)):
                values = network(inputs)[:, : network.size(network.outputs[0].source)]
                right[at] += int(((values.argmax(1) == truth) & ~values.isnan().any(1)).sum())
    if not total:
        return None
    return Accuracy(total, right[0] / total, right[1] / total, dtype.removesuffix("-check"))
