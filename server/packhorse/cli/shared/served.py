"""What a target serves, one dataset a line, as `packhorse inspect` prints it."""

import json
from collections import Counter
from dataclasses import asdict

import click
from rich.table import Table

from packhorse.cli.shared.console import output_console
from packhorse.cli.shared.service import access_of_command, asking
from packhorse.client import DatasetInfo, PackhorseError
from packhorse.client.proof import ask_activity


def print_served(target: str, timeout_seconds: float | None, dataset: str | None, *, as_json: bool) -> None:
    """Prints the datasets of a target, or one of them, with their digests and sizes.

    Where a folder was replaced while it was served, the digests of its older versions follow: runs that began with one
    of them continue with it. How many streams use each is shown where the token may ask for it (GetActivity).
    """
    with asking(target, timeout_seconds) as client:
        datasets = client.list_datasets() if dataset is None else [client.get_dataset(dataset)]
    streams = _streams_by_digest(target)
    if as_json:
        facts = [
            asdict(info) | {"open_streams": {digest: streams[info.name, digest] for digest in _digests_of(info)}}
            if streams is not None
            else asdict(info)
            for info in datasets
        ]
        click.echo(json.dumps(facts, indent=2))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("dataset", "digest"):
        table.add_column(name)
    columns = ("max_seq_len", "sequences", "bins", "tokens", "efficiency")
    for name in columns if streams is None else (*columns, "streams"):
        table.add_column(name, justify="right")
    for info in datasets:
        sizes = (info.max_seq_len, info.num_sequences, info.num_bins, info.total_tokens)
        numbers = (*(f"{size:,}" for size in sizes), f"{info.efficiency:.2%}")
        for number, digest in enumerate(_digests_of(info)):
            what = (info.name, digest, *numbers) if number == 0 else ("  older", digest, *("",) * len(numbers))
            table.add_row(*what, *(() if streams is None else (str(streams[info.name, digest]),)))
    output_console().print(table)


def _digests_of(info: DatasetInfo) -> list[str]:
    """Returns a dataset's digest, and those of its older versions, the newest first."""
    return [info.digest, *reversed(info.older_digests)]


def _streams_by_digest(target: str) -> Counter[tuple[str, str]] | None:
    """Returns how many streams go on with each (dataset, digest); None where nobody tells."""
    if target.startswith("embedded:"):
        return None
    try:
        servers = ask_activity(target, access=access_of_command())
    except PackhorseError:
        return None
    streams = (stream for server in servers for stream in server.streams)
    return Counter((stream.dataset, stream.digest.partition("+")[0]) for stream in streams)
