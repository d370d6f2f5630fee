"""One prepared folder in numbers and pictures, as `packhorse inspect` prints it, and its versions.

Owns what is shown; leaves the numbers to `packhorse.packing`, `analysis.context_lengths`, `analysis.unpacked`,
`analysis.waiting` and `analysis.windows`, and the pictures to `analysis.plots`.
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from packhorse.analysis import (
    ContextLength,
    Unpacked,
    WaitingRow,
    context_lengths,
    lengths_before,
    options_of,
    quality_rows,
    rule_of,
    waiting_rows,
    ways_without_packing,
)
from packhorse.cli.shared.console import output_console
from packhorse.cli.shared.tables import advice, quality_table, unpacked_table, waiting_table
from packhorse.cli.shared.words import CUT_OFF, groups_line, real_tokens
from packhorse.dataset import PreparedDataset, Version, open_prepared, prune_version, versions_of
from packhorse.epoch import Groups, bin_mates_again
from packhorse.formats import require
from packhorse.packing import PackingStats
from packhorse.topology import Topology

_DONE_TO_LONG = {"error": "truncated", "truncate": "truncated", "split": "split", "drop": "dropped"}


def inspect_folder(
    folder: Path,
    *,
    num_templates: int,
    run: Topology | None,
    windows: bool,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Prints what a prepared folder holds.

    Args:
        folder: what was prepared.
        num_templates: templates to list.
        run: the shape of a run whose waiting is told; None for none.
        windows: whether locality windows are compared.
        plot: a PNG to write.
        as_json: print JSON instead of tables.
    """
    if plot is not None:
        require("matplotlib", "demo")  # said before the work
    dataset = open_prepared(folder)
    manifest = dataset.manifest
    stats = PackingStats.from_templates(
        dataset.templates,
        manifest.max_seq_len,
        max_sequences_per_bin=manifest.options.max_sequences_per_bin,
        proven_bound=manifest.lower_bound,
    )
    stats = replace(stats, n_sequences=manifest.n_sequences)
    choices = context_lengths(dataset)
    ways = ways_without_packing(
        lengths_before(dataset) if dataset.groups is None else _lengths_of_members(dataset.groups),
        manifest.options.rooms,
        manifest.options.over_length,
        manifest.options.max_sequences_per_bin,
    )
    rows = [] if run is None else waiting_rows(choices, dataset, run)
    qualities = quality_rows(dataset) if windows else []
    if as_json:
        content = {
            "manifest": json.loads(manifest.render()),
            "versions": [_facts(version) for version in versions_of(folder)],
            "stats": asdict(stats),
            "bin_mates_again": bin_mates_again(dataset.plan),
            "real_token_efficiency": manifest.own_tokens / manifest.total_capacity,
            "templates": [[list(t), m] for t, m in dataset.templates.most_common(num_templates)],
            "context_lengths": [choice.facts() for choice in choices],
            "without_packing": [asdict(way) for way in ways],
            "waiting": [row.facts() for row in rows],
            "windows": [asdict(quality) for quality in qualities],
        }
        click.echo(json.dumps(content, indent=2))
    else:
        console = output_console()
        _print(console, dataset, stats, num_templates, choices, ways)
        if qualities:
            console.print(quality_table(qualities))
        _print_waiting(console, dataset, run, rows)
    if plot is not None:
        from packhorse.analysis.plots import save_plot

        save_plot(dataset, plot, choices, run, rows, qualities)
        click.echo(f"plot: {plot}", err=True)


