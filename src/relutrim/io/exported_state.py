"""The tensors of a ``.pt2`` archive, with edits: its tables of weights and constants, the files that hold
their numbers, and the inputs of the graph that they are.

1. Tensors that share memory keep sharing it: one that nothing reads follows the one that is read.
2. A file gets other numbers, or goes, where all that it holds does; every other stays byte for byte.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

import numpy.typing as npt
import torch

from relutrim.errors import CheckFailed
from relutrim.io.exported import inputs_of
from relutrim.io.exported_archive import SCALAR_TYPES, Archive, table_path
from relutrim.io.torch.edit import Edited
from relutrim.io.torch.graph_module import TAKEN

Array = npt.NDArray[Any]
_PREFIXES = {"weights": "weight_", "constants": "tensor_"}
"""What files of tensors are called."""
_KINDS = ("parameter", "buffer")
_NUMBERS = {name: number for number, name in SCALAR_TYPES.items()}


def described(tensor: torch.Tensor) -> dict[str, Any]:
    """What the format says of a tensor's type and layout."""
    return {
        "dtype": _NUMBERS[str(tensor.dtype).removeprefix("torch.")],
        "sizes": [{"as_int": int(size)} for size in tensor.shape],
        "strides": [{"as_int": int(stride)} for stride in tensor.stride()],
        "storage_offset": {"as_int": int(tensor.storage_offset())},
    }


def without_numbers(array: Array) -> torch.Tensor:
    """A tensor of this type and shape that has no memory."""
    return torch.empty(array.shape, dtype=getattr(torch, str(array.dtype)), device="meta")


def check_state(before: Archive, after: Archive, edited: Edited) -> None:
    """Raise :class:`CheckFailed` unless every tensor of an archive that no edit names, and the bytes of it,
    are those of the archive before, and all others hold what edits say.
    """
    old, new = (_tensors(archive) for archive in (before, after))
    places = {name: _place(*one) for name, one in old.items()}
    contents: dict[str, list[Array]] = {}
    for name, array in edited.tensors.items():
        contents.setdefault(places[name], []).append(array)
    for name, (file, entry) in new.items():
        if name not in old:
            allowed = [*edited.added.values()]
        elif name not in edited.tensors and _same_bytes(before, old[name], after, (file, entry)):
            continue
        else:
            allowed = contents.get(places[name], [])
        if not any(_holds(after, name, array) for array in allowed):
            raise CheckFailed(
                "edits have made something else of it than they should; this is a bug in relutrim",
                where=f"tensor {name!r}",
            )


def _tensors(archive: Archive) -> dict[str, tuple[str, dict[str, Any]]]:
    """The file of each tensor, and what the archive says of it."""
    return {
        name: (f"data/{folder}/{entry['path_name']}", entry)
        for folder in _PREFIXES
        for name, entry in archive.table(folder)["config"].items()
    }


def _same_bytes(
    before: Archive, old: tuple[str, dict[str, Any]], after: Archive, new: tuple[str, dict[str, Any]]
) -> bool:
    return old == new and before.content(old[0]) == after.content(new[0])


def _holds(archive: Archive, name: str, array: Array) -> bool:
    found = archive.tensor(name)
    return (found.dtype, found.shape) == (array.dtype, array.shape) and found.tobytes() == array.tobytes()


