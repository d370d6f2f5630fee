"""`packhorse plan`: packers side by side on one dataset.

Owns the comparison and its table; leaves planning to `packhorse.packing` and the picture to `analysis.plots`.
"""

import json
import time
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
from rich.table import Table

from packhorse.analysis import HistogramInput, Unpacked, fit, read_histogram, ways_without_packing
from packhorse.cli.shared.console import output_console
from packhorse.cli.shared.tables import unpacked_table
from packhorse.dataset import PlanOptions
from packhorse.epoch import PlanIndex, bin_mates_again
from packhorse.formats import require
from packhorse.jobs import show_progress
from packhorse.packing import DEFAULT_TIME_LIMIT_SECONDS, PACKERS, PackingPlan, PackingStats, pack_histogram
from packhorse.topology import RoomRule


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
    padding_ratio: float
    """The share of GPU time that padding takes, in [0, 1]."""
    bin_mates_again: float
    """Expected share of sequences that share a bin which do so again an epoch later, in [0, 1]."""
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
    type=click.IntRange(0),
    help="Tokens kept free for each sequence (BOS, EOS); a prepared folder has its own.",
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
    align: int | None,
    extra_tokens: int | None,
    time_limit_seconds: float,
    tokens_per_gpu_second: float | None,
    epochs: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Run packers on DATASET and compare their plans, with each other and with training without packing.

    DATASET is a prepared folder or a histogram as JSON: an object of length -> count, or a list whose entry i counts
    length i + 1. What a folder's option did to sequences that are too long is done again for another --max-seq-len.
    """
    if plot is not None:
        require("matplotlib", "demo")  # said before the work
    source = read_histogram(dataset)
    options = _options(source, max_seq_len, max_sequences_per_bin, align, extra_tokens)
    rule = RoomRule(options.max_seq_len, options.align, options.extra_tokens)
    counts = source.counts if source.options is None else fit(source.counts, rule.longest, options.over_length)
    plans: list[tuple[str, PackingPlan, float]] = []
    with show_progress() as progress:
        names = algorithms or ("auto", *sorted(PACKERS))
        for name in progress.track(names, "planning", len(names), "packers"):
            started = time.perf_counter()
            plan = pack_histogram(
                counts,
                options.max_seq_len,
                algorithm=name,
                max_sequences_per_bin=options.max_sequences_per_bin,
                align=options.align,
                extra_tokens=options.extra_tokens,
                time_limit_seconds=time_limit_seconds,
            )
            plans.append((name, plan, time.perf_counter() - started))
    results = _results(plans, tokens_per_gpu_second, epochs)
    ways = ways_without_packing(source.counts, rule, options.over_length, options.max_sequences_per_bin)
    if as_json:
        content = {"packers": [asdict(each) for each in results], "without_packing": [asdict(way) for way in ways]}
        click.echo(json.dumps(content, indent=2))
    else:
        _print_tables(source.name, options.max_seq_len, results, ways)
    if plot is not None:
        from packhorse.analysis.plots import save_comparison

        rows = {result.algorithm: result.bins for result in results} | {"one a row, padded": ways[0].rows}
        save_comparison(rows, results[0].lower_bound, source.name, options.max_seq_len, plot)
        click.echo(f"plot: {plot}", err=True)


def _options(
    source: HistogramInput,
    max_seq_len: int | None,
    max_sequences_per_bin: int | None,
    align: int | None,
    extra_tokens: int | None,
) -> PlanOptions:
    """Returns a prepared folder's options, or those of a histogram, with what the user says otherwise."""
    own = source.options
    if own is None:
        if max_seq_len is None:
            raise ValueError(f"{source.name} is a histogram; give --max-seq-len")
        own = PlanOptions(max_seq_len=max_seq_len)
    options = replace(
        own,
        max_seq_len=max_seq_len or own.max_seq_len,
        max_sequences_per_bin=max_sequences_per_bin or own.max_sequences_per_bin,
        align=align or own.align,
        extra_tokens=own.extra_tokens if extra_tokens is None else extra_tokens,
    )
    if own.align > 1 and (options.align % own.align or options.extra_tokens != own.extra_tokens):
        raise ValueError(
            f"{source.name} was prepared with --align {own.align} and --extra-tokens {own.extra_tokens}, and so knows "
            f"rooms only: keep --extra-tokens, and give a multiple of {own.align} as --align, or a histogram of lengths"
        )
    return options


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
                padding_ratio=stats.padding_ratio,
                bin_mates_again=_bin_mates_again(plan),
                gpu_hours=hours,
            )
        )
    return sorted(results, key=lambda result: result.bins)


def _bin_mates_again(plan: PackingPlan) -> float:
    rooms: Counter[int] = Counter()
    for template, multiplicity in plan.templates.items():
        for room in template:
            rooms[room] += multiplicity
    return bin_mates_again(PlanIndex.build(plan.templates, rooms, plan.max_seq_len))


def _print_tables(name: str, capacity: int, results: list[PackerResult], ways: list[Unpacked]) -> None:
    title = f"{name}, max_seq_len {capacity:,}: at least {results[0].lower_bound:,} bins (proven)"
    columns = [
        "packer",
        "bins",
        "efficiency",
        "gap",
        "seconds",
        "padding tokens",
        "GPU time on padding",
        "bin-mates met again",
    ]
    if results[0].gpu_hours is not None:
        columns.append("GPU-hours on padding in your run")
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
            f"{result.padding_tokens:,}",
            f"{result.padding_ratio:.3%}",
            f"{result.bin_mates_again:.1%}",
        ]
        table.add_row(*row, *([] if result.gpu_hours is None else [f"{result.gpu_hours:,.1f}"]))
    console = output_console()
    console.print(table)
    console.print(unpacked_table(ways, results[0].bins * capacity))
    if any(result.cut_off for result in results):
        console.print(
            "* cut off by --time-limit-seconds: another run may give another plan, and a dataset with another digest; "
            "raise the limit for one that is the same every time"
        )
