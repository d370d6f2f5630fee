"""The datasets that a server serves, as `inspect` prints them without a folder.

Owns asking for them and their table. Needs no package of the server.
"""

import json
from collections import Counter
from dataclasses import asdict

import click

from packhorse.cli.shared.printing import output_console, table
from packhorse.cli.shared.service import access_of_command, asking, asking_for
from packhorse.client import DatasetInfo, PackhorseError
from packhorse.proof import ask_activity


def print_served(target: str, timeout_seconds: float | None, dataset: str | None, *, as_json: bool) -> None:
    """Prints the datasets of a target, or one of them, with their digests and sizes.

    If a folder was replaced while it was served, its older digests follow, because runs that began with one of them
    continue with it. If the access token grants GetActivity, the open streams of each digest are shown too.
    """
    if dataset is None:
        with asking(target, timeout_seconds) as client:
            datasets = client.list_datasets()
    else:
        with asking_for(target, timeout_seconds, dataset) as (client, name):
            datasets = [client.get_dataset(name)]
    streams = _streams_by_digest(target)
    if as_json:
        facts = [asdict(info) for info in datasets]
        if streams is not None:
            for info_facts, info in zip(facts, datasets, strict=True):
                info_facts["open_streams"] = {digest: streams[info.name, digest] for digest in _digests_of(info)}
        click.echo(json.dumps(facts, indent=2))
        return
    rows = []
    for info in datasets:
        sizes = (info.max_seq_len, info.num_sequences, info.num_bins, info.total_tokens)
        numbers = (*(f"{size:,}" for size in sizes), f"{info.efficiency:.2%}")
        for number, digest in enumerate(_digests_of(info)):
            row = [info.name, digest, *numbers] if number == 0 else ["  older", digest, *("" for _ in numbers)]
            if streams is not None:
                row.append(str(streams[info.name, digest]))
            rows.append(row)
    columns = ["dataset", "digest", "max_seq_len", "sequences", "bins", "tokens", "efficiency"]
    if streams is not None:
        columns.append("streams")
    console = output_console()
    console.print(table(*columns, rows=rows, left=("digest",), is_plain=True))
    for info in datasets:
        if info.context_rule is not None:
            console.print(f"{info.name}: {info.context_rule}", markup=False)


def _digests_of(info: DatasetInfo) -> list[str]:
    """Returns a dataset's digests, the newest first."""
    return [info.digest, *reversed(info.older_digests)]


def _streams_by_digest(target: str) -> Counter[tuple[str, str]] | None:
    """Returns the number of open streams of each (dataset, digest).

    Returns None for an embedded target, and if the servers refuse the question or cannot be reached.
    """
    if target.startswith("embedded:"):
        return None
    try:
        servers = ask_activity(target, access=access_of_command())
    except PackhorseError:
        return None
    streams = (stream for server in servers for stream in server.streams)
    # A stream's digest continues with "+…" if positions are skipped.
    return Counter((stream.dataset, stream.digest.partition("+")[0]) for stream in streams)
