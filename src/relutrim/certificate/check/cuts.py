"""That OUT is MODEL with slices cut away: a comparison for networks of any size, and on domains without end.

Every node of OUT is found again in MODEL, by its name, and so is each of its entries: the one that has the
same coefficients for the same entries. What MODEL has beyond that is not there in OUT, as if it were 0. So if
``x`` is what a node of MODEL reads, the same node of OUT reads ``x + d``: for an entry that was cut ``d`` is
``-x``, whose range intervals tell; for any other it is what was found for it before. What both make then
differs by ``A d`` and by how far the constants are apart. Where only what is 0 was cut, or what nobody reads,
``d`` is 0 all the way, and nothing is rounded.

A node that is not known must stand in OUT as it stands in MODEL, and read what is not moved at all.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from relutrim.certificate.check.domain import Domain
from relutrim.certificate.check.maps import Affine, Graph, Map, Node, picked
from relutrim.certificate.check.rounding import Array, Index, Mask, down, up
from relutrim.certificate.check.spans import Span, relu, relu_moved, through
from relutrim.errors import CheckFailed

_FOREVER = float("inf")


@dataclass(frozen=True, eq=False)
class Twin:
    """The value of MODEL that a value of OUT is, and which of its entries (None: all, and nobody knows how
    many).
    """

    number: int
    entries: Index | None


@dataclass(eq=False)
class Cuts:
    """Both networks on a domain, side by side."""

    before: Graph
    after: Graph
    domain: Domain
    deadline: float = _FOREVER
    spans: list[Span | None] = field(default_factory=list, init=False)
    """Of each value of MODEL; None where it has an unknown number of entries."""
    twins: list[Twin] = field(default_factory=list, init=False)
    """Of each value of OUT."""
    moved: dict[int, Span] = field(default_factory=dict, init=False)
    """By the numbers of MODEL's values: what OUT's entry has beyond MODEL's."""

    def bounds(self) -> list[Array]:
        """For each output, how far each entry of OUT's can be away from MODEL's."""
        if self.before.around != self.after.around:
            raise CheckFailed("OUT has other functions, or other versions of operators, than MODEL")
        self._ranges()
        self._walk()
        return [self._bound(name) for name in self.before.outputs]

    def _bound(self, name: str) -> Array:
        one, other = self.before.outputs[name], self.after.outputs[name]
        twin = self.twins[other.number]
        if twin.number != one.number or not _whole(twin, self.before.sizes[one.number]):
            raise CheckFailed(f"output {name!r} of OUT is not that of MODEL")
        if twin.entries is None:
            return np.zeros(1)
        return self.moved[one.number].size

    def _in_time(self) -> None:
        if time.monotonic() > self.deadline:
            raise CheckFailed("not checked: it takes longer than the limit; --time-limit allows for more")

    def _ranges(self) -> None:
        """Of every value of MODEL, by intervals."""
        box = self.domain.narrowed()
        self.spans.append(Span(box.lo, box.hi))
        for number, node in enumerate(self.before.nodes, 1):
            self._in_time()
            size = self.before.sizes[number]
            if node.opaque is not None:
                self.spans.append(Span.anything(size) if size >= 0 else None)
                continue
            pairs = maximum(self.before, node)
            read = [self._span(at) for at in node.inputs]
            if pairs is not None:
                self.spans.append(_larger(read[0], pairs))
            elif node.operation is None:
                self.spans.append(relu(read[0]))
            else:
                bias = node.operation.bias
                self.spans.append(through(node.operation, read, self.deadline) + Span(bias, bias))

    def _span(self, number: int) -> Span:
        found = self.spans[number]
        if found is None:
            raise CheckFailed("what a known node reads is of an unknown size")
        return found

    def _walk(self) -> None:
        """Find every value of OUT in MODEL."""
        named: dict[str, list[int]] = defaultdict(list)
        for number, node in enumerate(self.before.nodes, 1):
            named[node.name].append(number)
        self.twins.append(Twin(0, np.arange(self.before.sizes[0])))
        self.moved[0] = Span.point(self.before.sizes[0])
        passed: dict[str, int] = defaultdict(int)
        for node in self.after.nodes:
            self._in_time()
            at, found = passed[node.name], named[node.name]
            passed[node.name] += 1
            if at >= len(found):
                raise CheckFailed(f"node {node.name!r} of OUT is not in MODEL")
            self._pair(node, found[at])

    def _pair(self, node: Node, number: int) -> None:
        """A node of OUT, and the value of MODEL that it makes some entries of."""
        mine = self.before.nodes[number - 1]
        read = [self.twins[at] for at in node.inputs]
        kinds = [(one.opaque, one.operation is None, len(one.inputs)) for one in (mine, node)]
        if kinds[0] != kinds[1] or [twin.number for twin in read] != list(mine.inputs):
            raise CheckFailed(
                f"node {node.name!r} of OUT is not what it is in MODEL, or reads something else"
            )
        if node.opaque is not None:
            self._hold(node.name, read)
            size = self.before.sizes[number]
            self.twins.append(Twin(number, np.arange(size) if size >= 0 else None))
            if size >= 0:
                self.moved[number] = Span.point(size)
            return
        entries = [_entries(twin) for twin in read]
        moved = [self.moved[twin.number] for twin in read]
        if node.operation is None or mine.operation is None:
            found = relu_moved(self._span(mine.inputs[0]), moved[0])
            self._put(number, entries[0], found)
            return
        at = _found_again(node, mine.operation, node.operation, entries, self.before, mine)
        apart = node.operation.bias - mine.operation.bias[at]
        bias = Span(np.where(apart == 0, 0.0, down(apart)), np.where(apart == 0, 0.0, up(apart)))
        pairs = maximum(self.before, mine)
        if pairs is None:
            made = through(mine.operation, moved, self.deadline).take(at) + bias
        else:
            made = _between(moved[0], pairs).take(at)
        self._put(number, at, Span.point(self.before.sizes[number]).put(at, made))

    def _put(self, number: int, entries: Index, moved: Span) -> None:
        """What was cut is missing in OUT."""
        if number in self.moved:
            raise CheckFailed(f"node {self.before.nodes[number - 1].name!r} is in OUT twice")
        missing = -self._span(number)
        self.twins.append(Twin(number, entries))
        self.moved[number] = missing.put(entries, moved.take(entries))

    def _hold(self, name: str, read: list[Twin]) -> None:
        """What a node that is not known reads must be as it is in MODEL, to the last bit."""
        for twin in read:
            still = twin.entries is None or self.moved[twin.number].nothing
            if not (still and _whole(twin, self.before.sizes[twin.number])):
                raise CheckFailed(
                    f"node {name!r} is not known, and what it reads is not what it reads in MODEL"
                )


