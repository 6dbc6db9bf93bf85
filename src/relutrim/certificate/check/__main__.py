"""``python -m relutrim.certificate.check MODEL OUT CERTIFICATE``, where numpy and onnx are all there is.

Exit codes: 0 everything was proved anew, 1 something was not, 2 bad usage or input, 3 an operator it does not
read.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

from relutrim.certificate.check import SECONDS, Asked, check
from relutrim.errors import InputError, RelutrimError, one_line

_LARGEST = 2**31


def content(path: Path) -> bytes:
    """A file's bytes, within a limit."""
    try:
        if path.stat().st_size > _LARGEST:
            raise InputError(f"the file is larger than {_LARGEST} bytes", where=str(path))
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"the file cannot be read ({error.strerror or error})", where=str(path)) from None


def checked_tolerance(tolerance: float | None) -> None:
    """A tolerance must be a number that is not negative."""
    if tolerance is not None and not (0 <= tolerance < math.inf):
        raise InputError(f"a tolerance of {tolerance:g} makes no sense; it is how far an output may be away")


def main(arguments: list[str] | None = None) -> int:
    """Check, and say what was checked."""
    parser = argparse.ArgumentParser(prog="python -m relutrim.certificate.check", description=__doc__)
    for name in ("model", "out", "certificate"):
        parser.add_argument(name, type=Path, metavar=name.upper())
    parser.add_argument("--box", type=float, nargs=2, metavar=("LO", "HI"))
    parser.add_argument("--normalized-box", type=float, nargs=2, metavar=("LO", "HI"))
    parser.add_argument("--mean", type=float, nargs="+", metavar="M")
    parser.add_argument("--std", type=float, nargs="+", metavar="S")
    parser.add_argument("--center", type=Path, metavar="X.npy")
    parser.add_argument("--radius", type=float, metavar="R")
    parser.add_argument("--sum-between", type=float, nargs=2, action="append", default=[], metavar=("A", "B"))
    parser.add_argument("--constraint", type=Path, action="append", default=[], metavar="F.npz")
    parser.add_argument("--tolerance", type=float, metavar="EPS")
    parser.add_argument("--time-limit", type=float, default=SECONDS, metavar="S", help="[%(default)g]")
    options = parser.parse_args(arguments)
    try:
        checked_tolerance(options.tolerance)
        files = [content(path) for path in (options.model, options.out, options.certificate)]
        report = check(
            files[0], files[1], files[2], _asked(options), options.tolerance, seconds=options.time_limit
        )
    except RelutrimError as error:
        print(f"rejected: {one_line(str(error))}", file=sys.stderr)
        return error.exit_code
    for line in report.lines:
        print(one_line(line))
    print(f"accepted: OUT is within {report.bound:.6g} of MODEL on the whole domain")
    return 0


def _asked(options: argparse.Namespace) -> Asked | None:
    """The domain that was asked for, if any was. A ball's ends are rounded outward."""
    kinds = [options.box, options.normalized_box, options.center]
    extra = options.sum_between or options.constraint
    if not any(kind is not None for kind in kinds):
        if extra or options.mean or options.std or options.radius is not None:
            raise InputError("a domain needs --box, --normalized-box or --center")
        return None
    normal = options.normalized_box is not None
    if sum(kind is not None for kind in kinds) != 1 or normal != bool(options.mean and options.std):
        raise InputError(
            "a domain is one of --box, --normalized-box with --mean and --std, --center with --radius"
        )
    lo, hi = options.box or options.normalized_box or _ball(options)
    rows: list[Any] = [np.ones((1, 1)) for _ in options.sum_between]
    lower, upper = [a for a, _ in options.sum_between], [b for _, b in options.sum_between]
    for path in options.constraint:
        try:
            with np.load(path, allow_pickle=False) as found:
                rows.append(np.atleast_2d(found["A"].astype(np.float64)))
                lower += np.atleast_1d(found["lo"]).astype(np.float64).tolist()
                upper += np.atleast_1d(found["hi"]).astype(np.float64).tolist()
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"it does not hold the arrays A, lo, hi ({error})", where=str(path)) from None
    width = max([1, *(row.shape[1] for row in rows)])
    joined = np.concatenate([np.broadcast_to(row, (len(row), width)) for row in rows]) if rows else None
    return Asked(lo, hi, joined, lower, upper, options.mean, options.std)


def _ball(options: argparse.Namespace) -> tuple[Any, Any]:
    try:
        center = np.load(options.center, allow_pickle=False).astype(np.float64)
    except (OSError, ValueError) as error:
        raise InputError(f"this is no .npy array ({error})", where=str(options.center)) from None
    if options.radius is None or not 0 <= options.radius < math.inf:
        raise InputError("--center needs a --radius that is finite and not negative")
    return np.nextafter(center - options.radius, -np.inf), np.nextafter(center + options.radius, np.inf)


if __name__ == "__main__":
    sys.exit(main())
