"""The console that commands print tables on."""

import sys

from rich.console import Console

_WIDTH_IN_FILES = 1_000_000
"""Tables take what their cells need, and none is cut: what reads a file or a pipe wants whole digests and names."""


def output_console() -> Console:
    """Returns a console on stdout: as wide as the terminal, or as wide as any table where there is none."""
    return Console(width=None if sys.stdout.isatty() else _WIDTH_IN_FILES, soft_wrap=True, highlight=False)