def maximum(graph: Graph, node: Node) -> tuple[Index, Index] | None:
    """The two entries of what a node reads first of which it makes the larger, where that is what it does
    (:meth:`Call.maximum`): the one twice where there is nothing to compare it with.
    """
    if node.operation is None or len(node.inputs) != 2 or node.operation.bias.any():
        return None
    ahead = graph.nodes[node.inputs[1] - 1] if node.inputs[1] else None
    if ahead is None or not ahead.minor or ahead.operation is not None or ahead.opaque is not None:
        return None
    between = graph.nodes[ahead.inputs[0] - 1]
    if between.operation is None or between.inputs != (node.inputs[0],) * 2 or between.operation.bias.any():
        return None
    (more, less), (left, back) = between.operation.maps, node.operation.maps
    plain = all(one.weight is None and one.factor is None for one in (more, left, back))
    if not plain or less.weight is not None or less.factor is None or less.radius is not None:
        return None
    both = back.index >= 0
    first, second = left.index, left.index.copy()
    second[both] = more.index[back.index[both]]
    same = np.array_equal(first[both], less.index[back.index[both]]) and (less.factor == -1).all()
    return (first, second) if same and (second[both] >= 0).all() and (first[both] >= 0).all() else None


def _larger(read: Span, pairs: tuple[Index, Index]) -> Span:
    """The larger of each pair."""
    (lo, hi), (low, high) = (picked(np.stack([read.lo, read.hi]), index) for index in pairs)
    return Span(np.maximum(lo, low), np.maximum(hi, high))


def _between(moved: Span, pairs: tuple[Index, Index]) -> Span:
    """How far the larger of each pair moves: between how far both do."""
    (lo, hi), (low, high) = (picked(np.stack([moved.lo, moved.hi]), index) for index in pairs)
    return Span(np.minimum(lo, low), np.maximum(hi, high))


def _whole(twin: Twin, size: int) -> bool:
    return twin.entries is None or np.array_equal(twin.entries, np.arange(size))


def _entries(twin: Twin) -> Index:
    if twin.entries is None:
        raise CheckFailed("what a known node reads is of an unknown size")
    return twin.entries


def _found_again(
    node: Node, mine: Affine, theirs: Affine, entries: list[Index], before: Graph, origin: Node
) -> Index:
    """For each entry of OUT's operation, the entry of MODEL's with the same coefficients."""
    pairs = zip(mine.maps, theirs.maps, strict=True)
    if any((one.weight is None) != (other.weight is None) for one, other in pairs):
        raise CheckFailed(f"node {node.name!r} is of another kind in OUT than in MODEL")
    if mine.maps and mine.maps[0].weight is not None:
        kept = np.zeros(before.sizes[origin.inputs[0]], bool)
        kept[entries[0]] = True
        found = _among_windows(mine, theirs, entries[0], kept) if len(mine.maps) == 1 else None
    else:
        found = _among_entries(mine, theirs, entries)
    if found is None:
        raise CheckFailed(f"node {node.name!r} has coefficients in OUT that it does not have in MODEL")
    return found


def _among_entries(mine: Affine, theirs: Affine, entries: list[Index]) -> Index | None:
    """Where each entry is one entry of each input times a factor."""
    columns = []
    for one, other, kept in zip(mine.maps, theirs.maps, entries, strict=True):
        read = np.append(kept, -1)[other.index]
        columns.append((one.index, read))
        columns += [(_bits(one, name), _bits(other, name)) for name in ("factor", "radius")]
    return _with_bias(_codes(columns), mine.bias, theirs.bias)


