"""`packhorse shard`: cuts a corpus into shards, prepares each, and writes a mixture of them.

Owns the command's flags and its printed summary; leaves the work to `packhorse.prepare`.
"""

import shlex
from pathlib import Path

import click

from packhorse.cli.shared.flags import flags_of
from packhorse.cli.shared.signals import stopped_by_signals
from packhorse.cli.shared.timeouts import store_timeout_option
from packhorse.packing import PACKERS
from packhorse.prepare import Execution, InputColumns, PlanOptions, shard

_COLUMN_FLAGS = {"length": "length_column", "id": "id_column"}
"""Field of `InputColumns` → its flag, with underscores."""


@click.command("shard", context_settings={"show_default": True})
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT…")
@click.option(
    "--by", metavar="COLUMN", help="Make a shard for each value of this Parquet or Arrow column (strings or integers)."
)
@click.option(
    "--sequences", type=int, metavar="N", help="Instead of --by: make a shard for every N sequences, in order."
)
@click.option(
    "--name", required=True, help="Name of the mixture. Shards are called NAME-VALUE, or NAME-0000 and so on."
)
@click.option(
    "--data-root",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder for the shards and NAME.mixture.toml, which `packhorse serve` serves.",
)
@flags_of(PlanOptions, "plan", choices={"algorithm": ["auto", *sorted(PACKERS)]})
@flags_of(InputColumns, "columns", names=_COLUMN_FLAGS, leave_out=("on_bad_row", "group", "resources", "key"))
@flags_of(Execution, "execution", leave_out=("engine", "ray_address", "progress"))
@store_timeout_option
@click.option("--overwrite", is_flag=True, help="Replace shards and a mixture of these names.")
def command(
    inputs: tuple[str, ...],
    by: str | None,
    sequences: int | None,
    name: str,
    data_root: Path,
    plan: PlanOptions,
    columns: InputColumns,
    execution: Execution,
    overwrite: bool,
) -> None:
    """Cut a corpus into shards, prepare each, and write the mixture that serves them as one.

    Ids are those of the whole corpus. To train, give INPUT as the token source of every shard.
    """
    with stopped_by_signals("no incomplete shard is left; the same command with --resume continues"):
        manifests = shard(
            inputs,
            name=name,
            data_root=data_root,
            by=by,
            sequences=sequences,
            plan=plan,
            columns=columns,
            execution=execution,
            overwrite=overwrite,
        )
    for shard_name, manifest in manifests.items():
        click.echo(f"{shard_name}  {manifest.num_sequences:,} sequences in {manifest.num_bins:,} bins")
    click.echo(f"mixture      {name}, {sum(each.num_bins for each in manifests.values()):,} bins in an epoch")
    click.echo(f"next         packhorse serve --data-root {shlex.quote(str(data_root))}")
