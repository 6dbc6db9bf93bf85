"""Rows of a user's data, with labels where the file has some.

1. ``.npy``: one array of inputs, as they are.
2. ``.npz``: ``x`` and ``y``, ``inputs`` and ``labels``, or ``x_test`` and ``y_test``; the second may be
   missing.
3. IDX, the format of MNIST, by the ``ubyte`` in its name: images, with the labels of the file beside it, if
   there is one (``t10k-images-idx3-ubyte.gz`` and ``t10k-labels-idx1-ubyte.gz``).

Bytes in the last two are pixels, which networks see divided by 255, as in training.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relutrim.errors import InputError
from relutrim.io.arrays import array_names, read_array, read_arrays

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

NAMES = (("x", "y"), ("inputs", "labels"), ("x_test", "y_test"))


@dataclass(frozen=True, eq=False)
class Rows:
    """Inputs as the file holds them, and a class for each, if it says so. ``pixels`` are to be scaled."""

    path: Path
    stored: npt.NDArray[np.generic]
    labels: npt.NDArray[np.int64] | None
    pixels: bool

    def raw(self, highest: float) -> npt.NDArray[np.generic]:
        """In the raw units of a domain whose inputs reach up to ``highest``."""
        if not self.pixels:
            return self.stored
        if highest > 1:
            raise InputError(
                f"bytes are read as pixels between 0 and 1, and the domain reaches up to {highest:g}; save "
                "the inputs in its units, as float32, with numpy.save or numpy.savez",
                where=str(self.path),
            )
        import numpy as np

        return self.stored.astype(np.float32) / np.float32(255)


def read_rows(path: Path) -> Rows:
    """What a file holds; nothing in it is unpickled."""
    if is_idx(path):
        return _from_idx(path)
    if path.suffix.lower() == ".npz":
        return _from_archive(path)
    return Rows(path, read_array(path), None, pixels=False)


def is_idx(path: Path) -> bool:
    """Whether the name is one of an IDX file, packed or not."""
    return path.name.removesuffix(".gz").endswith("ubyte")


def labels_beside(path: Path) -> Path | None:
    """The file with the labels of an IDX file with images, if there is one."""
    if not is_idx(path) or "images" not in path.name:
        return None
    name = path.name.replace("images", "labels").replace("idx3", "idx1").removesuffix(".gz")
    found = (path.with_name(name + end) for end in ("", ".gz"))
    return next((one for one in found if one.is_file()), None)


def _from_idx(path: Path) -> Rows:
    from relutrim.io.idx import read_idx

    images, beside = read_idx(path, 3), labels_beside(path)
    labels = None if beside is None else _checked(read_idx(beside, 1), len(images), beside)
    return Rows(path, images, labels, pixels=True)


def _from_archive(path: Path) -> Rows:
    present = array_names(path)
    found = next((names for names in NAMES if names[0] in present), NAMES[0])
    wanted = found if found[1] in present else found[:1]
    arrays = read_arrays(path, wanted)
    labels = _checked(arrays[1], len(arrays[0]), path) if len(arrays) > 1 and arrays[0].ndim else None
    return Rows(path, arrays[0], labels, pixels=str(arrays[0].dtype) == "uint8")


def _checked(labels: npt.NDArray[Any], rows: int, path: Path) -> npt.NDArray[np.int64]:
    import numpy as np

    flat = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if flat.ndim != 1 or flat.dtype.kind not in "iub" or (flat.size and int(flat.min()) < 0):
        raise InputError(
            f"labels of shape {labels.shape} and type {labels.dtype}; whole numbers from 0 on are needed, "
            "one for each row",
            where=str(path),
        )
    if len(flat) != rows:
        raise InputError(f"{len(flat)} labels do not go with {rows} rows", where=str(path))
    return flat.astype(np.int64)
