"""A table, as Markdown for readers and CSV for programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field

Cell = str | int | float | bool | None


@dataclass
class Table:
    """``name`` is for files. Numbers in ``rows`` are as measured; how they read is up to ``formats``."""

    name: str
    title: str
    columns: Sequence[str]
    rows: list[Sequence[Cell]] = field(default_factory=list)
    note: str = ""
    formats: dict[str, str] = field(default_factory=dict)

    def markdown(self) -> str:
        """The table with its title.

        >>> print(Table("t", "T", ["a", "b"], [["x", 1.25]], formats={"b": ".1f"}).markdown())
        ## T
        <BLANKLINE>
        | a | b |
        |---|---:|
        | x | 1.2 |
        """
        lines = [f"## {self.title}", ""]
        if self.note:
            lines += [self.note, ""]
        numeric = [
            any(isinstance(row[i], int | float) for row in self.rows) for i in range(len(self.columns))
        ]
        lines.append("| " + " | ".join(self.columns) + " |")
        lines.append("|" + "|".join("---:" if number else "---" for number in numeric) + "|")
        for row in self.rows:
            cells = (self._shown(column, cell) for column, cell in zip(self.columns, row, strict=True))
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join(lines)

    def _shown(self, column: str, cell: Cell) -> str:
        if cell is None or cell != cell:
            return "-"
        if isinstance(cell, bool):
            return "yes" if cell else "no"
        if isinstance(cell, int | float):
            return format(cell, self.formats.get(column, ".4g"))
        return cell.replace("|", "\\|")

    def csv(self) -> str:
        """The same numbers, in full."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(["" if cell is None else cell for cell in row] for row in self.rows)
        return text.getvalue()
