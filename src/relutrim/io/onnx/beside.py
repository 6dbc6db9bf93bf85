"""An ONNX model as files: the model itself, and the data of its tensors beside it.

The data of an edited model is put together anew (:func:`packed`), such that a file holds only what the model
still refers to:

1. A file of which every tensor is left as it was is copied as it is.
2. In another one, tensors that are kept stay bit for bit and in their order; tensors that overlap move
   together. Tensors that were cut take the places of what they were.
3. Offsets keep the alignment that those of the source have: one for small tensors, one for large tensors. So
   no kept tensor moves backward, and the file grows only by new tensors, which go to its end.
4. New tensors of some size go to the file that had most data.

Nothing of the kept data is held in memory: a :class:`Data` says where to copy it from.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

import onnx
from onnx import TensorProto

from relutrim.errors import InputError
from relutrim.io.onnx.external import Range, external_files, range_of, tensors, with_external
from relutrim.io.onnx.parse import parse

_CHUNK = 2**24
_ALIGNMENTS = (65536, 4096, 64, 16, 8, 4, 2, 1)
_USUAL = 64
"""The alignment where a file has only one tensor, which tells none."""
_LARGE = 2**20
"""From so many bytes on, exporters align tensors for memory mapping."""
_SMALL = 1024
"""A new tensor of fewer bytes stays inside of the model, as ``onnx.save`` has it."""


@dataclass(frozen=True)
class Piece:
    """Bytes of a data file: ``content``, or ``length`` bytes of another file from ``start`` on."""

    at: int
    length: int
    file: Path | None = None
    start: int = 0
    content: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Data:
    """What a data file is to hold: pieces in their order, with zeros between them."""

    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, path: Path) -> Data:
        """The content of a file."""
        return cls((Piece(0, path.stat().st_size, path),))

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return max((piece.at + piece.length for piece in self.pieces), default=0)

    def chunks(self) -> Iterator[bytes]:
        """Its bytes, one part after the other."""
        at = 0
        for piece in self.pieces:
            yield bytes(piece.at - at)
            yield from _read(piece)
            at = piece.at + piece.length

    def write(self, path: Path) -> None:
        """Write it to a file."""
        with path.open("wb") as file:
            for chunk in self.chunks():
                file.write(chunk)

    def is_in(self, path: Path) -> bool:
        """Whether a file holds just this."""
        if not path.is_file() or path.stat().st_size != self.size:
            return False
        with path.open("rb") as file:
            return all(file.read(len(chunk)) == chunk for chunk in self.chunks())


@dataclass(frozen=True)
class Files:
    """An ONNX model's bytes, and the data that it refers to by file name."""

    content: bytes = field(repr=False)
    data: Mapping[str, Data] = field(default_factory=dict, repr=False)

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return len(self.content) + sum(data.size for data in self.data.values())

    def renamed(self, names: Mapping[str, str]) -> Files:
        """The same with other names for data files."""
        if not names:
            return self
        model = parse(self.content)
        for tensor in tensors(model):
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = names.get(str(PurePosixPath(entry.value)), entry.value)
        data = {names.get(name, name): one for name, one in self.data.items()}
        return Files(_serialised(model), data)

    def whole(self) -> bytes:
        """The model with all data inside of it."""
        if not self.data:
            return self.content
        with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            self.write(Path(folder))
            return _serialised(with_external(parse(self.content), Path(folder)))

    def write(self, folder: Path) -> Path:
        """Write all files to a folder that is empty, and say where the model is."""
        for name, data in self.data.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            data.write(path)
        target = folder / "model.onnx"
        while target.exists():
            target = target.with_name(f"_{target.name}")
        target.write_bytes(self.content)
        return target


def _read(piece: Piece) -> Iterator[bytes]:
    """The bytes of a piece."""
    if piece.file is None:
        yield piece.content
        return
    left = piece.length
    with piece.file.open("rb") as file:
        file.seek(piece.start)
        while left:
            chunk = file.read(min(left, _CHUNK))
            if not chunk:
                raise InputError("it is shorter than it was when it was read", where=str(piece.file))
            left -= len(chunk)
            yield chunk


def files_of(content: bytes, folder: Path) -> Files:
    """A model that lies in ``folder``, with all the files that it refers to."""
    return Files(content, {name: Data.of(folder / name) for name in external_files(content)})


@contextmanager
def session(files: Files, options: Any) -> Iterator[Any]:
    """A session of onnxruntime. One of a model with data beside it reads copies in a folder of its own:
    onnxruntime maps them into memory.
    """
    import onnxruntime

    providers = ["CPUExecutionProvider"]
    if not files.data:
        yield onnxruntime.InferenceSession(files.content, options, providers=providers)
        return
    with TemporaryDirectory(prefix="relutrim.", ignore_cleanup_errors=True) as folder:
        path = files.write(Path(folder))
        yield onnxruntime.InferenceSession(str(path), options, providers=providers)


def packed(model: onnx.ModelProto, source: onnx.ModelProto, folder: Path | None) -> Files:
    """``model``, changed in place, with the data that it refers to put together anew.

    It was made of ``source``, whose data lies in ``folder`` (None: there is none), and refers to that data
    where it was kept; what was cut, or is new, is inside of it.
    """
    before = [] if folder is None else _outside(tensors(source), folder)
    if folder is None or not before:
        return Files(_serialised(model))
    kept = _outside(tensors(model), folder)
    moving = _moving(model, source, folder)
    sizes: Counter[str] = Counter()
    for _, place in before:
        sizes[place.name] += place.length
    main = sizes.most_common(1)[0][0]
    data = {}
    for name in sorted(sizes):
        old = [place for _, place in before if place.name == name]
        own = [(tensor, place) for tensor, place in kept if place.name == name]
        more = [(one, place) for one, place in moving if (main if place is None else place.name) == name]
        if not more and Counter(old) == Counter(place for _, place in own):
            data[name] = Data.of(folder / name)
        elif own or more:
            data[name] = _Packing(name, old, folder).packed(own, more)
    return Files(_serialised(model), data)


