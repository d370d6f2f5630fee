"""The console that commands print tables on."""

import sys

from rich.console import Console

_WIDTH_IN_FILES = 140


def output_console() -> Console:
    """Returns a console on stdout: as wide as the terminal, or wide enough for any table where there is none."""
    return Console(width=None if sys.stdout.isatty() else _WIDTH_IN_FILES, soft_wrap=True, highlight=False)
