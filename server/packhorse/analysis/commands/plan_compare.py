"""`packhorse plan compare`: packers compared on one dataset, and with training without packing.

Owns the flags. Leaves figures to `packhorse.analysis`, and tables to `plan_tables` and `unpacked_table`.
"""

import json
from pathlib import Path

import click

from packhorse.analysis import compare_packers, options_for, read_histogram
from packhorse.analysis.commands.plan_tables import packers_table
from packhorse.analysis.commands.unpacked_table import unpacked_table
from packhorse.cli.shared.printing import output_console
from packhorse.formats import require
from packhorse.jobs import show_progress
from packhorse.packing import DEFAULT_TIME_LIMIT_SECONDS
from packhorse.topology import LEAST_EXTRA_TOKENS


@click.command("compare", context_settings={"show_default": True})
@click.argument("dataset", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--max-seq-len", type=click.IntRange(1), help="A bin's capacity in tokens; a prepared folder has its own."
)
@click.option(
    "--algorithm", "algorithms", multiple=True, help="Packer to compare; may be given several times. [default: all]"
)
@click.option(
    "--max-sequences-per-bin",
    type=click.IntRange(1),
    help="The most sequences in a bin; a prepared folder has its own.",
)
@click.option(
    "--align",
    type=click.IntRange(1),
    help="Round each sequence's room up to a multiple of this many tokens; a prepared folder has its own.",
)
@click.option(
    "--extra-tokens",
    type=click.IntRange(LEAST_EXTRA_TOKENS),
    help="Tokens kept free for each sequence (BOS, EOS), or -1 to leave out its last; a prepared folder has its own.",
)
@click.option(
    "--time-limit-seconds",
    default=DEFAULT_TIME_LIMIT_SECONDS,
    help="Time limit for each packer that improves its plan step by step. It normally ends earlier, after a fixed "
    "amount of work.",
)
@click.option(
    "--tokens-per-gpu-second", type=click.FloatRange(0, min_open=True), help="Speed of your training, padding included."
)
@click.option("--epochs", default=1, type=click.IntRange(1), help="Epochs of your training.")
@click.option("--plot", type=click.Path(path_type=Path), help="Save the comparison as a PNG.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def compare(
    dataset: Path,
    max_seq_len: int | None,
    algorithms: tuple[str, ...],
    max_sequences_per_bin: int | None,
    align: int | None,
    extra_tokens: int | None,
    time_limit_seconds: float,
    tokens_per_gpu_second: float | None,
    epochs: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Compare packers on DATASET, and training without packing.

    DATASET is a prepared folder or a JSON histogram: an object of length -> count, or a list whose entry i counts
    length i + 1. For another --max-seq-len, the folder's over-length policy is applied again.
    """
    if plot is not None:
        require("matplotlib", extra="demo")  # if it is missing, fails before the work, not after it
    source = read_histogram(dataset)
    options = options_for(
        source,
        max_seq_len=max_seq_len,
        max_sequences_per_bin=max_sequences_per_bin,
        align=align,
        extra_tokens=extra_tokens,
    )
    with show_progress() as progress:
        compared = compare_packers(
            source,
            options,
            algorithms=algorithms,
            time_limit_seconds=time_limit_seconds,
            tokens_per_gpu_second=tokens_per_gpu_second,
            epochs=epochs,
            progress=progress,
        )
    if as_json:
        click.echo(json.dumps(compared.facts(), indent=2))
    else:
        console = output_console()
        console.print(packers_table(compared))
        if source.budgets:
            console.print(source.budgets)  # a sentence about resources
        best = compared.packers[0]  # they are sorted by bins
        console.print(unpacked_table(compared.without_packing, packed_tokens=best.bins * options.max_seq_len))
        if any(result.cut_off for result in compared.packers):
            console.print(
                "* cut off by --time-limit-seconds: another run may give another plan, and a dataset with another "
                "digest; raise the limit for a plan that is the same every time"
            )
    if plot is not None:
        from packhorse.analysis.plots import save_comparison  # imports matplotlib

        save_comparison(compared, plot)
        click.echo(f"plot: {plot}", err=True)
