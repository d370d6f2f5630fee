"""`packhorse plan`: packers, or context plans, compared on one dataset.

Owns the flags. Leaves figures to `packhorse.analysis`, and tables to `plan_tables` and `unpacked_table`.
"""

import json
from pathlib import Path

import click

from packhorse.analysis import BANDWIDTH, compare_context_plans, compare_packers, options_for, read_histogram
from packhorse.analysis.commands.plan_tables import context_plans_table, packers_table
from packhorse.analysis.commands.unpacked_table import unpacked_table
from packhorse.cli.shared.printing import output_console
from packhorse.formats import require
from packhorse.jobs import show_progress
from packhorse.packing import DEFAULT_TIME_LIMIT_SECONDS
from packhorse.topology import LEAST_EXTRA_TOKENS


@click.group("plan")
def command() -> None:
    """Plan without preparing: compare packers, or ways to share bins."""


@command.command("compare", context_settings={"show_default": True})
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
        require("matplotlib", "demo")  # fails before the work, not after it
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
        console.print(unpacked_table(compared.without_packing, best.bins * options.max_seq_len))
        if any(result.cut_off for result in compared.packers):
            console.print(
                "* cut off by --time-limit-seconds: another run may give another plan, and a dataset with another "
                "digest; raise the limit for a plan that is the same every time"
            )
    if plot is not None:
        from packhorse.analysis.plots import save_comparison

        save_comparison(compared, plot)
        click.echo(f"plot: {plot}", err=True)


@command.command("context", context_settings={"show_default": True})
@click.argument("dataset", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--max-seq-len", type=click.IntRange(1), help="A bin's capacity in tokens; a prepared folder has its own."
)
@click.option(
    "--tokens-per-rank",
    multiple=True,
    type=click.IntRange(1),
    help="Value to compare; may be given several times. [default: max-seq-len / 2, / 4 and so on, as far as "
    "--world-size allows]",
)
@click.option(
    "--cost-cap-percent", multiple=True, default=(110, 300), type=click.IntRange(100), help="Values to compare."
)
@click.option("--align", type=click.IntRange(1), help="As for `packhorse plan compare`.")
@click.option("--world-size", default=64, type=click.IntRange(2), help="Ranks of your run.")
@click.option(
    "--bins-per-optimizer-step", default=32, type=click.IntRange(1), help="Bins of max-seq-len, over all ranks."
)
@click.option(
    "--bandwidth",
    default=BANDWIDTH,
    type=click.FloatRange(0),
    help="GB/s that a rank receives from others while it computes 400 TFLOP/s; 0 if communication takes no time.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def context(
    dataset: Path,
    max_seq_len: int | None,
    tokens_per_rank: tuple[int, ...],
    cost_cap_percent: tuple[int, ...],
    align: int | None,
    world_size: int,
    bins_per_optimizer_step: int,
    bandwidth: float,
    as_json: bool,
) -> None:
    """Compare numbers of ranks that share a bin.

    It shows waiting at micro-steps, and communication. DATASET is as for `packhorse plan compare`. All plans are for
    the same number of ranks, and the same number of bins in an optimizer step.
    """
    source = read_histogram(dataset)
    plans = compare_context_plans(
        source,
        options_for(source, max_seq_len=max_seq_len, align=align),
        tokens_per_rank=tokens_per_rank,
        cost_cap_percent=cost_cap_percent,
        world_size=world_size,
        bins_per_optimizer_step=bins_per_optimizer_step,
        bandwidth=bandwidth,
    )
    if as_json:
        click.echo(json.dumps([plan.facts() for plan in plans], indent=2))
    else:
        console = output_console()
        console.print(context_plans_table(plans, source.name))
        if source.budgets:
            console.print(source.budgets)
