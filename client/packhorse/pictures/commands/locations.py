"""`print_locations`: where sequences come in an epoch, as a table or as JSON.

Owns the columns. Leaves finding sequences to `packhorse.client`, and printing their tokens to `marked_output`.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from packhorse.cli.shared.printing import output_console, table
from packhorse.client.streams import SequenceLocation
from packhorse.formats.keys import shown_key
from packhorse.pictures import MarkedSequence
from packhorse.pictures.commands.marked_output import print_marked

_LEFT_OUT = -1
"""The position that `locate` returns for a bin that is skipped."""

_COLUMNS = (
    "id",
    "key",
    "component",
    "first_token",
    "length",
    "position",
    "index_in_bin",
    "step",
    "rank",
    "worker",
    "slot",
)
"""Fields of a location that the table shows, in their order."""
_OPTIONAL_COLUMNS = ("key", "component", "first_token")
"""Columns that the table only has if a location has a text, or a number above 0, in them."""


def print_locations(
    locations: Sequence[SequenceLocation], *, as_json: bool, mark: Callable[[int], MarkedSequence] | None
) -> None:
    """Prints the position, step, rank and slot at which sequences come in an epoch.

    For a mixture there is a row for each component that has the id, and for each time that the sequence comes. If a
    skip or a takedown leaves out the bin, the table says "left out", and JSON has the position -1. The command exits
    with 1 if the dataset lacks one of the sequences.

    Args:
        locations: as `Client.locate` returns them.
        as_json: whether to print JSON instead of a table.
        mark: returns a sequence by id with its trained tokens marked, to print it too; None to print none.
    """
    rows = [asdict(location) for location in locations]
    if as_json:
        for row in rows:
            facts = {name: value for name, value in row.items() if name not in ("component", "key") or value}
            output_console().print_json(data=facts, indent=None)
    else:
        output_console().print(_table_of(rows))
    if mark is not None:
        for sequence_id in dict.fromkeys(location.id for location in locations if location.found):
            print_marked(mark(sequence_id), as_json=as_json)
    if not all(location.found for location in locations):
        click.get_current_context().exit(1)


def _table_of(rows: list[dict[str, Any]]) -> Table:
    """Returns the table of locations, each given by its fields; without optional columns that are empty."""
    empty = [name for name in _OPTIONAL_COLUMNS if not any(row[name] for row in rows)]
    columns = [name for name in _COLUMNS if name not in empty]
    lines = []
    for row in rows:
        if row["found"]:
            lines.append([_cell(column, row[column]) for column in columns])
        else:
            # `id` and `key` are the first columns, so the sentence is in the one after them.
            known = [_cell(column, row[column]) for column in columns if column in ("id", "key")]
            lines.append([*known, "not in the dataset"])
    return table(*columns, rows=lines, left=columns)


def _cell(column: str, value: int | str | None) -> str:
    """Returns a field of a location as the table shows it."""
    if column == "key" and isinstance(value, str):
        return escape(shown_key(value))  # a key may hold what looks like rich's markup, such as [red]
    if column == "position" and value == _LEFT_OUT:
        return "left out"
    if column == "id" and isinstance(value, int) and value < 0:  # of a key that the dataset lacks
        return "-"
    return "-" if value is None else str(value)
