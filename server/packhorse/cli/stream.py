"""`packhorse stream`: prints one worker's bins as JSON lines."""

import json
from functools import partial
from typing import Any

import click

from packhorse.cli.shared.options import dataset_argument, run_options, target_option, topology_options
from packhorse.cli.shared.service import asking_for, timeout_option
from packhorse.client.streams import facts_of_bins


@click.command("stream", context_settings={"show_default": True})
@dataset_argument
@target_option
@timeout_option
@run_options
@partial(topology_options, leave_out=())  # with --mode too
@click.option("--rank", default=0, type=click.IntRange(0), help="Data-parallel rank.")
@click.option("--worker", default=0, type=click.IntRange(0), help="Dataloader worker within the rank.")
@click.option("--with-tokens", is_flag=True, help="Also print tokens, which the server must send (serve --tokens).")
@click.option("--limit", default=None, type=click.IntRange(0), help="Stop after this many bins.")
def command(target: str, timeout_seconds: float | None, dataset: str, limit: int | None, **options: Any) -> None:
    """Print the bins of one (epoch, rank, worker), one JSON object a line.

    DATASET is a prepared folder, or the name of a dataset of --target.

    Each line has the bin's step, slot (its index in the rank's batch), position, ids and lengths. In a mixture it has
    the component, in a dataset with groups the group of each sequence, and in a dataset with pieces first_tokens:
    where each piece begins in its sequence. With --with-tokens it has the tokens of each sequence, and the loss_mask if
    there is one.
    """
    num_left = limit
    with (
        asking_for(target, timeout_seconds, dataset) as (client, name),
        client.stream_bins(name, **options) as stream,
    ):
        for block in stream:
            # A stretch is some steps with one batch size, which a batch schedule may change within a block.
            slots = (
                (step, slot)
                for stretch, steps in stream.topology.by_stretch(block.steps)
                for step in steps
                for slot in range(stretch.batch_size)
            )
            for (step, slot), facts in zip(slots, facts_of_bins(block, stream.header), strict=True):
                if num_left == 0:
                    return
                click.echo(json.dumps({"step": step, "slot": slot, **facts}))
                num_left = None if num_left is None else num_left - 1
