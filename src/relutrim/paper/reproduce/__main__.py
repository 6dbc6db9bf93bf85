"""``python -m relutrim.paper.reproduce``: the command without click, for machines that lack it."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from relutrim.errors import RelutrimError
from relutrim.paper.reproduce.command import reproduce
from relutrim.paper.reproduce.options import NAMES, OPTIONS


def main() -> int:
    """The same as ``relutrim reproduce``."""
    parser = argparse.ArgumentParser(prog="relutrim reproduce", allow_abbrev=False)
    parser.add_argument("name", choices=NAMES)
    for option in OPTIONS:
        extra: dict[str, Any] = {"action": "store_true"}
        if option.kind is not bool:
            extra = {"type": option.kind, "default": option.default, "metavar": option.metavar}
        if option.many:
            extra |= {"nargs": "+", "default": []}
        parser.add_argument(option.name, help=option.help, **extra)
    given = vars(parser.parse_args())
    try:
        return reproduce(given.pop("name"), given, lambda text: print(text, flush=True))
    except RelutrimError as error:
        print(f"relutrim: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("relutrim: interrupted; the same command goes on", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
