"""One change to the proofs of a valid certificate, or of one that lies (:mod:`attacks.lies`).

A tree is right if its leaves cover every case and the multipliers of each prove its bound; parts if they fill
the domain. So leaves and parts are dropped, repeated and turned, multipliers moved and swapped, and other
units are lent ranges that they do not have. What becomes of a proof of something true is true all the same,
whoever accepts it; the lies are there for that, where one leaf or part less is all that a proof would need.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from attacks.forging import hints_of
from attacks.mutations import Mutant, Rng, changed, mutation, rewritten
from attacks.victims import Victim
from relutrim.certificate.check import read_front
from relutrim.certificate.check.hints import TABLES
from relutrim.certificate.hinting import run
from relutrim.certificate.write import tables_of

Proofs: TypeAlias = list[tuple[int, dict[str, Any]]]
"""The number of a layer and a hint for one of its units, as the checker unpacks it."""
Leaves: TypeAlias = list[dict[str, Any]]
Boxes: TypeAlias = tuple[np.ndarray, np.ndarray]


def _with_proofs(victim: Victim, change: Callable[[Proofs], Any], also: Any = None) -> Mutant:
    """Other proofs, stored anew, and something that is said because of them."""

    def both(document: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        proofs = hints_of(document, arrays)
        change(proofs)
        arrays |= tables_of(proofs, arrays["domain.lo"].size)
        document["proofs"] = len(proofs)
        if also is not None:
            also(document, arrays)

    return rewritten(victim, both)


@mutation
def move_multiplier(rng: Rng, victim: Victim) -> Mutant | None:
    if "proof.values" not in victim.arrays or not victim.arrays["proof.values"].size:
        return None
    factor = float(rng.choice([-1.0, 0.0, 0.5, 2.0, 1e10, 1e308, -1e308]))
    return changed(rng, victim, "proof.values", lambda old: old * factor)


@mutation
def break_proof(rng: Rng, victim: Victim) -> Mutant | None:
    """A stretch, a unit, a layer, a sign or a kind that is another."""
    names = [f"proof.{name}" for name in TABLES if victim.arrays.get(f"proof.{name}", np.zeros(0)).size]
    if not names:
        return None
    number = int(rng.choice([-(2**31), -1, 0, 1, 2, 3, 7, 10**6, 2**31 - 1]))
    return changed(rng, victim, str(rng.choice(names)), lambda old: number)


@mutation
def remove_proof(rng: Rng, victim: Victim) -> Mutant | None:
    if not victim.document["proofs"]:
        return None
    at = int(rng.integers(victim.document["proofs"]))
    return _with_proofs(victim, lambda proofs: proofs.pop(at))


def _lie(layer: int, unit: int, kind: int) -> Callable[[dict[str, Any], Any], None]:
    """A unit of MODEL called linear or zero, without slack, and with room for the rounding that it costs."""

    def change(document: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        for output in document["outputs"]:
            arrays[output["bound"]] += 1e-9
        arrays[document["layers"][layer]["kind"]][unit] = kind

    return change


def half(unit: int, sign: int, place: tuple[int, int], on: bool) -> dict[str, Any]:
    """A tree with a leaf for one state of an earlier unit only."""
    leaf = {"states": {place: on}, "at": np.zeros(0, int), "values": np.zeros(0), "empty": False}
    return {"unit": unit, "sign": sign, "leaves": [leaf]}


@mutation
def half_a_tree(rng: Rng, victim: Victim) -> Mutant | None:
    """A proof for a unit that looks at one state of an earlier one only."""
    layers = victim.document["layers"]
    if len(layers) < 2:
        return None
    layer = int(rng.integers(1, len(layers)))
    unit, other = int(rng.integers(layers[layer]["size"])), int(rng.integers(layers[layer - 1]["size"]))
    sign = int(rng.choice([1, -1]))
    hint = half(unit, sign, (layer - 1, other), bool(rng.integers(2)))
    lie = _lie(layer, unit, 1 if sign > 0 else 2)
    return _with_proofs(victim, lambda proofs: proofs.append((layer, hint)), lie)


@mutation
def a_part_for_the_whole(rng: Rng, victim: Victim) -> Mutant | None:
    """A proof for a unit by a box that is a small part of the domain."""
    layers = victim.document["layers"]
    layer = int(rng.integers(len(layers)))
    unit = int(rng.integers(layers[layer]["size"]))
    lo, hi = victim.arrays["domain.lo"], victim.arrays["domain.hi"]
    point = lo + (hi - lo) * rng.random(lo.size)
    graph = read_front(victim.model, "model")
    values = run(graph, point[None])[graph.nodes[graph.layers[layer]].inputs[0]][0]
    sign = 1 if values[unit % len(values)] > 0 else -1
    hint = {"unit": unit, "sign": sign, "lo": point[None], "hi": point[None]}
    lie = _lie(layer, unit, 1 if sign > 0 else 2)
    return _with_proofs(victim, lambda proofs: proofs.append((layer, hint)), lie)


# Leaves.


def a_tree(rng: Rng, victim: Victim) -> int | None:
    """The number of a proof with several leaves."""
    proofs = hints_of(victim.document, victim.arrays)
    trees = [k for k, (_, hint) in enumerate(proofs) if len(hint.get("leaves", ())) > 1]
    return int(rng.choice(trees)) if trees else None


def of_a_tree(change: Callable[[Rng, Leaves], Any]) -> Callable[..., Mutant | None]:
    """A change to the leaves of one tree."""

    def made(rng: Rng, victim: Victim) -> Mutant | None:
        at = a_tree(rng, victim)
        if at is None:
            return None
        return _with_proofs(victim, lambda proofs: change(rng, proofs[at][1]["leaves"]))

    made.__name__ = change.__name__
    mutation(made)
    return made


def any_of(rng: Rng, leaves: Leaves) -> dict[str, Any]:
    return leaves[int(rng.integers(len(leaves)))]


def a_state(rng: Rng, leaf: dict[str, Any]) -> tuple[int, int]:
    """A unit whose state a leaf fixes."""
    return list(leaf["states"])[int(rng.integers(len(leaf["states"])))]


@of_a_tree
def drop_leaf(rng: Rng, leaves: Leaves) -> None:
    leaves.pop(int(rng.integers(len(leaves))))


@of_a_tree
def drop_leaves(rng: Rng, leaves: Leaves) -> None:
    """Any number of them, but not all."""
    kept = rng.permutation(len(leaves))[: int(rng.integers(1, len(leaves)))]
    leaves[:] = [leaves[at] for at in sorted(kept)]


@of_a_tree
def flip_split(rng: Rng, leaves: Leaves) -> None:
    """One state of a leaf the other way round, or the same in all leaves that have it."""
    leaf = any_of(rng, leaves)
    place = a_state(rng, leaf)
    on = not leaf["states"][place]
    for other in [leaf] if rng.random() < 0.5 else leaves:
        if place in other["states"]:
            other["states"][place] = on


@of_a_tree
def drop_split(rng: Rng, leaves: Leaves) -> None:
    """A leaf that says it is about more than its multipliers are made for."""
    leaf = any_of(rng, leaves)
    del leaf["states"][a_state(rng, leaf)]


@of_a_tree
def split_another(rng: Rng, leaves: Leaves) -> None:
    """A leaf whose state is another unit's."""
    leaf = any_of(rng, leaves)
    layer, unit = a_state(rng, leaf)
    on = leaf["states"].pop((layer, unit))
    leaf["states"][layer, unit + int(rng.choice([1, -1, 2, 100]))] = on