def _serialised(model: onnx.ModelProto) -> bytes:
    """The bytes of a model, as one protobuf message holds them."""
    try:
        content: bytes = model.SerializeToString()
    except Exception as error:  # protobuf's exceptions differ between its implementations
        raise InputError(
            f"with the tensors inside of it, the model passes the 2 GiB that a file holds ({error})"
        ) from None
    return content


def _outside(every: Iterable[TensorProto], folder: Path) -> list[tuple[TensorProto, Range]]:
    """The tensors whose data lies in files, and where."""
    return [(one, range_of(one, folder)) for one in every if one.data_location == TensorProto.EXTERNAL]


def _moving(
    model: onnx.ModelProto, source: onnx.ModelProto, folder: Path
) -> list[tuple[TensorProto, Range | None]]:
    """The tensors inside of ``model`` that go to a file, each with the place of what it was."""
    was = {
        key: range_of(tensor, folder) if tensor.data_location == TensorProto.EXTERNAL else None
        for key, tensor in _named(source)
    }
    found = []
    for key, tensor in _named(model):
        if not tensor.raw_data or tensor.data_location == TensorProto.EXTERNAL:
            continue
        place = was.get(key)
        if place is not None or (key not in was and len(tensor.raw_data) >= _SMALL):
            found.append((tensor, place))
    return found


def _named(model: onnx.ModelProto) -> Iterator[tuple[tuple[str, str], TensorProto]]:
    """The tensors that edits change or make: initializers, and what Constant nodes hold."""
    for tensor in model.graph.initializer:
        yield ("initializer", tensor.name), tensor
    for node in model.graph.node:
        if node.op_type == "Constant" and len(node.attribute) == 1 and node.attribute[0].HasField("t"):
            yield ("constant", node.output[0]), node.attribute[0].t


class _Packing:
    """A data file in the making; ``old`` are the ranges that the source has in it."""

    def __init__(self, name: str, old: list[Range], folder: Path) -> None:
        self.name, self.path, self.end = name, folder / name, 0
        self.small = _alignment(old)
        self.large = _alignment([one for one in old if one.length >= _LARGE] or old)
        self.pieces: list[Piece] = []
        self.known: dict[bytes, int] = {}

    def packed(
        self, kept: list[tuple[TensorProto, Range]], moving: list[tuple[TensorProto, Range | None]]
    ) -> Data:
        """The file; the tensors say where they lie in it."""
        blocks = _blocks(place for _, place in kept)
        cut = [(tensor, place) for tensor, place in moving if place is not None]
        starts = [block.offset for block in blocks]
        order = [(start, 0, at) for at, start in enumerate(starts)]
        order += [(place.offset, 1, at) for at, (_, place) in enumerate(cut)]
        shifts = [0] * len(blocks)
        for _, is_cut, at in sorted(order):
            if is_cut:
                self._store(*cut[at])
            else:
                shifts[at] = self._keep(blocks[at])
        for tensor, place in moving:
            if place is None:
                self._store(tensor, None)
        for tensor, place in kept:
            shift = shifts[bisect_right(starts, place.offset) - 1]
            self._refer(tensor, place.offset + shift, place.length)
        return Data(tuple(self.pieces))

    def _keep(self, block: Range) -> int:
        """Copy a block, and say by how much its offset changes."""
        at = self._next(block.length, block.offset)
        self.pieces.append(Piece(at, block.length, self.path, block.offset))
        self.end = at + block.length
        return at - block.offset

    def _store(self, tensor: TensorProto, place: Range | None) -> None:
        """Move what a tensor holds to the file; what is there already is not stored twice."""
        content = bytes(tensor.raw_data)
        if content not in self.known:
            at = self._next(len(content) if place is None else place.length, place.offset if place else 0)
            self.pieces.append(Piece(at, len(content), content=content))
            self.known[content], self.end = at, at + len(content)
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        self._refer(tensor, self.known[content], len(content))

    def _next(self, length: int, like: int) -> int:
        """The next free offset that is aligned as another one is."""
        step = self.large if length >= _LARGE else self.small
        return self.end + (like - self.end) % step

    def _refer(self, tensor: TensorProto, offset: int, length: int) -> None:
        """Let a tensor say where it lies; a checksum of the old file says nothing of this one."""
        said = {entry.key: entry.value for entry in tensor.external_data if entry.key != "checksum"}
        said |= {"location": self.name, "offset": str(offset), "length": str(length)}
        del tensor.external_data[:]
        for key, value in said.items():
            tensor.external_data.add(key=key, value=value)


def _alignment(old: Iterable[Range]) -> int:
    """The largest alignment that all offsets have."""
    offsets = [place.offset for place in old if place.offset]
    if not offsets:
        return _USUAL
    return next(step for step in _ALIGNMENTS if all(offset % step == 0 for offset in offsets))


def _blocks(places: Iterable[Range]) -> list[Range]:
    """Ranges of one file, those that overlap in one."""
    found: list[Range] = []
    for place in sorted(set(places)):
        if found and (place.offset < found[-1].end or place.offset == found[-1].offset):
            last = found.pop()
            place = Range(place.name, last.offset, max(last.end, place.end) - last.offset)
        found.append(place)
    return found
