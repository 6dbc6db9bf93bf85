"""Reading a certificate file that may be hostile: a zip of one JSON document and raw arrays.

Sizes are bounded before anything is unpacked, and again while it is. Every entry must be listed in the
document, with its type, shape and hash; nothing is written, followed or executed.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import zipfile
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from relutrim.errors import CheckFailed, InputError, RelutrimError

SCHEMA = "relutrim/certificate/2"
_BEFORE = "relutrim/certificate/1"
DOCUMENT = "certificate.json"
DTYPES = {"float64": "<f8", "int32": "<i4", "uint8": "|u1"}
MOST_ENTRIES = 4096
MOST_BYTES = 2**29
"""What all entries may unpack to."""
MOST_JSON = 2**22
"""What the document may unpack to: 24 times as much memory, at worst. Numbers are in the arrays."""
MODELS = {"model": "model.onnx", "out": "out.onnx"}
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Archive:
    """The document, the arrays by name, and the models that lie inside."""

    document: dict[str, Any]
    arrays: dict[str, np.ndarray[Any, Any]]
    models: dict[str, bytes]

    def array(
        self, name: str, dtype: str, shape: tuple[int, ...], *, infinite: bool = False
    ) -> np.ndarray[Any, Any]:
        """An array that must have this type and this shape (-1: any length), of finite numbers."""
        found = self.arrays.get(name)
        if found is None:
            raise InputError(f"the certificate has no array {name!r}")
        fits = len(shape) == found.ndim and all(a in (-1, b) for a, b in zip(shape, found.shape, strict=True))
        if found.dtype != np.dtype(DTYPES[dtype]) or not fits:
            raise InputError(f"the array {name!r} is {found.dtype} {found.shape}, not {dtype} {shape}")
        if found.dtype.kind == "f" and not (np.isfinite(found) | (infinite & np.isinf(found))).all():
            raise InputError(f"the array {name!r} holds numbers that are not finite")
        return found


def need(entry: Any, key: str, kind: type[T]) -> T:
    """A member of a JSON object, of a type."""
    found = entry.get(key) if isinstance(entry, dict) else None
    if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
        raise InputError(f"the certificate's {key!r} is missing or is no {kind.__name__}")
    return found


def sha256(content: bytes | bytearray) -> str:
    """The hash of a file."""
    return hashlib.sha256(content).hexdigest()


def open_archive(content: bytes) -> Archive:
    """The certificate in a file, if it is whole and what it says it is."""
    # The list of entries is read as a whole, so it is looked at how often one begins.
    if content.count(b"PK\1\2") > 2 * MOST_ENTRIES:
        raise InputError(f"it has more than {MOST_ENTRIES} entries")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return _read(archive)
    except RelutrimError:
        raise
    except Exception as error:  # of zip, of JSON, of numpy: whatever it is, the file is not what it should be
        raise InputError(f"this is not a whole certificate ({type(error).__name__}: {error})") from None


def unique(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The entries by their names, none of which may be there twice: readers take either."""
    entries = archive.infolist()
    found = {entry.filename.casefold(): entry for entry in entries if "\0" not in entry.orig_filename}
    if len(found) != len(entries):
        raise InputError(f"it has {len(entries)} entries, some of them twice")
    return {entry.filename: entry for entry in entries}


def _read(archive: zipfile.ZipFile) -> Archive:
    entries = unique(archive)
    count = len(entries)
    if count > MOST_ENTRIES or DOCUMENT not in entries:
        raise InputError(f"it has {count} entries, or no {DOCUMENT}")
    if any(one.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for one in entries.values()):
        raise InputError("it is packed in a way that certificates are not")
    sizes = {name: entry.file_size for name, entry in entries.items()}
    if sum(sizes.values()) > MOST_BYTES or sizes[DOCUMENT] > MOST_JSON:
        raise InputError(f"it unpacks to more than {MOST_BYTES} bytes, or {MOST_JSON} of JSON")

    def content(name: str) -> bytearray:
        found = bytearray()  # in pieces: as a whole it would be in memory twice
        with archive.open(entries[name]) as file:
            while len(found) <= sizes[name] and (piece := file.read(2**20)):
                found += piece
        if len(found) != sizes[name]:
            raise InputError(f"{name!r} is not {sizes[name]} bytes")
        return found

    document = json.loads(
        content(DOCUMENT).decode("utf-8"), parse_constant=_refuse, object_pairs_hook=_members
    )
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        if isinstance(document, dict) and document.get("schema") == _BEFORE:
            raise InputError(
                f"this is a certificate of the kind {_BEFORE}, whose proofs may rest on linear programs, "
                f"which are no longer checked; run compress again for one of the kind {SCHEMA}"
            )
        raise InputError(f"this is no certificate of the kind {SCHEMA}")
    listed = need(document, "arrays", dict)
    models = {MODELS[key] for key in MODELS if need(need(document, key, dict), "embedded", bool)}
    strange = set(entries) ^ {DOCUMENT, *models, *(f"arrays/{name}.bin" for name in listed)}
    if strange:
        raise InputError(f"entries and document disagree about {sorted(strange)[:3]}")
    arrays = {name: _array(content(f"arrays/{name}.bin"), name, said) for name, said in listed.items()}
    return Archive(document, arrays, {name: bytes(content(name)) for name in models})


def _array(content: bytearray, name: str, said: Any) -> np.ndarray[Any, Any]:
    dtype, shape = need(said, "dtype", str), need(said, "shape", list)
    if dtype not in DTYPES or len(shape) > 4 or not all(type(n) is int and 0 <= n < 2**31 for n in shape):
        raise InputError(f"the array {name!r} cannot be {dtype} of shape {shape}")
    kind = np.dtype(DTYPES[dtype])
    if math.prod(shape) * kind.itemsize != len(content):
        raise InputError(f"the array {name!r} of shape {shape} is stored in {len(content)} bytes")
    if sha256(content) != said.get("sha256"):
        raise CheckFailed(f"the array {name!r} is not the one that was written: its hash differs")
    found = np.frombuffer(content, kind).reshape(shape)
    found.flags.writeable = False
    return found


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise InputError("an object of the certificate's document has a member twice")
    return dict(pairs)


def _refuse(word: str) -> Any:
    raise InputError(f"the certificate's document holds {word}")