@of_a_tree
def repeat_states(rng: Rng, leaves: Leaves) -> None:
    """Two leaves about the same case."""
    one, other = rng.choice(len(leaves), 2, replace=False)
    leaves[one]["states"] = leaves[other]["states"]


@of_a_tree
def repeat_leaf(rng: Rng, leaves: Leaves) -> None:
    """A leaf in place of another."""
    one, other = rng.choice(len(leaves), 2, replace=False)
    leaves[one] = leaves[other]


@of_a_tree
def swap_multipliers(rng: Rng, leaves: Leaves) -> None:
    one, other = rng.choice(len(leaves), 2, replace=False)
    for key in ("at", "values", "empty"):
        leaves[one][key], leaves[other][key] = leaves[other][key], leaves[one][key]


@of_a_tree
def move_multiplier_of_a_leaf(rng: Rng, leaves: Leaves) -> None:
    """One multiplier of a leaf, or all of them."""
    values = any_of(rng, leaves)["values"]
    if values.size:
        at = slice(None) if rng.random() < 0.3 else int(rng.integers(values.size))
        values[at] *= float(rng.choice([-1.0, 0.0, 0.9, 1.1, 2.0, 1e10, 1e308]))


@of_a_tree
def move_multiplier_to_another_row(rng: Rng, leaves: Leaves) -> None:
    at = any_of(rng, leaves)["at"]
    if at.size:
        at[int(rng.integers(at.size))] = int(rng.integers(-1, 40))


