"""The file of a journal: locked while it is in use, only ever appended to, on disk when a call returns."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from relutrim._version import __version__
from relutrim.errors import JournalError
from relutrim.journal import NAME
from relutrim.journal.frames import MARKER, Frame, frame, frames
from relutrim.journal.identity import differences, owner_of
from relutrim.journal.records import Record, RecordError, packed, unpacked

_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class JournalFile:
    """The records of a folder's journal, and the place to append more; ``header`` says what it has to be of.

    ``damage`` says what could not be read. A lock that the system lets go of when a process ends, however it
    ends, keeps two runs from writing at once.
    """

    def __init__(self, folder: Path, header: Mapping[str, Any]) -> None:
        self.path = folder / NAME
        self.records: list[Record] = []
        self.damage: list[str] = []
        self._owner = owner_of(header)
        self._guard = threading.Lock()
        self._end = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o666)
        except OSError as error:
            raise JournalError(
                f"a journal cannot be kept here ({error.strerror or error}); name a folder that can be "
                "written to",
                where=str(self.path),
            ) from None
        try:
            self._lock()
            self._read(header)
            if not self._end:
                self.append({"kind": "header", "relutrim": __version__, **header})
                _sync_folder(folder)
        except BaseException:
            os.close(self._file)
            raise

    def append(self, record: Record) -> None:
        """Write a record; it is on disk when this returns."""
        content = frame(self._owner, packed(record))
        with self._guard:
            try:
                self._write(content)
            except BaseException as error:
                with suppress(OSError):  # half a record would be found and left out, but why keep it
                    os.ftruncate(self._file, self._end)
                if isinstance(error, OSError):
                    raise JournalError(
                        f"the journal cannot be written ({error.strerror or error}); make room, or name "
                        "another folder: what it holds so far is good, and the same command goes on from it",
                        where=str(self.path),
                    ) from None
                raise
            self._end += len(content)

    def close(self) -> None:
        """Let others have it."""
        os.close(self._file)

    def _write(self, content: bytes) -> None:
        done = 0
        while done < len(content):
            os.lseek(self._file, self._end + done, os.SEEK_SET)
            done += os.write(self._file, content[done:])
        os.fsync(self._file)

    def _read(self, header: Mapping[str, Any]) -> None:
        data = self._content()
        known, whole = 0, list(frames(data))
        for one in whole:
            if one.start > known:
                self.damage.append(f"{one.start - known} damaged bytes at {known} were passed over")
            known = one.end
            record = self._checked(one, header)
            if record is not None and record.get("kind") != "header":
                self.records.append(record)
        if known < len(data):
            self._cut_tail(data, known)
        self._end = known

    def _checked(self, one: Frame, header: Mapping[str, Any]) -> Record | None:
        """A record of this run's journal; another journal's is refused."""
        try:
            record = unpacked(one.content)
        except RecordError:
            record = None
        if one.owner != self._owner:
            found = record if record is not None and record.get("kind") == "header" else {}
            words = differences(found, header) if found else ["its records are of another analysis"]
            raise JournalError(
                f"this journal cannot be gone on from: {'; '.join(words)}. Name another folder, or remove "
                "this file if nothing in it is needed any more",
                where=str(self.path),
            )
        if record is None:
            self.damage.append(f"the record at {one.start} makes no sense and was passed over")
        return record

    def _cut_tail(self, data: bytes, known: int) -> None:
        """Behind the last whole record there is what a run that was killed had not finished."""
        if known == 0 and data[: len(MARKER)] != MARKER[: len(data)]:
            raise JournalError(
                "this is no journal, or none of it can be read; name another folder, or remove this file if "
                "nothing in it is needed any more",
                where=str(self.path),
            )
        self.damage.append(f"{len(data) - known} bytes at its end were no whole record and were cut off")
        try:
            os.ftruncate(self._file, known)
        except OSError as error:
            raise JournalError(
                f"the journal cannot be written ({error.strerror or error})", where=str(self.path)
            ) from None

    def _content(self) -> bytes:
        pieces = []
        try:
            os.lseek(self._file, 0, os.SEEK_SET)
            while piece := os.read(self._file, 2**24):
                pieces.append(piece)
        except OSError as error:
            raise JournalError(
                f"the journal cannot be read ({error.strerror or error})", where=str(self.path)
            ) from None
        return b"".join(pieces)

    def _lock(self) -> None:
        try:
            _locker()(self._file)
        except OSError:
            raise JournalError(
                "another run is writing this journal; wait for it to end, or name another folder",
                where=str(self.path),
            ) from None


def _locker() -> Callable[[int], None]:
    """How this system locks a file for as long as it is open."""
    try:
        import fcntl
    except ImportError:  # Windows
        import importlib

        msvcrt = importlib.import_module("msvcrt")
        return lambda file: msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
    return lambda file: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _sync_folder(folder: Path) -> None:
    """So that the file's name is on disk too, where folders can be synced."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