def _bits(part: Map, name: str) -> Index:
    """The bits of coefficients; those that are left out are 1, and off by 0."""
    found = vars(part)[name]
    if found is None:
        found = np.full(len(part.index), 1.0 if name == "factor" else 0.0)
    return np.ascontiguousarray(found, np.float64).view(np.int64)


def _codes(columns: list[tuple[Index, Index]]) -> tuple[Index, Index]:
    """One number for each row of columns, of MODEL's and of OUT's: the same for the same rows."""
    split = len(columns[0][0])
    code = np.zeros(split + len(columns[0][1]), np.int64)
    for pair in columns:
        both = np.concatenate(pair)
        if (both == both[:1]).all():
            continue
        _, number = np.unique(both, return_inverse=True)
        wide = code * (int(number.max()) + 1) + number.reshape(-1)
        code = np.unique(wide, return_inverse=True)[1].reshape(-1)
    return code[:split], code[split:]


def _with_bias(codes: tuple[Index, Index], mine: Array, theirs: Array) -> Index | None:
    """Places of equal rows, of those with the same constant if there are any."""
    bits = np.ascontiguousarray(mine).view(np.int64), np.ascontiguousarray(theirs).view(np.int64)
    found = _places(*_codes([codes, bits]))
    if (found < 0).any():
        found = _places(*codes)
    return None if (found < 0).any() else found


def _places(known: Index, wanted: Index) -> Index:
    """The place of each wanted code among the known ones: the first of the first, and so on; -1 for none."""
    if np.array_equal(known, wanted):
        return np.arange(len(known))
    order = np.argsort(known, kind="stable")
    count = _times_before(wanted)
    at = np.searchsorted(known[order], wanted) + count
    inside = np.minimum(at, len(known) - 1) if len(known) else at
    good = (at < len(known)) & (known[order][inside] == wanted) if len(known) else np.zeros(len(at), bool)
    return np.where(good, order[inside] if len(known) else -1, -1)


def _times_before(codes: Index) -> Index:
    """How often each code was there before."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    first = np.searchsorted(ordered, ordered)
    found = np.empty(len(codes), np.int64)
    found[order] = np.arange(len(codes)) - first
    return found


def _among_windows(mine: Affine, theirs: Affine, kept: Index, there: Mask) -> Index | None:
    """Where groups of windows are multiplied by a weight: each group of OUT's is one of MODEL's, with some of
    its columns (none of which is missing that reads something OUT has), and each row one of its rows. Where
    all windows have the same weights, as in means, each window is one of MODEL's.
    """
    (one, other), (groups, count, width) = (mine.maps[0], theirs.maps[0]), mine.maps[0].index.shape
    assert one.weight is not None
    assert other.weight is not None
    outputs, (few, windows, _) = one.weight.shape[1], other.index.shape
    if groups == outputs == 1 and np.array_equal(one.weight, other.weight):
        read = np.append(kept, -1)[other.index[0]]
        return _with_bias(_rows(one.index[0], read), mine.bias, theirs.bias)
    if windows != count:
        return None
    columns = one.index.swapaxes(1, 2).reshape(groups * width, count)
    read = np.append(kept, -1)[other.index].swapaxes(1, 2).reshape(-1, count)
    places = _places(*_rows(columns, read)).reshape(few, -1)
    padding = (read < 0).all(1).reshape(few, -1)
    bias, others = mine.bias.reshape(groups, outputs, count), theirs.bias.reshape(few, -1, count)
    found = np.empty(others.shape, np.int64)
    for group in range(few):
        at, used = places[group], ~padding[group]
        origin = {*(at[used] // width).tolist()}
        if not used.any() or (at[used] < 0).any() or len(origin) != 1:
            return None
        (own,) = origin
        taken = at[used] % width
        rest = np.ones(width, bool)
        rest[taken] = False
        rest &= _reads(one.index[own], there)
        weight, wanted = one.weight[own], other.weight[group][:, used]
        keys = _rows(weight[:, taken].view(np.int64), np.ascontiguousarray(wanted).view(np.int64))
        rows = _with_bias(keys, bias[own, :, 0], others[group, :, 0])
        if rows is None or weight[np.ix_(rows, np.flatnonzero(rest))].any():
            return None
        found[group] = (own * outputs + rows)[:, None] * count + np.arange(count)
    return found.reshape(-1)


def _reads(index: Index, there: Mask) -> Mask:
    """Which columns of windows read anything that OUT has."""
    return np.asarray(np.append(there, False)[index].any(0))


def _rows(known: Index, wanted: Index) -> tuple[Index, Index]:
    """One number for each row of integers, the same for the same rows."""
    both = np.ascontiguousarray(np.concatenate([known, wanted]))
    if not both.shape[1]:
        return np.zeros(len(known), np.int64), np.zeros(len(wanted), np.int64)
    code = np.unique(
        both.view(np.dtype((np.void, both.dtype.itemsize * both.shape[1]))), return_inverse=True
    )[1]
    code = code.reshape(-1)
    return code[: len(known)], code[len(known) :]
