"""One change to the proofs of a valid certificate, or of one that lies (:mod:`attacks.lies`).

A tree covers everything as it is written, and is right if the multipliers of each leaf, or the bounds on each
part, prove what it is for. So leaves and parts are left out, repeated and turned, splits moved, multipliers
moved and swapped, and other units are lent ranges that they do not have. What becomes of a proof of something
true is true all the same, whoever accepts it; the lies are there for that, where one leaf or part less is all
that a proof would need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

from attacks.forging import proofs_of
from attacks.mutations import Mutant, Rng, changed, mutation, one, rewritten
from attacks.victims import Victim
from relutrim.certificate.check import read_front
from relutrim.certificate.hinting import run
from relutrim.certificate.trees import Leaf, Split, Tree, UnitProof, streams

NOTHING = 9
"""No kind of tree: where a leaf was, or should be."""
_MARK = 2**30
_NUMBER = 7e77
Slot: TypeAlias = tuple[Any, str]
"""What holds a tree, and as what."""


def missing() -> Tree:
    """A leaf that is not there: until it is stored, a split that no other is like."""
    return Split(_MARK, Leaf(), Leaf(), _NUMBER)


def stored(proofs: list[UnitProof], *, gap: bool = True) -> dict[str, np.ndarray]:
    """The streams of proofs, with a word that means nothing (or none at all) where a leaf is missing."""
    found = streams(proofs)
    words, numbers = found["proof.words"].tolist(), found["proof.numbers"]
    while _MARK in words:
        at = words.index(_MARK)
        words[at - 1 : at + 3] = [NOTHING] * gap
    numbers = numbers[numbers != _NUMBER]
    return found | {"proof.words": np.array(words, "<i4"), "proof.numbers": numbers}


def _with_proofs(
    victim: Victim, change: Callable[[list[UnitProof]], Any], also: Any = None, *, gap: bool = True
) -> Mutant:
    """Other proofs, stored anew, and something that is said because of them."""

    def both(document: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        proofs = proofs_of(arrays)
        change(proofs)
        arrays |= stored(proofs, gap=gap)
        if also is not None:
            also(arrays)

    return rewritten(victim, both)


@mutation
def move_multiplier(rng: Rng, victim: Victim) -> Mutant | None:
    factor = float(rng.choice([-1.0, 0.0, 0.5, 2.0, 1e10, 1e308, -1e308]))
    return changed(rng, victim, one(rng, victim, "proof.numbers"), lambda old: old * factor)


@mutation
def break_proof(rng: Rng, victim: Victim) -> Mutant | None:
    """Any word of the proofs that is another."""
    number = int(rng.choice([-(2**31), -1, 0, 1, 2, 3, 4, 5, 7, 10**6, 2**31 - 1]))
    return changed(rng, victim, one(rng, victim, "proof.words"), lambda old: number)


@mutation
def move_byte(rng: Rng, victim: Victim) -> Mutant | None:
    """Any byte of a packed leaf."""
    by = int(rng.choice([1, 127, 128, 255]))
    return changed(rng, victim, one(rng, victim, "proof.bytes"), lambda old: (int(old) + by) % 256)


@mutation
def break_off(rng: Rng, victim: Victim) -> Mutant | None:
    """The proofs end too early, or lack a word or a number."""
    name = one(rng, victim, "proof.words", "proof.numbers", "proof.bytes")
    if name is None:
        return None
    at, size = int(rng.integers(victim.arrays[name].size)), victim.arrays[name].size
    gone = range(at, size if rng.random() < 0.5 else at + 1)

    def change(_: Any, arrays: dict[str, np.ndarray]) -> None:
        arrays[name] = np.delete(arrays[name], gone)

    return rewritten(victim, change)


@mutation
def remove_proof(rng: Rng, victim: Victim) -> Mutant | None:
    count = len(proofs_of(victim.arrays))
    if not count:
        return None
    at = int(rng.integers(count))
    return _with_proofs(victim, lambda proofs: proofs.pop(at))


# Proofs of something else.


def sizes_of(victim: Victim) -> list[int]:
    return [layer["size"] for layer in victim.document["layers"]]


def _lie(victim: Victim, layer: int, unit: int, kind: int) -> Callable[[dict[str, np.ndarray]], None]:
    """A unit of MODEL called linear or zero, without slack, and with room for the rounding that it costs."""

    def change(arrays: dict[str, np.ndarray]) -> None:
        arrays["outputs.bound"] += 1e-9
        arrays["layers.kind"][sum(sizes_of(victim)[:layer]) + unit] = kind

    return change


def half(rng: Rng, layer: int, unit: int, sign: int, before: int) -> UnitProof:
    """A tree with a leaf for one state of a unit of the layer before only."""
    sides: list[Tree] = [Leaf(b""), missing()]
    if rng.random() < 0.5:
        sides.reverse()
    return UnitProof(layer, unit, sign, Split((layer - 1, int(rng.integers(before))), *sides))


def around(point: np.ndarray) -> Tree:
    """A tree with a part for one point only."""
    tree: Tree = Leaf()
    for axis, at in enumerate(point[:64].tolist()):
        tree = Split(axis, missing(), Split(axis, tree, missing(), at), at)
    return tree


def a_point(rng: Rng, victim: Victim) -> np.ndarray:
    lo, hi = victim.arrays["domain.lo"], victim.arrays["domain.hi"]
    return np.asarray(lo + (hi - lo) * rng.random(lo.size))


@mutation
def half_a_tree(rng: Rng, victim: Victim) -> Mutant | None:
    """A proof for a unit that looks at one state of an earlier one only."""
    sizes = sizes_of(victim)
    if len(sizes) < 2:
        return None
    layer = int(rng.integers(1, len(sizes)))
    unit, sign = int(rng.integers(sizes[layer])), int(rng.choice([1, -1]))
    proof = half(rng, layer, unit, sign, sizes[layer - 1])
    lie = _lie(victim, layer, unit, 1 if sign > 0 else 2)
    return _with_proofs(victim, lambda proofs: proofs.append(proof), lie)


@mutation
def a_part_for_the_whole(rng: Rng, victim: Victim) -> Mutant | None:
    """A proof for a unit by a box that is a small part of the domain."""
    sizes = sizes_of(victim)
    layer = int(rng.integers(len(sizes)))
    unit, point = int(rng.integers(sizes[layer])), a_point(rng, victim)
    graph = read_front(victim.model, "model")
    value = run(graph, point[None])[graph.nodes[graph.layers[layer]].inputs[0]][0, unit]
    sign = 1 if value > 0 else -1
    proof = UnitProof(layer, unit, sign, around(point))
    lie = _lie(victim, layer, unit, 1 if sign > 0 else 2)
    return _with_proofs(victim, lambda proofs: proofs.append(proof), lie)


@mutation
def lend_a_false_range(rng: Rng, victim: Victim) -> Mutant | None:
    """A proof for a unit that a tree reads, of a range that it does not have."""
    above = [proof.layer for proof in proofs_of(victim.arrays) if isinstance(proof.tree, Split)]
    if not above or max(above) < 1:
        return None
    layer, sizes = int(rng.integers(max(above))), sizes_of(victim)
    unit, sign = int(rng.integers(sizes[layer])), int(rng.choice([1, -1]))
    proof = UnitProof(layer, unit, sign, around(a_point(rng, victim)))
    if rng.random() < 0.5 and layer > 0:
        proof = half(rng, layer, unit, sign, sizes[layer - 1])
    return _with_proofs(victim, lambda proofs: proofs.insert(0, proof))


# Trees.


def slots(holder: Any, name: str = "tree") -> Iterator[Slot]:
    """The places of all trees in a tree, its own first."""
    yield holder, name
    tree = getattr(holder, name)
    if isinstance(tree, Split):
        yield from slots(tree, "first")
        yield from slots(tree, "second")


def leaves(proof: UnitProof) -> list[Slot]:
    return [(holder, name) for holder, name in slots(proof) if isinstance(getattr(holder, name), Leaf)]


def splits(proof: UnitProof) -> list[Slot]:
    return [(holder, name) for holder, name in slots(proof) if isinstance(getattr(holder, name), Split)]


def any_of(rng: Rng, every: list[Slot]) -> Slot:
    return every[int(rng.integers(len(every)))]


def of_a_tree(change: Callable[[Rng, UnitProof], Any], *, parts: bool | None, gap: bool = True) -> None:
    """Register a change to one tree: of parts or not, or (None) any."""

    def made(rng: Rng, victim: Victim) -> Mutant | None:
        trees = [
            number
            for number, proof in enumerate(proofs_of(victim.arrays))
            if isinstance(proof.tree, Split) and parts in (None, isinstance(proof.tree.place, int))
        ]
        if not trees:
            return None
        at = int(rng.choice(trees))
        return _with_proofs(victim, lambda proofs: change(rng, proofs[at]), gap=gap)

    made.__name__ = change.__name__
    mutation(made)


def drop_leaf(rng: Rng, proof: UnitProof) -> None:
    setattr(*any_of(rng, leaves(proof)), missing())


def drop_leaves(rng: Rng, proof: UnitProof) -> None:
    """Any number of them, but not all."""
    every = leaves(proof)
    for at in rng.permutation(len(every))[: int(rng.integers(1, len(every)))]:
        setattr(*every[at], missing())


def cut_a_leaf_out(rng: Rng, proof: UnitProof) -> None:
    """What comes behind it takes its place."""
    drop_leaf(rng, proof)


def drop_parts(rng: Rng, proof: UnitProof) -> None:
    drop_leaves(rng, proof)


def turn_split(rng: Rng, proof: UnitProof) -> None:
    """The proof of one case for the other."""
    split = getattr(*any_of(rng, splits(proof)))
    split.first, split.second = split.second, split.first


def drop_split(rng: Rng, proof: UnitProof) -> None:
    """One of two cases, said to be about both."""
    holder, name = any_of(rng, splits(proof))
    setattr(holder, name, getattr(getattr(holder, name), str(rng.choice(["first", "second"]))))


def split_another(rng: Rng, proof: UnitProof) -> None:
    """A split whose unit, or input, is another."""
    split = getattr(*any_of(rng, splits(proof)))
    by = int(rng.choice([1, -1, 2, 100]))
    place = split.place
    split.place = place + by if isinstance(place, int) else (place[0], place[1] + by)


def split_again(rng: Rng, proof: UnitProof) -> None:
    """A unit, or an input, split twice on the way to a leaf."""
    split = getattr(*any_of(rng, splits(proof)))
    split.first = Split(split.place, split.first, getattr(*any_of(rng, leaves(proof))), split.at)


def repeat_leaf(rng: Rng, proof: UnitProof) -> None:
    """A leaf in place of another."""
    setattr(*any_of(rng, leaves(proof)), getattr(*any_of(rng, leaves(proof))))


def swap_multipliers(rng: Rng, proof: UnitProof) -> None:
    one, other = any_of(rng, leaves(proof)), any_of(rng, leaves(proof))
    trees = getattr(*one), getattr(*other)
    setattr(*one, trees[1])
    setattr(*other, trees[0])


def call_a_leaf_a_part(rng: Rng, proof: UnitProof) -> None:
    setattr(*any_of(rng, leaves(proof)), Leaf())


def call_a_part_a_leaf(rng: Rng, proof: UnitProof) -> None:
    setattr(*any_of(rng, leaves(proof)), Leaf(b""))


def move_a_cut(rng: Rng, proof: UnitProof) -> None:
    """Where an input is split, by a little or far outside."""
    split = getattr(*any_of(rng, splits(proof)))
    split.at += float(rng.choice([1e-12, -1e-3, 0.5, -1e9, 1e308]))


def move_bytes_of_a_leaf(rng: Rng, proof: UnitProof) -> None:
    """Some of them, or all."""
    leaf = getattr(*any_of(rng, leaves(proof)))
    if leaf.packed:
        found = np.frombuffer(leaf.packed, np.uint8).copy()
        some = rng.random(len(found)) < rng.choice([0.01, 0.3, 1.0])
        found[some] = rng.choice([rng.integers(0, 256, int(some.sum())), np.full(int(some.sum()), 255)])
        leaf.packed = found.tobytes()


def push_without_end(rng: Rng, proof: UnitProof) -> None:
    """Pushes that are no numbers, or very large."""
    leaf, at = getattr(*any_of(rng, leaves(proof))), 0
    for _, units, places in proof.levels if leaf.packed else ():
        raw, count = bytearray(leaf.packed), len(units)
        cuts = np.count_nonzero(np.frombuffer(leaf.packed, np.uint8)[at + 4 * count : at + 5 * count])
        number = rng.choice([np.nan, np.inf, -np.inf, 3e38, -3e38])
        raw[at + 5 * count : at + 9 * count] = np.full(count, number, "<f4").tobytes()
        leaf.packed, at = bytes(raw), at + 9 * count + int(cuts) * places.shape[1]


def list_others(rng: Rng, proof: UnitProof) -> None:
    """Another layer, other units, or other places than leaves are about."""
    if not proof.levels:
        return
    at, how = int(rng.integers(len(proof.levels))), int(rng.integers(5))
    layer, units, places = proof.levels[at]
    units, places = list(units), places.copy()
    if how == 0:
        layer += int(rng.choice([-1, 1, 2**29]))
    elif how == 1:
        units = [units[i] for i in rng.permutation(len(units))]
    elif how == 2:
        units[int(rng.integers(len(units)))] += int(rng.choice([-1, 1, 2**29]))
    elif how == 3:
        places += int(rng.choice([-1, 1, 8]))
    elif places.size:
        places.reshape(-1)[int(rng.integers(places.size))] = int(rng.integers(-1, 24))
    proof.levels[at] = (layer, units, places)


def list_fewer(rng: Rng, proof: UnitProof) -> None:
    """A unit, a place of all, or a layer less, or one more."""
    if not proof.levels:
        return
    at, how = int(rng.integers(len(proof.levels))), int(rng.integers(4))
    layer, units, places = proof.levels[at]
    fewer = [(layer, units[1:], places[1:]), (layer, units, places[:, 1:])]
    fewer += [(layer, [*units, 90], np.concatenate([places, places[:1]]))]
    proof.levels[at : at + 1] = [] if how == 3 else [fewer[how]]


for _change in (move_bytes_of_a_leaf, push_without_end, list_others, list_fewer):
    of_a_tree(_change, parts=False)
for _change in (drop_leaf, drop_leaves, turn_split, drop_split, split_another, split_again, repeat_leaf):
    of_a_tree(_change, parts=False)
for _change in (swap_multipliers, call_a_leaf_a_part):
    of_a_tree(_change, parts=False)
for _change in (drop_parts, call_a_part_a_leaf, move_a_cut):
    of_a_tree(_change, parts=True)
of_a_tree(cut_a_leaf_out, parts=None, gap=False)
