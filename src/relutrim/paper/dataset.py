"""A data set: training and test rows, checked once, so that nothing after it has to doubt them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from relutrim.errors import InputError

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows of pixels (``uint8``, which stand for 0 to 1 in steps of 1/255) or of plain numbers (``float32``).

    ``x_train`` and ``x_test`` have a row per example and behind it either one axis (features) or three
    (channels, height, width). ``classes`` is 0 where there are no labels; then only autoencoders can be
    trained.
    """

    name: str
    x_train: Array = field(repr=False)
    y_train: Array = field(repr=False)
    x_test: Array = field(repr=False)
    y_test: Array = field(repr=False)
    classes: int

    def __post_init__(self) -> None:
        if self.x_train.shape[1:] != self.x_test.shape[1:] or self.x_train.dtype != self.x_test.dtype:
            raise InputError(
                f"training rows of shape {self.x_train.shape[1:]} ({self.x_train.dtype}) and test rows of "
                f"shape {self.x_test.shape[1:]} ({self.x_test.dtype}) do not belong together"
            )
        if len(self.shape) not in (1, 3) or 0 in self.shape:
            raise InputError(
                f"a row has shape {self.shape}; it must be (features,) or (channels, height, width)"
            )
        for part, x, y in (("training", self.x_train, self.y_train), ("test", self.x_test, self.y_test)):
            self._check(part, x, y)

    def _check(self, part: str, x: Array, y: Array) -> None:
        if len(x) == 0:
            raise InputError(f"there are no {part} rows")
        if x.dtype != np.uint8 and x.dtype != np.float32:
            raise InputError(f"{part} rows are {x.dtype}; they must be uint8 or float32")
        if x.dtype == np.float32 and not np.isfinite(x).all():
            raise InputError(f"{part} rows hold NaN or infinity, from which nothing can be learnt")
        if y.shape != (len(x),) or y.dtype != np.int64:
            raise InputError(
                f"{len(x)} {part} rows have labels of shape {y.shape} ({y.dtype}); one whole number a row is "
                "needed"
            )
        if self.classes and not (y.min() >= 0 and y.max() < self.classes):
            raise InputError(
                f"{part} labels run from {y.min()} to {y.max()}; with {self.classes} classes they must lie "
                f"between 0 and {self.classes - 1}"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row."""
        return tuple(self.x_train.shape[1:])

    @property
    def pixels(self) -> bool:
        """Whether rows are pixels, which the networks see between 0 and 1."""
        return bool(self.x_train.dtype == np.uint8)

    @cached_property
    def range(self) -> tuple[float, float]:
        """Between which numbers all inputs lie that the networks see: 0 and 1 for pixels."""
        if self.pixels:
            return 0.0, 1.0
        both = (self.x_train, self.x_test)
        return float(min(x.min() for x in both)), float(max(x.max() for x in both))

    @cached_property
    def sha256(self) -> str:
        """Of everything in it; two data sets with the same one train the same networks."""
        digest = hashlib.sha256()
        for array in (self.x_train, self.y_train, self.x_test, self.y_test):
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    @cached_property
    def statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation of the training rows, per channel of images, to four decimals.

        That few, because they are also part of the domain (``--normalized-box``), which people write down.
        """
        rows = self.x_train.reshape(len(self.x_train), self.shape[0] if len(self.shape) == 3 else 1, -1)
        mean, std = [], []
        for channel in range(rows.shape[1]):
            values = rows[:, channel].astype(np.float64) / (255 if self.pixels else 1)
            mean.append(round(float(values.mean()), 4))
            std.append(round(float(values.std()), 4) or 1.0)
        return tuple(mean), tuple(std)

    def head(self, rows: int) -> Dataset:
        """The first ``rows`` training rows, and all test rows."""
        if rows < 1:
            raise InputError(f"{rows} training rows are too few")
        return replace(self, x_train=self.x_train[:rows], y_train=self.y_train[:rows])

    def describe(self) -> dict[str, Any]:
        """What a report says about it."""
        return {
            "name": self.name,
            "sha256": self.sha256,
            "shape": list(self.shape),
            "classes": self.classes,
            "train_rows": len(self.x_train),
            "test_rows": len(self.x_test),
            "range": list(self.range),
        }
