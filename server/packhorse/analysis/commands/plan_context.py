"""`packhorse plan context`: numbers of ranks that share a bin, compared on one dataset.

Owns the flags. Leaves figures to `packhorse.analysis`, and the table to `plan_tables`.
"""

import json
from pathlib import Path

import click

from packhorse.analysis import BANDWIDTH, compare_context_plans, options_for, read_histogram
from packhorse.analysis.commands.plan_tables import context_plans_table
from packhorse.cli.shared.printing import output_console


@click.command("context", context_settings={"show_default": True})
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
            console.print(source.budgets)  # a sentence about resources
