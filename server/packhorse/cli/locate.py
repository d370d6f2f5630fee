"""`packhorse locate`: where ids stand in an epoch."""

from dataclasses import asdict
from typing import Any

import click
from rich.table import Table

from packhorse.cli.console import output_console
from packhorse.cli.options import epoch_options, target_option, topology_options
from packhorse.cli.service import asking, timeout_option

_LEFT_OUT = -1
"""The position of a bin that is skipped."""

_COLUMNS = ("id", "component", "first_token", "length", "position", "index_in_bin", "step", "rank", "worker", "slot")


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

    Of a mixture there is a row for each component that has the id, and for each time that it comes. A bin that --skip
    or NAME.takedown.toml leaves out has no position: the table says "left out", and JSON -1.

    Exits with 1 when the dataset lacks one of them.
    """
    with asking(target, timeout_seconds) as client:
        locations = [asdict(location) for location in client.locate(dataset, ids=ids, **options)]
    needless = [name for name in ("component", "first_token") if not any(location[name] for location in locations)]
    columns = [name for name in _COLUMNS if name not in needless]
    console = output_console()
    if as_json:
        for location in locations:
            facts = {name: value for name, value in location.items() if name != "component" or value}
            console.print_json(data=facts, indent=None)
    else:
        table = Table(*columns)
        for location in locations:
            cells = [_cell(column, location[column]) for column in columns]
            table.add_row(*cells) if location["found"] else table.add_row(str(location["id"]), "not in the dataset")
        console.print(table)
    if not all(location["found"] for location in locations):
        click.get_current_context().exit(1)


def _cell(column: str, value: int | str | None) -> str:
    """Returns a fact of a location as the table shows it."""
    if column == "position" and value == _LEFT_OUT:
        return "left out"
    return "-" if value is None else str(value)
