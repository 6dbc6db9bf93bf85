"""What can go wrong, as exceptions that carry the exit code of the command line.

Every message answers four questions: what was found, where (file and node), why it matters, and what
to do instead. ``where`` is kept apart so that callers can add a file name to what a node-level check
raised without parsing text.
"""

from __future__ import annotations


def one_line(text: str) -> str:
    """Text on a single line and without control characters: names in files may hold anything.

    >>> one_line("a name\\n  on two lines, \\x1b[1min bold")
    'a name on two lines, \\\\x1b[1min bold'
    """
    joined = " ".join(line.strip() for line in text.splitlines())
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in joined
    )


class RelutrimError(Exception):
    """Base of everything relutrim raises on purpose: what is wrong, where, and what to do instead.

    >>> import relutrim
    >>> try:
    ...     relutrim.load("nowhere.onnx")
    ... except relutrim.RelutrimError as error:
    ...     print(error)
    nowhere.onnx: there is no such file
    """

    exit_code = 2

    def __init__(self, message: str, *, where: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message

    def at(self, where: str) -> RelutrimError:
        """The same error with ``where`` put before what it already names."""
        joined = f"{where}: {self.where}" if self.where else where
        return type(self)(self.message, where=joined)


class InputError(RelutrimError, ValueError):
    """A file, an option or an argument that cannot be used as it is."""


class NetworkError(InputError):
    """A network that contradicts itself: shapes that do not fit, cycles, NaN weights."""


class DomainError(InputError):
    """A domain that is empty, unbounded, or not of the network's dimension."""


class JournalError(InputError):
    """A journal that cannot be read or written, or that is of something else."""


class UnsupportedError(RelutrimError, NotImplementedError):
    """An operator or feature outside of what relutrim represents exactly."""

    exit_code = 3


class CheckFailed(RelutrimError):
    """Something that was to be verified turned out false."""

    exit_code = 1


class ContradictionError(RelutrimError, AssertionError):
    """A proof and a witness that exclude each other: a bug in relutrim, never a property of the network."""

    exit_code = 1
