"""CIFAR's "python version", which is pickled, read without running anything that a pickle asks for.

A pickle is a program: it names functions and calls them. These batches need three names of numpy's, and all
three are answered here with stand-ins that only remember what they are given; whatever else a file names is
refused. The unpickler is the one written in Python: the other can be made to reserve memory at will by a few
bytes.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from relutrim.errors import InputError
from relutrim.io.files import read_bytes
from relutrim.paper.cifar import SHAPE, Part

_WAY_OUT = (
    "get the file anew, or the binary version (cifar-10-binary, cifar-100-binary), which holds no pickle"
)


class _Kind:
    """Stands in for ``numpy.ndarray`` as an argument, and for ``numpy.dtype`` as a thing."""

    __slots__ = ("code",)

    def __init__(self, code: Any = None, *_: Any) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        """Byte order and the like, which bytes do not have."""


class _Bytes:
    """Stands in for the array that ``_reconstruct`` makes."""

    __slots__ = ("shape", "values")

    def __init__(self, *_: Any) -> None:
        self.values = b""
        self.shape: tuple[Any, ...] = ()

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, values = state
        if not (isinstance(kind, _Kind) and kind.code in ("u1", b"u1", "|u1", b"|u1")):
            raise pickle.UnpicklingError("it holds an array of something else than bytes")
        if fortran or not isinstance(values, bytes):
            raise pickle.UnpicklingError("it holds an array that is laid out in another way")
        self.values, self.shape = values, tuple(shape)


_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _Bytes,
    ("numpy._core.multiarray", "_reconstruct"): _Bytes,
    ("numpy", "ndarray"): _Kind("ndarray"),
    ("numpy", "dtype"): _Kind,
}


class _Reader(pickle._Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _STAND_INS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no data set needs")
        return _STAND_INS[module, name]


def read_pickled(path: Path, labels: str) -> Part:
    """Images and labels of one batch; ``labels`` is the key of the labels in it."""
    content = read_bytes(path)
    try:
        batch = _Reader(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a program that is not well formed can fail in any way
        reason = str(error) if isinstance(error, pickle.UnpicklingError) else type(error).__name__
        raise InputError(f"the batch cannot be read ({reason}); {_WAY_OUT}", where=str(path)) from None
    found = batch if isinstance(batch, dict) else {}
    x, y = (found.get(key.encode(), found.get(key)) for key in ("data", labels))
    if not isinstance(x, _Bytes) or not isinstance(y, list):
        raise InputError(f"it holds no 'data' and {labels!r} as CIFAR has them; {_WAY_OUT}", where=str(path))
    rows, pixels = len(y), SHAPE[0] * SHAPE[1] * SHAPE[2]
    fits = x.shape == (rows, pixels) and len(x.values) == rows * pixels
    if not fits or not all(type(label) is int and 0 <= label < 256 for label in y):
        raise InputError(
            f"{rows} labels and {len(x.values)} bytes of shape {x.shape} do not belong together; {_WAY_OUT}",
            where=str(path),
        )
    return np.frombuffer(x.values, np.uint8).reshape(rows, *SHAPE), np.array(y, np.int64)
