"""``python -m relutrim``."""

from relutrim.cli import main

main()
