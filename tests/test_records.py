"""Records: what is written is what is read, and what is no record is refused."""

from __future__ import annotations

import contextlib
import json
import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from relutrim.journal.frames import frame, frames
from relutrim.journal.records import (
    RecordError,
    leaf_fields,
    leaves_in,
    packed,
    state_fields,
    states_in,
    unpacked,
)
from relutrim.prove.hull.packed import Packed, Part
from relutrim.prove.hull.proof import Leaf

plain = (
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.text()
    | st.floats(allow_nan=False, width=32)
)
values = plain.filter(lambda v: not (isinstance(v, float) and math.isinf(v))) | st.lists(st.integers())
some_arrays = st.one_of(
    *(
        arrays.arrays(dtype, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0))
        for dtype in ("<f8", "<i8", "|u1")
    )
)


@given(st.dictionaries(st.text(), values | some_arrays))
def test_what_is_packed_is_unpacked(record):
    found = unpacked(packed(record))
    assert found.keys() == record.keys()
    for name, value in record.items():
        if isinstance(value, np.ndarray):
            assert found[name].dtype == value.dtype
            np.testing.assert_array_equal(found[name], value)
        else:
            assert found[name] == value


@given(st.dictionaries(st.text(), values | some_arrays, min_size=1), st.data())
def test_damaged_bytes_are_refused_or_read_as_some_record(record, data):
    whole = packed(record)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(RecordError):
        unpacked(whole[:cut])
    with pytest.raises(RecordError):
        unpacked(whole + b"\0")
    changed = bytearray(whole)
    changed[cut] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(RecordError):
        unpacked(bytes(changed))


@pytest.mark.parametrize(
    "content",
    [
        [],
        {"fields": {}, "arrays": [["a", "|O", [1]]]},
        {"fields": {}, "arrays": [["a", "<f8", [-1]]]},
        {"fields": {}, "arrays": [["a", "<f8", [10**30]]]},
        {"fields": {}, "arrays": [["a", "<f8", [2**62, 4]]]},
        {"fields": {}, "arrays": [["a", "<f8", [True]]]},
        {"fields": {"a": 1}, "arrays": [["a", "<f8", [0]]]},
        {"fields": {}, "arrays": [["a", "<f8"]]},
        {"fields": 3, "arrays": []},
    ],
)
def test_arrays_that_cannot_be_are_refused(content):
    text = json.dumps(content).encode()
    with pytest.raises(RecordError):
        unpacked(struct.pack("<Q", len(text)) + text)


states = st.dictionaries(st.integers(0, 99), st.booleans(), max_size=4)


@st.composite
def multipliers(draw: st.DrawFn, places: list[np.ndarray]) -> Packed:
    """Any, for layers with shares at these places."""
    bytes_ = np.random.default_rng(draw(st.integers(0, 2**32)))
    parts = [
        Part(
            bytes_.integers(0, 256, len(own), np.uint8),
            bytes_.integers(0, 256, (4, len(own)), np.uint8),
            bytes_.random(len(own), np.float32),
            bytes_.integers(0, 256, own.shape, np.uint8),
        )
        for own in places
    ]
    return Packed(tuple(places), tuple(parts))


@given(st.data(), st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), min_size=1, max_size=3))
def test_leaves_survive(data, shapes):
    places = [np.arange(rows * width).reshape(rows, width) for rows, width in shapes]
    leaves = [
        Leaf(data.draw(states), data.draw(st.floats()), data.draw(multipliers(places)))
        for _ in range(data.draw(st.integers(0, 3)))
    ]
    cases = [leaf.states for leaf in leaves]
    record = unpacked(packed({**leaf_fields(leaves), **state_fields("open", cases)}))
    assert states_in(record, "open") == cases
    for leaf, found in zip(leaves, leaves_in(record), strict=True):
        assert leaf.states == found.states
        np.testing.assert_equal(leaf.bound, found.bound)
        for own, other in zip(leaf.packed.places, found.packed.places, strict=True):
            np.testing.assert_array_equal(own, other)
        for part, again in zip(leaf.packed.parts, found.packed.parts, strict=True):
            for kind in ("lean", "mix", "push", "share"):
                np.testing.assert_array_equal(getattr(part, kind), getattr(again, kind))


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=8), st.data())
def test_damage_costs_the_frames_it_hits_and_no_others(contents, data):
    owner = bytes(16)
    contents = [bytes([at]) + content for at, content in enumerate(contents)]  # no two alike
    pieces = [frame(owner, content) for content in contents]
    ends = np.cumsum([len(piece) for piece in pieces])
    whole = bytearray(b"".join(pieces))
    start = data.draw(st.integers(0, len(whole) - 1))
    length = data.draw(st.integers(1, 80))
    hit = {at for at, end in enumerate(ends) if start < end and start + length > end - len(pieces[at])}
    kind = data.draw(st.sampled_from(["flip", "cut out", "cut off", "insert"]))
    if kind == "flip":
        for at in range(start, min(start + length, len(whole))):
            whole[at] ^= 0xFF
    elif kind == "cut out":
        del whole[start : start + length]
    elif kind == "cut off":
        del whole[start:]
        hit = {at for at, end in enumerate(ends) if end > start}
    else:
        whole[start:start] = data.draw(st.binary(min_size=1, max_size=80))
        hit = {at for at, end in enumerate(ends) if end - len(pieces[at]) < start < end}
    found = [one.content for one in frames(bytes(whole))]
    assert found == [content for at, content in enumerate(contents) if at not in hit]


@given(st.binary(max_size=300))
def test_noise_holds_no_frames(noise):
    assert list(frames(noise)) == []
    assert [one.content for one in frames(noise + frame(bytes(16), b"x") + noise)] == [b"x"]
