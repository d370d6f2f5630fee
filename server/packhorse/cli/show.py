"""`packhorse show`: bins of a dataset, drawn to scale."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from packhorse.cli.options import dataset_argument, run_options, target_option, topology_options
from packhorse.cli.service import asking_for, timeout_option
from packhorse.cli.token_options import decoder, open_tokens, token_options
from packhorse.client.pictures import Picture, draw_bins, explain_step
from packhorse.topology import Skips, Topology

_WIDTH_IN_FILES = 140


@click.command("show", context_settings={"show_default": True})
@dataset_argument
@target_option
@timeout_option
@run_options
@topology_options
@click.option("--position", "first", default=0, type=click.IntRange(0), help="Position of the first bin to show.")
@click.option("--limit", default=8, type=click.IntRange(1, 1000), help="Show at most this many bins.")
@click.option("--step", type=click.IntRange(0), help="Show the bins of this step of --rank instead.")
@click.option("--rank", default=0, type=click.IntRange(0), help="Data-parallel rank, with --step.")
@token_options
@click.option("--html", type=click.Path(path_type=Path), help="Save the picture as an HTML page.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a picture.")
def command(
    target: str,
    timeout_seconds: float | None,
    dataset: str,
    epoch: int,
    seed: int,
    topology: Topology,
    skip: Skips,
    first: int,
    limit: int,
    step: int | None,
    rank: int,
    tokens: str | None,
    id_column: str | None,
    tokenizer: Path | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Draw bins of DATASET, which is a prepared folder, or the name of a dataset of --target.

    Sequences are between bars, to scale, with their ids; padding is dotted. With --tokens it also shows what each
    begins with, as text where a tokenizer is at hand.
    """
    epoch_and_tokens: dict[str, Any] = {
        "epoch": epoch,
        "seed": seed,
        "skip": skip,
        "tokens": open_tokens(tokens, id_column),
        "decode": decoder(tokenizer, tokens),
    }
    with asking_for(target, timeout_seconds, dataset) as (client, name):
        if step is not None:
            explained = explain_step(client, name, step=step, rank=rank, topology=topology, **epoch_and_tokens)
            picture = explained.picture()
        else:
            with client.stream_bins(name, epoch=epoch, seed=seed, skip=skip) as stream:
                num_bins = stream.header.num_bins
            if first >= num_bins:
                raise click.UsageError(f"--position {first} is beyond the epoch's end; give one below {num_bins}")
            positions = range(first, min(first + limit, num_bins))
            picture = draw_bins(client, name, positions=positions, **epoch_and_tokens)
    _print(picture, html, as_json=as_json)


def _print(picture: Picture, html: Path | None, *, as_json: bool) -> None:
    if html is not None:
        html.write_text(picture.page(), encoding="utf-8")
        click.echo(f"picture: {html}", err=True)
    if as_json:
        click.echo(json.dumps(picture.facts(), indent=2))
    elif html is None:
        click.echo(picture.text(None if sys.stdout.isatty() else _WIDTH_IN_FILES))
