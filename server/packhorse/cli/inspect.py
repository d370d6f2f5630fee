"""`packhorse inspect`: one prepared dataset, in numbers and pictures.

Owns what is shown; leaves the numbers to `packhorse.packing` and the pictures to `dataset_plot`.
"""

import json
from dataclasses import asdict
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from packhorse.cli.console import output_console
from packhorse.cli.context_lengths import ContextLength, context_lengths
from packhorse.cli.cut_off import CUT_OFF
from packhorse.dataset import PreparedDataset, open_prepared
from packhorse.packing import PackingStats


@click.command("inspect", context_settings={"show_default": True})
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--templates", "num_templates", default=10, type=click.IntRange(0), help="Templates to list.")
@click.option(
    "--plot", type=click.Path(path_type=Path), help="Save lengths, fullness and waste by max_seq_len as a PNG."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def command(folder: Path, num_templates: int, plot: Path | None, as_json: bool) -> None:
    """Show the prepared dataset in FOLDER: statistics, templates, and what other context lengths would waste."""
    dataset = open_prepared(folder)
    manifest = dataset.manifest
    stats = PackingStats.from_templates(
        dataset.templates,
        manifest.max_seq_len,
        max_sequences_per_bin=manifest.options.max_sequences_per_bin,
        proven_bound=manifest.lower_bound,
    )
    choices = context_lengths(dataset.counts, manifest.max_seq_len)
    if as_json:
        content = {
            "manifest": json.loads(manifest.render()),
            "stats": asdict(stats),
            "templates": [[list(t), m] for t, m in dataset.templates.most_common(num_templates)],
            "context_lengths": [asdict(choice) for choice in choices],
        }
        click.echo(json.dumps(content, indent=2))
    else:
        _print(output_console(), dataset, stats, num_templates, choices)
    if plot is not None:
        from packhorse.cli.dataset_plot import save_plot

        save_plot(dataset, plot, choices)
        click.echo(f"plot: {plot}", err=True)


def _print(
    console: Console, dataset: PreparedDataset, stats: PackingStats, num_templates: int, choices: list[ContextLength]
) -> None:
    manifest = dataset.manifest
    lengths = dataset.plan.lengths
    ends = np.cumsum(dataset.plan.counts)
    quantiles = {q: int(lengths[np.searchsorted(ends, q * ends[-1])]) for q in (0.1, 0.5, 0.9, 0.99)}
    console.print(f"{dataset.name}  {manifest.digest}")
    console.print(repr(stats))
    console.print(
        f"lengths: {lengths[0]:,} to {lengths[-1]:,} tokens, mean {manifest.total_tokens / manifest.n_sequences:,.1f}, "
        + ", ".join(f"p{round(100 * q)} {length:,}" for q, length in quantiles.items())
        + f"; {manifest.distinct_lengths:,} distinct"
    )
    console.print(
        f"plan: {manifest.algorithm}, {manifest.distinct_templates:,} templates, at most "
        f"{dataset.plan.max_sequences_per_bin:,} sequences in a bin"
    )
    origin = "row numbers" if manifest.id_column is None else f"column {manifest.id_column!r}"
    console.print(f"ids: {manifest.id_dtype}, {origin} of {manifest.source}", markup=False)
    if manifest.plan_cut_off:
        console.print(f"cut off: {CUT_OFF}")
    if manifest.over_length.sequences:
        console.print(
            f"over-length ({manifest.options.over_length}): {manifest.over_length.sequences:,} sequences, "
            f"{manifest.over_length.tokens:,} tokens left out"
            + (f", {manifest.over_length.pieces:,} pieces" if manifest.over_length.pieces else "")
        )
    if num_templates:
        table = Table("bins", "share", "tokens", "template", title="most used templates")
        for template, multiplicity in dataset.templates.most_common(num_templates):
            shown = ", ".join(map(str, template[:12])) + (f", … ({len(template)})" if len(template) > 12 else "")
            table.add_row(f"{multiplicity:,}", f"{multiplicity / stats.n_bins:.2%}", f"{sum(template):,}", shown)
        console.print(table)
    table = Table(
        "max_seq_len", "bins", "packed", "padded", "sequences too long", "tokens cut", title="context lengths"
    )
    for choice in choices:
        table.add_row(
            f"{choice.max_seq_len:,}",
            f"{choice.bins:,}",
            f"{choice.efficiency:.2%}",
            f"{choice.padded_efficiency:.2%}",
            f"{choice.sequences_cut:,}",
            f"{choice.tokens_cut:,}",
        )
    console.print(table)
