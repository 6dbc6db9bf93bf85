"""What a journal is of: the network by its content, the domain, and the settings that verdicts depend on.

The network counts as it was read, so the same holds for files of any kind and for modules. What only says how
long or where to compute (time limits, jobs, the device) may change from run to run.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from relutrim.domain.domain import Domain, Problem
from relutrim.graph.graph import Network
from relutrim.journal.frames import OWNER

SCHEMA = "relutrim/journal/2"


def identity(
    network: Network, domain: Domain, problem: Problem, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """The header of a journal, apart from the version that wrote it."""
    ends = (problem.lo, problem.hi, problem.rows, problem.lower, problem.upper)
    return {
        "schema": SCHEMA,
        "model": content_digest(network),
        "domain": content_digest((*ends, domain.mean, domain.std)),
        **settings,
    }


def owner_of(header: Mapping[str, Any]) -> bytes:
    """The mark that every record of a journal with this header carries."""
    named = {name: value for name, value in header.items() if name not in ("kind", "relutrim")}
    return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).digest()[:OWNER]


def content_digest(content: Any) -> str:
    """The sha256 of numbers, arrays, names and dataclasses of them. What a file says besides (metadata),
    where it stores numbers only once (shared), and what is only remembered (fields with an underscore) does
    not count.
    """
    digest = hashlib.sha256()
    _feed(digest, content)
    return digest.hexdigest()


def _feed(digest: Any, content: Any) -> None:
    """Every piece with its kind and length, so that no two contents look alike."""
    if isinstance(content, np.ndarray):
        plain = np.ascontiguousarray(content, dtype=content.dtype.newbyteorder("<"))
        _feed(digest, (content.dtype.newbyteorder("<").str, content.shape))
        digest.update(plain.tobytes())
    elif dataclasses.is_dataclass(content) and not isinstance(content, type):
        fields = [field.name for field in dataclasses.fields(content)]
        kept = [name for name in fields if not name.startswith("_") and name not in ("metadata", "shared")]
        _feed(digest, (type(content).__name__, [(name, getattr(content, name)) for name in kept]))
    elif isinstance(content, Mapping):
        _feed(digest, sorted(content.items()))
    elif isinstance(content, tuple | list):
        digest.update(f"[{len(content)}".encode())
        for part in content:
            _feed(digest, part)
    elif isinstance(content, np.generic):
        _feed(digest, content.item())
    elif content is None or isinstance(content, str | bytes | bool | int | float | complex):
        text = repr(content).encode()
        digest.update(f"{type(content).__name__}{len(text)}:".encode() + text)
    else:
        raise TypeError(f"a {type(content).__name__} has no content that could be told apart")


def differences(found: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """In words, where the header of a journal is not that of this run."""
    words = []
    for name in sorted({*found, *expected} - {"kind", "relutrim"}):
        old, new = found.get(name), expected.get(name)
        if old != new and name in ("model", "domain", "data"):
            words.append(f"it is of another {name} ({_short(old)} there, {_short(new)} here)")
        elif old != new and name == "schema":
            words.append(
                f"it is of the kind {old!r}, which another version wrote, and this one reads {new!r} only"
            )
        elif old != new:
            words.append(f"its {name} is {old!r}, and this run's is {new!r}")
    return words


def _short(digest: Any) -> str:
    return f"sha256 {digest[:12]}" if isinstance(digest, str) else "none"
