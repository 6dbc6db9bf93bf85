"""The folder of a run: ``train.json``, which says what is being trained and what is done, a checkpoint for
each batch that is not done, and the networks of those that are.

Order is what makes it safe to kill: a batch's networks are written while its checkpoint still stands, then
the report that lists them, and only then does the checkpoint go.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from relutrim.errors import InputError
from relutrim.io.files import read_text, write_text

REPORT = "train.json"
SCHEMA = "relutrim/training/1"


class RunFolder:
    """Settings in, networks out. Use inside :func:`claimed`."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        self.settings = json.loads(json.dumps(settings))
        self.key = hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()
        self.report: dict[str, Any] = {"schema": SCHEMA, "complete": False, "settings": self.settings}

    def open(self, *, fresh: bool, networks: list[str]) -> None:
        """Take up what lies in the folder, or begin; ``networks`` are the files that will be written."""
        target = self.path / REPORT
        names = [*networks, *(self.checkpoint(batch).name for batch in self.settings["batches"])]
        if target.exists() and not fresh:
            self.report = self._found(target)
        else:
            there = [name for name in names if (self.path / name).exists()]
            if there and not fresh:
                raise InputError(
                    f"{', '.join(there[:3])} would be overwritten, and no {REPORT} says that a run of "
                    "relutrim made it; choose another --output, or add --fresh to overwrite",
                    where=str(self.path),
                )
            for batch in self.settings["batches"]:
                self.checkpoint(batch).unlink(missing_ok=True)
            self.write()
        self._sweep([REPORT, *names])

    def _found(self, target: Path) -> dict[str, Any]:
        try:
            report = json.loads(read_text(target))
            settings = dict(report["settings"])
            known = report["schema"] == SCHEMA and isinstance(report["complete"], bool)
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, InputError):
                raise
            known, report, settings = False, {}, {}
        if not known:
            raise InputError(
                "this is no report of a training run; choose another --output, or add --fresh to overwrite "
                "it",
                where=str(target),
            )
        if different := _differences(settings, self.settings):
            raise InputError(
                f"a run with other settings lies here ({'; '.join(different[:4])}); choose another --output, "
                "use its settings, or add --fresh to give it up",
                where=str(self.path),
            )
        return dict(report)

    def checkpoint(self, batch: str) -> Path:
        """Where the checkpoint of a batch lies, or would lie."""
        return self.path / f"checkpoint-{batch}.pt"

    def write(self) -> None:
        """Put the report into its place."""
        write_text(self.path / REPORT, json.dumps(self.report, indent=1, allow_nan=False) + "\n")

    def verify(self, entry: Mapping[str, Any]) -> None:
        """That a network which the report lists is still what it was."""
        if entry["file"] is None:
            return
        path = self.path / str(entry["file"])
        try:
            with path.open("rb") as file:
                same = hashlib.file_digest(file, "sha256").hexdigest() == entry["sha256"]
        except OSError:
            same = False
        if not same:
            raise InputError(
                f"this network is missing or not the one that {REPORT} lists; put it back, or add --fresh to "
                "train again",
                where=str(path),
            )

    def _sweep(self, names: list[str]) -> None:
        """Remove what a killed run left half written; :func:`replacing` calls it after what it was to be."""
        beginnings = tuple(f".{name[:50]}." for name in names)
        for path in self.path.iterdir():
            if path.name.startswith(beginnings):
                with suppress(OSError):
                    path.unlink()


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Make the folder and keep other runs out of it for as long as this one, however it ends."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder cannot be made ({error.strerror})", where=str(path)) from None
    try:
        import fcntl
    except ImportError:  # not a Unix
        yield
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(
                "another run is writing here; wait for it, or choose another --output", where=str(path)
            ) from None
        yield
    finally:
        os.close(handle)


def _differences(found: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = "") -> list[str]:
    """What two settings differ in, in words."""
    lines: list[str] = []
    for key in dict.fromkeys([*found, *wanted]):
        there, here = found.get(key), wanted.get(key)
        if isinstance(there, Mapping) and isinstance(here, Mapping):
            lines += _differences(there, here, f"{prefix}{key}.")
        elif there != here:
            lines.append(f"{prefix}{key} is {there!r} there and {here!r} here")
    return lines
