"""`packhorse locate`: where ids stand in an epoch."""

from dataclasses import asdict
from typing import Any

import click
from rich.table import Table

from packhorse.cli.console import output_console
from packhorse.cli.options import epoch_options, target_option, topology_options
from packhorse.cli.service import asking, timeout_option

_COLUMNS = ("id", "first_token", "length", "position", "index_in_bin", "step", "rank", "worker", "slot")
_COLUMNS_OF_WHOLE = tuple(column for column in _COLUMNS if column != "first_token")


@click.command("locate", context_settings={"show_default": True, "ignore_unknown_options": True})
@target_option
@timeout_option
@epoch_options
@topology_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines instead of a table.")
@click.argument("ids", nargs=-1, required=True, type=int)
def command(
    target: str, timeout_seconds: float | None, dataset: str, ids: tuple[int, ...], as_json: bool, **options: Any
) -> None:
    """Tell at which position, step, rank and slot each of IDS comes in an epoch.

    Exits with 1 when the dataset lacks one of them.
    """
    with asking(target, timeout_seconds) as client:
        locations = [asdict(location) for location in client.locate(dataset, ids=ids, **options)]
    columns = _COLUMNS if any(location["first_token"] for location in locations) else _COLUMNS_OF_WHOLE
    console = output_console()
    if as_json:
        for location in locations:
            console.print_json(data=location, indent=None)
    else:
        table = Table(*columns)
        for location in locations:
            cells = ["-" if location[column] is None else str(location[column]) for column in columns]
            table.add_row(*cells) if location["found"] else table.add_row(str(location["id"]), "not in the dataset")
        console.print(table)
    if not all(location["found"] for location in locations):
        click.get_current_context().exit(1)
