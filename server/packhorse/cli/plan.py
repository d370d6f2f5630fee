"""`packhorse plan`: packers side by side on one dataset.

Owns the comparison and its table; leaves planning to `packhorse.packing` and the picture to `plan_plot`.
"""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich.table import Table

from packhorse.cli.console import output_console
from packhorse.cli.histogram_input import read_histogram
from packhorse.cli.progress import progress_bar
from packhorse.packing import DEFAULT_TIME_LIMIT_SECONDS, PACKERS, PackingPlan, PackingStats, pack_histogram

_MILLION = 1_000_000


@dataclass(frozen=True, kw_only=True)
class PackerResult:
    """What one packer made of the counts."""

    algorithm: str
    """The packer asked for."""
    made_by: str
    """The packer whose plan it is ("auto" chooses)."""
    bins: int
    """Bins in an epoch."""
    efficiency: float
    """Tokens per token of capacity."""
    gap: float
    """Bins beyond the best bound that any packer proved, as a share of it."""
    lower_bound: int
    """That bound."""
    seconds: float
    """Planning."""
    cut_off: bool
    """Ended by --time-limit-seconds before it was done."""
    templates: int
    """Distinct templates."""
    padding_tokens: int
    """Tokens of capacity that stay empty in an epoch."""
    gpu_hours_per_million: float
    """Of a million GPU-hours of training, those that padding takes."""
    gpu_hours: float | None = None
    """GPU-hours that padding takes in the user's run; None without its numbers."""


@click.group("plan")
def command() -> None:
    """Plan without preparing: see what a packer would make of a dataset."""


@command.command("compare", context_settings={"show_default": True})
@click.argument("dataset", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--max-seq-len", type=click.IntRange(1), help="A bin's capacity in tokens; a prepared folder has its own."
)
@click.option("--algorithm", "algorithms", multiple=True, help="Packers to compare; all of them when left out.")
@click.option("--max-sequences-per-bin", type=click.IntRange(1), help="The most sequences in a bin.")
@click.option(
    "--align", default=1, type=click.IntRange(1), help="Round each sequence's place up to a multiple of so many."
)
@click.option(
    "--extra-tokens", default=0, type=click.IntRange(0), help="Tokens kept free for each sequence (BOS, EOS)."
)
@click.option(
    "--time-limit-seconds",
    default=DEFAULT_TIME_LIMIT_SECONDS,
    help="A safety net for each packer that improves its plan step by step, and ends by itself after a fixed amount of "
    "work.",
)
@click.option(
    "--tokens-per-gpu-second", type=click.FloatRange(0, min_open=True), help="Of your training, padding included."
)
@click.option("--epochs", default=1, type=click.IntRange(1), help="Epochs of your training.")
@click.option("--plot", type=click.Path(path_type=Path), help="Save the comparison as a PNG.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def compare(
    dataset: Path,
    max_seq_len: int | None,
    algorithms: tuple[str, ...],
    max_sequences_per_bin: int | None,
    align: int,
    extra_tokens: int,
    time_limit_seconds: float,
    tokens_per_gpu_second: float | None,
    epochs: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Run packers on DATASET and compare their plans.

    DATASET is a prepared folder or a histogram as JSON: an object of length -> count, or a list whose entry i counts
    length i + 1.
    """
    source = read_histogram(dataset)
    capacity = max_seq_len or source.max_seq_len
    if capacity is None:
        raise ValueError(f"{source.name} is a histogram; give --max-seq-len")
    plans: list[tuple[str, PackingPlan, float]] = []
    with progress_bar() as progress:
        names = algorithms or ("auto", *sorted(PACKERS))
        for name in progress.track(names, description="planning"):
            started = time.perf_counter()
            plan = pack_histogram(
                source.counts,
                capacity,
                algorithm=name,
                max_sequences_per_bin=max_sequences_per_bin,
                align=align,
                extra_tokens=extra_tokens,
                time_limit_seconds=time_limit_seconds,
            )
            plans.append((name, plan, time.perf_counter() - started))
    results = _results(plans, tokens_per_gpu_second, epochs)
    if as_json:
        click.echo(json.dumps([asdict(result) for result in results], indent=2))
    else:
        _print_table(source.name, capacity, results)
    if plot is not None:
        from packhorse.cli.plan_plot import save_comparison

        save_comparison(
            {result.algorithm: (result.bins, result.lower_bound) for result in results}, source.name, capacity, plot
        )
        click.echo(f"plot: {plot}", err=True)


def _results(
    plans: list[tuple[str, PackingPlan, float]], tokens_per_gpu_second: float | None, epochs: int
) -> list[PackerResult]:
    bound = max(plan.lower_bound for _, plan, _ in plans)
    results = []
    for name, plan, seconds in plans:
        stats = PackingStats.from_templates(plan.templates, plan.max_seq_len, proven_bound=plan.lower_bound)
        hours = None if tokens_per_gpu_second is None else stats.padding_tokens * epochs / tokens_per_gpu_second / 3600
        results.append(
            PackerResult(
                algorithm=name,
                made_by=plan.algorithm,
                bins=plan.num_bins,
                efficiency=plan.efficiency,
                gap=(plan.num_bins - bound) / bound,
                lower_bound=bound,
                seconds=seconds,
                cut_off=plan.cut_off,
                templates=len(plan.templates),
                padding_tokens=stats.padding_tokens,
                gpu_hours_per_million=stats.padding_ratio * _MILLION,
                gpu_hours=hours,
            )
        )
    return sorted(results, key=lambda result: result.bins)


def _print_table(name: str, capacity: int, results: list[PackerResult]) -> None:
    title = f"{name}, max_seq_len {capacity:,}: at least {results[0].lower_bound:,} bins (proven)"
    columns = ["packer", "bins", "efficiency", "gap", "seconds", "templates", "padding tokens", "GPU-h per million"]
    if results[0].gpu_hours is not None:
        columns.append("GPU-h of your run")
    table = Table(*columns, title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    for result in results:
        packer = result.algorithm
        if result.made_by != result.algorithm:
            packer += f" ({result.made_by})"
        if result.cut_off:
            packer += " *"
        row = [
            packer,
            f"{result.bins:,}",
            f"{result.efficiency:.3%}",
            f"{result.gap:.4%}",
            f"{result.seconds:.3f}",
            f"{result.templates:,}",
            f"{result.padding_tokens:,}",
            f"{result.gpu_hours_per_million:,.0f}",
        ]
        table.add_row(*row, *([] if result.gpu_hours is None else [f"{result.gpu_hours:,.1f}"]))
    console = output_console()
    console.print(table)
    if any(result.cut_off for result in results):
        console.print(
            "* cut off by --time-limit-seconds: another run may give another plan, and a dataset with another digest; "
            "raise the limit for one that is the same every time"
        )
