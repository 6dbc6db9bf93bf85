"""The file that a network was read from, so that it can be handed back byte for byte."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

from relutrim.errors import InputError, RelutrimError
from relutrim.io.files import check_target, read_bytes, replacing

if TYPE_CHECKING:
    import onnx

    from relutrim.graph.graph import Network
    from relutrim.graph.origin import Frame
    from relutrim.graph.slicing import Kept
    from relutrim.io.onnx.beside import Data, Files


@dataclass(frozen=True)
class Source:
    """A model file as it was when it was read, or a model in memory as if it were ``model.onnx``."""

    path: Path
    digest: str
    held: bytes | None = field(default=None, repr=False)
    beside: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    """The digests of the files of data that it refers to, by their names."""

    @classmethod
    def of(cls, path: str | Path) -> Source:
        """The file of this name, as it is now, and what it refers to. What is wrong with it shows when it is
        read.
        """
        content = read_bytes(Path(path))
        found = cls(Path(path), _digest(content))
        try:
            names = found._refers_to(content)
        except RelutrimError:
            return found
        there = [(name, found.path.parent / name) for name in names]
        return replace(found, beside={name: _digest_of(file) for name, file in there if file.is_file()})

    @classmethod
    def of_proto(cls, model: onnx.ModelProto) -> Source:
        """A model in memory."""
        content: bytes = model.SerializeToString()
        return cls(Path("model.onnx"), _digest(content), content)

    @property
    def format(self) -> str:
        """The suffix of its format, unpacked."""
        from relutrim.io import suffix

        return suffix(self.path).removesuffix(".gz")

    @property
    def is_onnx(self) -> bool:
        """Whether it is an ONNX model."""
        return self.format == ".onnx"

    @property
    def content(self) -> bytes:
        """Its bytes, unpacked if they were packed; an error if they are others by now."""
        if self.held is not None:
            return self.held
        found = read_bytes(self.path)
        if _digest(found) != self.digest:
            raise InputError(
                "the model has changed since it was read; run the command again", where=str(self.path)
            )
        return found

    @property
    def files(self) -> Files:
        """An ONNX model and the data that it refers to; an error if they are others by now."""
        from relutrim.io.onnx.beside import Files, files_of

        content = self.content
        if self.folder is None:
            return Files(content)
        self._check_beside()
        return files_of(content, self.folder)

    @property
    def folder(self) -> Path | None:
        """Where the data lies that it refers to; None for a model in memory, whose data is out of reach."""
        return None if self.held is not None else self.path.parent

    def _check_beside(self) -> None:
        for name, digest in self.beside.items():
            file = self.path.parent / name
            if not file.is_file() or _digest_of(file) != digest:
                raise InputError(
                    "the data of the model has changed since it was read; run the command again",
                    where=str(file),
                )

    def is_like(self, out: Path) -> bool:
        """Whether a file of that name would have the same format."""
        from relutrim.io import suffix

        return self.format == suffix(out)

    def frame(self, network: Network) -> Frame | None:
        """What it can say of the network that is read from it without new nodes: ReLUs that are a part of a
        node (a clip is two) do not go by themselves.
        """
        from relutrim.graph.origin import Frame, parts

        fixed = parts(network.nodes) & {relu.name for relu in network.relus}
        return Frame(fixed) if fixed else None

    def edits(self, target: Path | None = None) -> bool:
        """Whether a result for that file (None: one of this format) is this file with edits."""
        return self.format in (".onnx", ".pt2") and (target is None or self.is_like(target))

    def edited(
        self, before: Network, after: Network, kept: Mapping[str, Kept], metadata: Mapping[str, str]
    ) -> Files:
        """It, read as ``before``, such that it reads as ``after``, with the data that is left."""
        from relutrim.io.onnx.beside import Files, packed

        if not self.is_onnx:
            from relutrim.io.exported_edit import edited_exported

            return Files(edited_exported(self.content, before, after, kept, metadata))
        from relutrim.io.onnx.edit import edited
        from relutrim.io.onnx.parse import parse

        model = parse(self.content)
        made = edited(model, before, after, kept, folder=self.folder, metadata=metadata)
        return packed(made, model, self.folder)

    def copy(self, out: Path, edited: Files | None = None) -> None:
        """Write the same bytes to ``out``, or others that were made of them, and what they refer to beside
        it; whole or not at all. Where data of an edited model finds another file under its name, it gets one
        of its own.
        """
        if not self.is_onnx:
            with replacing(out) as aside:
                aside.write_bytes(self.content if edited is None else edited.content)
            return
        if edited is None:
            made = self.files
            self._beside(list(made.data), out)
        else:
            self._check_beside()
            made = edited.renamed(_free_names(edited, out))
        _write(made, out)

    def check(self, out: Path) -> None:
        """Raise if :meth:`copy` could not write what the model refers to beside ``out``. What is wrong with
        the model itself shows when it is read.
        """
        if not (self.is_onnx and self.is_like(out)):
            return
        try:
            names = self._refers_to(self.content)
        except RelutrimError:
            return
        self._beside([name for name in names if (self.path.parent / name).is_file()], out)

    def keep_from(self, out: Path) -> None:
        """Raise if ``out`` is a file in which data of the model lies."""
        for name in self.beside:
            data = self.path.parent / name
            if out.exists() and data.exists() and out.samefile(data):
                raise InputError(
                    f"the output would replace {data}, which the model refers to; choose another name",
                    where=str(out),
                )

    def _refers_to(self, content: bytes) -> list[str]:
        """The names of the files that the model refers to."""
        if not self.is_onnx:
            return []
        from relutrim.io.onnx.external import external_files

        return external_files(content)

    def _beside(self, names: Iterable[str], out: Path) -> None:
        """Raise if files of these names, which lie beside the model, cannot be beside ``out``."""
        for name in names:
            old, new = self.path.parent / name, out.parent / name
            taken = new == out or (new.exists() and not new.samefile(old) and not _equal(old, new))
            if taken:
                raise InputError(
                    f"the model refers to {name}, and another file of that name lies beside the output; "
                    "write to another folder",
                    where=str(new),
                )
            if not new.exists():
                check_target(new)


def _free_names(files: Files, out: Path) -> dict[str, str]:
    """Other names for data that finds something else under its own name beside ``out``."""
    found: dict[str, str] = {}
    for name, data in files.data.items():
        tried = chain([f"{out.name}.data"], (f"{out.name}.{number}.data" for number in count(2)))
        chosen = name
        while not _fits(data, out.parent / chosen, out) or chosen in found.values():
            chosen = next(tried)
        if chosen != name:
            found[name] = chosen
    return found


def _fits(data: Data, path: Path, out: Path) -> bool:
    """Whether data can be under a name: there is nothing, or the same."""
    return path != out and (not path.exists() or data.is_in(path))


def _write(files: Files, out: Path) -> None:
    """Write a model and its data, but for what is there already; all of it, or nothing."""
    new = {path: data for name, data in files.data.items() if not (path := out.parent / name).exists()}
    try:
        with replacing(out) as aside, ExitStack() as stack:
            for path, data in new.items():
                data.write(stack.enter_context(replacing(path)))
            aside.write_bytes(files.content)
    except BaseException:
        for path, data in new.items():
            if data.is_in(path):
                path.unlink()
        raise


def _equal(one: Path, other: Path) -> bool:
    """Whether two files hold the same."""
    from relutrim.io.onnx.beside import Data

    return Data.of(one).is_in(other)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _digest_of(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
