"""Which networks are trained together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from relutrim.errors import InputError
from relutrim.paper.architecture import Architecture, parse_architecture


@dataclass(frozen=True)
class Batch:
    """Networks that are trained together."""

    name: str
    architecture: Architecture
    networks: tuple[tuple[float, int], ...]


def plan(
    architectures: Sequence[str | Architecture],
    l1: Iterable[float],
    seeds: Iterable[int],
    at_once: int | None = None,
    networks: Iterable[tuple[float, int]] | None = None,
) -> list[Batch]:
    """Which networks are trained together; whatever is asked for twice is trained once. ``networks``, pairs
    of a penalty and a seed, take the place of every penalty with every seed.
    """
    pairs = [(float(penalty), int(seed)) for penalty, seed in dict.fromkeys(networks or ())]
    if networks is not None:
        l1, seeds = [penalty for penalty, _ in pairs], [seed for _, seed in pairs]
    penalties, own = list(dict.fromkeys(map(float, l1))), list(dict.fromkeys(map(int, seeds)))
    for penalty in penalties:
        if not (math.isfinite(penalty) and penalty >= 0):
            raise InputError(f"a penalty of {penalty:g} makes no sense; it must be 0 or more")
    for seed in own:
        if not 0 <= seed < 2**63:
            raise InputError(f"the seed {seed} does not lie between 0 and 2^63 - 1")
    if at_once is not None and at_once < 1:
        raise InputError(f"{at_once} networks at once are too few")
    parsed = dict.fromkeys(parse_architecture(a) if isinstance(a, str) else a for a in architectures)
    if not (penalties and own and parsed):
        raise InputError("there is nothing to train: an architecture, a penalty and a seed are needed")
    named = {f"{penalty:g}" for penalty in penalties}
    if len(named) < len(penalties):
        raise InputError(
            "two of the penalties are the same to six digits, and so would be their files' names"
        )
    pairs = pairs or [(penalty, seed) for penalty in penalties for seed in own]
    size = at_once or len(pairs)
    parts = [tuple(pairs[at : at + size]) for at in range(0, len(pairs), size)]
    return [
        Batch(a.name if len(parts) == 1 else f"{a.name}-{number}", a, part)
        for a in parsed
        for number, part in enumerate(parts, 1)
    ]
