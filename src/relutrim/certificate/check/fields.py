"""How much an ONNX file holds, before it is parsed.

Two bytes of a file can be a node without anything, which takes more than a hundred in memory, and a small
archive can unpack to very many of them. So fields are counted first, with the types that onnx gives them.
"""

from __future__ import annotations

from typing import Any

from relutrim.errors import InputError, UnsupportedError

MOST_FIELDS = 2**20
_DEEPEST = 100
"""What protobuf reads."""
_SIZES = {1: 8, 5: 4}


def count_fields(content: bytes, kind: Any) -> int:
    """How many fields a message has, and the messages in it; refused if too many, or cut off."""
    try:
        return MOST_FIELDS - _left(memoryview(content), kind, MOST_FIELDS)
    except IndexError:
        raise InputError("this is not an ONNX model (it ends too early)") from None


def _left(content: memoryview, kind: Any, left: int, depth: int = 0) -> int:
    """How many more there may be behind this message."""
    if depth > _DEEPEST:
        raise InputError("this is not an ONNX model (messages lie in each other too deep)")
    at = 0
    while at < len(content):
        if left <= 0:
            raise UnsupportedError(f"a model of more than {MOST_FIELDS} parts is not read")
        left -= 1
        tag, at = _varint(content, at)
        wire, size = tag & 7, _SIZES.get(tag & 7, 0)
        if wire in (0, 2):
            number, at = _varint(content, at)
            size = number if wire == 2 else 0
        elif wire not in _SIZES:
            raise InputError("this is not an ONNX model (it has groups)")
        if at + size > len(content):
            raise IndexError
        field = kind.fields_by_number.get(tag >> 3)
        if wire == 2 and field is not None and field.message_type is not None:
            left = _left(content[at : at + size], field.message_type, left, depth + 1)
        elif wire == 2 and field is not None and field.cpp_type not in _wide(field):
            left -= size  # integers, which take eight bytes each
        at += size
    return left


def _wide(field: Any) -> tuple[int, ...]:
    """The types whose numbers, or bytes, take no more in memory than in the file."""
    return field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE, field.CPPTYPE_STRING


def _varint(content: memoryview, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, and where it ends."""
    found = 0
    for shift in range(0, 70, 7):
        found |= (content[at] & 127) << shift
        at += 1
        if content[at - 1] < 128:
            return found, at
    raise IndexError
