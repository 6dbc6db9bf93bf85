"""Rules: what decides whether a rewrite is applied.

A rewrite proposes; it is taken if the network costs less then, a file can hold its weights, and the outputs,
weights as stored, provably move by no more than the limit. Once time is up nothing more is taken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from torch import Tensor

from relutrim.graph.origin import Frame
from relutrim.prove.deadline import Deadline
from relutrim.rewrite.cost import Cost
from relutrim.rewrite.draft import Draft
from relutrim.rewrite.storage import storable

Limits = Mapping[str, Tensor]
"""Per source of an output, how far each entry may move."""


@dataclass(frozen=True, eq=False)
class Allowance:
    """``limits`` are how far the outputs may move, weights as stored, and ``budget`` what of that may be used
    to remove what matters that little (None: nothing; all is for the rounding of new weights).
    """

    limits: Limits
    budget: Limits | None = None

    @property
    def most(self) -> float:
        """The most that any entry may move."""
        return max((float(limit.max()) for limit in self.limits.values() if limit.numel()), default=0.0)

    @property
    def nothing(self) -> bool:
        """Whether no output may move at all."""
        return not self.most > 0


@dataclass(frozen=True, eq=False)
class Rules:
    """``cost`` is what has to fall (None: anything goes, as in the paper), ``limit`` how far the outputs may
    move at every step (None: only the finished network is asked), and ``fold_batch_norm`` whether batch norms
    may be folded. ``frame`` is what the source can say (None: anything).
    """

    cost: Cost | None
    limit: Limits | None = None
    deadline: Deadline = field(default_factory=Deadline)
    fold_batch_norm: bool = False
    frame: Frame | None = None

    @property
    def fixed(self) -> Set[str]:
        """Nodes that stay."""
        return frozenset() if self.frame is None else self.frame.fixed

    @property
    def over(self) -> bool:
        """Whether time is up."""
        return self.deadline.passed

    def better(self, draft: Draft, other: Draft) -> Draft:
        """``other`` if it may take the place of ``draft``, which otherwise stays."""
        if other is draft or self.over or not self.allows(other):
            return draft
        if not self.sayable(other):
            return draft
        if self.cost is None:
            return other
        if self.cost.least(draft, other) is draft or (_known(draft) and not _known(other)):
            return draft
        dtype = other.network.dtype
        return other if all(storable(node.operator, dtype) for node in other.network.nodes) else draft

    def sayable(self, draft: Draft) -> bool:
        """Whether the source stays what it is with this network."""
        return self.frame is None or self.frame.holds(draft.network)

    def allows(self, draft: Draft) -> bool:
        """Whether the outputs stay within the limit."""
        return self.limit is None or fits(draft, self.limit)


def fits(draft: Draft, limits: Limits | None) -> bool:
    """Whether a finite deviation is proved, in memory and as stored, and is not more than is allowed."""
    return all(
        _known(final) and _pinned_stay(final) and (limits is None or _below(final.deviation, limits))
        for final in (draft.realise(), draft.stored().realise())
    )


def _pinned_stay(draft: Draft) -> bool:
    """Whether what must stay as it is has not moved at all."""
    return not any(bool((draft.deviation[name] != 0).any()) for name in draft.network.pinned)


def _known(draft: Draft) -> bool:
    return math.isfinite(draft.proven)


def _below(deviation: Limits, limits: Limits) -> bool:
    return all(bool((deviation[source] <= limit).all()) for source, limit in limits.items())
