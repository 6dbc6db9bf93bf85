"""MNIST's images and labels, where they lie beside the networks."""

from __future__ import annotations

import gzip
from functools import cache

import numpy as np
import numpy.typing as npt

from benchmarks.results import shared


@cache
def images(part: str) -> npt.NDArray[np.float32] | None:
    """The images of ``train`` or ``t10k``, (rows, 784) in [0, 1]; None where they are not there."""
    raw = _content(f"{part}-images-idx3-ubyte")
    return None if raw is None else np.frombuffer(raw, np.uint8, offset=16).reshape(-1, 784) / np.float32(255)


@cache
def labels(part: str) -> npt.NDArray[np.int64] | None:
    """The digits of ``train`` or ``t10k``."""
    raw = _content(f"{part}-labels-idx1-ubyte")
    return None if raw is None else np.frombuffer(raw, np.uint8, offset=8).astype(np.int64)


def _content(name: str) -> bytes | None:
    for path in sorted(shared().joinpath("data", "mnist").glob(f"{name}*")):
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return None