@of_a_tree
def call_a_leaf_empty(rng: Rng, leaves: Leaves) -> None:
    leaf = any_of(rng, leaves)
    leaf["empty"] = not leaf["empty"]


@mutation
def move_subset_of_a_cut(rng: Rng, victim: Victim) -> Mutant | None:
    """A cut about other inputs, the complement of its own, or another unit."""
    cuts = victim.arrays.get("proof.cuts", np.zeros((0, 5)))
    if not len(cuts):
        return None
    at, column = int(rng.integers(len(cuts))), int(rng.integers(5))
    by = 1 if column == 2 else int(rng.choice([-1, 1, 3]))

    def change(_: Any, arrays: dict[str, np.ndarray]) -> None:
        arrays["proof.cuts"][at, column] = arrays["proof.cuts"][at, column] + by

    return rewritten(victim, change)


@mutation
def lend_a_false_range(rng: Rng, victim: Victim) -> Mutant | None:
    """A proof for a unit that a tree reads, of a range that it does not have."""
    at = a_tree(rng, victim)
    if at is None:
        return None
    above = hints_of(victim.document, victim.arrays)[at][0]
    if above < 1:
        return None
    layer, sign = int(rng.integers(above)), int(rng.choice([1, -1]))
    unit = int(rng.integers(victim.document["layers"][layer]["size"]))
    lo, hi = victim.arrays["domain.lo"], victim.arrays["domain.hi"]
    point = lo + (hi - lo) * rng.random(lo.size)
    hint: dict[str, Any] = {"unit": unit, "sign": sign, "lo": point[None], "hi": point[None]}
    if rng.random() < 0.5 and layer > 0:
        other = int(rng.integers(victim.document["layers"][layer - 1]["size"]))
        hint = half(unit, sign, (layer - 1, other), bool(rng.integers(2)))
    return _with_proofs(victim, lambda proofs: proofs.insert(0, (layer, hint)))


# Parts.


def of_parts(change: Callable[[Rng, np.ndarray, np.ndarray], Boxes]) -> Callable[..., Mutant | None]:
    """A change to the boxes of one proof, by their lower and upper ends."""

    def made(rng: Rng, victim: Victim) -> Mutant | None:
        proofs = hints_of(victim.document, victim.arrays)
        spread = [k for k, (_, hint) in enumerate(proofs) if len(hint.get("lo", ())) > 1]
        if not spread:
            return None
        at = int(rng.choice(spread))

        def anew(proofs: Proofs) -> None:
            hint = proofs[at][1]
            hint["lo"], hint["hi"] = change(rng, hint["lo"], hint["hi"])

        return _with_proofs(victim, anew)

    made.__name__ = change.__name__
    mutation(made)
    return made


@of_parts
def drop_part(rng: Rng, lo: np.ndarray, hi: np.ndarray) -> Boxes:
    kept = np.delete(np.arange(len(lo)), int(rng.integers(len(lo))))
    return lo[kept], hi[kept]


@of_parts
def drop_parts(rng: Rng, lo: np.ndarray, hi: np.ndarray) -> Boxes:
    kept = rng.permutation(len(lo))[: int(rng.integers(1, len(lo)))]
    return lo[kept], hi[kept]


@of_parts
def repeat_part(rng: Rng, lo: np.ndarray, hi: np.ndarray) -> Boxes:
    one, other = rng.choice(len(lo), 2, replace=False)
    lo[one], hi[one] = lo[other], hi[other]
    return lo, hi


@of_parts
def shrink_part(rng: Rng, lo: np.ndarray, hi: np.ndarray) -> Boxes:
    """A box that ends a little, or a good deal, too early."""
    at = int(rng.integers(len(lo))), int(rng.integers(lo.shape[1]))
    by = float(rng.choice([1e-12, 1e-3, 0.5, 1.0])) * (hi[at] - lo[at])
    if rng.random() < 0.5:
        lo[at] += by
    else:
        hi[at] -= by
    return lo, hi
