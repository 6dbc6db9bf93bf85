"""Verdicts that rest on packed trees are certified, and fall without them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import helper

from attacks.forging import accepted, network_of, onnx_of, proofs_of, repacked, unpacked
from attacks.proof_mutations import leaves
from attacks.victims import branching, victim
from certifying import certified, files
from command_line import call
from relutrim.certificate import groundwork, packing
from relutrim.certificate.check import check, levels
from relutrim.certificate.check.proofs import PACKED
from relutrim.certificate.trees import Leaf, Split, streams
from relutrim.domain import Box
from relutrim.graph import Network
from relutrim.io import save
from test_packed_attack import some_leaves


def test_what_a_packed_tree_proves_compress_certifies_and_check_accepts(capsys, tmp_path):
    model, out, proof = (tmp_path / name for name in ("model.onnx", "out.onnx", "proof.zip"))
    save(branching(32, 8), model)
    box = ("--box", "-1", "1")
    done = call(capsys, "compress", model, out, *box, "--no-latency", "--certificate", proof)
    assert (done.code, done.err) == (0, "")
    checked = call(capsys, "check", model, out, proof, *box)
    assert (checked.code, checked.err) == (0, "")
    _, arrays, _ = unpacked(proof.read_bytes())
    assert PACKED in arrays["proof.words"]
    assert arrays["proof.bytes"].size


def convolutions() -> Network:
    """Two, and a dense layer one of whose units is left to a tree."""
    rng, node = np.random.default_rng(6), helper.make_node

    def numbers(*shape: int) -> np.ndarray:
        return (rng.normal(size=shape) / np.prod(shape[1:]) ** 0.5).astype(np.float32)

    nodes = [
        node("Conv", ["x", "k", "c"], ["a"]),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "k2", "c2"], ["d"]),
        node("Relu", ["d"], ["e"]),
        node("Flatten", ["e"], ["h"]),
        node("Gemm", ["h", "w", "v"], ["f"], transB=1),
        node("Relu", ["f"], ["g"]),
        node("Gemm", ["g", "u"], ["y"], transB=1),
    ]
    constants = {
        "k": numbers(2, 1, 2, 2),
        "c": 0.5 * numbers(2) * 2**0.5,
        "k2": numbers(2, 2, 2, 2),
        "c2": 0.5 * numbers(2) * 2**0.5,
        "w": numbers(6, 8),
        "v": (0.7 * rng.normal(size=6)).astype(np.float32),
        "u": numbers(2, 6),
    }
    return network_of(onnx_of(nodes, [1, 1, 4, 4], constants, double=False))


@pytest.mark.parametrize(
    "options",
    [
        {"network": branching(32, 8)},
        {"network": branching(2, 8)},
        {"network": branching(6, 8), "domain": Box(-1, 1).sum_between(-2, 2)},
        {"network": convolutions()},
    ],
    ids=["dense", "dense too", "constrained", "convolutions"],
)
def test_verdicts_rest_on_packed_trees(options):
    """Without its tree a unit is not proved to be linear or zero; with it, it is."""
    found = victim("tree", options["network"], options.get("domain", Box(-1, 1)), time_limit=60.0)
    assert accepted(found.model, found.out, found.certificate)
    every = proofs_of(found.arrays)
    packed = [at for at, proof in enumerate(every) if len(leaves(proof)) > 1 and proof.levels]
    assert packed
    for at in packed:
        document, arrays, others = unpacked(found.certificate)
        assert not accepted(
            found.model,
            found.out,
            repacked(document, arrays | streams([*every[:at], *every[at + 1 :]]), others),
        )


def test_a_tree_may_mix_leaves_with_parts():
    """A leaf of a packed tree with its input split: the same bytes prove both parts, nothing else does."""
    found = victim("tree", branching(32, 8), Box(-1, 1), time_limit=60.0)
    every = proofs_of(found.arrays)
    proof = next(proof for proof in every if proof.levels)
    holder, name = leaves(proof)[0]
    whole = getattr(holder, name)
    for other in (Leaf(), whole):
        setattr(holder, name, Split(0, whole, other, 0.25))
        document, arrays, others = unpacked(found.certificate)
        content = repacked(document, arrays | streams(every), others)
        assert accepted(found.model, found.out, content) == (other is whole)


@pytest.mark.parametrize(("module", "name"), [(groundwork, "_PACKED"), (levels, "MOST")])
def test_trees_that_are_too_large_are_left_out(monkeypatch, module, name):
    """What they prove counts as undecided then."""
    monkeypatch.setattr(module, name, 100)
    made = certified(branching(32, 8), Box(-1, 1), method="auto", time_limit=60.0)
    arrays = made.certificate.arrays
    assert not any(proof.levels for proof in proofs_of(arrays))
    monkeypatch.undo()
    assert check(*files(made)).bound < 1e-9


def test_trees_that_do_not_decide_in_the_checkers_ranges_are_left_out(monkeypatch):
    """All bytes 0: no multipliers at all."""
    original = packing._pieces
    monkeypatch.setattr(packing, "_pieces", lambda *a: [[bytes(len(p)) for p in one] for one in original(*a)])
    made = certified(branching(32, 8), Box(-1, 1), method="auto", time_limit=60.0)
    assert not any(proof.levels for proof in proofs_of(made.certificate.arrays))
    assert check(*files(made)).bound < 1e-9


def test_leaves_with_places_of_their_own_get_those_of_the_others():
    model, whole = some_leaves()
    turned = replace(
        whole[0].packed,
        places=tuple(own[:, ::-1].copy() for own in whole[0].packed.places),
        parts=tuple(replace(part, share=part.share[:, ::-1].copy()) for part in whole[0].packed.parts),
    )
    mixed = [*whole[1:], replace(whole[0], packed=turned)]
    *_, pieces = packing.packed_levels(model, [*whole[1:], whole[0]])
    *_, again = packing.packed_levels(model, mixed)
    assert pieces == again
