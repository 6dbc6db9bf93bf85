"""Where the commands write: known to be possible, and to replace nothing that is read, before any work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from relutrim.errors import InputError


def target_of(option: str, model: Path, options: dict[str, Any], *others: Path | None) -> Path | None:
    """Where another file goes, if it is wanted; that it can go there is known before anything long starts."""
    path: Path | None = options.pop(option)
    if path is not None:
        from relutrim.formats.files import check_target

        keep_apart(path, model, options)
        if any(other is not None and other.resolve() == path.resolve() for other in others):
            raise InputError("two outputs have this name; choose another for one of them", where=str(path))
        check_target(path)
    return path


def mask_target(model: Path, options: dict[str, Any]) -> Path | None:
    """Where masks go, if they are wanted; that they can go there is known before anything long starts."""
    path: Path | None = options.pop("mask")
    if path is not None:
        from relutrim.formats.files import check_target

        keep_apart(path, model, options)
        if path.suffix != ".npz":
            raise InputError("masks are written as .npz; give the file that ending", where=str(path))
        check_target(path)
    return path


def report_target(model: Path, options: dict[str, Any], other: Path | None) -> Path | None:
    """Where the report goes, if one is wanted; it takes the place of no input and of no ``other`` output."""
    path: Path | None = options.pop("report")
    if path is not None:
        from relutrim.formats.files import check_target

        keep_apart(path, model, options)
        if path.suffix.lower() not in (".html", ".htm"):
            raise InputError("reports are written as .html; give the file that ending", where=str(path))
        if other is not None and path.resolve() == other.resolve():
            raise InputError("the report would replace another output; choose another name", where=str(path))
        check_target(path)
    return path


def keep_apart(output: Path, model: Path, options: dict[str, Any]) -> None:
    """What is read is never changed, so no output may take its place."""
    from relutrim.formats.rows import labels_beside
    from relutrim.journal import NAME

    for path in (
        model,
        options["journal"] and options["journal"] / NAME,
        options["data"],
        options["data"] and labels_beside(options["data"]),
        options.get("holdout"),
        options["center"],
        options["vnnlib"],
        *options["constraint"],
    ):
        if path is not None and path.exists() and output.exists() and output.samefile(path):
            raise InputError(
                f"the output would replace the input {path}; choose another name", where=str(output)
            )