class State:
    """The tensors of a program. ``module`` is its JSON, and changed; ``read`` are the names in the graph of
    what is read; ``parts`` are the files that change, None for one that goes.
    """

    def __init__(self, archive: Archive, module: dict[str, Any], read: Collection[str]) -> None:
        self.archive = archive
        self.specs, self.inputs = module["signature"]["input_specs"], module["graph"]["inputs"]
        self.like = module["graph"]["tensor_values"][inputs_of(self.specs)[1][0]]
        self.tables = {folder: archive.table(folder) for folder in _PREFIXES}
        self.entries: dict[str, dict[str, Any]] = {}
        self.files: dict[str, str] = {}
        for folder, table in self.tables.items():
            for target, entry in table["config"].items():
                self.entries[target] = entry
                self.files[target] = f"data/{folder}/{entry['path_name']}"
        self.stored = inputs_of(self.specs)[0]
        self.places = {target: _place(self.files[target], entry) for target, entry in self.entries.items()}
        """Where in memory tensors are."""
        known = {self.places[target]: target for name, target in self.stored.items() if name in read}
        own = {target for name, target in self.stored.items() if name in read}
        self.leaders = {
            target: target if target in own else known.get(place, target)
            for target, place in self.places.items()
        }
        """The tensor that each one is another name of: itself, or one that is read."""
        self.parts: dict[str, bytes | None] = {}
        self.dropped: set[str] = set()

    def apply(self, edited: Edited) -> dict[str, Array]:
        """Do what edits say of tensors; what comes back is what is new, by the names in the graph."""
        gone = {self.stored[name] for name in self.stored if name not in edited.program.constants}
        gone = {target for target, leader in self.leaders.items() if leader in gone}
        new = {
            target: edited.tensors[leader]
            for target, leader in self.leaders.items()
            if leader in edited.tensors and target not in gone
        }
        self._write(new, gone)
        self._drop(gone)
        for name, array in edited.added.items():
            self._add(name, array, edited.paths.get(name, name), name in edited.learnt)
        for folder, table in self.tables.items():
            if table != self.archive.table(folder):
                self.parts[table_path(folder)] = json.dumps(table).encode()
        return {name: new[target] for name, target in self.stored.items() if target in new} | {**edited.added}

    def _write(self, new: Mapping[str, Array], gone: Collection[str]) -> None:
        stay = {path for target, path in self.files.items() if target not in new and target not in gone}
        self.parts = {path: None for path in self.files.values() if path not in stay}
        made: dict[tuple[str, bytes], str] = {}
        for target, array in new.items():
            key, path = (self.places[target], array.tobytes()), self.files[target]
            if key not in made:
                made[key] = path if self.parts.get(path, b"") is None else self._free(path.split("/")[1])
                self.parts[made[key]] = array.tobytes()
            said = {**self.entries[target]["tensor_meta"], **described(without_numbers(array))}
            self.entries[target].update(path_name=made[key].rpartition("/")[2], tensor_meta=said)

    def _drop(self, gone: Collection[str]) -> None:
        for table in self.tables.values():
            for target in table["config"].keys() & {*gone}:
                del table["config"][target]
        self.dropped = {name for name, target in self.stored.items() if target in gone}
        for at in reversed(range(len(self.specs))):
            ((_, body),) = self.specs[at].items()
            if body.get("arg", {}).get("name") in self.dropped:
                del self.specs[at], self.inputs[at]

    def _add(self, name: str, array: Array, path: str, learnt: bool) -> None:
        path, file = self._path(path, name), self._free("weights")
        self.parts[file] = array.tobytes()
        said = {**self.like, "requires_grad": learnt, **described(without_numbers(array))}
        self.tables["weights"]["config"][path] = {
            "path_name": file.rpartition("/")[2],
            "is_param": learnt,
            "use_pickle": False,
            "tensor_meta": said,
        }
        kind = "parameter" if learnt else "buffer"
        more = {} if learnt else {"persistent": True}
        before = _KINDS[: _KINDS.index(kind) + 1]
        at = 1 + max((at for at, spec in enumerate(self.specs) if {*spec} & {*before}), default=-1)
        self.specs.insert(at, {kind: {"arg": {"name": name}, f"{kind}_name": path, **more}})
        self.inputs.insert(at, {"as_tensor": {"name": name}})

    def _free(self, folder: str) -> str:
        """The path of a file that there is not."""
        start, count = f"data/{folder}/{_PREFIXES[folder]}", 0
        while f"{start}{count}" in {*self.files.values(), *self.parts}:
            count += 1
        return f"{start}{count}"

    def _path(self, path: str, name: str) -> str:
        """What a new tensor is called in the state: by its path if a module can have a part there."""
        taken = {target for table in self.tables.values() for target in table["config"]}
        modules = {start for target in taken for start in _starts(target)}
        parts = path.split(".")
        if not all(parts) or {*parts} & TAKEN or {*_starts(path)} & taken:
            path = name
        while path in taken | modules:
            path += "_"
        return path


def _place(file: str, entry: Mapping[str, Any]) -> str:
    """The file of a tensor, and what of it."""
    meta = entry["tensor_meta"] or {}
    return json.dumps([file, *(meta.get(key) for key in ("dtype", "sizes", "strides", "storage_offset"))])


def _starts(path: str) -> list[str]:
    """The paths of the modules that something is in."""
    parts = path.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]
