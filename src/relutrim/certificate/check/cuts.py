"""That OUT is MODEL with slices cut away: a comparison for networks of any size, and on domains without end.

Every node of OUT is found again in MODEL, by its name, and so is each of its entries: the one that has the
same coefficients for the same entries. (What is 0 in both may be read with any coefficient, or not at all: a
channel that is 0 is like any other one.) What MODEL has beyond that is not there in OUT, as if it were 0. So
if ``x`` is what a node of MODEL reads, the same node of OUT reads ``x + d``: for an entry that was cut ``d``
is ``-x``, whose range intervals tell; for any other it is what was found for it before. What both make then
differs by ``A d`` and by how far the constants are apart. Where only what is 0 was cut, or what nobody reads,
``d`` is 0 all the way, and nothing is rounded.

A node that is not known must stand in OUT as it stands in MODEL, and read what is not moved at all.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product

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
    copies: dict[int, tuple[Twin, Twin]] = field(default_factory=dict, init=False)
    """By the numbers of MODEL's values that are not in OUT: what they rename there, and what they are."""

    def bounds(self) -> list[Array]:
        """For each output, how far each entry of OUT's can be away from MODEL's."""
        if self.before.around != self.after.around:
            raise CheckFailed("OUT has other functions, or other versions of operators, than MODEL")
        self._ranges()
        self._walk()
        return [self._bound(name) for name in self.before.outputs]

    def _bound(self, name: str) -> Array:
        one, other = self.before.outputs[name], self.after.outputs[name]
        twin = self._renamed(self.twins[other.number], one.number, name)
        if not _whole(twin, self.before.sizes[one.number]):
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
        kinds = [(one.opaque, one.operation is None, len(one.inputs)) for one in (mine, node)]
        if kinds[0] != kinds[1]:
            raise CheckFailed(f"node {node.name!r} of OUT is not what it is in MODEL")
        pairs = zip(node.inputs, mine.inputs, strict=True)
        read = [self._renamed(self.twins[at], wanted, node.name) for at, wanted in pairs]
        self.twins.append(self._twin(node, number, read))

    def _renamed(self, twin: Twin, wanted: int, name: str) -> Twin:
        """The value of MODEL that is ``wanted`` of one of OUT: another one than it is found to be only where
        all nodes between the two could stand in OUT and rename entries, which is not written there.
        """
        between, last = list[int](), wanted
        while last != twin.number and self.copies.get(last, (None, twin))[0] is not twin:
            node = self.before.nodes[last - 1] if last else None
            if node is None or node.opaque is not None or node.operation is None or len(node.inputs) != 1:
                raise CheckFailed(f"node {name!r} of OUT reads something else than in MODEL")
            between.append(last)
            last = node.inputs[0]
        current = twin if last == twin.number else self.copies[last][1]
        for number in reversed(between):
            entries = _entries(current)
            same = Affine((Map(np.arange(len(entries))),), np.zeros(len(entries)))
            current = self._twin(Node(same, (0,), self.before.nodes[number - 1].name), number, [current])
            self.copies[number] = twin, current
        return current

    def _twin(self, node: Node, number: int, read: list[Twin]) -> Twin:
        """What a node of OUT makes if it reads these."""
        mine = self.before.nodes[number - 1]
        if node.opaque is not None:
            self._hold(node.name, read)
            size = self.before.sizes[number]
            if size >= 0:
                self.moved[number] = Span.point(size)
            return Twin(number, np.arange(size) if size >= 0 else None)
        entries = [_entries(twin) for twin in read]
        moved = [self.moved[twin.number] for twin in read]
        if node.operation is None or mine.operation is None:
            return self._put(number, entries[0], relu_moved(self._span(mine.inputs[0]), moved[0]))
        nothing = [self._nothing(twin.number) for twin in read]
        at = _found_again(node, mine.operation, node.operation, entries, nothing)
        apart = node.operation.bias - mine.operation.bias[at]
        bias = Span(np.where(apart == 0, 0.0, down(apart)), np.where(apart == 0, 0.0, up(apart)))
        pairs = maximum(self.before, mine)
        if pairs is None:
            made = through(mine.operation, moved, self.deadline).take(at) + bias
        else:
            made = _between(moved[0], pairs).take(at)
        return self._put(number, at, Span.point(self.before.sizes[number]).put(at, made))

    def _nothing(self, number: int) -> Mask:
        """Which entries of a value of MODEL are 0, as are those of OUT that are the same."""
        return ~((self._span(number).size > 0) | (self.moved[number].size > 0))

    def _put(self, number: int, entries: Index, moved: Span) -> Twin:
        """What was cut is missing in OUT."""
        if len(np.unique(entries)) < len(entries):
            raise CheckFailed(f"node {self.before.nodes[number - 1].name!r} makes an entry in OUT twice")
        if number in self.moved:
            raise CheckFailed(f"node {self.before.nodes[number - 1].name!r} is in OUT twice")
        missing = -self._span(number)
        self.moved[number] = missing.put(entries, moved.take(entries))
        return Twin(number, entries)

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
    node: Node, mine: Affine, theirs: Affine, entries: list[Index], nothing: list[Mask]
) -> Index:
    """For each entry of OUT's operation, the entry of MODEL's with the same coefficients. ``entries`` are
    those of MODEL that OUT's inputs are, and ``nothing`` says which of MODEL's are 0.
    """
    pairs = zip(mine.maps, theirs.maps, strict=True)
    if any((one.weight is None) != (other.weight is None) for one, other in pairs):
        raise CheckFailed(f"node {node.name!r} is of another kind in OUT than in MODEL")
    if mine.maps and mine.maps[0].weight is not None:
        found = _among_windows(mine, theirs, entries[0], nothing[0]) if len(mine.maps) == 1 else None
    else:
        found = _among_entries(mine, theirs, entries, nothing)
    if found is None:
        raise CheckFailed(f"node {node.name!r} has coefficients in OUT that it does not have in MODEL")
    return found


