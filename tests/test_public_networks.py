"""Networks written by other people with other tools: every one loads, and is what onnxruntime says it is."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnx_models import assert_same, run, values_at
from relutrim.io import load, save
from relutrim.io.vnnlib import read_vnnlib

NETWORKS = (
    "acasxu/ACASXU_run2a_1_1_batch_2000",
    "acasxu/ACASXU_run2a_2_3_batch_2000",
    "cersyve/cart_pole_finetune_inv",
    "cersyve/pendulum_pretrain_con",
    "collins_rul/NN_rul_small_window_20",
    "cora/mnist-set",
    "linearizenn/AllInOne_10_10",
    "malbeware/malware_malimg_family_scaled_4-25",
    "mnist_fc/mnist-net_256x4",
    "nn4sys/lindex",
    "oval21/cifar_base_kw",
    "relusplitter/mnist-net_256x4_split",
    "safenlp/perturbations_0",
    "tllverify/tllBench_N16_instance_1_0",
)


def test_none_is_left_out(shared):
    folder = shared / "networks" / "public"
    assert {str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.onnx")} == set(NETWORKS)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_public_network_is_what_onnxruntime_computes(name, shared, tmp_path):
    path = shared / "networks" / "public" / f"{name}.onnx"
    network = load(path)
    batch = network.input.batch
    for x in _inputs(path, network):
        x = x if batch is None or isinstance(batch, int) else x.reshape(-1, *network.input.shape)
        expected = run(onnx.load(path), x)
        for found, truth in zip(values_at(network, x), expected, strict=True):
            assert_same(found, truth)
    save(network, tmp_path / "again.onnx")  # which compares the file with the network
    again = load(tmp_path / "again.onnx")
    assert again.widths == network.widths
    assert again.parameters <= network.parameters  # equal tensors may be written once


def _inputs(path, network) -> list[np.ndarray]:
    """Random inputs in the boxes beside the network, else in [0, 1]."""
    rng = np.random.default_rng(0)
    batch = network.input.batch
    shape = (
        network.input.shape
        if batch is None
        else (batch if isinstance(batch, int) else 1, *network.input.shape)
    )
    boxes = [(np.zeros(network.input.size), np.ones(network.input.size))]
    found = []
    for beside in sorted(path.parent.glob("*.vnnlib")):
        if beside.read_text().count("(declare-const X_") != network.input.size:
            continue  # cersyve keeps two networks of different inputs in one folder
        domain = read_vnnlib(beside, network.input.size)
        boxes.append((domain.lo, domain.hi))
    for lo, hi in boxes:
        found += [rng.uniform(lo, hi).reshape(shape).astype(network.dtype) for _ in range(3)]
    return found
