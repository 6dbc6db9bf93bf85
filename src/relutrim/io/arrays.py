"""Arrays of the user's, as ``.npy`` and ``.npz``: nothing is unpickled, nothing unpacks beyond the limit."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from relutrim.errors import InputError
from relutrim.io.archives import open_zip

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def read_array(path: Path) -> npt.NDArray[np.generic]:
    """One array of real numbers from a ``.npy`` file; nothing is unpickled."""
    import numpy as np

    from relutrim.io.files import LARGEST_FILE

    try:
        if path.stat().st_size > LARGEST_FILE:
            raise InputError(f"the file is larger than {LARGEST_FILE} bytes", where=str(path))
        array = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise InputError("there is no such file", where=str(path)) from None
    except (OSError, ValueError, EOFError, MemoryError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"this is no plain .npy array ({_reason(error)}); use numpy.save", where=str(path)
        ) from None
    if not isinstance(array, np.ndarray):
        array.close()
        raise InputError("this is an archive of several arrays; give a .npy file with one", where=str(path))
    return _real(array, path)


def read_arrays(path: Path, names: Sequence[str]) -> list[npt.NDArray[np.generic]]:
    """Named arrays of real numbers from a ``.npz`` file; nothing is unpickled, and nothing unpacks beyond the
    size limit.
    """
    import numpy as np

    from relutrim.io.files import LARGEST_FILE

    try:
        with open_zip(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > LARGEST_FILE:
                raise InputError(f"it unpacks to more than {LARGEST_FILE} bytes", where=str(path))
        with np.load(path, allow_pickle=False) as archive:
            missing = [name for name in names if name not in archive]
            if missing:
                raise InputError(
                    f"it holds {', '.join(archive.files) or 'nothing'}; {', '.join(missing)} is missing",
                    where=str(path),
                )
            return [_real(archive[name], path) for name in names]
    except FileNotFoundError:
        raise InputError("there is no such file", where=str(path)) from None
    except (
        OSError,
        ValueError,
        EOFError,
        MemoryError,
        RuntimeError,
        zlib.error,
        zipfile.BadZipFile,
    ) as error:
        if isinstance(error, InputError):
            raise error if error.where else error.at(str(path)) from None
        raise InputError(
            f"this is no plain .npz archive ({_reason(error)}); use numpy.savez", where=str(path)
        ) from None


def array_names(path: Path) -> list[str]:
    """The names of the arrays in a ``.npz`` file; none where it is no such file, which reading will say."""
    try:
        with open_zip(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    except (OSError, zipfile.BadZipFile, InputError):
        return []


def _reason(error: BaseException) -> str:
    """What numpy says, without its advice to unpickle."""
    return str(error).partition(". ")[0]


def _real(array: npt.NDArray[np.generic], path: Path) -> npt.NDArray[np.generic]:
    if array.dtype.kind not in "fiub":
        raise InputError(f"it holds {array.dtype} values; real numbers are needed", where=str(path))
    return array
