"""The command line, a file for each command.

``group`` knows the commands by name and imports one when it is called, ``entry`` turns errors into messages
and exit codes; ``options``, ``domain``, ``inputs``, ``targets`` and ``talk`` are what the commands share.
"""

from relutrim.cli.entry import main
from relutrim.cli.group import commands

__all__ = ["commands", "main"]
