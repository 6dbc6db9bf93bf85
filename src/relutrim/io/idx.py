"""IDX files, the format of MNIST and Fashion-MNIST, packed (``.gz``) or not.

Two zero bytes, the type of the entries, the number of axes, the length of each axis (four bytes, the largest
first), the entries. Of the types only unsigned bytes occur in these data sets, and only those are read.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

from relutrim.errors import InputError
from relutrim.io.files import read_bytes, replacing

_BYTES = 0x08
_AGAIN = "the file is damaged or another one; get it anew"


def read_idx(path: Path, axes: int) -> npt.NDArray[np.uint8]:
    """The array in a file that must have ``axes`` axes."""
    content = read_bytes(path)
    header = 4 + 4 * axes
    if len(content) < header or content[:2] != b"\0\0":
        raise InputError(
            f"this is no IDX file (it begins with {content[:4].hex() or 'nothing'}); {_AGAIN}",
            where=str(path),
        )
    if content[2] != _BYTES or content[3] != axes:
        raise InputError(
            f"it holds entries of type {content[2]:#04x} along {content[3]} axes; bytes (0x08) along {axes} "
            "are expected; are images and labels swapped?",
            where=str(path),
        )
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, header, 4))
    if len(content) - header != math.prod(shape):
        raise InputError(
            f"it says that it holds {math.prod(shape)} bytes ({' x '.join(map(str, shape))}) and holds "
            f"{len(content) - header}; {_AGAIN}",
            where=str(path),
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def write_idx(path: Path, array: npt.NDArray[np.uint8]) -> None:
    """Write bytes as an IDX file, packed if the name ends in ``.gz``."""
    import gzip

    head = bytes([0, 0, _BYTES, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    content = head + array.astype(np.uint8).tobytes()
    with replacing(path) as aside:
        aside.write_bytes(gzip.compress(content, 1, mtime=0) if path.suffix == ".gz" else content)
