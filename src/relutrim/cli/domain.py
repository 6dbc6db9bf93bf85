"""The options that state a domain, shared by every command that needs one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from relutrim.errors import DomainError, InputError
from relutrim.io.arrays import read_array, read_arrays

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from relutrim.domain import Domain
    from relutrim.graph import Network

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
    click.option(
        "--everywhere",
        is_flag=True,
        help="Any real inputs: what holds then needs nothing from you, but a box may allow for more.",
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
_KINDS = ("box", "normalized_box", "center", "vnnlib", "everywhere")
_NAMES = (*_KINDS, "mean", "std", "radius", "sum_between", "constraint")


class ManyNumbers(click.Command):
    """A command whose ``--mean`` and ``--std`` take as many numbers as follow them."""

    many: tuple[str, ...] = ("--mean", "--std")

    def takes(self, option: str, argument: str) -> bool:
        """Whether an argument is one more value of an option."""
        return _is_number(argument)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat the option before each of its numbers, which is how click wants to see it."""
        spread: list[str] = []
        option, fed = "", False
        for argument in args:
            if option and self.takes(option, argument):
                spread += [option] if fed else []
                fed = True
            else:
                name, _, value = argument.partition("=")
                option, fed = name if name in self.many else "", bool(value)
            spread.append(argument)
        return super().parse_args(ctx, spread)


def domain_options(command: F) -> F:
    """Add the options to a command; :func:`take_domain` reads them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def states_domain(options: dict[str, Any]) -> bool:
    """Whether any of the options is given."""
    return any(options[name] not in (None, (), False) for name in _NAMES)


def take_domain(options: dict[str, Any], network: Network, *, optional: bool = False) -> Domain:
    """The domain stated by a command's options, which are taken out of ``options``; all real inputs where it
    is ``optional`` and there is none.
    """
    if optional and not states_domain(options):
        options["everywhere"] = True
    given = {name: options.pop(name) for name in _NAMES}
    kinds = [name for name in _KINDS if given[name] not in (None, False)]
    if len(kinds) != 1:
        found = " and ".join(f"--{name.replace('_', '-')}" for name in kinds) or "none"
        raise InputError(
            "the domain needs exactly one of --box LO HI, --normalized-box LO HI --mean M "
            "--std S, --center X.npy --radius R, "
            f"--vnnlib F, --everywhere; found {found}"
        )
    if (given["mean"] or given["std"]) and kinds != ["normalized_box"]:
        raise InputError("--mean and --std go with --normalized-box only")
    if given["radius"] is not None and kinds != ["center"]:
        raise InputError("--radius goes with --center only")
    domain = _base(kinds[0], given, network)
    for low, high in given["sum_between"]:
        domain = domain.sum_between(low, high)
    for path in given["constraint"]:
        domain = _constrained(domain, path, network)
    return domain


def _base(kind: str, given: dict[str, Any], network: Network) -> Domain:
    from relutrim.domain import Box, Everywhere, NormalizedBox

    if kind == "everywhere":
        return Everywhere()
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
        return _around(given["center"], given["radius"], network)
    return from_vnnlib(given["vnnlib"], network)


def _around(path: Path, radius: float, network: Network) -> Domain:
    from relutrim.domain import Ball

    center = read_array(path)
    if center.size not in (1, network.input.size):
        raise DomainError(
            f"it holds {center.size} numbers of shape {center.shape}, and the network's input of shape "
            f"{network.input.shape} has {network.input.size}; give one input",
            where=str(path),
        )
    try:
        return Ball(_exact(center, path), radius)
    except DomainError as error:
        raise error.at(str(path)) from None


def from_vnnlib(path: Path, network: Network) -> Domain:
    """The inputs that a VNN-LIB file is about."""
    from dataclasses import replace

    from relutrim.domain import Box
    from relutrim.io.vnnlib import read_vnnlib

    found = read_vnnlib(path, network.input.size)
    domain = replace(Box(found.lo, found.hi), origin="vnnlib")
    if len(found.matrix):
        domain = domain.constrain(found.matrix, found.lower, found.upper)
    return domain


def _constrained(domain: Domain, path: Path, network: Network) -> Domain:
    matrix, low, high = (_exact(array, path) for array in read_arrays(path, ("A", "lo", "hi")))
    width = matrix.shape[-1] if matrix.ndim else 1
    if width not in (1, network.input.size):
        raise DomainError(
            f"A has {width} columns, and the network has {network.input.size} inputs; one column per input "
            "is needed",
            where=str(path),
        )
    try:
        return domain.constrain(matrix, low, high)
    except DomainError as error:
        raise error.at(str(path)) from None


def _exact(array: npt.NDArray[np.generic], path: Path) -> npt.NDArray[np.float64]:
    """The same numbers in float64, in which domains are kept; what would be rounded is refused."""
    import numpy as np

    double = array.astype(np.float64)
    whole = array.dtype.kind in "iu"
    lost = np.abs(double) >= 2.0**53 if whole else (double != array) & ~np.isnan(double)
    if lost.any():
        raise InputError(
            f"it holds {array.dtype} numbers that float64 cannot hold exactly; save it as float64",
            where=str(path),
        )
    return double


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
