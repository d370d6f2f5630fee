"""`packhorse shard`: a corpus to shards, each prepared, and a mixture over them.

Owns the command's flags and its printed summary; leaves the work to `packhorse.prepare`.
"""

import shlex
from pathlib import Path
from typing import get_args

import click

from packhorse.cli.signals import stopped_by_signals
from packhorse.dataset import Keep, OverLength
from packhorse.prepare import shard


@click.command("shard", context_settings={"show_default": True})
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT…")
@click.option("--by", metavar="COLUMN", help="A shard for each value of this Parquet column of strings or integers.")
@click.option("--sequences", type=int, metavar="N", help="Instead: a shard for every N sequences, in order.")
@click.option("--name", required=True, help="Of the mixture. Shards are NAME-VALUE, or NAME-0000 and so on.")
@click.option(
    "--data-root",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder to serve: it gets the shards and NAME.mixture.toml, which serves them as one.",
)
@click.option("--max-seq-len", required=True, type=int, metavar="N", help="A bin's capacity in tokens.")
@click.option(
    "--length-column",
    metavar="NAME",
    help="Column of lengths in tokens, or of lists of tokens.  [default: the column that evidently holds tokens]",
)
@click.option("--id-column", metavar="NAME", help="Integer column of ids, each once.  [default: the row, from 0]")
@click.option(
    "--over-length",
    type=click.Choice(get_args(OverLength)),
    default="error",
    help="What happens to sequences longer than --max-seq-len.",
)
@click.option(
    "--keep", type=click.Choice(get_args(Keep)), default="head", help="Which end --over-length truncate keeps."
)
@click.option(
    "--max-sequences-per-bin", type=int, metavar="K", help="The most sequences in a bin.  [default: no limit]"
)
@click.option("--align", type=int, default=1, metavar="N", help="Round each sequence's room up to a multiple of N.")
@click.option("--extra-tokens", type=int, default=0, metavar="N", help="Keep N tokens free for each sequence.")
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
    max_seq_len: int,
    length_column: str | None,
    id_column: str | None,
    over_length: OverLength,
    keep: Keep,
    max_sequences_per_bin: int | None,
    align: int,
    extra_tokens: int,
    overwrite: bool,
    resume: bool,
) -> None:
    """Cut a corpus into shards, prepare each, and write the mixture that serves them as one.

    Ids are those of the whole corpus: to train, give the same INPUT as token source for every shard.
    """
    with stopped_by_signals("shards are whole or not there; the same command with --resume goes on"):
        manifests = shard(
            inputs,
            name=name,
            data_root=data_root,
            max_seq_len=max_seq_len,
            by=by,
            sequences=sequences,
            length_column=length_column,
            id_column=id_column,
            over_length=over_length,
            keep=keep,
            max_sequences_per_bin=max_sequences_per_bin,
            align=align,
            extra_tokens=extra_tokens,
            overwrite=overwrite,
            resume=resume,
        )
    for shard_name, manifest in manifests.items():
        click.echo(f"{shard_name}  {manifest.n_sequences:,} sequences in {manifest.n_bins:,} bins")
    click.echo(f"mixture      {name}, {sum(each.n_bins for each in manifests.values()):,} bins in an epoch")
    click.echo(f"next         packhorse serve --data-root {shlex.quote(str(data_root))}")
