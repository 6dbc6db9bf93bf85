"""One change to the proofs of a valid certificate, or of one that lies (:mod:`attacks.lies`).

A tree is right if its leaves cover every case and the multipliers of each prove its bound; parts if they fill
the domain. So leaves and parts are dropped, repeated and turned, multipliers moved and swapped, and other
units are lent ranges that they do not have. What becomes of a proof of something true is true all the same,
whoever accepts it; the lies are there for that, where one leaf or part less is all that a proof would need.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attacks.mutations import Mutant, Rng, changed, mutation, rewritten
from attacks.victims import Victim
from relutrim.certificate.check import read_front

Change = Callable[[dict[str, Any], dict[str, np.ndarray]], None]


def _with_proofs(victim: Victim, change: Change) -> Mutant:
    """Arrays for proofs made where there are none."""

    def both(document: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        size = arrays["domain.lo"].size
        shapes = {"rows": (0, 3), "cuts": (0, 5), "subset": (0,), "at": (0,), "states": (0, 3), "part": (0,)}
        for name, shape in shapes.items():
            arrays.setdefault(f"proof.{name}", np.zeros(shape, "<i4"))
        for name, shape in {"values": (0,), "lo": (0, size), "hi": (0, size)}.items():
            arrays.setdefault(f"proof.{name}", np.zeros(shape))
        change(document, arrays)

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
    if not victim.document["proofs"]:
        return None
    at = int(rng.integers(len(victim.document["proofs"])))
    keys = sorted(victim.document["proofs"][at])
    key = str(rng.choice(keys))
    number = int(rng.choice([-(10**20), -1, 0, 1, 2, 3, 10**6, 10**20]))
    pair = [number, int(rng.choice([-1, 0, 1, 2, 7, 10**20]))]

    def change(document: dict[str, Any], _: Any) -> None:
        old = document["proofs"][at][key]
        document["proofs"][at][key] = pair if isinstance(old, list) else number

    return rewritten(victim, change)


@mutation
def remove_proof(rng: Rng, victim: Victim) -> Mutant | None:
    if not victim.document["proofs"]:
        return None
    at = int(rng.integers(len(victim.document["proofs"])))
    return rewritten(victim, lambda d, _: d["proofs"].pop(at))


def _lie(victim: Victim, layer: int, unit: int, kind: int) -> Callable[[dict[str, Any], Any], None]:
    """A unit of MODEL called linear or zero, without slack, and with room for the rounding that it costs."""

    def change(document: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        for output in document["outputs"]:
            arrays[output["bound"]] += 1e-9
        arrays[document["layers"][layer]["kind"]][unit] = kind

    return change


@mutation
def half_a_tree(rng: Rng, victim: Victim) -> Mutant | None:
    """A proof for a unit that looks at one state of an earlier one only."""
    layers = victim.document["layers"]
    if len(layers) < 2:
        return None
    layer = int(rng.integers(1, len(layers)))
    unit, other = int(rng.integers(layers[layer]["size"])), int(rng.integers(layers[layer - 1]["size"]))
    sign, on = int(rng.choice([1, -1])), int(rng.integers(2))

    def change(document: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        at = len(arrays["proof.states"])
        state = np.array([[layer - 1, other, on]], "<i4")
        arrays["proof.states"] = np.concatenate([arrays["proof.states"], state])
        leaf = {"states": [at, at + 1], "duals": [0, 0], "empty": False}
        entry = {"layer": layer, "unit": unit, "sign": sign, "rows": [0, 0], "cuts": [0, 0], "leaves": [leaf]}
        document["proofs"].append(entry)
        _lie(victim, layer, unit, 1 if sign > 0 else 2)(document, arrays)

    return _with_proofs(victim, change)


@mutation
def a_part_for_the_whole(rng: Rng, victim: Victim) -> Mutant | None:
    """A proof for a unit by a box that is a small part of the domain."""
    layers = victim.document["layers"]
    layer = int(rng.integers(len(layers)))
    unit = int(rng.integers(layers[layer]["size"]))
    lo, hi = victim.arrays["domain.lo"], victim.arrays["domain.hi"]
    point = lo + (hi - lo) * rng.random(lo.size)
    graph = read_front(victim.model, "model")
    node = graph.nodes[graph.layers[layer]]
    values = graph.run(point[None])[node.inputs[0]][0]
    sign = 1 if values[unit % len(values)] > 0 else -1

    def change(document: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        at, part = len(arrays["proof.lo"]), len(arrays["proof.part"])
        for name in ("proof.lo", "proof.hi"):
            arrays[name] = np.concatenate([arrays[name], point[None]])
        arrays["proof.part"] = np.concatenate([arrays["proof.part"], np.array([at], "<i4")])
        document["proofs"].append({"layer": layer, "unit": unit, "sign": sign, "parts": [part, part + 1]})
        _lie(victim, layer, unit, 1 if sign > 0 else 2)(document, arrays)

    return _with_proofs(victim, change)


# Leaves.


def a_tree(rng: Rng, victim: Victim) -> int | None:
    """The number of a proof with several leaves."""
    trees = [k for k, proof in enumerate(victim.document["proofs"]) if len(proof.get("leaves", ())) > 1]
    return int(rng.choice(trees)) if trees else None


def of_a_tree(change: Callable[[Rng, list[Any], dict[str, np.ndarray]], Any]) -> Callable[..., Mutant | None]:
    """A change to the leaves of one tree."""

    def made(rng: Rng, victim: Victim) -> Mutant | None:
        at = a_tree(rng, victim)
        if at is None:
            return None
        return rewritten(victim, lambda d, arrays: change(rng, d["proofs"][at]["leaves"], arrays))

    made.__name__ = change.__name__
    mutation(made)
    return made


def stretch(arrays: dict[str, np.ndarray], name: str, more: np.ndarray) -> list[int]:
    """Where numbers are that are put behind all others of an array."""
    at = len(arrays[name])
    arrays[name] = np.concatenate([arrays[name], more.astype(arrays[name].dtype)])
    return [at, at + len(more)]


@of_a_tree
def drop_leaf(rng: Rng, leaves: list[Any], _: Any) -> None:
    leaves.pop(int(rng.integers(len(leaves))))


@of_a_tree
def drop_leaves(rng: Rng, leaves: list[Any], _: Any) -> None:
    """Any number of them, but not all."""
    kept = rng.permutation(len(leaves))[: int(rng.integers(1, len(leaves)))]
    leaves[:] = [leaves[at] for at in sorted(kept)]


@of_a_tree
def flip_split(rng: Rng, leaves: list[Any], arrays: dict[str, np.ndarray]) -> None:
    """One state of a leaf the other way round, or of all leaves that have it."""
    leaf = leaves[int(rng.integers(len(leaves)))]
    begin, end = leaf["states"]
    states = arrays["proof.states"][begin:end].copy()
    which = int(rng.integers(len(states)))
    states[which, 2] ^= 1
    if rng.random() < 0.5:
        leaf["states"] = stretch(arrays, "proof.states", states)
        return
    every = arrays["proof.states"]
    same = (every[:, :2] == states[which, :2]).all(1)
    every[same, 2] = states[which, 2]


@of_a_tree
def drop_split(rng: Rng, leaves: list[Any], arrays: dict[str, np.ndarray]) -> None:
    """A leaf that says it is about more than its multipliers are made for."""
    leaf = leaves[int(rng.integers(len(leaves)))]
    states = arrays["proof.states"][slice(*leaf["states"])]
    kept = np.delete(states, int(rng.integers(len(states))), axis=0)
    leaf["states"] = stretch(arrays, "proof.states", kept)


@of_a_tree
def split_another(rng: Rng, leaves: list[Any], arrays: dict[str, np.ndarray]) -> None:
    """A leaf whose state is another unit's."""
    leaf = leaves[int(rng.integers(len(leaves)))]
    states = arrays["proof.states"][slice(*leaf["states"])].copy()
    states[int(rng.integers(len(states))), 1] += int(rng.choice([1, -1, 2, 100]))
    leaf["states"] = stretch(arrays, "proof.states", states)


