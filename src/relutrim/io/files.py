"""Reading with limits, writing whole or not at all."""

from __future__ import annotations

import gzip
import os
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from relutrim.errors import InputError

LARGEST_FILE = 2 * 1024**3
"""No model, compressed or not, is read beyond this many bytes: protobuf's own limit, and a stop for zip
bombs.
"""


def read_bytes(path: Path) -> bytes:
    """The content of a file, unpacked if its name ends in ``.gz``."""
    try:
        if not path.exists():
            raise InputError("there is no such file", where=str(path))
        if path.is_dir():
            raise InputError("this is a directory, not a file", where=str(path))
        if path.stat().st_size > LARGEST_FILE:
            raise InputError(f"the file is larger than {LARGEST_FILE} bytes", where=str(path))
        if path.suffix.lower() != ".gz":
            return path.read_bytes()
        with gzip.open(path, "rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise InputError(f"this is not a whole gzip file ({error})", where=str(path)) from None
    except OSError as error:
        raise InputError(f"the file cannot be read ({error.strerror or error})", where=str(path)) from None
    if len(content) > LARGEST_FILE:
        raise InputError(f"it unpacks to more than {LARGEST_FILE} bytes", where=str(path))
    return content


def read_text(path: Path) -> str:
    """The content of a UTF-8 text file."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError:
        raise InputError("this is not a text file", where=str(path)) from None


def check_target(path: Path) -> None:
    """Raise if ``path`` is no place where a file could be put."""
    folder = path.parent
    if not folder.is_dir():
        raise InputError(f"the folder {folder} does not exist; create it first", where=str(path))
    if path.is_dir():
        raise InputError("this is a directory; name a file", where=str(path))
    if path.exists() and not path.is_file():  # /dev/null, say: a file would take its place
        raise InputError("this is not an ordinary file; name one, or a name that is free", where=str(path))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"the folder {folder} cannot be written to", where=str(path))


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside ``path`` to write to; it takes the place of ``path`` only if the block ends well."""
    check_target(path)
    folder = path.parent
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name[:50]}.", suffix=path.suffix, dir=folder)
    except OSError as error:
        raise InputError(
            f"the folder {folder} cannot be written to ({error.strerror})", where=str(path)
        ) from None
    os.close(handle)
    aside = Path(name)
    try:
        yield aside
        umask = os.umask(0)
        os.umask(umask)
        aside.chmod(0o666 & ~umask)
        with aside.open("rb") as file:
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        raise InputError(f"the file cannot be written ({error.strerror or error})", where=str(path)) from None
    finally:
        aside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    with replacing(path) as aside:
        aside.write_text(text, encoding="utf-8")
