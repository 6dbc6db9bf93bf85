"""Merge channels that others stand for: multiples of each other, and combinations of active ones.

1. **Multiples.** Two kernels of a convolution that are multiples of each other, biases included, make
   channels that are, and stay so through ReLUs and maxima (positive multiples), poolings, scales, sums with
   others that are the same multiples, concatenations and flattenings (:mod:`relutrim.rewrite.kinship`), and
   through the same batch norm if they are equal. Channels that are one number are multiples of each other,
   too: where padding keeps them from becoming bias, one of them stays.
   Whoever weighs one of them may weigh the other by as much more. The same goes for rows of a linear node.
2. **Combinations.** Channels that are active at every position, and reach whoever weighs them through nothing
   but linear operators, are linear: if the kernel of one is a combination of those of the others, biases
   included, so is the channel. Since biases take part, nothing constant is left over, and padding does no
   harm.

As with neurons (:mod:`relutrim.rewrite.collinear`, :mod:`relutrim.rewrite.merge_active`), kernels are
compared up to the last digits, and what they differ by is charged to the readers with the rounding of their
new weights. Nobody weighs the others then, so they go (:mod:`relutrim.rewrite.drop_channels`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from relutrim.graph.graph import Node
from relutrim.graph.operators import Array, Convolution, Linear, Relu
from relutrim.rewrite.absorb import Substitute, absorb, weighers
from relutrim.rewrite.channels import Labels
from relutrim.rewrite.collinear import multiples
from relutrim.rewrite.draft import Draft, Mask, Step
from relutrim.rewrite.drop_channels import drop_channels
from relutrim.rewrite.exactness import equal_times, exact_sum, power_of_two
from relutrim.rewrite.kinship import Kin, Kinship, ordinary
from relutrim.rewrite.merge_active import dependent_rows
from relutrim.rounding import ETA, UNIT, gamma

NAME = "merge-channels"


Terms = list[tuple[int, int, float]]
"""Slices of a value, each with another that stands for it, and how often."""


def merge_exact_kernels(draft: Draft) -> Draft:
    """The same for multiples by powers of two alone: where the new weights are exact too, nothing moves."""
    return merge_kernels(draft, exactly=True)


def merge_exact_constants(draft: Draft) -> Draft:
    """The same for channels that are one number each, equal or times a power of two."""
    return merge_constants(draft, exactly=True)


def merge_constants(draft: Draft, *, exactly: bool = False) -> Draft:
    """The draft in which, of the channels that are one number each, one stays wherever they are weighed."""
    if not any(isinstance(node.operator, Convolution) for node in draft.network.nodes):
        return draft
    labels = Labels(draft.network)
    kin = Kinship(draft, labels, lambda node: None, constants=True)
    return _merged(draft, kin, next(iter(draft.network.relus), draft.network.nodes[0]).name, exactly)


def merge_kernels(draft: Draft, *, exactly: bool = False) -> Draft:
    """The draft without channels that are multiples of others wherever they are weighed."""
    labels = Labels(draft.network)
    made = {node.name: _akin(draft, node, exactly) for node in _makers(draft, labels)}
    origins = {name: kin for name, kin in made.items() if kin is not None}
    if not origins:
        return draft
    kin = Kinship(draft, labels, lambda node: origins.get(node.name))
    return _merged(draft, kin, next(iter(origins)), exactly)


def _merged(draft: Draft, kin: Kinship, where: str, exactly: bool) -> Draft:
    """The draft without slices that others of their kin stand for."""
    labels = kin.labels
    keys = {
        name: list(zip(kin.of[name].channel.tolist(), kin.of[name].place.tolist(), strict=True))
        for name in weighers(draft.network, labels)
    }
    gone = list(_stood_for(labels, keys))
    terms = {name: _terms(labels, name, own, gone) for name, own in keys.items()}
    if exactly:
        gone = _exact_ones(kin, terms, gone)
    if not gone:
        return draft
    instead = {}
    for name, own in keys.items():
        going: Mask = np.isin(labels.roots(name), gone)
        left = [term for term in terms[name] if going[term[0]]]
        instead[name] = _substitute(kin, name, going, left, np.zeros(len(own)))
    text = f"{len(gone)} channels are multiples of others, which stand for them"
    return drop_channels(absorb(draft, labels, instead, Step(NAME, where, text)))


def _terms(labels: Labels, name: str, keys: list[tuple[int, int]], gone: list[int]) -> Terms:
    """For each slice that goes the first of those that stay which has the same key."""
    going: Mask = np.isin(labels.roots(name), gone)
    first = {keys[q]: q for q in reversed(np.flatnonzero(~going).tolist())}
    return [(p, first[keys[p]], 1.0) for p in np.flatnonzero(going).tolist()]


def _exact_ones(kin: Kinship, terms: Mapping[str, Terms], gone: list[int]) -> list[int]:
    """Those of the roots without which all readers' new weights are numbers that the file holds, one after
    the other.
    """
    network, labels = kin.draft.network, kin.labels
    readers = weighers(network, labels)
    weights = {node.name: _weight(node).copy() for nodes in readers.values() for node in nodes}
    found = []
    for root in gone:
        taken: dict[tuple[str, int], Array] = {}
        exact = True
        for name, every in terms.items():
            own, roots = kin.of[name], labels.roots(name)
            for p, q, _ in every if exact else ():
                if roots[p] != root:
                    continue
                factor = float(own.factor[p] / own.factor[q])
                exact = exact and power_of_two(factor) and not own.gap[[p, q]].any()
                for node in readers[name] if exact else ():
                    column = taken.get((node.name, q), weights[node.name][:, q])
                    total = exact_sum(column, factor, _weight(node)[:, p], network.dtype)
                    exact = exact and total is not None
                    if total is not None:
                        taken[node.name, q] = total
        if exact:
            found.append(root)
            for (name, q), column in taken.items():
                weights[name][:, q] = column
    return found


def _weight(node: Node) -> Array:
    assert isinstance(node.operator, Linear | Convolution)
    return node.operator.weight


def merge_combinations(draft: Draft, name: str) -> Draft:
    """The draft without channels of a convolution that are combinations of others wherever they are
    weighed.
    """
    network = draft.network
    node = network[name]
    if not _some_active(draft, node):
        return draft
    labels = Labels(network)
    if node not in _makers(draft, labels):
        return draft
    rows = _flat(node)
    origin = Kin.of(np.arange(len(rows)))
    kin = Kinship(draft, labels, lambda one: origin if one.name == name else None, linear=True)
    values = list(weighers(network, labels))
    linear = _linear(kin, name, values)
    reach = kin.reach(name)
    if len(linear) < 2 or not np.isfinite(reach).all():
        return draft
    basis, rest, factors = dependent_rows(rows[linear], reach[linear])
    basis, rest = linear[basis], linear[rest]
    if not len(rest):
        return draft
    off = np.zeros(len(rows))
    made, sizes = factors @ rows[basis], np.abs(factors) @ np.abs(rows[basis])
    off[rest] = _off(draft, node, rows[rest], made, sizes, len(basis))
    combined = {
        i: [(j, a) for j, a in zip(basis.tolist(), row.tolist(), strict=True) if a]
        for i, row in zip(rest.tolist(), factors, strict=True)
    }
    instead = {}
    for value in values:
        channel, place = kin.of[value].channel, kin.of[value].place
        at = {(c, s): q for q, (c, s) in enumerate(zip(channel.tolist(), place.tolist(), strict=True))}
        going: Mask = np.isin(channel, rest)
        terms: Terms = []
        for p in np.flatnonzero(going).tolist():
            for j, a in combined[int(channel[p])]:
                if (j, int(place[p])) not in at:
                    return draft
                terms.append((p, at[j, int(place[p])], a))
        base = np.where(going, off[np.where(going, channel, 0)], 0.0)
        instead[value] = _substitute(kin, value, going, terms, base)
    text = f"{len(rest)} of {len(linear)} active channels are combinations of the others"
    return drop_channels(absorb(draft, labels, instead, Step(NAME, name, text)))


def _makers(draft: Draft, labels: Labels) -> list[Node]:
    """The nodes that make slices of their own out of all slices that they read."""
    return [node for readers in weighers(draft.network, labels).values() for node in readers]


def _flat(node: Node) -> Array:
    """The kernels of a node, each with its bias, as rows."""
    assert isinstance(node.operator, Linear | Convolution)
    weight, bias = node.operator.weight, node.operator.bias
    return np.concatenate([weight.reshape(len(bias), weight[:1].size), bias[:, None]], axis=1)


def _akin(draft: Draft, node: Node, exactly: bool) -> Kin | None:
    """Which channels of a node are multiples of each other, if any are."""
    if any(0 in draft.network.shapes[name] for name in (*node.inputs, node.name)):
        return None
    rows = _flat(node)
    every: Mask = np.ones(len(rows), dtype=np.bool_)
    found = [pair for pair in multiples(rows, every, signed=False) if ordinary(np.array([pair[2]])).all()]
    if not found:
        return None
    exact = np.array([power_of_two(c) and equal_times(rows[i], c, rows[j]) for i, j, c in found])
    if exactly:
        found, exact = [pair for pair, good in zip(found, exact, strict=True) if good], exact[exact]
    if not found:
        return None
    one, other = (np.array([pair[k] for pair in found], dtype=np.int64) for k in (0, 1))
    kin = Kin.of(np.arange(len(rows)))
    kin.channel[one], kin.factor[one] = other, np.array([pair[2] for pair in found])
    times = kin.factor[one][:, None] * rows[other]
    kin.gap[one] = np.where(exact, 0.0, _off(draft, node, rows[one], times, np.abs(times), 1))
    return kin


def _off(draft: Draft, node: Node, rows: Array, instead: Array, sizes: Array, terms: int) -> Array:
    """How far channels with other kernels and biases are at most from those with the given ones, if the
    others were computed as sums of so many terms of these sizes.
    """
    operator, source = node.operator, node.inputs[0]
    assert isinstance(operator, Linear | Convolution)
    gap = np.abs(rows - instead) + gamma(terms + 4) * (np.abs(rows) + sizes)
    weight, bias = gap[:, :-1].reshape(len(rows), *operator.weight.shape[1:]), gap[:, -1]
    reach = draft.reach(source)
    if not np.isfinite(gap).all():
        return np.full(len(rows), np.inf)
    found = replace(operator, weight=weight, bias=bias).magnitude([reach])[0]
    channels = found.movedim(-1 if isinstance(operator, Linear) else 0, 0).reshape(len(rows), -1)
    most: Array = channels.amax(1).numpy()
    count = operator.terms([tuple(reach.shape[1:])]) + terms + 4
    return most * (1 + 2.0**-20) + count * ETA * (2 + float(reach.sum()))


def _free(labels: Labels) -> set[int]:
    """The roots of labels that may go."""
    return {labels.root(label) for label in range(len(labels.parent))} - labels.fixed()


def _stood_for(labels: Labels, keys: dict[str, list[tuple[int, int]]]) -> Iterable[int]:
    """Roots of labels whose slices, in every value, have others with the same key, one after the other while
    that is so.
    """
    left = {name: Counter(own) for name, own in keys.items()}
    slices: dict[int, list[tuple[str, tuple[int, int]]]] = {}
    for name, own in keys.items():
        for root, key in zip(labels.roots(name).tolist(), own, strict=True):
            slices.setdefault(root, []).append((name, key))
    free = _free(labels)
    for root in sorted(slices, reverse=True):
        taken = Counter(slices[root])
        if root in free and all(left[name][key] > count for (name, key), count in taken.items()):
            for (name, key), count in taken.items():
                left[name][key] -= count
            yield root


def _some_active(draft: Draft, node: Node) -> bool:
    """Whether two channels or more of a convolution may be linear wherever they are read."""
    network = draft.network
    if not isinstance(node.operator, Convolution) or 0 in network.shapes[node.name]:
        return False
    whole = np.ones(len(node.operator.bias), dtype=np.bool_)
    for reader in network.readers(node.name):
        if isinstance(reader.operator, Relu):
            whole &= draft.identity[reader.name].reshape(len(whole), -1).all(axis=1)
    return int(whole.sum()) > 1


def _linear(kin: Kinship, name: str, values: list[str]) -> np.ndarray:
    """The channels of a node that may go and are seen by nobody but through linear operators."""
    labels = kin.labels
    own = labels.roots(name)
    free = _free(labels)
    found = [root in free and int((own == root).sum()) == 1 for root in own.tolist()]
    for value in values:
        roots, channel = labels.roots(value), kin.of[value].channel
        for i, root in enumerate(own.tolist()):
            found[i] = found[i] and bool((channel[roots == root] == i).all())
    return np.flatnonzero(found)


def _substitute(kin: Kinship, name: str, gone: Mask, terms: Terms, off: Array) -> Substitute:
    """Slices of a value by others; ``off`` is how far their channels are from what stands for them."""
    own, shape = kin.of[name], kin.draft.network.shapes[name]
    of, by = (np.array([term[k] for term in terms], dtype=np.int64) for k in (0, 1))
    factor = np.array([term[2] for term in terms], dtype=np.float64) * (own.factor[of] / own.factor[by])
    gap = own.gap + np.abs(own.factor) * off
    rounding = np.abs(factor) * (8 * UNIT * kin.reach(name)[by] + ETA) + 4 * ETA
    ratios = zip(own.factor[of], own.factor[by], factor.tolist(), terms, strict=True)
    exact = [
        term[2] == 1.0 and power_of_two(ratio) and equal_times(np.array(one), ratio, np.array(other))
        for one, other, ratio, term in ratios
    ]
    np.add.at(gap, of, np.abs(factor) * own.gap[by] + np.where(exact, 0.0, rounding))
    axis = kin.labels.slices[name].axis
    wide = (gap * (1 + 2.0**-20)).reshape(tuple(-1 if a == axis else 1 for a in range(len(shape))))
    return Substitute(gone, of, by, factor, np.zeros(shape), np.array(np.broadcast_to(wide, shape)))