@of_a_tree
def repeat_states(rng: Rng, leaves: list[Any], _: Any) -> None:
    """Two leaves about the same case."""
    one, other = rng.choice(len(leaves), 2, replace=False)
    leaves[one]["states"] = list(leaves[other]["states"])


@of_a_tree
def repeat_leaf(rng: Rng, leaves: list[Any], _: Any) -> None:
    """A leaf in place of another."""
    one, other = rng.choice(len(leaves), 2, replace=False)
    leaves[one] = dict(leaves[other])


@of_a_tree
def swap_multipliers(rng: Rng, leaves: list[Any], _: Any) -> None:
    one, other = rng.choice(len(leaves), 2, replace=False)
    for key in ("duals", "empty"):
        leaves[one][key], leaves[other][key] = leaves[other][key], leaves[one][key]


@of_a_tree
def move_multiplier_of_a_leaf(rng: Rng, leaves: list[Any], arrays: dict[str, np.ndarray]) -> None:
    """One multiplier of a leaf, or all of them."""
    begin, end = leaves[int(rng.integers(len(leaves)))]["duals"]
    if begin < end:
        at = slice(begin, end) if rng.random() < 0.3 else int(rng.integers(begin, end))
        arrays["proof.values"][at] *= float(rng.choice([-1.0, 0.0, 0.9, 1.1, 2.0, 1e10, 1e308]))


