"""What ran: versions and the kind of machine. No host name, no folder of this machine."""

from __future__ import annotations

import platform
import shlex
import sys
from collections.abc import Sequence
from importlib import metadata

from relutrim._version import __version__
from relutrim.errors import one_line

_PACKAGES = ("numpy", "torch", "onnx", "onnxruntime", "highspy", "pyscipopt", "gurobipy")
_SOLVERS = {"scip": "pyscipopt", "gurobi": "gurobipy"}


def versions(solver: str | None = None) -> list[tuple[str, str]]:
    """Names and versions of all that had a part in it; mixed-integer solvers only where they were asked."""
    found = [("relutrim", __version__), ("Python", platform.python_version())]
    for package in _PACKAGES:
        if package in _SOLVERS.values() and package != _SOLVERS.get(solver or ""):
            continue
        try:
            found.append((package, metadata.version(package)))
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> str:
    """The kind of machine, and nothing that tells which one."""
    return f"{platform.system()} on {platform.machine()}"


def command_line(arguments: Sequence[str] | None = None) -> str:
    """The command as it was typed.

    >>> command_line(["compress", "my model.onnx", "out.onnx", "--box", "0", "1"])
    "relutrim compress 'my model.onnx' out.onnx --box 0 1"
    """
    return one_line(shlex.join(["relutrim", *(sys.argv[1:] if arguments is None else arguments)]))
