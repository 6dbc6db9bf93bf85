"""Which neurons are asked about first where channels count as a whole, and what becomes of the others."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import relutrim
from relutrim.analysis import analyze_network
from relutrim.intervals import Interval
from relutrim.io import as_network
from relutrim.prove import cascade
from relutrim.prove.verdict import Verdict
from relutrim.prove.wanted import Wanted
from relutrim.rewrite.relevance import Smaller


@st.composite
def wants(draw: st.DrawFn) -> tuple[Wanted, Interval]:
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=2, max_size=3)))
    axis = draw(st.none() | st.integers(0, len(shape) - 1))
    size = int(np.prod(shape))
    masks = (draw(st.lists(st.booleans(), min_size=size, max_size=size)) for _ in range(2))
    ends = draw(st.lists(st.floats(-9, 9), min_size=size, max_size=size))
    high = torch.tensor(ends, dtype=torch.float64).reshape(1, *shape)
    return Wanted(*(torch.tensor(mask) for mask in masks), shape, axis), Interval(-high, high)


def channel_of(want: Wanted, unit: int) -> int:
    return unit if want.axis is None else int(np.unravel_index(unit, want.shape)[want.axis])


@given(wants())
def test_of_every_channel_the_unit_with_the_most_to_prove_comes_first(problem):
    want, known = problem
    first, high = want.first(known), known.hi.flatten()
    assert not bool((first & ~want.either).any())
    for unit in want.either.nonzero()[:, 0].tolist():
        channel = channel_of(want, unit)
        same = [other for other in first.nonzero()[:, 0].tolist() if channel_of(want, other) == channel]
        assert same
        assert max(float(high[other]) for other in same) >= float(high[unit])


@given(wants(), st.randoms())
def test_the_others_of_a_channel_follow_once_the_first_is_proved_and_not_before(problem, random):
    want, known = problem
    first = want.first(known)
    proved = torch.tensor([random.random() < 0.5 for _ in first.tolist()]) & first
    now = Wanted(want.inactive & ~proved, want.active & ~proved, want.shape, want.axis)
    rest = now.rest(first)
    stuck = {channel_of(want, unit) for unit in (first & ~proved).nonzero()[:, 0].tolist()}
    for unit in range(len(first)):
        waits = bool(now.either[unit]) and not bool(first[unit]) and channel_of(want, unit) not in stuck
        assert bool(rest[unit]) == waits


def test_channels_of_large_networks_are_left_at_what_simple_bounds_say_unless_time_is_no_matter(monkeypatch):
    monkeypatch.setattr(cascade, "_WHOLE", 8)
    module = nn.Sequential(
        nn.Conv2d(1, 2, 1), nn.ReLU(), nn.Conv2d(2, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    with torch.no_grad():  # relu(2x - 1) = 2 relu(x - 0.5), which no relaxation of each of them knows
        module[0].weight[:] = torch.tensor([1.0, 2.0]).reshape(2, 1, 1, 1)
        module[0].bias[:] = torch.tensor([-0.5, -1.0])
        module[2].weight[:] = torch.tensor([[2.0, -1.0], [1.0, 0.0]]).reshape(2, 2, 1, 1)
        module[2].bias[:] = torch.tensor([-0.01, 0.0])
    network = as_network(module, input_shape=(1, 3, 3))
    options = {"data": None, "method": "auto", "device": "cpu", "seed": 0, "progress": None}
    domain, relevance = relutrim.Box(0, 1), Smaller(network)
    soon, later = (
        analyze_network(network, domain, time_limit=limit, relevance=relevance, **options)
        for limit in (60.0, None)
    )
    assert soon.spared == 1
    assert later.spared == 0
    assert soon.count(Verdict.UNKNOWN) == 9
    assert later.count(Verdict.UNKNOWN) == 0
