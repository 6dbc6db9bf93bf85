"""One change to a valid certificate or to one of its models: what a forger, or a bad disk, would make of it.

Hashes are put right again wherever that is possible, so the mathematics is attacked and not the hash alone.
Every mutation is a function of a random generator and a victim; None says that there is nothing to change.
"""

from __future__ import annotations

import copy
import io
import json
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import numpy_helper

from attacks.forging import repacked
from attacks.victims import Victim
from certifying import entries, packed
from relutrim.certificate.check import Asked
from relutrim.certificate.check.archive import sha256

Rng: TypeAlias = np.random.Generator


@dataclass(eq=False)
class Mutant:
    """What is given to the checker."""

    model: bytes
    out: bytes
    certificate: bytes
    asked: Asked | None = None
    tolerance: float | None = None


Mutation: TypeAlias = Callable[[Rng, Victim], Mutant | None]
MUTATIONS: dict[str, Mutation] = {}


def mutation(function: Mutation) -> Mutation:
    """Register one by its name."""
    MUTATIONS[function.__name__] = function
    return function


def rewritten(victim: Victim, change: Callable[[dict[str, Any], dict[str, np.ndarray]], Any]) -> Mutant:
    """Another document and other arrays, with their hashes as they should be."""
    document, arrays = copy.deepcopy(victim.document), {k: v.copy() for k, v in victim.arrays.items()}
    change(document, arrays)
    return Mutant(victim.model, victim.out, repacked(document, arrays, victim.others))


def one(rng: Rng, victim: Victim, *ends: str) -> str | None:
    """The name of an array with a number in it."""
    names = [k for k, v in victim.arrays.items() if v.size and (not ends or k.endswith(ends))]
    return str(rng.choice(names)) if names else None


def changed(rng: Rng, victim: Victim, name: str | None, new: Callable[[Any], Any]) -> Mutant | None:
    """One entry of an array made another."""
    if name is None:
        return None
    at = int(rng.integers(victim.arrays[name].size))

    def change(_: Any, arrays: dict[str, np.ndarray]) -> None:
        arrays[name].reshape(-1)[at] = new(arrays[name].reshape(-1)[at])

    return rewritten(victim, change)


# Hints and claims.


@mutation
def flip_verdict(rng: Rng, victim: Victim) -> Mutant | None:
    return changed(rng, victim, "layers.kind", lambda old: (old + rng.integers(1, 4)) % 4)


@mutation
def flip_verdict_and_allow_it(rng: Rng, victim: Victim) -> Mutant | None:
    mutant = flip_verdict(rng, victim)
    assert mutant is not None
    document, arrays, others = (lambda v: (v.document, v.arrays, v.others))(
        Victim("", mutant.model, mutant.out, mutant.certificate)
    )
    slack = arrays["layers.slack"]
    slack[:] = rng.choice([0.0, 1e-3, 1e9], slack.size)
    return Mutant(mutant.model, mutant.out, repacked(document, arrays, others))


@mutation
def flip_hint(rng: Rng, victim: Victim) -> Mutant | None:
    return changed(rng, victim, one(rng, victim, "out.kind"), lambda old: rng.integers(0, 5))


@mutation
def move_scale(rng: Rng, victim: Victim) -> Mutant | None:
    factor = float(rng.choice([-1.0, 0.0, 0.5, 2.0, 1 + 2.0**-52, 1e-300, 1e300]))
    return changed(rng, victim, one(rng, victim, ".scale"), lambda old: old * factor)


@mutation
def swap_neurons(rng: Rng, victim: Victim) -> Mutant | None:
    name = one(rng, victim, ".place", ".kind", ".scale")
    if name is None or victim.arrays[name].size < 2:
        return None
    i, j = rng.choice(victim.arrays[name].size, 2, replace=False)

    def change(_: Any, arrays: dict[str, np.ndarray]) -> None:
        arrays[name][[i, j]] = arrays[name][[j, i]]

    return rewritten(victim, change)


