"""Lines of JSON that are only ever appended to: one for each task that ended.

A line that a killed run left half written is no JSON, so it is passed over, and its task is done again. Lines
are found by ``key``, a hash of everything their outcome depends on. Several runs, each with a file of its own
(``rows-2-of-8.jsonl``), fill one folder; reading takes all files together.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from relutrim.errors import InputError

SCHEMA = "relutrim/reproduction/1"
DONE, FAILED = "done", "failed"
Line = dict[str, Any]


def key_of(*parts: Any) -> str:
    """The same for the same settings, whatever order they are written in."""
    text = json.dumps(parts, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def file_of(folder: Path, shard: tuple[int, int] | None = None) -> Path:
    """Where a run, or one shard of it, writes."""
    return folder / ("rows.jsonl" if shard is None else f"rows-{shard[0]}-of-{shard[1]}.jsonl")


def read_lines(folder: Path) -> list[Line]:
    """All lines of all files in a folder. Of several with the same key the last that is done counts."""
    found: dict[str, Line] = {}
    for path in sorted(folder.glob("rows*.jsonl")):
        for line in _parsed(path):
            old = found.get(line["key"])
            if old is None or line["status"] == DONE or old["status"] != DONE:
                found.pop(line["key"], None)
                found[line["key"]] = line
    return list(found.values())


def _parsed(path: Path) -> Iterator[Line]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"the file cannot be read ({error.strerror})", where=str(path)) from None
    for raw in content.split(b"\n"):
        try:
            line = json.loads(raw)
        except ValueError:  # torn, or not even text
            continue
        if (
            isinstance(line, dict)
            and line.get("schema") == SCHEMA
            and {"key", "status", "stage"} <= line.keys()
        ):
            yield line


@contextmanager
def appending(path: Path) -> Iterator[Appender]:
    """The only writer of a file, for as long as the block lasts."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = path.open("ab+")
    except OSError as error:
        raise InputError(f"the file cannot be written ({error.strerror})", where=str(path)) from None
    with handle:
        _lock(handle, path)
        yield Appender(handle)


class Appender:
    """Writes lines so that each is whole on the disk before the next begins."""

    def __init__(self, handle: IO[bytes]) -> None:
        self._handle = handle
        self.failed = 0
        size = handle.seek(0, os.SEEK_END)
        if size:
            handle.seek(size - 1)
            if handle.read(1) != b"\n":  # torn: what follows is a line of its own
                handle.write(b"\n")

    def write(self, line: Mapping[str, Any]) -> None:
        """Append a line, and wait until it is on the disk."""
        text = json.dumps({"schema": SCHEMA, **line}, allow_nan=False)
        self._handle.write(text.encode() + b"\n")
        self._handle.flush()
        os.fsync(self._handle.fileno())
        self.failed += line["status"] != DONE


def _lock(handle: IO[bytes], path: Path) -> None:
    try:
        import fcntl
    except ImportError:  # not a Unix
        return
    try:
        fcntl.flock(handle.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise InputError(
            "another run is writing here; wait for it, or choose another --output", where=str(path)
        ) from None
