"""`packhorse export`: the bins of an epoch as files, for loaders that read files instead of a stream.

Owns the flags; the files are in `packhorse.export.files`.
"""

from pathlib import Path
from typing import Any

import click

from packhorse.cli.shared.options import dataset_argument, run_options, target_option
from packhorse.cli.shared.service import asking_for, timeout_option
from packhorse.cli.shared.signals import stopped_by_signals
from packhorse.export.files import FILE_FORMATS, export_epoch
from packhorse.jobs import show_progress


@click.command("export", context_settings={"show_default": True})
@dataset_argument
@target_option
@timeout_option
@run_options
@click.option("--format", "file_format", required=True, type=click.Choice(FILE_FORMATS), help="What is written.")
@click.option(
    "--paths",
    multiple=True,
    metavar="FILE",
    help="For xtuner: the data file, as named in xtuner's configuration. Once for each component of a mixture.",
)
@click.option(
    "--tokens",
    type=click.Choice(["server"]),
    help="Also write the tokens of each sequence, and the loss mask, as the server sends them (serve --tokens).",
)
@click.option(
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="File to write; for xtuner a folder.",
)
@click.option("--overwrite", is_flag=True, help="Replace an output that is there, once the new one is complete.")
def command(
    target: str, timeout_seconds: float | None, dataset: str, output: Path, tokens: str | None, **options: Any
) -> None:
    """Write the bins of an epoch to files, in the order of positions.

    DATASET is a prepared folder, or the name of a dataset of --target.

    A run without a balance gets these bins in this order, with any number of ranks. The formats are jsonl (the lines of
    `packhorse stream`, without step and slot), parquet (a row for each bin) and xtuner (files for its PresetPackDataset
    and PresetSampler).
    """
    with (
        stopped_by_signals("nothing was written"),
        asking_for(target, timeout_seconds, dataset) as (client, name),
        show_progress() as progress,
        progress.task("exporting", client.get_dataset(name).num_bins, "bins") as advance,
    ):
        # The other options are parameters of `export_epoch`, by their names.
        num_bins = export_epoch(client, name, output, on_bins=advance, with_tokens=tokens is not None, **options)
    click.echo(f"{output}  {num_bins:,} bins")