def _print(
    console: Console,
    dataset: PreparedDataset,
    stats: PackingStats,
    num_templates: int,
    choices: list[ContextLength],
    ways: list[Unpacked],
) -> None:
    manifest = dataset.manifest
    lengths = dataset.plan.lengths
    ends = np.cumsum(dataset.plan.counts)
    quantiles = {q: int(lengths[np.searchsorted(ends, q * ends[-1])]) for q in (0.1, 0.5, 0.9, 0.99)}
    console.print(f"{dataset.name}  {manifest.digest}")
    console.print(repr(stats))
    if real := real_tokens(manifest):
        console.print(f"real tokens: {real}")
    what = "rooms of groups" if dataset.has_groups else "lengths" if rule_of(dataset).is_plain else "rooms"
    console.print(
        f"{what}: {lengths[0]:,} to {lengths[-1]:,} tokens, "
        f"mean {manifest.total_tokens / dataset.plan.num_sequences:,.1f}, "
        + ", ".join(f"p{round(100 * q)} {length:,}" for q, length in quantiles.items())
        + f"; {manifest.distinct_lengths:,} distinct"
    )
    console.print(
        f"plan: {manifest.algorithm}, {manifest.distinct_templates:,} templates, at most "
        f"{dataset.max_sequences_per_bin:,} sequences in a bin"
    )
    items = "groups" if dataset.has_groups else "sequences"
    console.print(
        f"bin-mates: {bin_mates_again(dataset.plan):.1%} of the {items} that share a bin do so again an epoch later"
    )
    if manifest.groups is not None:
        console.print(groups_line(manifest.groups, manifest.n_sequences), markup=False)
    origin = "row numbers" if manifest.id_column is None else f"column {manifest.id_column!r}"
    console.print(f"ids: {manifest.id_dtype}, {origin} of {manifest.source}", markup=False)
    if (keys := manifest.keys) is not None:
        console.print(f"keys: {keys.n_keys:,} of column {keys.column!r}, {keys.n_bytes:,} bytes", markup=False)
    if (inputs := manifest.inputs) is not None:
        column = "" if inputs.length_column is None else f", column {inputs.length_column!r}"
        size_bytes = sum(file.size_bytes for file in inputs.files)
        files = f", {inputs.num_files:,} files, the first {len(inputs.files)} of {size_bytes:,} bytes"
        if not inputs.num_files:  # a shard, or what was held in memory
            files = ""
        elif inputs.num_files <= len(inputs.files):
            files = f", {inputs.num_files:,} file{'s' * (inputs.num_files != 1)} of {size_bytes:,} bytes"
        console.print(f"read: {inputs.kind}{column}, {inputs.rows:,} rows{files}", markup=False)
        if inputs.skipped.rows:
            console.print(f"bad rows: {inputs.skipped.rows:,} skipped; manifest.json or skipped.jsonl names them")
    if manifest.plan_cut_off:
        console.print(f"cut off: {CUT_OFF}")
    if manifest.version > 1:
        for version in versions_of(dataset.path):
            console.print(_line_of(version), markup=False, soft_wrap=True)
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
    done = _DONE_TO_LONG[options_of(dataset).over_length]
    table = Table("max_seq_len", "bins", "packed", "padded", f"{items} {done}", "tokens lost", title="context lengths")
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
    console.print(unpacked_table(ways, manifest.total_capacity))


def _lengths_of_members(groups: Groups) -> Counter[int]:
    """Lengths of a grouped dataset's sequences: length in tokens → number of them."""
    lengths, counts = np.unique(groups.members[:, 1], return_counts=True)
    return Counter(dict(zip(lengths.tolist(), counts.tolist(), strict=True)))


def _print_waiting(
    console: Console, dataset: PreparedDataset, topology: Topology | None, rows: list[WaitingRow]
) -> None:
    if topology is None:
        console.print("waiting: give --world-size and --accumulation to see how much GPU time ranks lose to waiting")
        return
    console.print(waiting_table(rows, topology))
    (own,) = (
        row for row in rows if (row.max_seq_len, row.world_size) == (dataset.manifest.max_seq_len, topology.world_size)
    )
    console.print(advice(own, topology))


def prune_versions(folder: Path, numbers: Iterable[int], *, as_json: bool) -> None:
    """Removes versions of a dataset that grew, and prints those that are left."""
    for number in numbers:
        prune_version(folder, number)
    left = versions_of(folder)
    if as_json:
        click.echo(json.dumps([_facts(version) for version in left], indent=2))
        return
    for version in left:
        click.echo(_line_of(version))


def _facts(version: Version) -> dict[str, object]:
    """Returns what is told of a version, as JSON can hold it."""
    manifest = version.manifest
    return {
        "version": version.number,
        "is_current": version.is_current,
        "n_sequences": manifest.n_sequences,
        "n_bins": manifest.n_bins,
        "digest": manifest.digest,
        "path": str(version.path),
    }


def _line_of(version: Version) -> str:
    """Returns what people are told of a version."""
    manifest = version.manifest
    current = " (current)" if version.is_current else ""
    return (
        f"version {version.number}{current}: {manifest.n_sequences:,} sequences in {manifest.n_bins:,} bins, digest "
        f"{manifest.digest}, in {version.path}"
    )
