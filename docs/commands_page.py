"""Writes the command reference from the commands themselves, so that it is never out of date."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from relutrim.cli import commands

_HEAD = "# Commands\n\nMade from the commands themselves; `relutrim COMMAND --help` says the same.\n"


def write_commands(target: Path) -> None:
    """The page, left alone where it says so already."""
    text = "\n".join([_HEAD, *_sections(commands, "relutrim")]) + "\n"
    if not target.exists() or target.read_text(encoding="utf-8") != text:
        target.write_text(text, encoding="utf-8")


def _sections(group: click.Group, name: str) -> Iterator[str]:
    context = click.Context(group, info_name=name)
    for child in group.list_commands(context):
        command = group.get_command(context, child)
        if command is None or command.hidden:
            continue
        if isinstance(command, click.Group):
            yield from _sections(command, f"{name} {child}")
            continue
        yield from _section(command, click.Context(command, info_name=f"{name} {child}"))


def _section(command: click.Command, context: click.Context) -> Iterator[str]:
    yield f"## {context.info_name}\n"
    yield f"```text\n{context.command_path} {' '.join(command.collect_usage_pieces(context))}\n```\n"
    if command.help:
        yield _prose(command.help) + "\n"
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            spelling, text = record
            yield f"`{spelling}`\n: {_prose(text) or 'no more to say'}\n"


def _prose(text: str) -> str:
    """Help as Markdown: what it would take for markup is taken for what it is."""
    lines = " ".join(text.replace("\b", "").split())
    for mark in ("\\", "*", "_", "<", "[", "$", "|"):
        lines = lines.replace(mark, "\\" + mark)
    return lines
