"""The line on stderr that shows the client's latest warning, such as that no server answers yet."""

import logging
import shutil
import sys

from rich.file_proxy import FileProxy

_CLEAR_LINE = "\r\x1b[2K"
"""Moves a terminal's cursor to the begin of the line, and empties the line."""


class StatusLine(logging.Handler):
    """Shows the client's warnings on stderr; on a terminal, the latest one only."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._is_shown = False

    def emit(self, record: logging.LogRecord) -> None:
        """Shows a record's first line."""
        text = record.getMessage().partition("\n")[0]
        # Where bars are drawn, rich has replaced stderr and puts lines above them.
        if sys.stderr.isatty() and not isinstance(sys.stderr, FileProxy):
            width = shutil.get_terminal_size().columns
            # The last column stays free: a character there would make some terminals begin another line.
            sys.stderr.write(_CLEAR_LINE + (text if len(text) < width else text[: width - 2] + "…"))
            sys.stderr.flush()
            self._is_shown = True
        else:
            print(text, file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Removes the line from the terminal, if there is one."""
        if self._is_shown:
            sys.stderr.write(_CLEAR_LINE)
            sys.stderr.flush()
            self._is_shown = False
