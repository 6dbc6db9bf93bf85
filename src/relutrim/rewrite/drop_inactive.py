"""Drop inactive: neurons that are 0 on the whole domain, and the readers' columns for them. Exact: no weight
changes.
"""

from __future__ import annotations

from relutrim.rewrite.draft import Draft, Step
from relutrim.rewrite.layers import DenseLayer, columns, keep_neurons

NAME = "drop-inactive"


def drop_inactive(draft: Draft, layer: DenseLayer) -> Draft:
    """The draft without the inactive neurons of a layer. One stays if all are: a layer keeps at least one
    neuron.
    """
    keep = ~layer.inactive(draft)
    if keep.all():
        return draft
    if not keep.any():
        keep[0] = True
    gone = int((~keep).sum())
    if not gone:
        return draft
    readers = {reader.name: columns(reader, keep) for reader in layer.readers}
    step = Step(NAME, layer.relu.name, f"removed {gone} inactive of {layer.size} neurons", gone)
    return keep_neurons(draft, layer, keep, readers, step)