@of_a_tree
def move_multiplier_to_another_row(rng: Rng, leaves: list[Any], arrays: dict[str, np.ndarray]) -> None:
    begin, end = leaves[int(rng.integers(len(leaves)))]["duals"]
    if begin < end:
        arrays["proof.at"][int(rng.integers(begin, end))] = int(rng.integers(-1, 40))


@of_a_tree
def call_a_leaf_empty(rng: Rng, leaves: list[Any], _: Any) -> None:
    leaf = leaves[int(rng.integers(len(leaves)))]
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
    if at is None or victim.document["proofs"][at]["layer"] < 1:
        return None
    layer = int(rng.integers(victim.document["proofs"][at]["layer"]))
    unit = int(rng.integers(victim.document["layers"][layer]["size"]))
    sign = int(rng.choice([1, -1]))
    lo, hi = victim.arrays["domain.lo"], victim.arrays["domain.hi"]
    point = lo + (hi - lo) * rng.random(lo.size)
    half = bool(rng.random() < 0.5) and layer > 0
    other, on = int(rng.integers(victim.document["layers"][max(0, layer - 1)]["size"])), int(rng.integers(2))

    def change(document: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        entry: dict[str, Any] = {"layer": layer, "unit": unit, "sign": sign}
        if half:
            states = stretch(arrays, "proof.states", np.array([[layer - 1, other, on]]))
            leaf = {"states": states, "duals": [0, 0], "empty": False}
            entry |= {"rows": [0, 0], "cuts": [0, 0], "leaves": [leaf]}
        else:
            number = stretch(arrays, "proof.lo", point[None])[0]
            stretch(arrays, "proof.hi", point[None])
            entry["parts"] = stretch(arrays, "proof.part", np.array([number]))
        document["proofs"].insert(0, entry)

    return _with_proofs(victim, change)


# Parts.


def of_parts(
    change: Callable[[Rng, np.ndarray, dict[str, np.ndarray]], np.ndarray],
) -> Callable[..., Mutant | None]:
    """A change to the boxes of one proof, by their numbers."""

    def made(rng: Rng, victim: Victim) -> Mutant | None:
        spread = {k: proof["parts"] for k, proof in enumerate(victim.document["proofs"]) if "parts" in proof}
        spread = {k: ends for k, ends in spread.items() if ends[1] - ends[0] > 1}
        if not spread:
            return None
        at = int(rng.choice(list(spread)))

        def anew(document: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
            own = arrays["proof.part"][slice(*spread[at])].copy()
            document["proofs"][at]["parts"] = stretch(arrays, "proof.part", change(rng, own, arrays))

        return rewritten(victim, anew)

    made.__name__ = change.__name__
    mutation(made)
    return made


@of_parts
def drop_part(rng: Rng, parts: np.ndarray, _: Any) -> np.ndarray:
    return np.delete(parts, int(rng.integers(len(parts))))


@of_parts
def drop_parts(rng: Rng, parts: np.ndarray, _: Any) -> np.ndarray:
    return rng.permutation(parts)[: int(rng.integers(1, len(parts)))]


@of_parts
def repeat_part(rng: Rng, parts: np.ndarray, _: Any) -> np.ndarray:
    one, other = rng.choice(len(parts), 2, replace=False)
    parts[one] = parts[other]
    return parts


@of_parts
def shrink_part(rng: Rng, parts: np.ndarray, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """A box that ends a little, or a good deal, too early."""
    which = int(rng.integers(len(parts)))
    lo, hi = (arrays[name][parts[which]].copy() for name in ("proof.lo", "proof.hi"))
    axis, share = int(rng.integers(lo.size)), float(rng.choice([1e-12, 1e-3, 0.5, 1.0]))
    if rng.random() < 0.5:
        lo[axis] += share * (hi[axis] - lo[axis])
    else:
        hi[axis] -= share * (hi[axis] - lo[axis])
    parts[which] = stretch(arrays, "proof.lo", lo[None])[0]
    stretch(arrays, "proof.hi", hi[None])
    return parts
