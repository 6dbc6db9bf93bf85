"""Files that are not what they should be are rejected, each for its reason, and nothing else happens."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest

from certifying import certified, edited, entries, files, packed, recheck, small, with_array
from relutrim.certificate.check import Asked, check
from relutrim.certificate.check import archive as limits
from relutrim.errors import CheckFailed, InputError, RelutrimError


@pytest.fixture(scope="module")
def three() -> tuple[bytes, bytes, bytes]:
    return files(certified(small()))


def rejected(three, content, match=None, kind=RelutrimError):
    with pytest.raises(kind, match=match):
        check(three[0], three[1], content)


def test_the_valid_one_is_accepted(three):
    assert check(*three).bound < 1e-5


def test_another_file_than_the_one_that_was_hashed(three):
    model, out, content = three
    for pair in ((out, out), (model, model), (model + b"\0", out)):
        with pytest.raises(CheckFailed, match="sha256"):
            check(*pair, content)


def test_a_domain_that_is_not_covered(three):
    check(*three, Asked(0.25, 0.75))
    for asked in (Asked(-0.001, 1.0), Asked(0.0, 1.001), Asked([0.0, 0.0], [1.0, 2.0])):
        with pytest.raises(CheckFailed, match="does not contain"):
            check(*three, asked)


def test_a_bound_that_is_too_large(three):
    bound = check(*three).bound
    check(*three, tolerance=bound)
    if bound > 0:
        with pytest.raises(CheckFailed, match="asked for"):
            check(*three, tolerance=bound / 2)


def test_a_bound_that_was_tightened():
    result = certified(small(), tolerance=0.5)
    three = files(result)
    assert recheck(result).bound > 0
    name = "outputs.bound"
    size = len(entries(three[2])[f"arrays/{name}.bin"]) // 8
    rejected(three, with_array(three[2], name, np.zeros(size)), "is claimed", CheckFailed)


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_file(three, kept):
    rejected(three, three[2][: int(kept * len(three[2]))], kind=InputError)


def test_flipped_verdicts(three):
    content = three[2]
    kinds = np.frombuffer(entries(content)["arrays/layers.kind.bin"], np.uint8)
    for at in np.flatnonzero(kinds == 0):
        for word in (1, 2):
            other = kinds.copy()
            other[at] = word
            rejected(three, with_array(content, "layers.kind", other), "linear or zero", CheckFailed)


def test_hints_that_name_what_is_not_there(three):
    content = three[2]
    places = np.frombuffer(entries(content)["arrays/out.place.bin"], "<i4")
    for number in (10**6, -5):
        other = np.where(places >= 0, number, places).astype("<i4")
        rejected(three, with_array(content, "out.place", other))


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["domain.lo", "domain.hi", "out.scale", "outputs.bound"])
def test_numbers_that_are_none(three, name, number):
    array = np.frombuffer(entries(three[2])[f"arrays/{name}.bin"], "<f8").copy()
    array[0] = number
    rejected(three, with_array(three[2], name, array), "not finite", InputError)


def test_nan_in_the_document(three):
    parts = entries(three[2])
    parts["certificate.json"] = parts["certificate.json"].replace(
        b'"largest": ', b'"largest": NaN, "was": ', 1
    )
    rejected(three, packed(parts), "NaN", InputError)


def test_an_array_whose_hash_is_another(three):
    parts = entries(three[2])
    content = bytearray(parts["arrays/domain.hi.bin"])
    content[-1] ^= 1
    parts["arrays/domain.hi.bin"] = bytes(content)
    rejected(three, packed(parts), "hash differs", CheckFailed)


@pytest.mark.parametrize(
    "shape", [[2**40], [2**31 - 1, 2**31 - 1], [-2], [2, True], ["2"], [2] * 40, 7, None]
)
def test_shapes_that_cannot_be(three, shape):
    def change(document):
        document["arrays"]["domain.lo"]["shape"] = shape

    rejected(three, edited(three[2], change), kind=InputError)


def test_entries_that_are_not_listed_and_those_that_would_escape(three):
    for name in ("extra", "../escaped", "/absolute", "arrays/../../up.bin"):
        rejected(three, packed({**entries(three[2]), name: b"x"}), "disagree", InputError)
    parts = entries(three[2])
    del parts["arrays/domain.lo.bin"]
    rejected(three, packed(parts), "disagree", InputError)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_entries_that_are_there_twice(three):
    target = io.BytesIO(three[2])
    with zipfile.ZipFile(target, "a") as archive:
        archive.writestr("arrays/domain.lo.bin", b"\0" * 16)
    rejected(three, target.getvalue(), "twice", InputError)


def test_an_entry_that_unpacks_to_too_much(three, monkeypatch):
    monkeypatch.setattr(limits, "MOST_BYTES", 2**20)
    rejected(three, packed({**entries(three[2]), "bomb": b"\0" * 2**21}), "unpacks", InputError)


@pytest.mark.parametrize(
    "text", [b"[]", b"{}", b"", b"{", b"[" * 100_000, b"\xff", b'{"schema": "relutrim/certificate/2"}']
)
def test_documents_that_make_no_sense(three, text):
    rejected(three, packed({"certificate.json": text}), kind=InputError)


def test_certificates_of_the_kind_before_are_refused_with_what_to_do(three):
    content = edited(three[2], lambda document: document.update(schema="relutrim/certificate/1"))
    rejected(three, content, "linear programs.*run compress again", InputError)


def test_every_part_of_the_document_may_be_missing_or_of_another_kind(three):
    import json

    document = json.loads(entries(three[2])["certificate.json"])
    needed = {"schema", "model", "out", "arrays", "comparison"}
    for key in document:
        for value in (None, 7, "x", [], {}, [7], [[]], True):
            if value == document[key]:
                continue
            content = edited(three[2], lambda d, key=key, value=value: d.update({key: value}))
            if key in needed:
                rejected(three, content)
            else:
                check(three[0], three[1], content)


def test_models_that_are_no_models(three):
    from certifying import for_out

    for out in (b"", b"\x08", b"junk" * 100):
        with pytest.raises(RelutrimError):
            check(three[0], out, for_out(three[2], out))
