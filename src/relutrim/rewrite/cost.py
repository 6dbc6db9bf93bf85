"""What a network costs, and so which of two is the smaller one.

Every choice between networks is made here: the chosen measure decides, the other one where that is the same,
and the number of ReLUs where both are. A rewrite is applied only if the cost falls, so rewriting ends.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line names the costs without loading torch
    from relutrim.graph.graph import Network
    from relutrim.rewrite.draft import Draft


class Cost(StrEnum):
    """What to make smaller."""

    PARAMETERS = "parameters"
    MULTIPLY_ADDS = "multiply-adds"

    def of(self, network: Network) -> tuple[int, int, int]:
        """What a network costs; tuples compare entry by entry."""
        counts = (network.parameters, network.multiply_adds)
        if self is Cost.MULTIPLY_ADDS:
            counts = (counts[1], counts[0])
        return (*counts, network.neurons)

    def least(self, *drafts: Draft) -> Draft:
        """The draft that costs least, the first of several."""
        return min(drafts, key=lambda draft: self.of(draft.network))
