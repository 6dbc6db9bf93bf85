"""Of which format bytes are: that of the name, and of no other.

A zip archive may lie within an ONNX file, in a field that no reader knows, and is still found by those who
look for its directory from the end. Such bytes are two models, and what is proved of one says nothing about
the other.
"""

from __future__ import annotations

import onnx

from relutrim.certificate.check.fields import count_fields
from relutrim.errors import InputError, UnsupportedError

_SUFFIXES = (".onnx", ".onnx.gz")
_TAIL = 2**17
"""Within so many bytes from the end readers look for a zip's end: a comment of 2**16 may follow it."""


def is_archive(content: bytes) -> bool:
    """Whether some reader could find a zip's directory in this."""
    return b"PK\5\6" in content[-_TAIL:] and b"PK\1\2" in content


def is_model(content: bytes) -> bool:
    """Whether some reader could take this for an ONNX model."""
    try:
        count_fields(content, onnx.ModelProto.DESCRIPTOR)
    except UnsupportedError:
        return True  # too many fields to look at, but fields
    except InputError:
        return False
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except Exception:  # protobuf's exceptions differ between its implementations
        return False
    return bool(model.HasField("graph"))


def is_onnx(name: str, content: bytes) -> bool:
    """Whether a file of this name is an ONNX file; refused if its content is of another kind. Without a name
    the content counts.
    """
    packed = content[:2] == b"\x1f\x8b"
    if not name:
        return packed or is_model(content)
    if not name.lower().endswith(_SUFFIXES):
        if is_model(content):
            raise InputError(f"an ONNX model is inside, and its name {name!r} does not end in {_SUFFIXES[0]}")
        return False
    if packed != name.lower().endswith(".gz"):
        raise InputError(f"its name is {name!r}, and it is {'' if packed else 'not '}packed by gzip")
    return True
