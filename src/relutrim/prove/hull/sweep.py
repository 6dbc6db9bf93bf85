"""The bounds of many roots at once: what the ends of a whole layer's ranges take.

Programs of one layer's neurons are often all but the same except for the goal. So multipliers for all of them
are found together on the largest of these models, with a goal for each node of a batch, and then carried
over to each neuron's own model, where the bound that they prove is evaluated with rounding. Those with
anything that the largest has not are left to the next round. Nothing rests on what models have in common.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from relutrim.graph.operators import Array
from relutrim.prove.deadline import Deadline
from relutrim.prove.hull.ascent import Start, climb
from relutrim.prove.hull.dual import Dual, Level, heaviest
from relutrim.prove.hull.layers import Layer, layers_of, too_large
from relutrim.prove.hull.model import Index, Model
from relutrim.prove.hull.packed import MIXED, WHOLE, Packed, Part, packed_bounds
from relutrim.prove.hull.packing import packed
from relutrim.prove.hull.thicket import one_thread, width_of
from relutrim.prove.hull.tree import Tree
from relutrim.prove.parallel import spread

_STEPS = 100
_HALF = (WHOLE + 1) // 2


def sweep(trees: Sequence[Tree], device: torch.device, deadline: Deadline, jobs: int = 1) -> None:
    """Give every tree, of which nothing is known yet, the bound of its root, and the proof of that."""
    fresh = [tree for tree in trees if math.isnan(tree.lower) and np.isfinite(tree.model.made_of)]
    base = max((tree.model for tree in fresh), key=lambda model: len(model.neurons), default=None)
    if deadline.passed or base is None or not base.both or too_large(base):
        return
    every = [(tree, _columns(tree.model, base)) for tree in fresh]
    alike = [(tree, columns) for tree, columns in every if _contained(tree.model, columns)]
    _sweep(base, alike, device, deadline, jobs)
    done = {id(tree) for tree, _ in alike}
    sweep([tree for tree in fresh if id(tree) not in done], device, deadline, jobs)


def _sweep(
    base: Model,
    trees: Sequence[tuple[Tree, Index]],
    device: torch.device,
    deadline: Deadline,
    jobs: int,
) -> None:
    """On one model; each tree comes with where its columns are there."""
    dual = Dual(base, device, torch.float32)
    places = tuple(level.places for level in dual.levels)
    width = width_of(dual)

    def work(chunk: slice) -> list[tuple[Packed, float]]:
        own = trees[chunk]
        costs = np.stack([_cost(tree.model, base, columns) for tree, columns in own], axis=1)
        offsets = np.array([tree.model.offset for tree, _ in own])
        like = dual.cost
        aimed = dual.aimed(torch.as_tensor(costs).to(like), torch.as_tensor(offsets).to(like))
        first = [level.middling().repeated(len(own)) for level in dual.levels]
        free = [
            torch.zeros(len(level.bias), len(own), dtype=torch.int8, device=device) for level in dual.levels
        ]
        with one_thread():
            start = Start(first, free, like.new_ones(len(own)))
            found = climb(aimed, start, _STEPS, math.inf, deadline, compiled=True)
            packs = packed(dual, places, found.batch)
        proved = []
        for (tree, columns), pack in zip(own, packs, strict=True):
            same = tree.model.neurons is base.neurons  # made from one another
            layers = [level.layer for level in dual.levels] if same else layers_of(tree.model)
            pack = _carried(layers, columns, pack, dual.levels)
            proved.append((pack, packed_bounds(tree.model, [{}], [pack], layers)[0]))
        return proved

    def done(chunk: slice, proved: list[tuple[Packed, float]]) -> None:
        for (tree, _), (pack, bound) in zip(trees[chunk], proved, strict=True):
            tree.begin(pack, bound)

    spread(work, [slice(at, at + width) for at in range(0, len(trees), width)], jobs, deadline, done)


def _columns(model: Model, base: Model) -> Index:
    """Where the columns of a model are in another one; -1 if nowhere."""
    found = np.full(len(model.ends[0]), -1)
    for name, own in model.columns.items():
        if name in base.columns:
            found[own[own >= 0]] = base.columns[name][own >= 0]
    return found


def _contained(model: Model, columns: Index) -> bool:
    """Whether all columns of a model are in the other one, those of states and the like left aside."""
    return all(bool((columns[own[own >= 0]] >= 0).all()) for own in model.columns.values())


def _cost(model: Model, base: Model, columns: Index) -> Array:
    cost, known = np.zeros(len(base.ends[0])), columns >= 0
    cost[columns[known]] = model.cost[known]
    return cost


def _carried(layers: Sequence[Layer], columns: Index, pack: Packed, levels: Sequence[Level]) -> Packed:
    """The same multipliers for another model; where all is as it was, the places are the same object."""
    if len(layers) == len(levels) and all(
        np.array_equal(columns[layer.columns], level.layer.columns)
        and np.array_equal(columns[layer.read], level.layer.read)
        for layer, level in zip(layers, levels, strict=True)
    ):
        return pack
    owners = {int(column): at for at, level in enumerate(levels) for column in level.layer.columns}
    places, parts = [], []
    for layer in layers:
        at = max((owners.get(int(column), -1) for column in columns[layer.columns]), default=-1)
        own = heaviest(layer)
        places.append(own)
        parts.append(_middling(own) if at < 0 else _part(layer, own, columns, levels[at], pack.parts[at]))
    return Packed(tuple(places), tuple(parts))


def _part(layer: Layer, places: Index, columns: Index, level: Level, part: Part) -> Part:
    """Of the neurons that both have, and for all others something of everything."""
    rows, reads = (
        _positions(columns[own], theirs)
        for own, theirs in ((layer.columns, level.layer.columns), (layer.read, level.layer.read))
    )
    share = np.full((len(level.layer.columns) + 1, len(level.layer.read) + 1), _HALF, np.uint8)
    np.put_along_axis(share[:-1], level.places, part.share, axis=1)
    common, middling = rows >= 0, _middling(places)
    return Part(
        np.where(common, part.lean[rows], middling.lean),
        np.where(common, part.mix[:, rows], middling.mix),
        middling.push,
        np.take_along_axis(share[rows][:, reads], places, axis=1),
    )


def _positions(wanted: Index, among: Index) -> Index:
    """Where each is among others, -1 if it is not."""
    if not len(among):
        return np.full(len(wanted), -1)
    order = np.argsort(among)
    at = np.minimum(np.searchsorted(among, wanted, sorter=order), len(among) - 1)
    return np.where(among[order[at]] == wanted, order[at], -1)


def _middling(places: Index) -> Part:
    count = len(places)
    return Part(
        np.full(count, _HALF, np.uint8),
        np.full((MIXED, count), 1, np.uint8),
        np.zeros(count, np.float32),
        np.full(places.shape, _HALF, np.uint8),
    )
