"""What data called stable, and other data shows not to be (the paper's inexact mode).

A neuron that no row of the data switches is only observed to be stable. The rows of a held-out set say how
often that is wrong: the paper counts neurons that are not stable on the test set among those that are on the
training set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from relutrim.analysis import as_rows, batches
from relutrim.intervals import flat
from relutrim.prove.stability import Stability
from relutrim.prove.verdict import Verdict


@dataclass(frozen=True)
class Holdout:
    """Of the ``stable`` neurons, ``contradicted`` ones are not, on ``rows`` other rows."""

    rows: int
    stable: int
    contradicted: int

    @property
    def share(self) -> float | None:
        """How often the data was wrong; None where it left nothing stable."""
        return self.contradicted / self.stable if self.stable else None


def held_out(stability: Stability, data: Any) -> Holdout:
    """Run held-out rows, in the domain's raw units, through the network; rows outside the domain do not
    count.
    """
    problem = stability.problem
    region = problem.region()
    rows = as_rows(data, problem)
    names = {layer.name: problem.network[layer.name].inputs[0] for layer in stability.layers}
    wrong = {layer.name: torch.zeros(layer.size, dtype=torch.bool) for layer in stability.layers}
    count = 0
    for batch in batches(rows):
        inside = batch[region.inside(batch)]
        count += len(inside)
        if not len(inside):
            continue
        values = problem.network.run(inside, until=list(names.values()))
        for layer in stability.layers:
            y = flat(values[names[layer.name]])
            on, off = (torch.as_tensor(layer.verdict == v) for v in (Verdict.ACTIVE, Verdict.INACTIVE))
            wrong[layer.name] |= (on & (y < 0).any(0)) | (off & (y > 0).any(0))
    stable = sum(layer.count(v) for layer in stability.layers for v in (Verdict.ACTIVE, Verdict.INACTIVE))
    return Holdout(count, stable, sum(int(one.sum()) for one in wrong.values()))
