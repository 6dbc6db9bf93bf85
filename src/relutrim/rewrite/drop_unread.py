"""Drop unread: neurons whose value no reader weighs. Exact: no weight changes."""

from __future__ import annotations

import numpy as np

from relutrim.graph.operators import Linear
from relutrim.rewrite.draft import Draft, Mask, Step
from relutrim.rewrite.layers import DenseLayer, columns, keep_neurons

NAME = "drop-unread"


def drop_unread(draft: Draft, layer: DenseLayer) -> Draft:
    """The draft without the neurons of a layer that all readers weigh with 0. A layer keeps at least one."""
    keep: Mask = np.zeros(layer.size, dtype=np.bool_)
    for reader in layer.readers:
        assert isinstance(reader.operator, Linear)
        keep |= (reader.operator.weight != 0).any(axis=0)
    if not keep.any():
        keep[:1] = True
    gone = int((~keep).sum())
    if not gone or not layer.readers:
        return draft
    readers = {reader.name: columns(reader, keep) for reader in layer.readers}
    text = f"removed {gone} {layer.entries} that nobody reads"
    step = Step(NAME, layer.relu.name, text, layer.neurons(gone))
    return keep_neurons(draft, layer, keep, readers, step)
