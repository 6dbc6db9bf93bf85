"""The zip archive behind ``.pt2``: JSON and raw weights. Nothing else in it is opened."""

from __future__ import annotations

import json
import math
import zipfile
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from relutrim.errors import InputError, UnsupportedError
from relutrim.formats.files import LARGEST_FILE

SCALAR_TYPES = {
    1: "uint8",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "float16",
    7: "float32",
    8: "float64",
    12: "bool",
    13: "bfloat16",
}
"""Numbers that the format uses for dtypes; the rest are rarities that no network here can hold."""


class Archive:
    """An open archive. Tensors are asked for by the names that the program's signature gives them."""

    def __init__(self, path: Path) -> None:
        try:
            self._zip = zipfile.ZipFile(path)
        except FileNotFoundError:
            raise InputError("there is no such file") from None
        except (OSError, zipfile.BadZipFile) as error:
            raise InputError(f"this is not a .pt2 archive ({error})") from None
        try:
            if sum(entry.file_size for entry in self._zip.infolist()) > LARGEST_FILE:
                raise InputError(f"it unpacks to more than {LARGEST_FILE} bytes")
            self._root = self._find_root()
            if self._bytes("byteorder") != b"little":
                raise UnsupportedError("its numbers are not little-endian; save it on an ordinary machine")
            self._weights = self._config("weights") | self._config("constants")
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
        found: dict[str, Any] = json.loads(self._bytes("models/model.json"))
        return found

    def dtype(self, name: str) -> str:
        """Dtype of a tensor."""
        return SCALAR_TYPES.get(self._entry(name)[1]["tensor_meta"]["dtype"], "unknown")

    def tensor(self, name: str) -> npt.NDArray[Any]:
        """The numbers of a tensor, a view into the file's raw bytes."""
        folder, entry = self._entry(name)
        meta = entry["tensor_meta"]
        shape, strides = (tuple(_whole(size) for size in meta[key]) for key in ("sizes", "strides"))
        offset = _whole(meta["storage_offset"])
        raw = np.frombuffer(self._bytes(f"data/{folder}/{entry['path_name']}"), np.dtype(self.dtype(name)))
        if math.prod(shape) == 0:
            return np.zeros(shape, raw.dtype)
        last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        if min(*shape, *strides, offset, 1) < 0 or last >= raw.size or math.prod(shape) > raw.size:
            raise InputError(
                f"the tensor {name!r} reaches beyond the bytes stored for it; the file is damaged"
            )
        steps = tuple(stride * raw.itemsize for stride in strides)
        return np.lib.stride_tricks.as_strided(raw[offset:], shape, steps, writeable=False).copy()

    def _find_root(self) -> str:
        names = self._zip.namelist()
        found = [
            name.removesuffix("models/model.json") for name in names if name.endswith("/models/model.json")
        ]
        if len(found) != 1:
            old = any(name.endswith("serialized_exported_program.json") for name in names)
            reason = "it was written by an older torch" if old else "it holds no program called 'model'"
            raise UnsupportedError(f"{reason}; save it again with torch.export.save of torch 2.9 or later")
        return found[0]

    def _config(self, folder: str) -> dict[str, tuple[str, dict[str, Any]]]:
        path = f"data/{folder}/model_{folder}_config.json"
        if self._root + path not in self._zip.namelist():
            raise UnsupportedError(
                f"it has no {path}; its {folder} are stored in a way that only unpickling can read. Save it "
                "again with torch.export.save of torch 2.9 or later"
            )
        config = json.loads(self._bytes(path))["config"]
        return {name: (folder, entry) for name, entry in config.items()}

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

    def _bytes(self, path: str) -> bytes:
        try:
            return self._zip.read(self._root + path)
        except (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError) as error:
            raise InputError(f"{path} in the archive cannot be read ({error})") from None


def _whole(size: dict[str, Any]) -> int:
    value = size["as_int"]
    if not isinstance(value, int):
        raise InputError(f"a size of {value!r}; the file is damaged")
    return value
