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
import zlib
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from relutrim.errors import CheckFailed, InputError

SCHEMA = "relutrim/certificate/1"
DOCUMENT = "certificate.json"
DTYPES = {"float64": "<f8", "int32": "<i4", "uint8": "|u1"}
MOST_ENTRIES = 4096
MOST_BYTES = 2**29
"""What all entries may unpack to."""
MOST_JSON = 2**26
MODELS = {"model": "model.onnx", "out": "out.onnx"}
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Archive:
    """The document, the arrays by name, and the models that lie inside."""

    document: dict[str, Any]
    arrays: dict[str, np.ndarray[Any, Any]]
    models: dict[str, bytes]

    def array(
        self, name: Any, dtype: str, shape: tuple[int, ...], *, infinite: bool = False
    ) -> np.ndarray[Any, Any]:
        """An array that must have this type and this shape (-1: any length), of finite numbers."""
        found = self.arrays.get(name) if isinstance(name, str) else None
        if found is None:
            raise InputError(f"the certificate has no array {name!r}")
        fits = len(shape) == found.ndim and all(a in (-1, b) for a, b in zip(shape, found.shape, strict=True))
        if found.dtype != np.dtype(DTYPES[dtype]) or not fits:
            raise InputError(f"the array {name!r} is {found.dtype} {found.shape}, not {dtype} {shape}")
        if not infinite and found.dtype.kind == "f" and not np.isfinite(found).all():
            raise InputError(f"the array {name!r} holds numbers that are not finite")
        return found.astype(np.int64) if dtype == "int32" else found


def need(entry: Any, key: str, kind: type[T]) -> T:
    """A member of a JSON object, of a type."""
    found = entry.get(key) if isinstance(entry, dict) else None
    if kind is float and isinstance(found, int) and not isinstance(found, bool):
        found = float(found)
    if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
        raise InputError(f"the certificate's {key!r} is missing or is no {kind.__name__}")
    return found


def sha256(content: bytes) -> str:
    """The hash of a file."""
    return hashlib.sha256(content).hexdigest()


def open_archive(content: bytes) -> Archive:
    """The certificate in a file, if it is whole and what it says it is."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return _read(archive)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        if isinstance(error, RecursionError):
            raise InputError("the certificate's document is nested too deeply") from None
        raise InputError(f"this is not a whole certificate ({type(error).__name__}: {error})") from None
    except (ValueError, struct_error, UnicodeDecodeError, OverflowError, MemoryError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the certificate cannot be read ({error})") from None


struct_error = __import__("struct").error


def _read(archive: zipfile.ZipFile) -> Archive:
    entries = archive.infolist()
    names = [entry.filename for entry in entries]
    if len(names) > MOST_ENTRIES or len(set(names)) != len(names) or DOCUMENT not in names:
        raise InputError(f"it has {len(names)} entries, some of them twice, or no {DOCUMENT}")
    if any(entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for entry in entries):
        raise InputError("it is packed in a way that certificates are not")
    if sum(entry.file_size for entry in entries) > MOST_BYTES:
        raise InputError(f"it unpacks to more than {MOST_BYTES} bytes")
    sizes = {entry.filename: entry for entry in entries}
    text = _bytes(archive, sizes[DOCUMENT], min(MOST_JSON, sizes[DOCUMENT].file_size))
    document = json.loads(text.decode("utf-8"), parse_constant=_refuse)
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise InputError(f"this is no certificate of the kind {SCHEMA}")
    listed = need(document, "arrays", dict)
    models = {MODELS[key] for key in MODELS if need(need(document, key, dict), "embedded", bool)}
    expected = {DOCUMENT, *models, *(f"arrays/{name}.bin" for name in listed)}
    if set(names) != expected:
        strange = sorted(set(names) ^ expected)[:3]
        raise InputError(f"entries and document disagree about {strange}")
    arrays = {
        name: _array(archive, sizes[f"arrays/{name}.bin"], name, entry) for name, entry in listed.items()
    }
    inside = {name: _bytes(archive, sizes[name], sizes[name].file_size) for name in models}
    return Archive(document, arrays, inside)


def _array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, name: str, said: Any) -> np.ndarray[Any, Any]:
    dtype, shape = need(said, "dtype", str), need(said, "shape", list)
    if dtype not in DTYPES or len(shape) > 4 or not all(type(n) is int and 0 <= n < 2**31 for n in shape):
        raise InputError(f"the array {name!r} cannot be {dtype} of shape {shape}")
    kind = np.dtype(DTYPES[dtype])
    if math.prod(shape) * kind.itemsize != entry.file_size:
        raise InputError(f"the array {name!r} of shape {shape} is stored in {entry.file_size} bytes")
    content = _bytes(archive, entry, entry.file_size)
    if sha256(content) != said.get("sha256"):
        raise CheckFailed(f"the array {name!r} is not the one that was written: its hash differs")
    found = np.frombuffer(content, kind).reshape(shape)
    # Ends of constraints may be infinite, nothing else; NaN nowhere.
    ends = name in ("domain.lower", "domain.upper")
    if kind.kind == "f" and not (np.isfinite(found).all() or (ends and not np.isnan(found).any())):
        raise InputError(f"the array {name!r} holds numbers that are not finite")
    return found


def _bytes(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, most: int) -> bytes:
    """An entry's content, of the size that is said and no more."""
    with archive.open(entry) as file:
        content = file.read(most + 1)
    if len(content) != entry.file_size or len(content) > most:
        raise InputError(f"{entry.filename!r} is not {entry.file_size} bytes, or too many")
    return content


def _refuse(word: str) -> Any:
    raise InputError(f"the certificate's document holds {word}")
