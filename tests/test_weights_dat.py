"""``weights.dat`` of the reference implementation."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relutrim.errors import InputError
from relutrim.graph import Linear
from relutrim.io.weights_dat import read_weights_dat


def text_of(layers):
    """The file as the reference implementation writes it."""
    sizes = [layers[0][0].shape[1], *(len(bias) for _, bias in layers)]
    rows = [", ".join(str(value) for value in row) for weight, _ in layers for row in weight]
    biases = [", ".join(str(value) for value in bias) for _, bias in layers]
    return (
        f"// weights\nlevels = {len(layers)};\nn = [{', '.join(map(str, sizes))}];\n"
        "W = [\n" + "\n,".join(rows) + "\n];\nB = [\n" + "\n,".join(biases) + "\n];\n"
    )


def random_layers(seed, sizes):
    random = np.random.default_rng(seed)
    return [
        (random.normal(size=(b, a)).astype(np.float32), random.normal(size=b).astype(np.float32) * 1e-6)
        for a, b in pairwise(sizes)
    ]


def written(tmp_path, text):
    path = tmp_path / "weights.dat"
    path.write_text(text)
    return path


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(1, 5), min_size=2, max_size=14))
def test_the_very_weights_are_read_back(tmp_path_factory, seed, sizes):
    layers = random_layers(seed, sizes)
    network = read_weights_dat(written(tmp_path_factory.mktemp("dat"), text_of(layers)))
    assert network.dtype == "float32"
    assert network.widths == sizes
    found = [node.operator for node in network if isinstance(node.operator, Linear)]
    for operator, (weight, bias) in zip(found, layers, strict=True):
        np.testing.assert_array_equal(operator.weight, weight)
        np.testing.assert_array_equal(operator.bias, bias)


def test_relu_stands_between_the_layers_and_not_behind_the_last(tmp_path):
    layers = random_layers(0, [4, 7, 5, 3])
    network = read_weights_dat(written(tmp_path, text_of(layers)))
    x = np.random.default_rng(1).normal(size=(6, 4))
    y = x
    for weight, bias in layers[:-1]:
        y = np.maximum(y @ weight.T.astype(float) + bias, 0)
    y = y @ layers[-1][0].T.astype(float) + layers[-1][1]
    np.testing.assert_allclose(network(torch.from_numpy(x)), y, rtol=1e-12, atol=1e-12)


def test_more_than_nine_levels_are_read(tmp_path):
    network = read_weights_dat(written(tmp_path, text_of(random_layers(0, [2] * 13))))
    assert len(network.relus) == 11


GOOD = """// example
levels = 2;
n = [2, 2, 1];
W = [
1.0, 2.0
,3.0, 4.0
,5.0, -6.0
];
B = [
0.5, 0.25
,1.0
];
"""


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        GOOD.replace("\n,", ",\n"),
        GOOD.replace("\n,", "\n  , ").replace("];", " ] ; "),
        GOOD.replace("\n", "\r\n"),
        GOOD.replace("\n", "   // said aside\n"),
        " ".join(GOOD.splitlines()[1:]),
        GOOD.replace("1.0, 2.0\n,3.0, 4.0", "1.0,\n2.0, 3.0,\n4.0"),
        GOOD.replace("W = [", "W=["),
    ],
)
def test_spaces_commas_and_line_ends_do_not_matter(tmp_path, text):
    network = read_weights_dat(written(tmp_path, text))
    assert network(torch.tensor([[1.0, 1.0]])).tolist() == [[3.5 * 5 - 7.25 * 6 + 1]]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("levels = 2;", "levels = 0;", "line 2: a network has at least one layer"),
        ("levels = 2;", "levels = two;", "line 2: levels: whole"),
        ("levels = 2;", "levels = 3;", "line 3: n: 3 number.* where 4"),
        ("levels = 2;", "", "no 'levels"),
        ("levels = 2;", "levels = 2;\nlevels = 2;", "line 3: 'levels = 2;' is not understood"),
        ("levels = 2;", "depth = 2;", "line 2: 'depth = 2;' is not understood; expected was levels"),
        ("[2, 2, 1]", "[2, 2, 0]", "line 3: layer sizes"),
        ("[2, 2, 1]", "[2, 2, 1.5]", "line 3: n: whole"),
        (",3.0, 4.0", ",3.0, 4.0, 5.0", "line 6: W.*3 number.* where 2"),
        (",3.0, 4.0\n", "", "line 6: W.*4 number.* where 6"),
        (",3.0, 4.0", ",3.0, x", "line 6: W.*x"),
        (",3.0, 4.0", ",3.0, nan", "line 6: W.*NaN"),
        (",3.0, 4.0", ",3.0, 1e39", "line 6: W.*beyond float32"),
        (",3.0, 4.0", ",3.0 4.0, 5.0", "line 6: W.*3.0 4.0"),
        ("0.5, 0.25", "0.5", "line 10: B.*1 number.* where 2"),
        (",1.0\n];", ",1.0\n", "ends within 'B = ...'"),
        (",1.0\n];", ",1.0\n]; more", "line 12: 'more' is not understood; expected was nothing more"),
    ],
)
def test_malformed_files_are_refused_with_the_line(tmp_path, old, new, message):
    path = written(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(InputError, match=message) as caught:
        read_weights_dat(path)
    assert str(caught.value).startswith(str(path))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_weights_dat(tmp_path / "weights.dat")
