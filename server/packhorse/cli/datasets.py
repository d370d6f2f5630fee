"""`packhorse datasets`: what is served, one dataset a line."""

import json
from dataclasses import asdict

import click
from rich.table import Table

from packhorse.cli.console import output_console
from packhorse.cli.options import target_option
from packhorse.cli.service import asking, timeout_option


@click.command("datasets", context_settings={"show_default": True})
@target_option
@timeout_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(target: str, timeout_seconds: float | None, as_json: bool) -> None:
    """List the datasets of --target with their digests and sizes.

    Where a folder was replaced while it was served, the digests of its older versions follow: runs that began with one
    of them go on with it.
    """
    with asking(target, timeout_seconds) as client:
        datasets = client.list_datasets()
    if as_json:
        click.echo(json.dumps([asdict(info) for info in datasets], indent=2))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("dataset", "digest"):
        table.add_column(name)
    for name in ("max_seq_len", "sequences", "bins", "tokens", "efficiency"):
        table.add_column(name, justify="right")
    for info in datasets:
        sizes = (info.max_seq_len, info.num_sequences, info.num_bins, info.total_tokens)
        table.add_row(info.name, info.digest, *(f"{size:,}" for size in sizes), f"{info.efficiency:.2%}")
        for digest in reversed(info.older_digests):
            table.add_row("  older", digest)
    output_console().print(table)
