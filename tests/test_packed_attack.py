"""Attacks on packed multipliers: numbers at both ends of the range, records that lie, models without end.

What they prove is compared with the same steps in rational arithmetic, which leave no room for an operation
that nobody paid for: the relaxation itself would hide it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import count as numbers_from
from itertools import product
from operator import mul
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import oracle
from relutrim.domain import Box
from relutrim.domain.region import Region
from relutrim.graph import Linear, Network, Node, Output, Port, Relu
from relutrim.journal.records import RecordError, leaf_fields, leaves_in, packed, state_fields, unpacked
from relutrim.prove.cascade import Cascade
from relutrim.prove.deadline import Deadline
from relutrim.prove.hull import layers as layers_module
from relutrim.prove.hull import packed as module
from relutrim.prove.hull import thicket
from relutrim.prove.hull.ascent import Start, climb
from relutrim.prove.hull.dual import Dual, Multipliers
from relutrim.prove.hull.layers import free_columns, layers_of
from relutrim.prove.hull.model import Goal, Model, Neuron
from relutrim.prove.hull.packed import Packed, Part, fits, packed_bounds
from relutrim.prove.hull.packing import packed as pack
from relutrim.prove.hull.proof import Leaf, Proof, covers
from test_hull import slow
from test_thicket import CPU, any_multipliers, leaves, planted


def any_model(random: Random) -> SimpleNamespace:
    """Columns and neurons of a model that nobody made, with numbers of a few sizes between 5e-324 and
    1e307: all that the bound looks at. Layers read any columns before them.
    """
    sizes = [
        (random.choice([0.0, 0.0, random.uniform(-323, 300)]), random.choice([0.5, 3, 20])) for _ in "123"
    ]

    def number() -> float:
        centre, around = random.choice(sizes)
        size = min(307.5, centre + random.uniform(-around, around))
        return random.choice([1, -1]) * (10.0**size if size > -323 else random.choice([0.0, 5e-324]))

    ends = [sorted((random.choice([0.0, number()]), number())) for _ in range(random.randint(1, 3))]
    neurons: list[Neuron] = []
    reads = list(range(len(ends)))
    inputs = np.arange(random.randint(0, len(ends)))  # the others are what lies too far before the goal
    region = any_region(random, ends[: len(inputs)], number)
    for name in "ab"[: random.randint(1, 2)]:
        before = list(reads)
        for entry in range(random.randint(1, 3)):
            own = np.array(sorted(random.sample(before, random.randint(0, len(before)))), dtype=np.int64)
            weights = np.array([number() for _ in own])
            bias, radius = number(), random.choice([0, 1e-8]) * abs(number())
            lo, hi = random.choice([0.0, -abs(number())]), abs(number()) or 5e-324
            reads.append(len(ends))
            neurons.append(Neuron(name, entry, len(ends), own, weights, bias, radius, lo, hi))
            ends.append([max(lo, 0.0), hi])
    cost = np.zeros(len(ends))
    cost[reads] = [number() for _ in reads]
    lo_hi = tuple(np.array(end) for end in zip(*ends, strict=True))
    return SimpleNamespace(
        neurons=neurons,
        ends=lo_hi,
        slack=abs(number()),
        cost=cost,
        offset=number(),
        backward=SimpleNamespace(region=region),
        input_columns=(inputs, inputs),
    )


def any_region(random: Random, ends: list[list[float]], number: Callable[[], float]) -> Region:
    """A box, mostly with constraints that one of its corners satisfies."""
    lo, hi = (torch.tensor([pair[side] for pair in ends], dtype=torch.float64) for side in (0, 1))
    count = random.choice([0, 1, 1, 2]) if ends else 0
    rows = torch.tensor([[number() for _ in ends] for _ in range(count)], dtype=torch.float64)
    rows = rows.reshape(count, len(ends))
    corner = torch.tensor([random.choice(pair) for pair in ends], dtype=torch.float64)
    at = (rows * corner).sum(1).nan_to_num(0.0)
    infinite = torch.full_like(at, torch.inf)
    return Region(lo, hi, rows, *((at, infinite) if random.random() < 0.5 else (-infinite, at)))


def any_leaf(model, random: Random) -> Packed:
    """Numbers that fit, the smallest and the largest among them."""
    bytes_ = random.choice([[0, 255], [0, 1, 128, 254, 255]])
    places, parts = [], []
    for layer in layers_of(model):
        rows, width = layer.weight.shape
        chosen = random.randint(0, width)
        own = [random.sample(range(width), chosen) for _ in range(rows)]
        places.append(np.array(own, dtype=np.int64).reshape(rows, chosen))
        lean, mix, share = (
            np.array(random.choices(bytes_, k=math.prod(shape)), dtype=np.uint8).reshape(shape)
            for shape in [(rows,), (4, rows), (rows, chosen)]
        )
        mix[: random.choice([0, 0, 3, 4])] = 0
        push = np.array(random.choices([0, 1e-45, 0.3, 1, 3e38], k=rows), dtype=np.float32)
        parts.append(Part(lean, mix, push, share))
    return Packed(tuple(places), tuple(parts))


def in_fractions(model, states: dict[int, bool], leaf: Packed) -> Fraction | None:
    """What the numbers that the bound uses prove exactly; None if they are not finite."""
    lo, hi = ([Fraction(end) for end in ends.tolist()] for ends in model.ends)
    weights = model.cost[:, None].copy()
    proved = Fraction(model.offset) - Fraction(model.slack)
    for layer, places, part in reversed(list(zip(layers_of(model), leaf.places, leaf.parts, strict=True))):
        own = [np.float64(a)[..., None] for a in (part.lean, part.push, part.mix, part.share)]
        at, marks = weights[layer.columns], layer.marks([states])
        step = module._Step.of(layer, places, at, marks, *own)
        after = weights[layer.read] + step.reads(layer, places)[0]
        below = np.where((marks < 0) | ~layer.both[:, None], 0.0, np.minimum(at, 0.0))
        divided = below * (own[2] / np.maximum(own[2].sum(0), 1.0))
        if not all(np.isfinite(a).all() for a in (at, after, step.through, divided)):
            return None
        exact = [Fraction(w) for w in weights[layer.read, 0].tolist()]
        for i in range(len(layer.numbers)):
            a, through = Fraction(float(at[i, 0])), Fraction(float(step.through[i, 0]))
            bias, radius, low, high = (
                Fraction(float(end[i])) for end in (layer.bias, layer.radius, layer.lo, layer.hi)
            )
            near, flat, top, cut = (Fraction(v) for v in divided[:, i, 0].tolist())
            shares = [Fraction(1, 2)] * len(layer.read)
            for k, place in enumerate(places[i].tolist()):
                shares[place] = Fraction(float(step.share[i, k, 0]))
            row = [Fraction(w) for w in layer.weight[i].tolist()]
            ends = [sorted((w * lo[c], w * hi[c])) for w, c in zip(row, layer.read.tolist(), strict=True)]
            least = sum((s * end[0] for s, end in zip(shares, ends, strict=True)), Fraction(0))
            most = sum(((1 - s) * end[1] for s, end in zip(shares, ends, strict=True)), Fraction(0))
            proved += through * bias - abs(through) * radius
            if not layer.both[i]:
                assert through == a
            elif marks[i, 0] < 0:
                assert through >= 0
            elif a >= 0:
                assert through <= a
                assert marks[i, 0] > 0 or through >= 0
            else:
                begins = top * high - near * low - cut * least
                ends_ = (flat + top) * high + cut * (bias + radius + most)
                proved += ends_ if marks[i, 0] > 0 else min(begins, ends_)
                proved += min(Fraction(0), (a - near - flat - top - cut) * high)
                assert through == near or (marks[i, 0] > 0 and through <= near)
            exact = [
                old + w * (through + cut * share) for old, w, share in zip(exact, row, shares, strict=True)
            ]
        for column, value, used in zip(layer.read.tolist(), exact, after[:, 0].tolist(), strict=True):
            proved -= abs(value - Fraction(used)) * max(abs(lo[column]), abs(hi[column]))
        weights[layer.read] = after
    region, inputs = model.backward.region, model.input_columns[1].tolist()
    form = [Fraction(float(weights[column, 0])) for column in inputs]
    proved += min(sum(map(mul, form, x), Fraction(0)) for x in corners_of(region))
    for column in set(free_columns(model).tolist()) - set(inputs):
        weight = Fraction(float(weights[column, 0]))
        proved += min(weight * lo[column], weight * hi[column])
    return proved


def corners_of(region: Region) -> list[list[Fraction]]:
    parts = (region.lo, region.hi, region.rows, region.lower_ends, region.upper_ends)
    return oracle.vertices(oracle.Polytope.of(*(part.tolist() for part in parts)))


@slow
@given(st.integers(0, 2**32))
def test_every_operation_is_charged(seed):
    for number in range(20):
        random = Random(seed + number)
        model = any_model(random)
        leaf = any_leaf(model, random)
        assert fits(model, [leaf])
        both = [i for i, neuron in enumerate(model.neurons) if neuron.both]
        states = {i: random.random() < 0.5 for i in both if random.random() < 0.4}
        (bound,) = packed_bounds(model, [states], [leaf])
        if not math.isnan(bound):
            try:
                with np.errstate(all="ignore"):
                    proved = in_fractions(model, states, leaf)
            except oracle.EmptyDomain:  # of no inputs everything is true
                continue
            assert proved is not None
            assert Fraction(bound) <= proved


def chain(first: list[list[float]], bias: list[float], second: list[list[float]]) -> Network:
    nodes = (
        Node("a", Linear(np.array(first), np.array(bias)), ("x",)),
        Node("r", Relu(), ("a",)),
        Node("b", Linear(np.array(second), np.zeros(len(second))), ("r",)),
        Node("s", Relu(), ("b",)),
    )
    return Network(Port("x", (len(first[0]),)), nodes, (Output("y", "s"),))


def model_of(network: Network, domain: Box, droppable: float = 0.0) -> Model:
    cascade = Cascade(domain.fit(network), Deadline())
    cascade.bound(search=False)
    return Model(cascade.backward, Goal("b", 0, 1.0, 99, droppable))


@slow
@given(st.integers(1, 2000), st.integers(0, 255), st.integers(250, 300), st.integers(0, 20))
@example(3, 128, 300, 6)
def test_a_product_that_underflows_is_charged_for_what_multiplies_it(units, share, size, weight):
    """The weights are so small that their part of a cut has few digits left, or none."""
    top, tiny, heavy = 10.0**size, units * 5e-324, 10.0**weight
    network = chain([[tiny]], [-tiny * top / 2], [[-heavy]])
    model = model_of(network, Box(0, top))
    if not model.both:
        return
    part = Part(
        np.array([0], np.uint8),
        np.array([[0], [0], [0], [255]], np.uint8),
        np.zeros(1, np.float32),
        np.array([[share]], np.uint8),
    )
    (bound,) = packed_bounds(model, [{0: True}], [Packed((np.zeros((1, 1), np.int64),), (part,))])
    least = oracle.evaluate(network, [Fraction(top)])["b"][0]
    assert math.isnan(bound) or Fraction(bound) <= least


def test_what_overflows_is_no_bound_and_no_warning():
    model = model_of(chain([[1e200], [1.0]], [-1.0, -1.0], [[1e200, 1.0]]), Box(-1e150, 1e150))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        leaf = any_leaf(model, Random(0))
        (bound,) = packed_bounds(model, [{}], [leaf])
    assert math.isnan(bound)


def by_cases(model: Model, split: int) -> Proof:
    """A bound from all states of so many neurons, with multipliers that are not bad."""
    dual = Dual(model, CPU, torch.float64)
    numbers = model.both[:split]
    cases = [
        dict(zip(numbers, states, strict=True)) for states in product((False, True), repeat=len(numbers))
    ]
    marks = [torch.from_numpy(level.layer.marks(cases)) for level in dual.levels]
    batch = any_multipliers(dual, len(cases), np.random.default_rng(0))
    batch = climb(
        dual, Start(batch, marks, torch.ones(len(cases)).double()), 100, math.inf, Deadline(20)
    ).batch
    packs = pack(dual, tuple(level.places for level in dual.levels), batch)
    bounds = packed_bounds(model, cases, packs)
    found = zip(cases, bounds, packs, strict=True)
    return Proof.of(model, [Leaf(case, bound, packed=leaf) for case, bound, leaf in found])


def test_a_layer_that_reads_nothing_is_a_layer():
    """All its weights are dropped: its values are what is left of the range of a number."""
    model = model_of(chain([[1e-9, 1e-9]], [-1e-9], [[-1e6]]), Box(0, 1), droppable=1e-5)
    assert [len(neuron.inputs) for neuron in model.neurons] == [0]
    assert model.both
    proof = by_cases(model, 1)
    assert -1e-2 < proof.bound <= -1e-3


# Leaves that are not what they say.


def some_leaves() -> tuple[Model, list[Leaf]]:
    first = [[1.0, -1.0], [-1.0, 1.0], [1.0, 1.0], [2.0, -0.5]]
    model = model_of(chain(first, [-0.1, -0.2, -1.0, -0.7], [[-1.0, -1.0, 1.5, -0.6]]), Box(0, 1))
    proof = by_cases(model, 2)
    return model, list(proof.leaves)


@pytest.mark.parametrize(
    "change",
    [
        lambda p: replace(p, places=(p.places[0].astype(float),)),
        lambda p: replace(p, places=(p.places[0][:, :0],)),
        lambda p: replace(p, places=(p.places[0] * 0,)),
        lambda p: replace(p, places=(p.places[0] + 1,)),
        lambda p: replace(p, places=(p.places[0] - 1,)),
        lambda p: replace(p, places=(p.places[0][0],)),
        lambda p: replace(p, places=()),
        lambda p: replace(p, parts=()),
        lambda p: replace(p, parts=(*p.parts, *p.parts)),
        lambda p: replace(p, parts=(replace(p.parts[0], push=p.parts[0].push - 1),)),
        lambda p: replace(p, parts=(replace(p.parts[0], push=p.parts[0].push * np.float32(np.nan)),)),
        lambda p: replace(p, parts=(replace(p.parts[0], push=p.parts[0].push + np.float32(np.inf)),)),
        lambda p: replace(p, parts=(replace(p.parts[0], push=p.parts[0].push.astype(float)),)),
        lambda p: replace(p, parts=(replace(p.parts[0], share=p.parts[0].share.astype(np.int8)),)),
        lambda p: replace(p, parts=(replace(p.parts[0], lean=p.parts[0].lean[:1]),)),
        lambda p: replace(p, parts=(replace(p.parts[0], mix=p.parts[0].mix[:3]),)),
    ],
)
def test_multipliers_of_another_shape_prove_nothing(change):
    model, whole = some_leaves()
    spoilt = [*whole[1:], replace(whole[0], packed=change(whole[0].packed))]
    assert not fits(model, [leaf.packed for leaf in spoilt])
    proof = Proof(model.goal, 1.0, model.ranges, tuple(spoilt))
    assert math.isnan(proof.check(model.backward))


def test_the_model_is_laid_out_once_for_all_leaves(monkeypatch):
    model, whole = some_leaves()
    calls, original = numbers_from(), module.layers_of
    monkeypatch.setattr(module, "layers_of", lambda model: (next(calls), original(model))[1])
    assert fits(model, [leaf.packed for leaf in whole] * 100)
    assert next(calls) == 1


def test_leaves_with_places_of_their_own_are_written_and_read():
    model, whole = some_leaves()
    turned = [
        replace(
            leaf,
            packed=Packed(
                tuple(own[:, ::-1].copy() for own in leaf.packed.places),
                tuple(replace(part, share=part.share[:, ::-1].copy()) for part in leaf.packed.parts),
            ),
        )
        for leaf in whole
    ]
    listed = [whole[0], *turned, *whole[1:]]
    record = unpacked(packed(leaf_fields(listed)))
    found = leaves_in(record)
    assert len(record["packed_shapes"]) == 2
    for leaf, again in zip(listed, found, strict=True):
        assert again.states == leaf.states
        np.testing.assert_array_equal(again.packed.places[0], leaf.packed.places[0])
        for kind in ("lean", "mix", "push", "share"):
            np.testing.assert_array_equal(
                getattr(again.packed.parts[0], kind), getattr(leaf.packed.parts[0], kind)
            )
    bounds = packed_bounds(model, [leaf.states for leaf in found], [leaf.packed for leaf in found])
    np.testing.assert_allclose(bounds, [leaf.bound for leaf in [whole[0], *whole, *whole[1:]]], atol=1e-12)


@pytest.mark.parametrize(
    "change",
    [
        # Were all layers listed for all leaves, that would be 10^10 numbers.
        {"packed": np.ones(10**5, np.int64), "packed_shapes": np.zeros((10**5, 2), np.int64)},
        {"packed": np.ones(10**5, np.int64), "packed_shapes": np.ones((10**5, 2), np.int64)},
        {"packed": np.full(2, 2**62)},
        {"packed": np.full(2, -1)},
        {"packed": np.full(2, 2)},
        {"packed_shapes": np.array([[2**40, 2**40]])},
        {"packed_shapes": np.array([[-2, -2]])},
        {"packed_shapes": np.array([[4]])},
        {"packed_places": np.zeros(3, np.int64)},
        {"packed_lean": np.zeros(5, np.uint8)},
        {"packed_push": np.zeros(3)},
    ],
)
def test_records_of_packed_leaves_that_do_not_add_up_are_refused(change):
    _, whole = some_leaves()
    record = leaf_fields(whole[:2])
    leaves_in(record)
    count = len(change.get("packed", whole[:2]))
    many = {"leaf_bounds": np.zeros(count), **state_fields("leaf", [{}] * count)} if count > 2 else {}
    with pytest.raises(RecordError):
        leaves_in({**record, **many, **change})


def test_a_push_beyond_what_there_is_fits_nothing():
    model, whole = some_leaves()
    record = leaf_fields(whole)
    record["packed_push"] = record["packed_push"] + 1e300
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = leaves_in(record)
    assert not fits(model, [leaf.packed for leaf in found])


# Memory and time.


def test_a_tree_may_be_deeper_than_calls_can_be_nested():
    deep = [{**dict.fromkeys(range(at), False), at: True} for at in range(1500)]
    assert not covers(deep)
    assert covers([*deep, dict.fromkeys(range(1500), False)])


def test_a_model_too_large_for_matrices_proves_nothing_and_has_no_tree(monkeypatch):
    model, whole = some_leaves()
    proof = Proof(model.goal, 0.0, model.ranges, tuple(whole))
    assert proof.check(model.backward) == min(leaf.bound for leaf in whole)
    monkeypatch.setattr(layers_module, "_LARGEST", 3)
    monkeypatch.setattr(layers_module, "Layer", None)
    assert math.isnan(proof.check(model.backward))
    tree = planted()
    tree.grow(8, Deadline(20), CPU)
    assert tree.dead
    assert not tree.closed


def test_nodes_that_wait_take_no_more_memory_than_they_may(monkeypatch):
    monkeypatch.setattr(thicket, "_NODES", 2)
    monkeypatch.setattr(thicket, "_HELD", {"cpu": 0})
    tree = planted()
    while tree.nodes < 60 and not tree.closed:
        tree.grow(4, Deadline(20), CPU)
        assert tree._thicket._stack.count <= tree._thicket._stack._most == 4
        assert covers([*leaves(tree), *tree._open])
    assert len(tree._open) > 4 or tree.closed


def test_the_root_of_a_thicket_takes_no_more_time_than_there_is(monkeypatch):
    calls, original = [], Dual.run

    def run(self, *arguments):
        calls.append(1)
        return original(self, *arguments)

    monkeypatch.setattr(Dual, "run", run)
    tree, deadline = planted(), Deadline(1e9)
    deadline.call_off()
    tree.grow(64, deadline, CPU)
    assert len(calls) < 10
    tree.grow(8, Deadline(20), CPU)
    assert covers([*leaves(tree), *tree._open])


def test_multipliers_that_are_no_numbers_become_some():
    """Steps in single precision overflow where weights are large."""
    model, whole = some_leaves()
    dual = Dual(model, CPU, torch.float32)
    for bad in (math.nan, math.inf, -math.inf):
        batch = [
            Multipliers(
                torch.full((len(level.layer.numbers), 1), bad),
                torch.full((4, len(level.layer.numbers), 1), bad),
                torch.full((len(level.layer.numbers), 1), bad),
                torch.full((*level.places.shape, 1), bad),
            )
            for level in dual.levels
        ]
        found = pack(dual, tuple(level.places for level in dual.levels), batch)
        assert fits(model, found)
        (bound,) = packed_bounds(model, [{}], found)
        assert bound <= min(leaf.bound for leaf in whole) + 1e-6
