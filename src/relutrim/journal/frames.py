"""Records in a file that may end anywhere and be damaged anywhere.

Each record is a frame: a marker, whose journal it is, its length, the sha256 of all that and of the content,
the content. A frame whose checksum is right is whole. Where one is not, reading goes on at the next marker
that begins a whole frame, so damage costs the records it hits and no others.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass

MARKER = b"\x93rtrim\r\n"
OWNER = 16
_HEAD = struct.Struct(f"<8s{OWNER}sQ32s")


@dataclass(frozen=True)
class Frame:
    """A whole frame: where it begins and ends, whose it is, and its content."""

    start: int
    end: int
    owner: bytes
    content: bytes


def frame(owner: bytes, content: bytes) -> bytes:
    """A frame as bytes."""
    return _HEAD.pack(MARKER, owner, len(content), _digest(owner, content)) + content


def frames(data: bytes) -> Iterator[Frame]:
    """All whole frames, in order."""
    at = data.find(MARKER)
    while at >= 0:
        found = _whole(data, at)
        if found is None:
            at = data.find(MARKER, at + 1)
        else:
            yield found
            at = data.find(MARKER, found.end)


def _whole(data: bytes, at: int) -> Frame | None:
    if at + _HEAD.size > len(data):
        return None
    _, owner, length, digest = _HEAD.unpack_from(data, at)
    start = at + _HEAD.size
    if length > len(data) - start:
        return None
    content = data[start : start + length]
    return Frame(at, start + length, owner, content) if _digest(owner, content) == digest else None


def _digest(owner: bytes, content: bytes) -> bytes:
    return hashlib.sha256(owner + struct.pack("<Q", len(content)) + content).digest()
