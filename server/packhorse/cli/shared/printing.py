"""How commands print: the console, and tables.

Owns how a table is laid out, also if it is too wide for the terminal. Leaves what stands in it to the commands, and
sentences about a dataset to `sentences`.
"""

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table

_WIDTH_IN_FILES = 1_000_000
"""Columns of a console that prints to a file or a pipe: so many that a table is as wide as its cells, and digests and
names are printed whole."""


class OutputConsole(Console):
    """A console that never cuts a number or a name.

    A table that is wider than the terminal loses its frame, and its cells wrap between words. If that is not enough,
    each row is shown by itself, a line for each column. A table of facts folds its values instead.

    Example:
        >>> import io
        >>> console = OutputConsole(file=io.StringIO(), width=30, soft_wrap=True)
        >>> console.print(table("packer", "bins", rows=[("worst-fit-decreasing", "1,234,567")]))
        >>> print(console.file.getvalue().rstrip())
        packer  worst-fit-decreasing
        bins    1,234,567
    """

    def print(self, *objects: Any, **options: Any) -> None:
        """Prints, and fits each table to the width."""
        super().print(*(self._fitting(each) if isinstance(each, Table) else each for each in objects), **options)

    def rule(self, title: Any = "", **options: Any) -> None:
        """Prints a heading: a line across a terminal, a short one elsewhere."""
        if self.is_terminal:
            super().rule(title, **options)
        else:
            self.print(f"--- {title}" if title else "---")

    def on_broken_pipe(self) -> NoReturn:
        """Leaves a broken pipe to the command line; rich would exit with status 1, as if the command had failed."""
        raise BrokenPipeError

    def _fitting(self, table: Table) -> Table:
        """Returns a table that is no wider than the console: as it is, changed to have no frame, or as records."""
        if self.measure(table, options=self.options.update(max_width=_WIDTH_IN_FILES)).maximum <= self.width:
            return table
        cells = [[column.header, *column.cells] for column in table.columns]
        measured = [[Measurement.get(self, self.options, cell) for cell in column] for column in cells]
        least_widths = [max(each.minimum for each in column) for column in measured]  # of the longest word
        widths = [max(each.maximum for each in column) for column in measured]  # of the longest cell
        if not table.show_header:
            least_widths[-1] = 1  # a fact that is longer than the terminal is folded, also within a word
        num_gaps = max(1, len(widths) - 1)
        gap = min(2, (self.width - sum(least_widths)) // num_gaps)
        if gap < 1 and table.show_header:
            return _records(table, cells)
        gap = max(1, gap)
        width_of_cells = self.width - gap * num_gaps
        # Takes single characters from the widest column that can still wrap, until the columns fit.
        while sum(widths) > width_of_cells and widths != least_widths:
            widest = max(range(len(widths)), key=lambda i: (widths[i] > least_widths[i], widths[i]))
            widths[widest] -= 1
        table.box, table.pad_edge, table.padding = None, False, (0, gap, 0, 0)
        for column, width in zip(table.columns, widths, strict=True):
            column.width, column.overflow = width, "fold"
        table.columns[-1].width = None  # takes what is left
        return table


def _records(table: Table, cells: list[list[RenderableType]]) -> Table:
    """Returns a table that shows each row as several lines, each with a column's header and the row's cell.

    `cells` has a list for each column: its header, then its cells.
    """
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
    """Returns a console on stdout: as wide as the terminal; if stdout is not a terminal, as wide as any table."""
    return OutputConsole(width=None if sys.stdout.isatty() else _WIDTH_IN_FILES, soft_wrap=True, highlight=False)


def table(
    *columns: str,
    rows: Iterable[Sequence[str]],
    title: str | None = None,
    left: Collection[str] = (),
    is_plain: bool = False,
) -> Table:
    """Returns a table. The first column is aligned to the left, numbers in the others to the right.

    Args:
        columns: the columns' headers.
        rows: the cells of each row.
        title: a line above the table; None for none.
        left: headers of further columns that are aligned to the left, since they hold words.
        is_plain: whether the table has no frame.
    """
    look: dict[str, Any] = {"box": None, "pad_edge": False, "header_style": "bold"} if is_plain else {}
    made = Table(title=title, **look)
    for number, name in enumerate(columns):
        made.add_column(name, justify="left" if number == 0 or name in left else "right", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def facts_table(facts: Mapping[str, str]) -> Table:
    """Returns a table of names and values, without a header."""
    made = Table(show_header=False, box=None, pad_edge=False)
    for name, value in facts.items():
        made.add_row(name, value)
    return made
