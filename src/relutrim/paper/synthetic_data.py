"""Made-up data of the form of the real sets: for tests, and to see a run through before the data is there.

Each class is a coarse random picture; a row is its class's picture, moved a little, dimmed and under noise.
That is easy to learn but not trivial, and a network must look at many pixels, as with the real sets.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from relutrim.errors import InputError
from relutrim.io.idx import write_idx
from relutrim.paper.cifar import write_records
from relutrim.paper.dataset import Array, Dataset

FORMS = {
    "mnist": ((1, 28, 28), 10),
    "fashion-mnist": ((1, 28, 28), 10),
    "cifar10": ((3, 32, 32), 10),
    "cifar100": ((3, 32, 32), 100),
}
_COARSE = 4


def synthetic(like: str = "mnist", *, train: int = 2000, test: int = 500, seed: int = 0) -> Dataset:
    """Rows of the form of ``like``, one of the paper's data sets; the same ones for the same seed."""
    if like not in FORMS:
        raise InputError(f"there is no form {like!r}; there are {', '.join(FORMS)}")
    shape, classes = FORMS[like]
    random = np.random.default_rng(seed)
    coarse = random.random((classes, shape[0], shape[1] // _COARSE, shape[2] // _COARSE)) ** 2
    pictures = coarse.repeat(_COARSE, axis=2).repeat(_COARSE, axis=3)

    def rows(count: int) -> tuple[Array, Array]:
        labels = random.integers(0, classes, count)
        light = random.uniform(0.5, 1.0, (count, 1, 1, 1))
        noise = random.normal(0, 0.25, (count, *shape))
        moves = random.integers(-2, 3, (count, 2))
        clean = np.stack(
            [np.roll(pictures[label], tuple(move), (1, 2)) for label, move in zip(labels, moves, strict=True)]
        )
        return (np.clip(clean * light + noise, 0, 1) * 255).astype(np.uint8), labels.astype(np.int64)

    return Dataset(f"synthetic-{like}", *rows(train), *rows(test), classes)


def write_files(dataset: Dataset, folder: Path, like: str) -> None:
    """Write a data set of the form of ``like`` as the standard files that the real one comes in."""
    parts = (("train", dataset.x_train, dataset.y_train), ("test", dataset.x_test, dataset.y_test))
    for part, x, y in parts:
        if like.endswith("mnist"):
            prefix = "t10k" if part == "test" else part
            write_idx(folder / f"{prefix}-images-idx3-ubyte.gz", x[:, 0])
            write_idx(folder / f"{prefix}-labels-idx1-ubyte.gz", y.astype(np.uint8))
        elif like == "cifar100":
            write_records(folder / f"{part}.bin", x, y, 2)
        elif part == "test":
            write_records(folder / "test_batch.bin", x, y, 1)
        else:
            for batch, some in enumerate(np.array_split(np.arange(len(x)), 5), 1):
                write_records(folder / f"data_batch_{batch}.bin", x[some], y[some], 1)
