"""The file that a network was read from, so that it can be handed back byte for byte."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from relutrim.errors import InputError, RelutrimError
from relutrim.io.files import check_target, read_bytes, replacing

if TYPE_CHECKING:
    import onnx

    from relutrim.graph.graph import Network
    from relutrim.graph.origin import Frame
    from relutrim.graph.slicing import Kept


@dataclass(frozen=True)
class Source:
    """A model file as it was when it was read, or a model in memory as if it were ``model.onnx``."""

    path: Path
    digest: str
    held: bytes | None = field(default=None, repr=False)

    @classmethod
    def of(cls, path: str | Path) -> Source:
        """The file of this name, as it is now."""
        return cls(Path(path), _digest(read_bytes(Path(path))))

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
    ) -> bytes:
        """Its bytes, read as ``before``, such that they read as ``after``."""
        if not self.is_onnx:
            from relutrim.io.exported_edit import edited_exported

            return edited_exported(self.content, before, after, kept, metadata)
        from relutrim.io.onnx.edit import edited
        from relutrim.io.onnx.parse import parse

        model = parse(self.content)
        made = edited(model, before, after, kept, folder=self.path.parent, metadata=metadata)
        content: bytes = made.SerializeToString()
        return content

    def copy(self, out: Path, content: bytes | None = None) -> None:
        """Write the same bytes to ``out``, or others that were made of them, and what they refer to beside
        it; whole or not at all.
        """
        content = self.content if content is None else content
        beside = self._beside(self._refers_to(content), out)
        with replacing(out) as aside:
            for old, new in beside:
                with replacing(new) as copied:
                    shutil.copyfile(old, copied)
            aside.write_bytes(content)

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

    def _refers_to(self, content: bytes) -> list[str]:
        """The names of the files that the model refers to."""
        if not self.is_onnx:
            return []
        from relutrim.io.onnx.external import external_files

        return external_files(content)

    def _beside(self, names: Iterable[str], out: Path) -> list[tuple[Path, Path]]:
        """Files beside the model, and where they go, but for those that are there already."""
        found = []
        for name in names:
            old, new = self.path.parent / name, out.parent / name
            if new.exists():
                if not new.samefile(old) and new.read_bytes() != old.read_bytes():
                    raise InputError(
                        f"the model refers to {name}, and another file of that name lies beside the output; "
                        "write to another folder",
                        where=str(new),
                    )
                continue
            check_target(new)
            found.append((old, new))
        return found


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
