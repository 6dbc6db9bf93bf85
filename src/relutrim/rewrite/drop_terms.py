"""Drop terms: a sum without the terms that are 0, and with numbers in the place of those that are constant.

1. A term that is 0 on the whole domain goes: ``x + 0 = x``, in floats too. What is left of two terms is the
   other one, and the sum goes; so does all that only the term has read, the block of a residual network.
2. A term that is constant (a range of one number for each entry) becomes a number per channel, or per entry,
   that is added, if the file holds it.

Nothing moves. A sum that the source cannot leave out (in a module's ``forward()``) stays.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

import numpy as np

from relutrim.graph.graph import Network, Node, live
from relutrim.graph.operators import Add, Array, Scale
from relutrim.graph.origin import parts
from relutrim.rewrite.draft import Draft, Step
from relutrim.rewrite.drop_channels import can_be_nonzero
from relutrim.rewrite.storage import held

NAME = "drop-terms"


def drop_terms(draft: Draft, fixed: Set[str] = frozenset()) -> Draft:
    """The draft whose sums have no terms that are 0 or constant. A sum that is ``fixed``, or a part of an
    operator of the source (a clip), stays.
    """
    stay = fixed | parts(draft.network.nodes)
    sums = [n.name for n in draft.network.nodes if isinstance(n.operator, Add) and n.name not in stay]
    nonzero = can_be_nonzero(draft) if sums else {}
    for name in sums:
        if name in draft.network:  # it may have been a part of a term that is gone
            node = draft.network[name]
            zero = [not nonzero[term].any() for term in node.inputs]
            draft = _without_constants(_without_zeros(draft, node, zero), name)
    return draft


def _without_zeros(draft: Draft, node: Node, zero: list[bool]) -> Draft:
    left = tuple(term for term, gone in zip(node.inputs, zero, strict=True) if not gone) or node.inputs[:1]
    network = draft.network
    if len(left) == len(node.inputs):
        return draft
    step = Step(NAME, node.name, f"{len(node.inputs) - len(left)} terms are 0")
    if len(left) > 1:
        return draft.rewritten(_with(network, replace(node, operator=Add(len(left)), inputs=left)), step)
    if network.is_output(node.name):
        return draft
    change: dict[str, Node | None] = {node.name: None}
    for reader in network.readers(node.name):
        inputs = tuple(left[0] if read == node.name else read for read in reader.inputs)
        change[reader.name] = replace(reader, inputs=inputs)
    # Both hold the same numbers, and either range may be the tighter one.
    both = draft.ranges[left[0]].meet(draft.ranges[node.name])
    return draft.rewritten(_pruned(network.edit(change=change)), step, ranges={left[0]: both})


def _without_constants(draft: Draft, name: str) -> Draft:
    node = draft.network.get(name)
    if node is None or not isinstance(node.operator, Add) or len(set(node.inputs)) < 2:
        return draft
    for term in node.inputs:
        constant = _constant(draft, term)
        left = tuple(read for read in node.inputs if read != term)
        if constant is not None and len(left) == 1:
            added = Node(name, Scale.exactly(1.0, constant), left)
            step = Step(NAME, name, "a term is constant and became numbers that are added")
            return draft.rewritten(_with(draft.network, added), step)
    return draft


def _constant(draft: Draft, name: str) -> Array | None:
    """The numbers that a value is on the whole domain, with an axis of length 1 where they do not differ, if
    the file holds them.
    """
    known = draft.ranges[name]
    numbers: Array = known.lo[0].numpy()
    if name not in draft.network or not bool((known.lo == known.hi).all()) or not numbers.size:
        return None
    for axis in range(numbers.ndim):
        first = numbers.take([0], axis)
        numbers = first if (numbers == first).all() else numbers
    return numbers if np.array_equal(held(numbers, draft.network.dtype), numbers) else None


def _with(network: Network, node: Node) -> Network:
    return _pruned(network.edit(change={node.name: node}))


def _pruned(network: Network) -> Network:
    """The network without nodes on which no output depends."""
    return replace(network, nodes=live(network.nodes, network.sources))
