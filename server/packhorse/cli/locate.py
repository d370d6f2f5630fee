"""`packhorse locate`: where ids and keys are in an epoch."""

from dataclasses import asdict
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from packhorse.cli.console import output_console
from packhorse.cli.options import dataset_argument, run_options, target_option, topology_options
from packhorse.cli.service import asking_for, timeout_option
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


@click.command("locate", context_settings={"show_default": True, "ignore_unknown_options": True})
@dataset_argument
@target_option
@timeout_option
@run_options
@topology_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines instead of a table.")
@click.argument("names", metavar="ID|KEY...", nargs=-1, required=True)
def command(
    target: str, timeout_seconds: float | None, dataset: str, names: tuple[str, ...], as_json: bool, **options: Any
) -> None:
    """Tell at which position, step, rank and slot sequences of DATASET come in an epoch.

    DATASET is a prepared folder, or the name of a dataset of --target. A whole number is an id; anything else is a key,
    such as a URL, where the dataset has keys. In quotes a number is a key: '"17"'.

    Of a mixture there is a row for each component that has the id, and for each time that it comes. A bin that --skip
    or NAME.takedown.toml leaves out has no position: the table says "left out", and JSON -1.

    Exits with 1 when the dataset lacks one of them.
    """
    ids, keys = ids_and_keys("\n".join(names), "ID|KEY")
    with asking_for(target, timeout_seconds, dataset) as (client, name):
        locations = [asdict(location) for location in client.locate(name, ids=ids, keys=keys, **options)]
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