@mutation
def move_place(rng: Rng, victim: Victim) -> Mutant | None:
    return changed(
        rng, victim, one(rng, victim, ".place"), lambda old: rng.choice([-1, -2, 0, 1, 2, 5, 9, 2**31 - 1])
    )


@mutation
def another_size(rng: Rng, victim: Victim) -> Mutant | None:
    stem, by = str(rng.choice(["layers", "out"])), int(rng.choice([-2, -1, 1, 2, 7]))

    def change(_: Any, arrays: dict[str, np.ndarray]) -> None:
        for name in (f"{stem}.{part}" for part in ("kind", "place", "scale")):
            arrays[name] = np.resize(arrays[name], max(0, arrays[name].size + by))

    return rewritten(victim, change)


@mutation
def move_any_number(rng: Rng, victim: Victim) -> Mutant | None:
    name = one(rng, victim)
    assert name is not None
    if victim.arrays[name].dtype.kind == "f":
        numbers = [0.0, -1.0, 1e-310, 1e308, -1e308, np.nan, np.inf, -np.inf, 0.5]
        return changed(rng, victim, name, lambda old: rng.choice([*numbers, -old, np.nextafter(old, 9)]))
    top = 255 if victim.arrays[name].itemsize == 1 else 2**31 - 1
    low = 0 if top == 255 else -(2**31)
    return changed(rng, victim, name, lambda old: rng.choice([low, top, 0, 1, 2, 3, 4, 5, 6, 7]))


@mutation
def tighten_bound(rng: Rng, victim: Victim) -> Mutant | None:
    factor = float(rng.choice([0.0, 0.5, 0.999, -1.0]))
    return changed(rng, victim, one(rng, victim, ".bound"), lambda old: old * factor)


@mutation
def tighten_bound_away(rng: Rng, victim: Victim) -> Mutant | None:
    """All bounds at once, down to nothing or almost."""
    factor = float(rng.choice([0.0, 1e-3, 0.1]))

    def change(_: Any, arrays: dict[str, np.ndarray]) -> None:
        for name in arrays:
            if name.endswith(".bound"):
                arrays[name] *= factor

    return rewritten(victim, change)


@mutation
def tighten_slack(rng: Rng, victim: Victim) -> Mutant | None:
    return changed(rng, victim, "layers.slack", lambda old: float(rng.choice([-1.0, 0.0])))


# Domains.


@mutation
def ask_for_more(rng: Rng, victim: Victim) -> Mutant | None:
    lo, hi = victim.arrays["domain.lo"].copy(), victim.arrays["domain.hi"].copy()
    at = rng.integers(lo.size)
    by = float(rng.choice([1e-12, 1e-3, 1.0, 1e9]))
    if rng.random() < 0.5:
        lo[at] -= by
    else:
        hi[at] += by
    rows = victim.arrays["domain.rows"]
    ends = (
        (rows, victim.arrays["domain.lower"], victim.arrays["domain.upper"]) if len(rows) else (None, (), ())
    )
    return Mutant(victim.model, victim.out, victim.certificate, Asked(lo, hi, *ends))


@mutation
def ask_without_constraints(rng: Rng, victim: Victim) -> Mutant | None:
    if not len(victim.arrays["domain.rows"]):
        return None
    lo, hi = victim.arrays["domain.lo"], victim.arrays["domain.hi"]
    return Mutant(victim.model, victim.out, victim.certificate, Asked(lo, hi))


@mutation
def shrink_certified(rng: Rng, victim: Victim) -> Mutant | None:
    """A certificate for less than what is asked for."""
    mutant = changed(
        rng, victim, str(rng.choice(["domain.lo", "domain.hi"])), lambda old: 0.5 + (old - 0.5) * rng.random()
    )
    assert mutant is not None
    mutant.asked = Asked(victim.arrays["domain.lo"], victim.arrays["domain.hi"])
    return mutant


@mutation
def enlarge_certified(rng: Rng, victim: Victim) -> Mutant | None:
    by = float(rng.choice([1e-6, 0.1, 1.0, 10.0, 1e6]))
    name = str(rng.choice(["domain.lo", "domain.hi"]))
    return changed(rng, victim, name, lambda old: old - by if name.endswith("lo") else old + by)


