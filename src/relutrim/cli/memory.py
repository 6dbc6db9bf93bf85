"""``--memory``: how much memory a command may take."""

from __future__ import annotations

import click

from relutrim.memory import MemoryBudget


class Memory(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes, plain or with K, M, G or T."""

    name = "bytes"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> MemoryBudget:
        """The budget."""
        return value if isinstance(value, MemoryBudget) else MemoryBudget.of(str(value))
