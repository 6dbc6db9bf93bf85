"""``.nnet`` files, against an evaluator written after the format's description."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relutrim.errors import InputError
from relutrim.graph import Scale
from relutrim.io.nnet import read_nnet


def line(values):
    return ",".join(repr(float(value)) for value in values) + ",\n"


def text_of(layers, low, high, mean, spread):
    sizes = [layers[0][0].shape[1], *(len(bias) for _, bias in layers)]
    parts = ["// A comment\n//another, with 1,2,3\n"]
    parts += [
        f"{len(layers)},{sizes[0]},{sizes[-1]},{max(sizes)},\n",
        ",".join(map(str, sizes)) + ",\n",
        "0,\n",
    ]
    parts += [line(low), line(high), line(mean), line(spread)]
    for weight, bias in layers:
        parts += [line(row) for row in weight] + [line([value]) for value in bias]
    return "".join(parts)


def evaluate(layers, low, high, mean, spread, x):
    x = (np.clip(x, low, high) - mean[:-1]) / spread[:-1]
    for weight, bias in layers[:-1]:
        x = np.maximum(x @ weight.T + bias, 0)
    weight, bias = layers[-1]
    return (x @ weight.T + bias) * spread[-1] + mean[-1]


def random_network(seed, sizes):
    random = np.random.default_rng(seed)
    layers = [(random.normal(size=(b, a)), random.normal(size=b)) for a, b in pairwise(sizes)]
    low = random.uniform(-3, 0, sizes[0])
    high = low + random.uniform(0, 3, sizes[0])
    return layers, low, high, random.normal(size=sizes[0] + 1), random.uniform(0.5, 3, sizes[0] + 1)


def written(tmp_path, text):
    path = tmp_path / "network.nnet"
    path.write_text(text)
    return path


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(1, 6), min_size=2, max_size=5))
def test_within_its_limits_the_network_computes_what_the_reference_computes(tmp_path_factory, seed, sizes):
    parts = random_network(seed, sizes)
    network = read_nnet(written(tmp_path_factory.mktemp("nnet"), text_of(*parts)))
    x = np.random.default_rng(seed).uniform(parts[1], parts[2], (5, sizes[0]))
    np.testing.assert_allclose(network(torch.from_numpy(x)), evaluate(*parts, x), rtol=1e-11, atol=1e-11)
    assert network.dtype == "float64"
    assert network.widths == sizes


def test_the_limits_are_kept(tmp_path):
    parts = random_network(0, [3, 2])
    metadata = read_nnet(written(tmp_path, text_of(*parts))).metadata
    assert json.loads(metadata["nnet.input_min"]) == parts[1].tolist()
    assert json.loads(metadata["nnet.input_max"]) == parts[2].tolist()


def test_no_scale_is_made_where_nothing_is_scaled(tmp_path):
    layers, low, high, _, _ = random_network(0, [3, 2])
    network = read_nnet(written(tmp_path, text_of(layers, low, high, np.zeros(4), np.ones(4))))
    assert not any(isinstance(node.operator, Scale) for node in network)


GOOD = """// one layer of two neurons
1,2,2,2,
2,2,
0,
0.0,0.0,
1.0,1.0,
0.0,0.0,0.0,
1.0,1.0,1.0,
1.0,2.0,
3.0,4.0,
5.0,
6.0,
"""


def test_the_example_of_the_refusals_is_good(tmp_path):
    network = read_nnet(written(tmp_path, GOOD))
    assert network(torch.tensor([[1.0, 1.0]])).tolist() == [[8.0, 13.0]]


def test_windows_line_ends_spaces_and_missing_last_commas_do_no_harm(tmp_path):
    network = read_nnet(written(tmp_path, GOOD.replace(",\n", " \r\n").replace(",", " , ")))
    assert network(torch.tensor([[1.0, 1.0]])).tolist() == [[8.0, 13.0]]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("1,2,2,2,", "0,2,2,2,", "line 2: a network has at least one layer"),
        ("1,2,2,2,", "1,2,2,", "line 2: 3 number.* where 4"),
        ("1,2,2,2,", "1.5,2,2,2,", "line 2: .*whole numbers"),
        ("1,2,2,2,", "1,2,3,3,", "line 3: layer sizes"),
        ("2,2,\n0,", "2,2,2,\n0,", "line 3: 3 number.* where 2"),
        ("2,2,\n0,", "2,-2,\n0,", "line 3: layer sizes"),
        ("0.0,0.0,\n1.0", "2.0,0.0,\n1.0", "line 6: input 0 has a smallest value above"),
        ("1.0,1.0,1.0,", "0.0,1.0,1.0,", "line 8: a range of 0"),
        ("1.0,1.0,1.0,", "1.0,1.0,", "line 8: 2 number.* where 3"),
        ("3.0,4.0,", "3.0,four,", "line 10: .*four"),
        ("3.0,4.0,", "3.0,nan,", "line 10: .*NaN"),
        ("3.0,4.0,", "3.0,1e999,", "line 10: .*infinity"),
        (
            "3.0,4.0,",
            "3.0,4.0,5.0",
            "line 10: 3 number.* where 2 were expected: weights of neuron 1 of layer 1",
        ),
        ("6.0,\n", "", "ends before the bias of neuron 1 of layer 1"),
        ("6.0,\n", "6.0,\n7.0,\n", "line 13: there is more"),
    ],
)
def test_malformed_files_are_refused_with_the_line(tmp_path, old, new, message):
    path = written(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(InputError, match=message) as caught:
        read_nnet(path)
    assert str(caught.value).startswith(str(path))


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "network.nnet"
    with pytest.raises(InputError, match="no such file"):
        read_nnet(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not a text file"):
        read_nnet(path)
    path.write_text("")
    with pytest.raises(InputError, match="ends before"):
        read_nnet(path)