def _among_entries(mine: Affine, theirs: Affine, entries: list[Index], nothing: list[Mask]) -> Index | None:
    """Where each entry is one entry of each input times a factor: as it is read, or else as far as that is
    not 0.
    """
    codes = []
    for zeros in ([np.zeros_like(zero) for zero in nothing], nothing):
        columns = []
        for one, other, kept, zero in zip(mine.maps, theirs.maps, entries, zeros, strict=True):
            known, read = _read(one.index, zero), _read(np.append(kept, -1)[other.index], zero)
            columns.append((known, read))
            columns += [(_bits(one, name, known), _bits(other, name, read)) for name in ("factor", "radius")]
        codes.append(_codes(columns))
    return _with_bias(codes, mine.bias, theirs.bias)


def _read(index: Index, nothing: Mask) -> Index:
    """Which entries are read; -1 is 0."""
    return np.where(np.append(nothing, True)[index], -1, index)


def _bits(part: Map, name: str, read: Index) -> Index:
    """The bits of coefficients; those that are left out are 1, and off by 0. What is read as 0 needs none."""
    found = vars(part)[name]
    if found is None:
        found = np.full(len(part.index), 1.0 if name == "factor" else 0.0)
    return np.where(read < 0, 0.0, found).view(np.int64)


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


def _with_bias(
    codes: Sequence[tuple[Index, Index]], mine: Array, theirs: Array, *, exactly: bool = False
) -> Index | None:
    """Places of equal rows, by the first codes that agree: of those with the same constant, and (unless
    ``exactly``) of others for what is left. No place is taken twice.
    """
    bits = np.ascontiguousarray(mine).view(np.int64), np.ascontiguousarray(theirs).view(np.int64)
    found = np.full(len(theirs), -1)
    for known, wanted in [*(_codes([one, bits]) for one in codes), *(() if exactly else codes)]:
        left = np.flatnonzero(found < 0)
        free = np.setdiff1d(np.arange(len(mine)), found)
        places = _places(known[free], wanted[left])
        found[left[places >= 0]] = free[places[places >= 0]]
        if (found >= 0).all():
            return found
    return None


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


def _among_windows(mine: Affine, theirs: Affine, kept: Index, nothing: Mask) -> Index | None:
    """Where groups of windows are multiplied by a weight: each group of OUT's is one of MODEL's, with some of
    its columns (none of which is missing that reads something OUT has), and each row one of its rows. Where
    all windows have the same weights, as in means, each window is one of MODEL's.
    """
    (one, other), (groups, count, width) = (mine.maps[0], theirs.maps[0]), mine.maps[0].index.shape
    assert one.weight is not None
    assert other.weight is not None
    outputs, (few, windows, _) = one.weight.shape[1], other.index.shape
    if groups == outputs == 1 and np.array_equal(one.weight, other.weight):
        pair = one.index[0], np.append(kept, -1)[other.index[0]]
        codes = [_rows(*pair), _rows(*(_read(index, nothing) for index in pair))]
        return _with_bias(codes, mine.bias, theirs.bias)
    if windows != count:
        return None
    there = np.zeros(len(nothing), bool)
    there[kept] = True
    index, plain = _read(one.index, nothing), np.append(kept, -1)[other.index]
    read = _columns(_read(plain, nothing))
    places = _places(*_rows(_columns(index), read)).reshape(few, -1)
    as_stored = _places(*_rows(_columns(one.index), _columns(plain))).reshape(few, -1)
    used = (read >= 0).any(1).reshape(few, -1)
    bias, others = mine.bias.reshape(groups, outputs, count), theirs.bias.reshape(few, -1, count)
    idle = [group for group in range(groups) if (index[group] < 0).all()]
    found = np.empty(others.shape, np.int64)
    for group in range(few):
        at, some = places[group], used[group]
        origin = list(dict.fromkeys((at[some] // width).tolist()))
        if (at[some] < 0).any() or len(origin) > 1:
            return None
        if not origin:  # all that it reads is 0
            stored = as_stored[group][as_stored[group] >= 0] // width
            origin = list(dict.fromkeys([*stored.tolist(), *idle]))
        rows = None
        for exactly, own in product((True, False), origin):
            weight, taken = one.weight[own], at[some] % width
            rest = _reads(index[own], there)
            rest[taken] = False
            wanted = np.ascontiguousarray(other.weight[group][:, some])
            keys = _rows(weight[:, taken].view(np.int64), wanted.view(np.int64))
            rows = _with_bias([keys], bias[own, :, 0], others[group, :, 0], exactly=exactly)
            if rows is not None and not weight[np.ix_(rows, np.flatnonzero(rest))].any():
                found[group] = (own * outputs + rows)[:, None] * count + np.arange(count)
                idle = [left for left in idle if left != own]
                break
            rows = None
        if rows is None:
            return None
    return found.reshape(-1)


def _columns(index: Index) -> Index:
    """What the columns of windows read, group by group, a row each."""
    groups, count, width = index.shape
    return index.swapaxes(1, 2).reshape(groups * width, count)


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
