"""The terminal: where results are printed, rich there and plain lines in a pipe, and signals that end a command.

Owns how a table that is too wide is shown, and undoing work on Ctrl-C; leaves contents to each command.
"""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

import click
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table

from packhorse.jobs import ENDING_SIGNALS

_WIDTH_IN_FILES = 1_000_000
"""Tables take what their cells need, and none is cut: what reads a file or a pipe wants whole digests and names."""


class OutputConsole(Console):
    """A console that never cuts a number or a name.

    A table that is wider than the terminal loses its frame, and its cells wrap between words. Where that is not enough,
    each row is shown by itself, a line for each column.

    Example:
        >>> import io
        >>> table = Table("packer", "bins", box=None)
        >>> table.add_row("worst-fit-decreasing", "1,234,567")
        >>> console = OutputConsole(file=io.StringIO(), width=30, soft_wrap=True)
        >>> console.print(table)
        >>> print(console.file.getvalue().rstrip())
        packer  worst-fit-decreasing
        bins    1,234,567
    """

    def print(self, *objects: Any, **options: Any) -> None:
        """Prints, tables as wide as they may be."""
        super().print(*(self._fitting(each) if isinstance(each, Table) else each for each in objects), **options)

    def rule(self, title: Any = "", **options: Any) -> None:
        """Prints a heading: a line across a terminal, a short one elsewhere."""
        if self.is_terminal:
            super().rule(title, **options)
        else:
            self.print(f"--- {title}" if title else "---")

    def _fitting(self, table: Table) -> Table:
        if self.measure(table, options=self.options.update(max_width=_WIDTH_IN_FILES)).maximum <= self.width:
            return table
        cells = [[column.header, *column.cells] for column in table.columns]
        needs = [[Measurement.get(self, self.options, cell) for cell in column] for column in cells]
        least = [max(need.minimum for need in column) for column in needs]
        widths = [max(need.maximum for need in column) for column in needs]
        num_gaps = max(1, len(widths) - 1)
        gap = min(2, (self.width - sum(least)) // num_gaps)
        if gap < 1 and table.show_header:
            return _records(table, cells)
        left = self.width - gap * num_gaps
        while sum(widths) > left and widths != least:
            widest = max(range(len(widths)), key=lambda i: (widths[i] > least[i], widths[i]))
            widths[widest] -= 1
        table.box, table.pad_edge, table.padding = None, False, (0, gap, 0, 0)
        for column, width in zip(table.columns, widths, strict=True):
            column.width, column.overflow = width, "fold"
        table.columns[-1].width = None  # a fact that is longer than the terminal is folded
        return table


def _records(table: Table, cells: list[list[RenderableType]]) -> Table:
    """Returns each row as lines of a header and a cell."""
    records = Table(box=None, show_header=False, pad_edge=False, title=table.title, title_justify="left")
    records.add_column(no_wrap=True)
    records.add_column(overflow="fold")
    for row in range(1, table.row_count + 1):
        if row > 1:
            records.add_row()
        for column in cells:
            records.add_row(column[0], column[row])
    return records


def output_console() -> OutputConsole:
    """Returns a console on stdout: as wide as the terminal, or as wide as any table where there is none."""
    return OutputConsole(width=None if sys.stdout.isatty() else _WIDTH_IN_FILES, soft_wrap=True, highlight=False)


class Stopped(BaseException):
    """A signal ended the command. No KeyboardInterrupt, which libraries take as a request to end early."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def stopped_by_signals(message: str) -> Iterator[None]:
    """Turns Ctrl-C, SIGTERM and SIGHUP inside into one line and exit status 130, 143 or 129.

    A signal that was ignored before, as under nohup, stays ignored.

    Args:
        message: what the line says behind the signal's name.
    """
    before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _stop)
    try:
        yield
    except Stopped as stopped:
        click.echo(f"Stopped by {signal.Signals(stopped.number).name}: {message}", err=True)
        sys.exit(128 + stopped.number)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    for other in ENDING_SIGNALS:  # a second one must not interrupt the undoing
        signal.signal(other, _go_on)
    raise Stopped(number)


def _go_on(number: int, frame: FrameType | None) -> None:
    """Not SIG_IGN, of which Python complains when the signal is there already."""
