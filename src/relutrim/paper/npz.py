"""Any data set of the user's, as a ``.npz`` archive with ``x_train``, ``y_train``, ``x_test``, ``y_test``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from relutrim.errors import InputError
from relutrim.io.arrays import array_names, read_arrays
from relutrim.paper.dataset import Dataset

_CHANNELS = (1, 3, 4)


def read_npz(path: Path) -> Dataset:
    """The data set in an archive; nothing in it is unpickled.

    Rows are ``(features,)``, ``(height, width)`` or ``(channels, height, width)``. ``uint8`` means pixels,
    which the networks see divided by 255; any other numbers are taken as they are, in float32. Without labels
    the data set is for autoencoders.
    """
    present = array_names(path)
    labelled = "y_train" in present or "y_test" in present
    x_train, x_test = (_rows(x, path) for x in read_arrays(path, ("x_train", "x_test")))
    if labelled:
        y_train, y_test = (_labels(y, path) for y in read_arrays(path, ("y_train", "y_test")))
        classes = 1 + int(max((y.max() for y in (y_train, y_test) if y.size), default=0))
    else:
        y_train, y_test = (np.zeros(len(x), np.int64) for x in (x_train, x_test))
        classes = 0
    try:
        return Dataset(_name(path), x_train, y_train, x_test, y_test, classes)
    except InputError as error:
        raise error.at(str(path)) from None


def _rows(x: npt.NDArray[Any], path: Path) -> npt.NDArray[Any]:
    if x.ndim == 4 and x.shape[3] in _CHANNELS and x.shape[1] not in _CHANNELS:
        raise InputError(
            f"rows of shape {x.shape[1:]} seem to have their channels last; transpose them to "
            "(channels, height, width)",
            where=str(path),
        )
    if x.dtype != np.uint8:
        with np.errstate(over="ignore"):  # what becomes infinite here is refused by the data set
            x = x.astype(np.float32)
    return x[:, None] if x.ndim == 3 else x


def _labels(y: npt.NDArray[Any], path: Path) -> npt.NDArray[np.int64]:
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    whole = y.astype(np.int64) if y.dtype.kind in "iub" else None
    if whole is None or (whole.size and (whole.min() < 0 or (y != whole).any())):
        raise InputError(
            f"labels are {y.dtype}; whole numbers from 0 on are needed, one for each class", where=str(path)
        )
    return whole


def _name(path: Path) -> str:
    """What the networks' files are called after."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "-.") else "-" for c in path.stem)
    return kept.strip("-.") or "data"
