"""The options that state a domain, shared by every command that needs one."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from relutrim.errors import DomainError, InputError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from relutrim.domain import Domain
    from relutrim.network import Network

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--box", type=float, nargs=2, metavar="LO HI", help="All inputs lie between LO and HI."),
    click.option(
        "--normalized-box",
        type=float,
        nargs=2,
        metavar="LO HI",
        help="Raw inputs lie between LO and HI; the network sees (x - mean) / std.",
    ),
    click.option(
        "--mean", type=float, multiple=True, metavar="M..", help="Mean: one number, or one per channel."
    ),
    click.option("--std", type=float, multiple=True, metavar="S..", help="Standard deviation, likewise."),
    click.option(
        "--center",
        type=click.Path(path_type=Path),
        metavar="X.npy",
        help="Centre of a box of half-width --radius.",
    ),
    click.option("--radius", type=float, metavar="R", help="Half-width of the box around --center."),
    click.option(
        "--vnnlib",
        type=click.Path(path_type=Path),
        metavar="F",
        help="Input constraints of a VNN-LIB 1 file.",
    ),
    click.option(
        "--sum-between",
        type=float,
        nargs=2,
        multiple=True,
        metavar="A B",
        help="Keep inputs whose raw sum lies between A and B.",
    ),
    click.option(
        "--constraint",
        type=click.Path(path_type=Path),
        multiple=True,
        metavar="F.npz",
        help="Keep raw inputs with lo <= A x <= hi; the file holds the arrays A, lo, hi.",
    ),
)
_NAMES = ("box", "normalized_box", "mean", "std", "center", "radius", "vnnlib", "sum_between", "constraint")
_MANY = ("--mean", "--std")


class ManyNumbers(click.Command):
    """A command whose ``--mean`` and ``--std`` take as many numbers as follow them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat the option before each of its numbers, which is how click wants to see it."""
        spread: list[str] = []
        option: str | None = None
        for position, argument in enumerate(args):
            if option is not None and args[position - 1] != option and _is_number(argument):
                spread.append(option)
            elif not _is_number(argument):
                option = argument if argument in _MANY else None
            spread.append(argument)
        return super().parse_args(ctx, spread)


def domain_options(command: F) -> F:
    """Add the options to a command; :func:`take_domain` reads them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def take_domain(options: dict[str, Any], network: Network) -> Domain:
    """The domain stated by a command's options, which are taken out of ``options``."""
    given = {name: options.pop(name) for name in _NAMES}
    kinds = [name for name in ("box", "normalized_box", "center", "vnnlib") if given[name] is not None]
    if len(kinds) != 1:
        found = " and ".join(f"--{name.replace('_', '-')}" for name in kinds) or "none"
        raise InputError(
            "the domain needs exactly one of --box LO HI, --normalized-box LO HI --mean M "
            "--std S, --center X.npy --radius R, "
            f"--vnnlib F; found {found}"
        )
    if (given["mean"] or given["std"]) and kinds != ["normalized_box"]:
        raise InputError("--mean and --std go with --normalized-box only")
    if given["radius"] is not None and kinds != ["center"]:
        raise InputError("--radius goes with --center only")
    domain = _base(kinds[0], given, network)
    for low, high in given["sum_between"]:
        domain = domain.sum_between(low, high)
    for path in given["constraint"]:
        domain = _constrained(domain, path)
    return domain


def _base(kind: str, given: dict[str, Any], network: Network) -> Domain:
    from relutrim.domain import Ball, Box, NormalizedBox

    if kind == "box":
        return Box(*given["box"])
    if kind == "normalized_box":
        if not given["mean"] or not given["std"]:
            raise InputError("--normalized-box needs --mean and --std")
        low, high = given["normalized_box"]
        return NormalizedBox(low, high, list(given["mean"]), list(given["std"]))
    if kind == "center":
        if given["radius"] is None:
            raise InputError("--center needs --radius")
        return Ball(read_array(given["center"]), given["radius"])
    return _from_vnnlib(given["vnnlib"], network)


def _from_vnnlib(path: Path, network: Network) -> Domain:
    from dataclasses import replace

    from relutrim.domain import Box
    from relutrim.formats.vnnlib import read_vnnlib

    found = read_vnnlib(path, network.input.size)
    domain = replace(Box(found.lo, found.hi), origin="vnnlib")
    if len(found.matrix):
        domain = domain.constrain(found.matrix, found.lower, found.upper)
    return domain


def _constrained(domain: Domain, path: Path) -> Domain:
    arrays = read_arrays(path, ("A", "lo", "hi"))
    try:
        return domain.constrain(arrays["A"], arrays["lo"], arrays["hi"])
    except DomainError as error:
        raise error.at(str(path)) from None


def read_array(path: Path) -> npt.NDArray[np.generic]:
    """One array of real numbers from a ``.npy`` file; nothing is unpickled."""
    import numpy as np

    from relutrim.formats.files import LARGEST_FILE

    try:
        if path.stat().st_size > LARGEST_FILE:
            raise InputError(f"the file is larger than {LARGEST_FILE} bytes", where=str(path))
        array = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise InputError("there is no such file", where=str(path)) from None
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"this is not a plain .npy array ({error})", where=str(path)) from None
    if not isinstance(array, np.ndarray):
        array.close()
        raise InputError("this is an archive of several arrays; give a .npy file with one", where=str(path))
    return _real(array, path)


def read_arrays(path: Path, names: Sequence[str]) -> dict[str, npt.NDArray[np.generic]]:
    """Named arrays of real numbers from a ``.npz`` file; nothing is unpickled, and nothing unpacks beyond the
    size limit.
    """
    import numpy as np

    from relutrim.formats.files import LARGEST_FILE

    try:
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > LARGEST_FILE:
                raise InputError(f"it unpacks to more than {LARGEST_FILE} bytes", where=str(path))
        with np.load(path, allow_pickle=False) as archive:
            missing = [name for name in names if name not in archive]
            if missing:
                raise InputError(
                    f"it holds {', '.join(archive.files) or 'nothing'}; {', '.join(missing)} is missing",
                    where=str(path),
                )
            return {name: _real(archive[name], path) for name in names}
    except FileNotFoundError:
        raise InputError("there is no such file", where=str(path)) from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"this is not a plain .npz archive ({error})", where=str(path)) from None


def _real(array: npt.NDArray[np.generic], path: Path) -> npt.NDArray[np.generic]:
    if array.dtype.kind not in "fiub":
        raise InputError(f"it holds {array.dtype} values; real numbers are needed", where=str(path))
    return array


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
