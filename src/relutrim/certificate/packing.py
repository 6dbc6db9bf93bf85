"""The prover's packed leaves as the bytes of :mod:`relutrim.certificate.check.proofs`.

What a leaf does not use is left out: multipliers of neurons that are off, those for a negative coefficient
where it is positive and the other way round, and the shares that go with them. To the checker a push is a
number of either sign, whatever the state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from relutrim.prove.hull.layers import Layer, layers_of
from relutrim.prove.hull.packed import WHOLE, Packed, coefficients

if TYPE_CHECKING:
    from relutrim.prove.hull.model import Index, Model
    from relutrim.prove.hull.proof import Leaf

_BATCH = 64


def packed_levels(model: Model, leaves: Sequence[Leaf]) -> tuple[list[Layer], list[Index], list[list[bytes]]]:
    """The model's layers, the columns whose shares leaves have, ``[neurons, k]`` for each, and per leaf one
    piece for each layer.
    """
    layers, places = layers_of(model), leaves[0].packed.places
    pieces: list[list[bytes]] = []
    for at in range(0, len(leaves), _BATCH):
        some = leaves[at : at + _BATCH]
        own = [_with_places(leaf.packed, places, layers) for leaf in some]
        pieces += _pieces(model, layers, [dict(leaf.states) for leaf in some], own)
    return layers, [layer.read[own] for layer, own in zip(layers, places, strict=True)], pieces


def _with_places(packed: Packed, places: tuple[Index, ...], layers: Sequence[Layer]) -> Packed:
    """The same multipliers with shares at other places: all leaves of a proof have the same."""
    if packed.places is places:
        return packed
    parts = []
    for part, old, new, layer in zip(packed.parts, packed.places, places, layers, strict=True):
        shares = np.full(layer.weight.shape, WHOLE // 2 + 1, np.uint8)  # about a half
        np.put_along_axis(shares, old, part.share, 1)
        parts.append(replace(part, share=np.take_along_axis(shares, new, 1)))
    return Packed(places, tuple(parts))


def _pieces(
    model: Model, layers: Sequence[Layer], cases: list[dict[int, bool]], leaves: Sequence[Packed]
) -> Iterator[list[bytes]]:
    weights = coefficients(model, layers, cases, leaves)
    marks = [layer.marks(cases) for layer in layers]
    for number, leaf in enumerate(leaves):
        pieces = []
        for layer, part, weight, mark in zip(layers, leaf.parts, weights, marks, strict=True):
            a, state = weight[:, number], np.where(layer.both, mark[:, number], 0)
            lean = np.where((a > 0) & (state >= 0), part.lean, 0)
            mix = np.where((a < 0) & (state >= 0), part.mix, 0)
            lean = np.where(layer.both, lean, WHOLE)
            mix = np.where(layer.both, mix, np.array([[WHOLE], [0], [0], [0]]))
            push = (state * part.push).astype("<f4")
            head = (lean.astype(np.uint8), mix.astype(np.uint8), push, part.share[mix[3] > 0])
            pieces.append(b"".join(np.ascontiguousarray(piece).tobytes() for piece in head))
        yield pieces
