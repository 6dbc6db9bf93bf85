"""CIFAR-10 and CIFAR-100 in their binary version: a record is the labels, one byte each, and 3072 pixels.

CIFAR-10 has one label; CIFAR-100 has two, of which the second (the fine one) is meant here.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from relutrim.errors import InputError
from relutrim.io.files import read_bytes, replacing

SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32

Part = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]


def read_records(path: Path, labels: int) -> Part:
    """Images and (the last) labels of one file with ``labels`` label bytes a record."""
    content = read_bytes(path)
    size = labels + _PIXELS
    if not content or len(content) % size:
        raise InputError(
            f"{len(content)} bytes are no whole number of records of {size}; the file is damaged, or it is "
            "not the binary version; get it anew",
            where=str(path),
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    return records[:, labels:].reshape(-1, *SHAPE), records[:, labels - 1].astype(np.int64)


def write_records(path: Path, x: npt.NDArray[np.uint8], y: npt.NDArray[np.int64], labels: int) -> None:
    """Write images as such a file; a coarse label, where the format has one, is 0."""
    records = np.zeros((len(x), labels + _PIXELS), np.uint8)
    records[:, labels - 1] = y
    records[:, labels:] = x.reshape(len(x), -1)
    with replacing(path) as aside:
        aside.write_bytes(records.tobytes())
