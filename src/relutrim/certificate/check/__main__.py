"""``python -m relutrim.certificate.check MODEL OUT CERTIFICATE``, where numpy and onnx are all there is.

Exit codes: 0 everything was proved anew, 1 something was not, 2 bad usage or input, 3 an operator it does not
read.
"""

from __future__ import annotations

import argparse
import sys
import zipfile
from pathlib import Path

import numpy as np

from relutrim.certificate.check import SECONDS, Asked, check
from relutrim.certificate.check.archive import unique
from relutrim.errors import InputError, RelutrimError, one_line

_LARGEST = 2**31


def content(path: Path) -> bytes:
    """A file's bytes, within a limit."""
    try:
        with path.open("rb") as file:
            found = file.read(_LARGEST + 1)
    except OSError as error:
        raise InputError(f"the file cannot be read ({error.strerror or error})", where=str(path)) from None
    if len(found) > _LARGEST:
        raise InputError(f"the file is larger than {_LARGEST} bytes", where=str(path))
    return found


def _asked(box: list[float] | None, path: Path | None) -> Asked | None:
    """The domain that was asked for, if any was."""
    if path is None:
        return None if box is None else Asked(*box)
    names = ("lo", "hi", "rows", "lower", "upper", "mean", "std")
    try:
        with zipfile.ZipFile(path) as archive:
            unique(archive)
        with np.load(path, allow_pickle=False) as found:
            return Asked(**{name: found[name].astype(np.float64) for name in names if name in found})
    except Exception as error:  # of zip, of numpy: whatever it is
        raise InputError(
            f"it does not hold the arrays {', '.join(names)} ({error})", where=str(path)
        ) from None


def main(arguments: list[str] | None = None) -> int:
    """Check, and say what was checked."""
    parser = argparse.ArgumentParser(prog="python -m relutrim.certificate.check", description=__doc__)
    for name in ("model", "out", "certificate"):
        parser.add_argument(name, type=Path, metavar=name.upper())
    domain = parser.add_mutually_exclusive_group()
    domain.add_argument("--box", type=float, nargs=2, metavar=("LO", "HI"))
    domain.add_argument("--domain", type=Path, metavar="F.npz", help="lo, hi [rows lower upper] [mean std]")
    parser.add_argument("--output-relu", action="store_true", help="MODEL was compressed with this option")
    parser.add_argument("--tolerance", type=float, metavar="EPS")
    parser.add_argument("--time-limit", type=float, default=SECONDS, metavar="S", help="[%(default)g]")
    options = parser.parse_args(arguments)
    try:
        model, out, proof = map(content, (options.model, options.out, options.certificate))
        asked = _asked(options.box, options.domain)
        names = options.model.name, options.out.name
        more = {"names": names, "output_relu": options.output_relu, "seconds": options.time_limit}
        report = check(model, out, proof, asked, options.tolerance, **more)
    except RelutrimError as error:
        print(f"rejected: {one_line(str(error))}", file=sys.stderr)
        return error.exit_code
    for line in report.lines:
        print(one_line(line))
    print(f"accepted: OUT is within {report.bound:.6g} of MODEL on the whole domain")
    return 0


if __name__ == "__main__":
    sys.exit(main())
