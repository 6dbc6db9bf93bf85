"""How much memory an analysis may take: what is held at once is sized by it.

Below :data:`FULL` every batch shrinks in proportion; above it none grows, because larger ones do not pay. The
network itself, the ranges of its values and the libraries come on top.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from relutrim.errors import InputError

FULL = 4 * 2**30
"""From so many bytes on, batches are as large as pays."""
LEAST = 64 * 2**20
"""With less, batches would hold next to nothing."""
_PART = 4
"""The default is this part of the machine's memory."""
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_OWN_GROUPS, _CGROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class MemoryBudget:
    """So many bytes.

    >>> MemoryBudget.of("2G").bytes == 2 * 2**30
    True
    >>> MemoryBudget.of("1G").share(128 * 2**20) == 32 * 2**20
    True
    """

    bytes: int = FULL

    @classmethod
    def of(cls, memory: str | int | MemoryBudget | None) -> MemoryBudget:
        """A budget as a user states it: bytes, or a number with K, M, G or T; None: a quarter of what the
        machine has.
        """
        if isinstance(memory, MemoryBudget):
            return memory
        if memory is None:
            found = machine_memory()
            return cls(FULL if found is None else max(LEAST, found // _PART))
        number = _parsed(memory)
        if number < LEAST:
            raise InputError(
                f"a memory budget of {memory} is too small; give at least {LEAST // 2**20}M, or none for a "
                "quarter of the machine's memory"
            )
        return cls(number)

    def share(self, most: int) -> int:
        """What something may take that takes ``most`` where memory is no matter; at least 1."""
        return most if self.bytes >= FULL else max(1, most * self.bytes // FULL)


AMPLE = MemoryBudget()
"""Batches as large as pays."""


def _parsed(memory: str | int) -> int:
    """A number of bytes, with or without a unit."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*([KMGT]?)(?:I?B)?", str(memory).strip().upper(), re.ASCII)
    if isinstance(memory, bool) or found is None or len(found[1]) > 30:
        raise InputError(
            f"memory {memory!r} makes no sense; give a number of bytes, such as 2G, 512M or 2147483648"
        )
    return int(float(found[1]) * _UNITS[found[2]])


def machine_memory() -> int | None:
    """The bytes that this process can have at most: the machine's, or its control group's if those are fewer;
    None where nothing says that.
    """
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        physical = 0
    return min([*([physical] if physical > 0 else []), *_control_group_limits()], default=None)


def _control_group_limits() -> list[int]:
    """The limits of the control groups that this process is in, those of their parents included."""
    try:
        lines = _OWN_GROUPS.read_text().splitlines()
    except OSError:
        return []
    limits = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, name = _CGROUPS, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = _CGROUPS / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = Path(path.strip("/"))
        limits += [_limit(root / part / name) for part in (group, *group.parents)]
    return [limit for limit in limits if limit is not None]


def _limit(file: Path) -> int | None:
    """The number in a file; None where there is none."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
