"""Domains without points, of which everything would be true."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from attacks.forging import accepted, forged, onnx_of, repacked, unpacked
from relutrim.certificate.check import __main__ as command
from relutrim.certificate.check.domain import Domain

node = helper.make_node
RELU = onnx_of([node("Relu", ["x"], ["y"])], [1, 1], {})


@pytest.mark.parametrize("ends", [("1", "0"), ("5", "-5")])
def test_ends_that_are_swapped_are_no_domain(ends, tmp_path, capsys):
    paths = [tmp_path / name for name in ("model.onnx", "out.onnx", "certificate")]
    for path, content in zip(paths, (RELU, RELU, forged(RELU, RELU, [0.0], [1.0])), strict=True):
        path.write_bytes(content)
    assert command.main([*map(str, paths), "--box", "0", "1"]) == 0
    assert command.main([*map(str, paths), "--box", *ends]) == 2
    assert "empty" in capsys.readouterr().err


def test_constraints_that_nobody_asks_for_are_not_empty_either():
    certificate = forged(RELU, RELU, [0.0], [1.0])
    for lower, upper, fine in ((0.0, 1.0, True), (1.0, 0.0, False)):
        asked = Domain(0.0, 1.0, np.ones((1, 1)), [lower], [upper])
        assert accepted(RELU, RELU, certificate, asked=asked) == fine


def test_a_certified_domain_without_points_proves_nothing():
    out = onnx_of([node("Neg", ["x"], ["u"]), node("Relu", ["u"], ["y"])], [1, 1], {})
    document, arrays, others = unpacked(forged(RELU, out, [0.0], [1.0], bound=9.0))
    for lower, fine in ((0.5, True), (2.0, False)):
        arrays["domain.rows"] = np.ones((1, 1))
        arrays["domain.lower"], arrays["domain.upper"] = np.array([lower]), np.array([3.0])
        assert accepted(RELU, out, repacked(document, arrays, others)) == fine
