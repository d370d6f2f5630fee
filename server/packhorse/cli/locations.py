"""Where ids and keys are in an epoch, as `packhorse show --id` prints it."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from packhorse.cli.console import output_console
from packhorse.client import Client
from packhorse.formats.keys import ids_and_keys, shown_key

_LEFT_OUT = -1
"""The position of a bin that is skipped."""

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


def print_locations(client: Client, name: str, names: Iterable[str], *, as_json: bool, **which: Any) -> None:
    """Prints the position, step, rank and slot at which sequences come in an epoch.

    Of a mixture there is a row for each component that has the id, and for each time that it comes. A bin that a skip
    or a takedown leaves out has no position: the table says "left out", and JSON -1. The command exits with 1 when the
    dataset lacks one of them.

    Args:
        client: of what has the dataset.
        name: the dataset.
        names: ids and keys, as people write them.
        as_json: print JSON lines instead of a table.
        which: epoch, seed, topology and skip of the run.
    """
    ids, keys = ids_and_keys("\n".join(names), "ID|KEY")
    locations = [asdict(location) for location in client.locate(name, ids=ids, keys=keys, **which)]
    optional = ("key", "component", "first_token")
    needless = [name for name in optional if not any(location[name] for location in locations)]
    columns = [name for name in _COLUMNS if name not in needless]
    console = output_console()
    if as_json:
        for location in locations:
            facts = {name: value for name, value in location.items() if name not in ("component", "key") or value}
            console.print_json(data=facts, indent=None)
    else:
        table = Table()
        for column in columns:
            table.add_column(column, overflow="fold")  # a key is never cut off
        for location in locations:
            cells = [_cell(column, location[column]) for column in columns]
            if not location["found"]:
                named = [cell for column, cell in zip(columns, cells, strict=True) if column in ("id", "key")]
                cells = [*(named if location["id"] >= 0 else ["-", *named[1:]]), "not in the dataset"]
            table.add_row(*cells)
        console.print(table)
    if not all(location["found"] for location in locations):
        click.get_current_context().exit(1)


def _cell(column: str, value: int | str | None) -> str:
    """Returns a fact of a location as the table shows it."""
    if column == "key" and isinstance(value, str):
        return escape(shown_key(value))
    if column == "position" and value == _LEFT_OUT:
        return "left out"
    return "-" if value is None else str(value)
