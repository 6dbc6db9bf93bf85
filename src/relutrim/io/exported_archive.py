"""The zip archive behind ``.pt2``: JSON and raw weights. Nothing else in it is opened."""

from __future__ import annotations

import copy
import io
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from relutrim.errors import InputError, UnsupportedError
from relutrim.io.archives import open_zip, parsed
from relutrim.io.files import LARGEST_FILE

SCALAR_TYPES = {
    1: "uint8",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "float16",
    7: "float32",
    8: "float64",
    10: "complex64",
    11: "complex128",
    12: "bool",
    13: "bfloat16",
}
"""Numbers that the format uses for dtypes; the rest are rarities that no network here can hold."""

_BYTES_OF = {"bfloat16": "V2"}
"""What numpy has no numbers of is read as bytes, with which nothing computes."""

PROGRAM = "models/model.json"
REMARKS = "extra/"
_ALIGNED = 64
"""Contents begin at multiples of it, as torch has them, so that they can be mapped into memory."""


class Archive:
    """An open archive. Tensors are asked for by the names that the program's signature gives them."""

    def __init__(self, source: Path | BinaryIO) -> None:
        try:
            self._zip = open_zip(source)
        except FileNotFoundError:
            raise InputError("there is no such file") from None
        except (OSError, zipfile.BadZipFile) as error:
            raise InputError(f"this is not a .pt2 archive ({error})") from None
        try:
            if sum(entry.file_size for entry in self._zip.infolist()) > LARGEST_FILE:
                raise InputError(f"it unpacks to more than {LARGEST_FILE} bytes")
            self._root = self._find_root()
            if self.content("byteorder") != b"little":
                raise UnsupportedError("its numbers are not little-endian; save it on an ordinary machine")
            self._weights = {
                name: (folder, entry)
                for folder in ("weights", "constants")
                for name, entry in self.table(folder)["config"].items()
            }
        except BaseException:
            self._zip.close()
            raise

    def __enter__(self) -> Archive:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._zip.close()

    def program(self) -> dict[str, Any]:
        """The graph and its signature."""
        found: dict[str, Any] = parsed(self.content(PROGRAM))
        return found

    def table(self, folder: str) -> dict[str, Any]:
        """What the archive says of its ``weights`` or its ``constants``."""
        path = table_path(folder)
        if self._root + path not in self._zip.namelist():
            raise UnsupportedError(
                f"it has no {path}; its {folder} are stored in a way that only unpickling can read. Save it "
                "again with torch.export.save of torch 2.9 or later"
            )
        found: dict[str, Any] = parsed(self.content(path))
        return found

    def dtype(self, name: str) -> str:
        """Dtype of a tensor."""
        return SCALAR_TYPES.get(self._entry(name)[1]["tensor_meta"]["dtype"], "unknown")

    def home(self, name: str) -> str:
        """Where in the archive the bytes of a tensor are: views of one memory share them."""
        folder, entry = self._entry(name)
        return f"data/{folder}/{entry['path_name']}"

    def tensor(self, name: str) -> npt.NDArray[Any]:
        """The numbers of a tensor, a view into the file's raw bytes."""
        meta = self._entry(name)[1]["tensor_meta"]
        shape, strides = (tuple(_whole(size) for size in meta[key]) for key in ("sizes", "strides"))
        offset = _whole(meta["storage_offset"])
        dtype = self.dtype(name)
        raw = np.frombuffer(self.content(self.home(name)), np.dtype(_BYTES_OF.get(dtype, dtype)))
        if math.prod(shape) == 0:
            return np.zeros(shape, raw.dtype)
        last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        if min(*shape, *strides, offset, 1) < 0 or last >= raw.size or math.prod(shape) > raw.size:
            raise InputError(
                f"the tensor {name!r} reaches beyond the bytes stored for it; the file is damaged"
            )
        steps = tuple(stride * raw.itemsize for stride in strides)
        return np.lib.stride_tricks.as_strided(raw[offset:], shape, steps, writeable=False).copy()

    @property
    def size(self) -> int:
        """How many bytes the parts of the archive take, as they are packed."""
        return sum(entry.compress_size for entry in self._zip.infolist())

    def remarks(self) -> dict[str, str]:
        """What relutrim has said of the program, in files that torch calls extra."""
        start = f"{self._root}{REMARKS}relutrim."
        names = [name for name in self._zip.namelist() if name.startswith(start)]
        return {name.removeprefix(self._root + REMARKS): self._read(name).decode() for name in names}

    def edited(self, parts: Mapping[str, bytes | None]) -> bytes:
        """The archive with these parts as they are here, None for one that goes; all others are the same."""
        paths = {self._root + path: content for path, content in parts.items()}
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w") as target:
            for old in self._zip.infolist():
                content = paths.pop(old.filename) if old.filename in paths else self._read(old.filename)
                if content is not None:
                    _add(target, made, old, content)
            for path, content in paths.items():
                if content is not None:
                    _add(target, made, zipfile.ZipInfo(path), content)
        return made.getvalue()

    def _find_root(self) -> str:
        names = self._zip.namelist()
        found = [name.removesuffix(PROGRAM) for name in names if name.endswith(f"/{PROGRAM}")]
        if len(found) != 1:
            old = any(name.endswith("serialized_exported_program.json") for name in names)
            reason = "it was written by an older torch" if old else "it holds no program called 'model'"
            raise UnsupportedError(f"{reason}; save it again with torch.export.save of torch 2.9 or later")
        return found[0]

    def _entry(self, name: str) -> tuple[str, dict[str, Any]]:
        if name not in self._weights:
            raise InputError(f"the tensor {name!r} is not stored in the file")
        folder, entry = self._weights[name]
        if entry["use_pickle"]:
            raise UnsupportedError(
                f"the tensor {name!r} is stored as a pickle, which could run code when loaded; turn it into "
                "an ordinary tensor before the export"
            )
        return folder, entry

    def content(self, path: str) -> bytes:
        """What a file in the archive holds."""
        return self._read(self._root + path)

    def _read(self, name: str) -> bytes:
        try:
            return self._zip.read(name)
        except (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError) as error:
            raise InputError(f"{name} in the archive cannot be read ({error})") from None


def table_path(folder: str) -> str:
    """Where the archive says what its ``weights`` or its ``constants`` are."""
    return f"data/{folder}/model_{folder}_config.json"


def _add(target: zipfile.ZipFile, file: BinaryIO, entry: zipfile.ZipInfo, content: bytes) -> None:
    """Add an entry like another one, aligned by a field in front of its content that says nothing."""
    entry = copy.copy(entry)
    start = file.tell() + 30 + len(entry.filename.encode()) + 4
    padding = -start % _ALIGNED
    entry.extra = b"FB" + padding.to_bytes(2, "little") + b"Z" * padding
    target.writestr(entry, content, entry.compress_type)


def _whole(size: dict[str, Any]) -> int:
    value = size["as_int"]
    if not isinstance(value, int):
        raise InputError(f"a size of {value!r}; the file is damaged")
    return value
