"""`packhorse explain`: which documents a rank trained on in one step."""

import json
from pathlib import Path
from typing import Any

import click

from packhorse.cli.options import dataset_argument, run_options, target_option, topology_options
from packhorse.cli.service import asking_for, timeout_option
from packhorse.cli.token_options import decoder, open_tokens, token_options
from packhorse.client.pictures import explain_step


@click.command("explain", context_settings={"show_default": True})
@dataset_argument
@target_option
@timeout_option
@run_options
@topology_options
@click.option("--step", required=True, type=click.IntRange(0), help="Step, counted from --start-position.")
@click.option("--rank", default=0, type=click.IntRange(0), help="Data-parallel rank.")
@token_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of lines.")
def command(
    target: str,
    timeout_seconds: float | None,
    dataset: str,
    tokens: str | None,
    id_column: str | None,
    tokenizer: Path | None,
    as_json: bool,
    **which: Any,
) -> None:
    """Tell which sequences of DATASET one rank trains on in one step: their ids, rows, lengths and cost.

    DATASET is a prepared folder, or the name of a dataset of --target. Give the flags of the run: a step whose loss
    jumped goes in, its documents come out. With --tokens each comes with its row in these files and its first tokens,
    as text where a tokenizer is at hand.
    """
    source, decode = open_tokens(tokens, id_column), decoder(tokenizer, tokens)
    with asking_for(target, timeout_seconds, dataset) as (client, name):
        explained = explain_step(client, name, tokens=source, decode=decode, **which)
    click.echo(json.dumps(explained.facts(), indent=2) if as_json else str(explained))
