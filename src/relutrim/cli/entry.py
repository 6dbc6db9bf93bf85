"""Where the console script begins: every error becomes one message on stderr and an exit code."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress

import click

from relutrim.cli.group import commands
from relutrim.cli.talk import INTERRUPTED, complain
from relutrim.errors import RelutrimError


def main() -> None:
    """Entry point: every error becomes one message on stderr and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that cannot be spelt here is no reason to fail
            stream.reconfigure(errors="backslashreplace")
    try:
        code = commands.main(prog_name="relutrim", standalone_mode=False)
    except click.Abort as stop:
        # Click takes the end of a file for the end of a conversation.
        code = _bug(stop.__cause__) if isinstance(stop.__cause__, EOFError) else _interrupted()
    except click.ClickException as error:
        if isinstance(error, click.UsageError) and error.ctx is not None:
            click.echo(f"{error.ctx.get_usage()}\nTry '{error.ctx.command_path} --help'.", err=True)
        code = complain(error.format_message(), error.exit_code)
    except RelutrimError as error:
        code = complain(str(error), error.exit_code)
    except KeyboardInterrupt:
        code = _interrupted()
    except OSError as error:
        if error.filename is None:
            _silence_stdout()
        code = complain(f"{error.filename or 'the output'}: {error.strerror or error}", 2)
    except Exception as error:
        code = _bug(error)
    sys.exit(code if isinstance(code, int) else 0)


def _interrupted() -> int:
    return complain("interrupted", INTERRUPTED)


def _bug(error: BaseException) -> int:
    if os.environ.get("RELUTRIM_DEBUG"):
        raise error
    return complain(
        f"internal error ({type(error).__name__}: {error}); set RELUTRIM_DEBUG=1 to see where, and please "
        "report it",
        1,
    )


def _silence_stdout() -> None:
    """What it still holds could not be written, and Python would try again on its way out."""
    with suppress(OSError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
