"""Zip archives, and JSON in them, in which every reader finds the same.

Where something is there twice, one library takes the first and another the last: torch would load other
weights than relutrim read. So an archive must be what the usual writers make:

1. Its first entry begins where the file does; what comes before could be a file of another format.
2. Its directory lies where the end record says, right before that record, and nothing lies behind it.
   Libraries differ in which of the two they go by.
3. No name is there twice. torch compares names without regard to case, and C ends them at a zero byte.
"""

from __future__ import annotations

import json
import struct
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any, BinaryIO

from relutrim.errors import InputError

_FIRST = b"PK\x03\x04"
_END, _LOCATOR, _END_64 = struct.Struct("<4s4H2LH"), struct.Struct("<4sLQL"), struct.Struct("<4sQ2H2L4Q")
_SHORT, _LONG = 2**16 - 1, 2**32 - 1
"""What the end record says of numbers that only the one with 64 bits can hold."""


def open_zip(source: Path | BinaryIO) -> zipfile.ZipFile:
    """An archive for reading, refused if it could be read in two ways."""
    archive = zipfile.ZipFile(source)
    try:
        file = archive.fp
        assert file is not None  # it is open
        _check_frame(file)
        _check_names(archive)
    except BaseException:
        archive.close()
        raise
    return archive


def hides_zip(content: bytes) -> bool:
    """Whether the bytes of another format have what some readers would find a zip archive by."""
    return b"PK\5\6" in content[-(2**17) :] and b"PK\1\2" in content


def parsed(text: bytes | str) -> Any:
    """What a JSON document says; an object with two members of a name says two things."""
    return json.loads(text, object_pairs_hook=_members)


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise InputError(f"its JSON has {_repeated(name for name, _ in pairs)!r} twice; the file is damaged")
    return found


def _check_names(archive: zipfile.ZipFile) -> None:
    entries = archive.infolist()
    for entry in entries:
        if "\0" in entry.orig_filename:
            raise InputError(f"it has an entry {entry.orig_filename!r}; the file is damaged")
    name = _repeated(entry.filename.casefold() for entry in entries)
    if name is not None:
        raise InputError(f"it has the entry {name!r} twice, of which readers take either; write it again")


def _repeated(names: Any) -> str | None:
    return next((name for name, count in Counter(names).items() if count > 1), None)


def _check_frame(file: Any) -> None:
    """The first entry, the directory and the end record, in this order and nothing around them."""
    size = file.seek(0, 2)
    file.seek(0)
    first = file.read(len(_FIRST))
    at = size - _END.size
    file.seek(max(0, at))
    end = file.read(_END.size)
    if len(end) < _END.size or (first != _FIRST and at):
        raise InputError("it does not begin with its first entry; write it again")
    mark, *disks, count, directory, start, comment = _END.unpack(end)
    if mark != b"PK\x05\x06" or comment or any(disks[:2]):
        raise InputError("there is something behind its directory; write it again")
    file.seek(max(0, at - _LOCATOR.size))
    mark, _, where, _ = _LOCATOR.unpack(file.read(_LOCATOR.size)) if at >= _LOCATOR.size else (b"",) * 4
    if mark == b"PK\x06\x07":
        at -= _LOCATOR.size + _END_64.size
        file.seek(max(0, at))
        wide = _END_64.unpack(file.read(_END_64.size))
        short = (min(wide[7], _SHORT), min(wide[8], _LONG), min(wide[9], _LONG))
        if where != at or wide[0] != b"PK\x06\x06" or (count, directory, start) != short:
            raise InputError("its two directories' ends disagree; write it again")
        directory, start = wide[8], wide[9]
    if start + directory != at:
        raise InputError("its directory is not where it says; write it again")
