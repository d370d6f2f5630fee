"""The console that commands print results on: rich on a terminal, plain lines in a pipe or a file.

Owns how a table that is too wide for the terminal is shown; leaves its content to each command.
"""

import sys
from typing import Any

from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table

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
