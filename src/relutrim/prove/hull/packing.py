"""From multipliers as tensors to leaves in few bytes."""

from __future__ import annotations

from collections.abc import Sequence

from relutrim.prove.hull.dual import Dual, Multipliers
from relutrim.prove.hull.model import Index
from relutrim.prove.hull.packed import WHOLE, Packed, Part


def packed(dual: Dual, places: tuple[Index, ...], batch: Sequence[Multipliers]) -> list[Packed]:
    """The multipliers of each node; ``places`` are the dual's, one object for all leaves of a tree."""
    levels = []
    for own, scale in zip(batch, dual.scales, strict=True):
        mix = own.mix / own.mix.amax(0).clamp(min=1e-30)
        plain = [part.nan_to_num(0.0, 0.0, 0.0) for part in (own.lean, mix, own.share)]
        whole = [(part * WHOLE).round().clamp(0, WHOLE).byte() for part in plain]
        lean, mixed, share = (part.movedim(-1, 0).contiguous().cpu().numpy() for part in whole)
        push = (own.push * scale).float().clamp(min=0).nan_to_num(0.0, 0.0, 0.0).T.contiguous().cpu().numpy()
        levels.append((lean, mixed, push, share))
    return [
        Packed(places, tuple(Part(*(part[node] for part in level)) for level in levels))
        for node in range(len(levels[0][0]))
    ]
