"""Where the commands write: known to be possible before anything long starts.

What is read is never changed, so no output may take its place; and no two outputs may have one name, or the
second would be all that is left.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from relutrim.errors import InputError

REPORT = (".html", ".htm")
MASKS = (".npz",)


class Targets:
    """The files that a command will write, beside those that it reads by its options."""

    def __init__(self, model: Path, options: dict[str, Any]) -> None:
        from relutrim.io.rows import labels_beside
        from relutrim.journal import NAME

        data, journal = options["data"], options["journal"]
        read = (
            model,
            journal and journal / NAME,
            data,
            data and labels_beside(data),
            options["holdout"],
            options["center"],
            options["vnnlib"],
            *options["constraint"],
        )
        self._read: list[Path] = [path for path in read if path is not None]
        self._written: list[Path] = []

    def add(self, path: Path | None, what: str = "files", endings: tuple[str, ...] = ()) -> Path | None:
        """The path, if one is given and a file can go there; ``what`` is written under these endings only."""
        if path is None:
            return None
        from relutrim.io.files import check_target

        for other in self._read:
            if other.exists() and path.exists() and path.samefile(other):
                raise InputError(
                    f"the output would replace the input {other}; choose another name", where=str(path)
                )
        if endings and path.suffix.lower() not in endings:
            raise InputError(
                f"{what} are written as {endings[0]}; give the file that ending", where=str(path)
            )
        if any(path.resolve() == other.resolve() for other in self._written):
            raise InputError(
                "this would replace another output; two outputs have this name, so choose another for one of "
                "them",
                where=str(path),
            )
        check_target(path)
        self._written.append(path)
        return path