@mutation
def move_normalisation(rng: Rng, victim: Victim) -> Mutant | None:
    def change(_: Any, arrays: dict[str, np.ndarray]) -> None:
        size = arrays["domain.lo"].size
        arrays["domain.mean"], arrays["domain.std"] = np.full(size, 0.25), np.full(size, 0.5)

    mutant = rewritten(victim, change)
    mutant.asked = Asked(victim.arrays["domain.lo"], victim.arrays["domain.hi"])
    return mutant


@mutation
def ask_for_a_smaller_bound(rng: Rng, victim: Victim) -> Mutant | None:
    bound = max(victim.arrays[k].max(initial=0.0) for k in victim.arrays if k.endswith(".bound"))
    return Mutant(
        victim.model, victim.out, victim.certificate, tolerance=float(bound * rng.choice([0.0, 0.5, 0.99]))
    )


# Models.


def with_weight(rng: Rng, content: bytes, how: Callable[[np.ndarray, int], None]) -> bytes | None:
    """The model with one stored number changed."""
    proto = onnx.ModelProto.FromString(content)
    tensors = [
        t for t in proto.graph.initializer if t.data_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
    ]
    if not tensors:
        return None
    tensor = tensors[int(rng.integers(len(tensors)))]
    array = numpy_helper.to_array(tensor).copy()
    if not array.size:
        return None
    how(array.reshape(-1), int(rng.integers(array.size)))
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return bytes(proto.SerializeToString())


def an_ulp(array: np.ndarray, at: int) -> None:
    array[at] = np.nextafter(array[at], array.dtype.type(9e9))


def adding(by: float) -> Callable[[np.ndarray, int], None]:
    def how(array: np.ndarray, at: int) -> None:
        array[at] += by

    return how


def _model(rng: Rng, victim: Victim, key: str, how: Any, *, honest: bool = True) -> Mutant | None:
    content = with_weight(rng, victim.model if key == "model" else victim.out, how)
    if content is None:
        return None
    mutant = rewritten(victim, lambda d, _: d[key].update(sha256=sha256(content)) if honest else None)
    setattr(mutant, key, content)
    return mutant


@mutation
def ulp_of_out(rng: Rng, victim: Victim) -> Mutant | None:
    return _model(rng, victim, "out", an_ulp)


@mutation
def ulp_of_model(rng: Rng, victim: Victim) -> Mutant | None:
    return _model(rng, victim, "model", an_ulp)


@mutation
def move_weight_of_out(rng: Rng, victim: Victim) -> Mutant | None:
    return _model(rng, victim, "out", adding(float(rng.choice([1e-3, -1e-3, 0.1, -1.0, 1e20]))))


@mutation
def move_weight_of_model(rng: Rng, victim: Victim) -> Mutant | None:
    return _model(rng, victim, "model", adding(float(rng.choice([1e-3, -1e-3, 0.1, -1.0, 1e20]))))


@mutation
def weight_that_is_none(rng: Rng, victim: Victim) -> Mutant | None:
    return _model(rng, victim, str(rng.choice(["model", "out"])), adding(float(rng.choice([np.nan, np.inf]))))


@mutation
def another_file(rng: Rng, victim: Victim) -> Mutant | None:
    """A weight moved, and the hash of the old file kept."""
    return _model(rng, victim, str(rng.choice(["model", "out"])), an_ulp, honest=False)


@mutation
def damaged_model(rng: Rng, victim: Victim) -> Mutant | None:
    content = bytearray(victim.out)
    for _ in range(int(rng.integers(1, 4))):
        content[int(rng.integers(len(content)))] = int(rng.integers(256))
    made = bytes(content[: len(content) - int(rng.integers(0, 40))])
    mutant = rewritten(victim, lambda d, _: d["out"].update(sha256=sha256(made)))
    mutant.out = made
    return mutant


# Files.


