"""Straighten: a ReLU whose neurons are all active is the identity, so its readers read its input instead.
Exact: no weight changes.

This is for layers that are linear but stay, because folding them would make the network larger (a
bottleneck), or because something else than linear nodes reads them. The ReLU goes, and with it the need to
keep its inputs above 0. A ReLU that the source cannot leave out (a call in a module's ``forward()``) stays.
"""

from __future__ import annotations

from collections.abc import Set

from relutrim.graph.graph import Node
from relutrim.rewrite.draft import Draft, Step

NAME = "straighten"


def straighten(draft: Draft, fixed: Set[str] = frozenset()) -> Draft:
    """The draft without ReLUs that are active as a whole. One that is ``fixed``, that is an output or that
    nobody reads stays, and so does an empty one.
    """
    for name in [relu.name for relu in draft.network.relus if relu.name not in fixed]:
        network, relu = draft.network, draft.network[name]
        source = relu.inputs[0]
        active, readers = draft.identity[relu.name], network.readers(relu.name)
        if not active.all() or not active.size or not readers or network.is_output(relu.name):
            continue
        change: dict[str, Node | None] = {relu.name: None}
        for reader in readers:
            inputs = tuple(source if read == name else read for read in reader.inputs)
            change[reader.name] = Node(reader.name, reader.operator, inputs)
        # Both hold the same numbers, and either range may be the tighter one.
        both = draft.ranges[source].meet(draft.ranges[relu.name])
        step = Step(NAME, relu.name, f"removed the ReLUs of {active.size} active neurons", int(active.size))
        draft = draft.rewritten(network.edit(change=change), step, ranges={source: both})
    return draft
