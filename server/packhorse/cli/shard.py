"""`packhorse shard`: a corpus to shards, each prepared, and a mixture over them.

Owns the command's flags and its printed summary; leaves the work to `packhorse.prepare`.
"""

import shlex
from pathlib import Path
from typing import Any

import click

from packhorse.cli.shared.options import store_timeout_option
from packhorse.cli.shared.plan_options import plan_options
from packhorse.cli.shared.signals import stopped_by_signals
from packhorse.prepare import shard


@click.command("shard", context_settings={"show_default": True})
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT…")
@click.option(
    "--by", metavar="COLUMN", help="A shard for each value of this Parquet or Arrow column, strings or integers."
)
@click.option("--sequences", type=int, metavar="N", help="Instead: a shard for every N sequences, in order.")
@click.option("--name", required=True, help="Of the mixture. Shards are NAME-VALUE, or NAME-0000 and so on.")
@click.option(
    "--data-root",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder to serve: it gets the shards and NAME.mixture.toml, which serves them as one.",
)
@plan_options
@click.option(
    "--workers",
    type=int,
    metavar="N",
    help="Processes, each at a shard.  [default: one per processor and 250,000 sequences, up to 16]",
)
@store_timeout_option
@click.option("--overwrite", is_flag=True, help="Replace shards and a mixture of these names.")
@click.option(
    "--resume",
    is_flag=True,
    help="Keep the shards that the same command finished before it was stopped, and prepare the others.",
)
def command(
    inputs: tuple[str, ...],
    by: str | None,
    sequences: int | None,
    name: str,
    data_root: Path,
    workers: int | None,
    overwrite: bool,
    resume: bool,
    **plan: Any,
) -> None:
    """Cut a corpus into shards, prepare each, and write the mixture that serves them as one.

    Ids are those of the whole corpus: to train, give the same INPUT as token source for every shard.
    """
    with stopped_by_signals("shards are whole or not there; the same command with --resume goes on"):
        manifests = shard(
            inputs,
            name=name,
            data_root=data_root,
            by=by,
            sequences=sequences,
            overwrite=overwrite,
            resume=resume,
            workers=workers,
            **plan,
        )
    for shard_name, manifest in manifests.items():
        click.echo(f"{shard_name}  {manifest.n_sequences:,} sequences in {manifest.n_bins:,} bins")
    click.echo(f"mixture      {name}, {sum(each.n_bins for each in manifests.values()):,} bins in an epoch")
    click.echo(f"next         packhorse serve --data-root {shlex.quote(str(data_root))}")