@mutation
def truncate(rng: Rng, victim: Victim) -> Mutant | None:
    kept = int(rng.integers(len(victim.certificate)))
    return Mutant(victim.model, victim.out, victim.certificate[:kept])


@mutation
def flip_bytes(rng: Rng, victim: Victim) -> Mutant | None:
    content = bytearray(victim.certificate)
    for _ in range(int(rng.integers(1, 5))):
        content[int(rng.integers(len(content)))] ^= int(rng.integers(1, 256))
    return Mutant(victim.model, victim.out, bytes(content))


@mutation
def wrong_hash_of_array(rng: Rng, victim: Victim) -> Mutant | None:
    parts = entries(victim.certificate)
    names = [name for name in parts if name.endswith(".bin") and parts[name]]
    name = str(rng.choice(names))
    content = bytearray(parts[name])
    content[int(rng.integers(len(content)))] ^= 1
    return Mutant(victim.model, victim.out, packed({**parts, name: bytes(content)}))


@mutation
def strange_entry(rng: Rng, victim: Victim) -> Mutant | None:
    """Entries that are there twice, not listed, outside, links, or much larger than they look."""
    target = io.BytesIO(victim.certificate)
    names = [*entries(victim.certificate), "extra", "../up", "/etc/passwd", "arrays/../../x.bin", "a\\b", ""]
    info = zipfile.ZipInfo(str(rng.choice(names)))
    info.external_attr = int(rng.choice([0, 0o120777 << 16, 0o40755 << 16]))
    content = b"\0" * int(rng.choice([0, 8, 2**22]))
    with warnings.catch_warnings(), zipfile.ZipFile(target, "a", zipfile.ZIP_DEFLATED) as archive:
        warnings.simplefilter("ignore")
        archive.writestr(info, content, zipfile.ZIP_DEFLATED)
    return Mutant(victim.model, victim.out, target.getvalue())


@mutation
def strange_listing(rng: Rng, victim: Victim) -> Mutant | None:
    """Types, shapes and names of arrays that are not those of the entries."""
    parts = entries(victim.certificate)
    document = copy.deepcopy(victim.document)
    said = document["arrays"][str(rng.choice(sorted(document["arrays"])))]
    key = str(rng.choice(["dtype", "shape", "sha256"]))
    shapes = [[2**40], [2**31 - 1] * 2, [-1], [0], [], [1] * 40, None, "x", [1.5], [True]]
    types = ["float64", "int32", "uint8", "float16", "object", "O", None, 7, "<f8"]
    options: list[Any] = {"dtype": types, "shape": shapes, "sha256": ["", None, "0" * 64]}[key]
    said[key] = options[int(rng.integers(len(options)))]
    return Mutant(
        victim.model, victim.out, packed({**parts, "certificate.json": json.dumps(document).encode()})
    )


@mutation
def strange_document(rng: Rng, victim: Victim) -> Mutant | None:
    """Any place of the document made something else."""
    parts = entries(victim.certificate)
    document = copy.deepcopy(victim.document)
    at: Any = document
    while True:
        keys = sorted(at) if isinstance(at, dict) else list(range(len(at)))
        key = keys[int(rng.integers(len(keys)))]
        if not isinstance(at[key], dict | list) or not at[key] or rng.random() < 0.3:
            break
        at = at[key]
    strange: list[Any] = [
        None,
        True,
        0,
        -1,
        1,
        2.5,
        10**30,
        "",
        "x",
        [],
        {},
        [[]],
        "domain.lo",
        "domain.rows",
    ]
    at[key] = strange[int(rng.integers(len(strange)))]
    text = json.dumps(document)
    if rng.random() < 0.1:
        deep = int(rng.choice([10, 10**5]))
        text = text[:-1] + ', "deep": ' + "[" * deep + "]" * deep + "}"
    if rng.random() < 0.05:
        text = text.replace("0", str(rng.choice(["NaN", "Infinity", "1e999", "9" * 5000])), 1)
    return Mutant(victim.model, victim.out, packed({**parts, "certificate.json": text.encode()}))
