"""`packhorse prepare`: lengths to a prepared folder.

Owns the command's flags and its printed summary; leaves the work to `packhorse.prepare`.
"""

import shlex
import time
from collections import Counter
from pathlib import Path

import click

from packhorse.cli.cut_off import CUT_OFF
from packhorse.cli.signals import stopped_by_signals
from packhorse.dataset import Keep, Manifest, OverLength, load_seqpack_layout, open_prepared
from packhorse.packing import DEFAULT_TIME_LIMIT_SECONDS, PACKERS, PackingStats, Template
from packhorse.prepare import Layout, prepare


@click.command("prepare")
@click.option(
    "--input",
    "sources",
    required=True,
    multiple=True,
    metavar="PATH",
    help="Parquet file, folder of *.parquet (at every depth), quoted glob pattern, or Megatron X.idx. Give it several "
    "times to read several, in that order (one X.idx only).",
)
@click.option("--length-column", metavar="NAME", help="Integer column of lengths in tokens; required for Parquet.")
@click.option("--id-column", metavar="NAME", help="Integer column of ids, each once.  [default: the row, from 0]")
@click.option("--max-seq-len", required=True, type=int, metavar="N", help="A bin's capacity in tokens.")
@click.option("--output", required=True, type=click.Path(path_type=Path), metavar="DIR", help="Folder to write.")
@click.option(
    "--algorithm",
    type=click.Choice(["auto", *sorted(PACKERS)]),
    default="auto",
    show_default=True,
    help="The packer that makes the plan.",
)
@click.option(
    "--over-length",
    type=click.Choice(["error", "drop", "truncate", "split"]),
    default="error",
    show_default=True,
    help="What happens to sequences longer than --max-seq-len; over_length.npy names them.",
)
@click.option(
    "--keep",
    type=click.Choice(["head", "tail"]),
    default="head",
    show_default=True,
    help="Which end of a sequence --over-length truncate keeps.",
)
@click.option(
    "--max-sequences-per-bin", type=int, metavar="K", help="The most sequences in a bin.  [default: no limit]"
)
@click.option(
    "--align",
    type=int,
    default=1,
    show_default=True,
    metavar="N",
    help="Round each sequence's room up to a multiple of N tokens (context and tensor parallelism).",
)
@click.option(
    "--extra-tokens",
    type=int,
    default=0,
    show_default=True,
    metavar="N",
    help="Keep N tokens free for each sequence beside its own, before rounding (BOS, EOS).",
)
@click.option(
    "--time-limit-seconds",
    type=float,
    default=DEFAULT_TIME_LIMIT_SECONDS,
    show_default=True,
    metavar="S",
    help="A safety net: planning ends by itself after a fixed amount of work. A plan that was cut off says so.",
)
@click.option(
    "--workers", type=int, metavar="N", help="Processes.  [default: 1 below 100 million rows, else one per processor]"
)
@click.option(
    "--format",
    "layout",
    type=click.Choice(["packhorse", "seqpack"]),
    default="packhorse",
    show_default=True,
    help="Layout of the folder; `packhorse serve` reads packhorse.",
)
@click.option("--overwrite", is_flag=True, help="Replace a prepared dataset at --output, and nothing else.")
def command(
    sources: tuple[str, ...],
    length_column: str | None,
    id_column: str | None,
    max_seq_len: int,
    output: Path,
    algorithm: str,
    over_length: OverLength,
    keep: Keep,
    max_sequences_per_bin: int | None,
    align: int,
    extra_tokens: int,
    time_limit_seconds: float,
    workers: int | None,
    layout: Layout,
    overwrite: bool,
) -> None:
    """Plan a dataset from its lengths and write the folder that `packhorse serve` serves."""
    started = time.perf_counter()
    with stopped_by_signals("nothing half-made is left behind"):
        manifest = prepare(
            sources,
            length_column=length_column,
            id_column=id_column,
            max_seq_len=max_seq_len,
            output=output,
            algorithm=algorithm,
            over_length=over_length,
            keep=keep,
            max_sequences_per_bin=max_sequences_per_bin,
            align=align,
            extra_tokens=extra_tokens,
            time_limit_seconds=time_limit_seconds,
            overwrite=overwrite,
            workers=workers,
            format=layout,
        )
    _print_summary(manifest, output, layout, time.perf_counter() - started)


def _print_summary(manifest: Manifest, output: Path, layout: Layout, seconds: float) -> None:
    options = manifest.options
    stats = PackingStats.from_templates(
        _templates(output, layout),
        options.max_seq_len,
        max_sequences_per_bin=options.max_sequences_per_bin,
        proven_bound=manifest.lower_bound,
    )
    click.echo(stats)
    ledger = manifest.over_length
    if ledger.sequences:
        done = {"drop": "dropped", "truncate": "truncated"}.get(
            options.over_length, f"split into {ledger.pieces:,} pieces"
        )
        click.echo(
            f"over length: {ledger.sequences:,} sequences {done}, {ledger.tokens:,} of their tokens are not in the plan"
        )
    click.echo(f"planned by   {manifest.algorithm}")
    if manifest.plan_cut_off:
        click.echo(f"cut off      {CUT_OFF}")
    click.echo(f"prepared in  {seconds:.1f} s")
    click.echo(f"output       {output}")
    if layout == "seqpack":
        click.echo(f'next         seqpack.load_prepared("{output}")')
        return
    click.echo(f"digest       {manifest.digest}")
    click.echo(f"next         packhorse serve --data-root {shlex.quote(str(output.resolve().parent))}")


def _templates(output: Path, layout: Layout) -> Counter[Template]:
    if layout == "seqpack":
        return load_seqpack_layout(output)[2]
    return open_prepared(output, check_pool=False).templates
