"""Channels of convolutional layers in the report: what is said of a channel holds at all of its positions."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from relutrim.prove.stability import LayerStability
from relutrim.prove.verdict import Evidence, Verdict
from relutrim.report.html.channel_map import UNITS, by_channel, drawn_by_channel
from relutrim.report.html.page import compression_page
from report_pages import Page, channels
from rewriting import compressed

UNIT = st.tuples(st.sampled_from(list(Verdict)), st.sampled_from(list(Evidence)), st.floats(-2, 2))


def layer_of(units: list[list[tuple[Verdict, Evidence, float]]]) -> LayerStability:
    flat = [unit for channel in units for unit in channel]
    none = np.full(len(flat), -1)
    ends = np.array([end for *_, end in flat])
    return LayerStability(
        "relu",
        (len(units), 1, len(units[0])),
        np.array([verdict for verdict, *_ in flat], np.int8),
        np.array([evidence for _, evidence, _ in flat], np.int8),
        ends - 1,
        ends + 1,
        none,
        none,
    )


@given(st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(UNIT, min_size=n, max_size=n), min_size=1)))
def test_a_channel_is_stable_only_if_every_position_is(units):
    found = by_channel(layer_of(units))
    assert found.shape == (len(units),)
    for number, channel in enumerate(units):
        verdicts, evidence = {v for v, _, _ in channel}, [e for _, e, _ in channel]
        told = Verdict(int(found.verdict[number]))
        if told in (Verdict.ACTIVE, Verdict.INACTIVE):
            assert verdicts == {told}
            assert found.evidence[number] == min(evidence)
        elif told is Verdict.UNSTABLE:
            assert Verdict.UNSTABLE in verdicts or {Verdict.ACTIVE, Verdict.INACTIVE} <= verdicts
            assert found.evidence[number] in evidence
        else:
            assert Verdict.UNKNOWN in verdicts
            assert found.evidence[number] == Evidence.NONE
        ends = [end for *_, end in channel]
        assert (found.lower[number], found.upper[number]) == (min(ends) - 1, max(ends) + 1)


def test_a_bound_that_one_position_lacks_is_lacking():
    layer = layer_of(
        [[(Verdict.UNKNOWN, Evidence.NONE, 0.0), (Verdict.UNKNOWN, Evidence.NONE, float("nan"))]]
    )
    found = by_channel(layer)
    assert np.isnan([found.lower[0], found.upper[0]]).all()


def test_large_convolutional_layers_are_drawn_by_channel():
    result = compressed(channels(12, 32), 0, 1)
    large = [layer for layer in result.stability.layers if drawn_by_channel(layer)]
    assert large
    assert all(layer.size > UNITS for layer in large)
    page = Page(compression_page(result))
    assert "12 channels, one square each" in page.text
    drawn = {one["name"]: one for one in page.json("data")}
    assert all(len(drawn[layer.name]["codes"]) == layer.shape[0] for layer in large)
    assert all(drawn[layer.name]["unit"] == "channel" for layer in large)


def test_small_layers_are_drawn_by_neuron():
    result = compressed(channels(), 0, 1)
    drawn = Page(compression_page(result)).json("data")
    assert [len(one["codes"]) for one in drawn] == [layer.size for layer in result.stability.layers]
    assert {one["unit"] for one in drawn} == {"neuron"}
