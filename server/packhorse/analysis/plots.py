"""Plots: a prepared dataset's lengths, fullness, waste and waiting, and packers compared with the proven bound.

Owns the panels; leaves every number to `context_lengths` and `waiting`. Needs Matplotlib, so it is imported when used.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import pyplot

from packhorse.analysis.context_lengths import ContextLength
from packhorse.analysis.waiting import WaitingRow
from packhorse.dataset import PreparedDataset
from packhorse.epoch import ShuffleQuality
from packhorse.topology import Balance, Topology

_LINEAR_PERCENT = 0.001
"""Below this the axis is linear, so that a gap of 0 is shown."""

_WAITS = (
    (Balance.NONE, True, "at every step", "#c44e52", "-"),
    (Balance.MICRO_STEP, True, "the same, --balance micro-step", "#55a868", "-"),
    (Balance.NONE, False, "at optimizer steps", "#c44e52", "--"),
    (Balance.OPTIMIZER_STEP, False, "the same, --balance optimizer-step", "#55a868", "--"),
)
"""Lines of a waiting panel: balance, whether ranks wait at every step, label, color and line style."""


def save_plot(
    dataset: PreparedDataset,
    path: Path,
    choices: Sequence[ContextLength] = (),
    topology: Topology | None = None,
    waiting: Sequence[WaitingRow] = (),
    windows: Sequence[ShuffleQuality] = (),
) -> None:
    """Saves a PNG: the length histogram, the share of rows by fullness, padding by context length, waiting, windows.

    Args:
        dataset: what was prepared.
        path: the PNG to write.
        choices: context lengths to draw a curve of padding waste over; without any there is none, and no waiting.
        topology: the run whose waiting is drawn; None for none.
        waiting: what waiting costs it, in these context lengths and with several numbers of ranks.
        windows: what numbers of locality windows do to shuffle and disk.
    """
    capacity = dataset.manifest.max_seq_len
    lengths = dataset.plan.lengths
    counts = dataset.plan.counts
    sums = np.array([sum(template) for template in dataset.templates])
    multiplicities = np.array(list(dataset.templates.values()))

    panels = 2 + bool(choices) + 2 * bool(waiting) + bool(windows)
    rows = -(-panels // 2)
    figure, grid = pyplot.subplots(rows, 2, figsize=(11, 4.2 * rows), layout="constrained")
    all_axes = grid.ravel()[:panels]
    for unused in grid.ravel()[panels:]:
        unused.axis("off")
    left, right = all_axes[:2]
    left.hist(lengths, bins=60, weights=counts, color="#4c72b0")
    left.set(title=f"{dataset.manifest.n_sequences:,} sequences", xlabel="length in tokens", ylabel="sequences")
    left.set_yscale("log")
    fullness = np.linspace(0, 100, 41)
    for values, weights, label, color in (
        (lengths, counts, "one sequence a row, padded", "#c44e52"),
        (sums, multiplicities, "packed", "#55a868"),
    ):
        share = 100 * weights / weights.sum()
        right.hist(100 * values / capacity, bins=fullness, weights=share, label=label, color=color, alpha=0.8)
    right.set(
        title=f"{dataset.manifest.n_bins:,} bins of {capacity:,} tokens", xlabel="fullness in %", ylabel="% of rows"
    )
    right.legend(loc="upper center")
    if choices:
        _draw_padding(all_axes[2], choices, capacity)
    if topology is not None and waiting:
        own_ranks = [row for row in waiting if row.world_size == topology.world_size]
        _draw_waiting(all_axes[3], own_ranks, "max_seq_len", f"waiting, {topology.world_size:,} ranks", capacity)
        own_context = [row for row in waiting if row.max_seq_len == capacity]
        _draw_waiting(all_axes[4], own_context, "world_size", f"waiting, {capacity:,} tokens", topology.world_size)
    if windows:
        _draw_windows(all_axes[-1], windows)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _draw_windows(axes: Any, rows: Sequence[ShuffleQuality]) -> None:
    """Draws bytes read over the number of windows, and how near to each other neighbours come."""
    numbers = [row.num_windows for row in rows]
    axes.plot(numbers, [row.read_globally for row in rows], "--", marker="o", label="read, global", color="#c44e52")
    axes.plot(numbers, [row.read for row in rows], marker="o", label="read, windowed", color="#55a868")
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.set(title="locality windows; the cache holds one", xlabel="windows", ylabel="bytes read, all tokens = 1")
    neighbours = axes.twinx()
    neighbours.plot(numbers, [row.neighbours for row in rows], ":", marker="x", label="neighbours", color="#4c72b0")
    neighbours.set_ylim(bottom=0)
    neighbours.set_ylabel("neighbours near each other, by chance = 1")
    axes.legend(loc="upper left")
    neighbours.legend(loc="lower right")


def _draw_padding(axes: Any, choices: Sequence[ContextLength], own: int) -> None:
    """Draws padding over context length, packed and padded."""
    sizes = [choice.max_seq_len for choice in choices]
    for padding, label, color in (
        ([100 - 100 * choice.padded_efficiency for choice in choices], "one sequence a row, padded", "#c44e52"),
        ([100 - 100 * choice.efficiency for choice in choices], "packed", "#55a868"),
    ):
        axes.plot(sizes, padding, marker="o", label=label, color=color)
    axes.axvline(own, color="grey", linestyle=":", label="this dataset")
    axes.set_xscale("log", base=2)
    axes.set(title="padding by context length", xlabel="max_seq_len in tokens", ylabel="padding in %")
    axes.legend()


def _draw_waiting(axes: Any, rows: Sequence[WaitingRow], over: str, title: str, own: int) -> None:
    """Draws GPU time lost to waiting over one field of the rows, those left out that could not be measured."""
    measured = [row for row in rows if row.waiting is not None]
    for balance, at_steps, label, color, style in _WAITS:
        shares = [100 * (row.idle(balance, at_steps=at_steps) or 0.0) for row in measured]
        axes.plot([getattr(row, over) for row in measured], shares, style, marker="o", label=label, color=color)
    axes.axvline(own, color="grey", linestyle=":", label="this run")
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.set(
        title=title, xlabel="ranks" if over == "world_size" else "max_seq_len in tokens", ylabel="idle GPU time in %"
    )
    axes.legend()


def save_comparison(rows: Mapping[str, int], bound: int, name: str, max_seq_len: int, path: Path) -> None:
    """Saves a PNG of bars.

    Args:
        rows: packer, or another way to make rows → rows in an epoch, in the order to draw.
        bound: no packing has fewer.
        name: of the dataset.
        max_seq_len: in tokens.
        path: the PNG to write.
    """
    gaps = [100 * (count - bound) / bound for count in rows.values()]
    figure, axes = pyplot.subplots(figsize=(8, 0.6 + 0.4 * len(rows)), layout="constrained")
    bars = axes.barh(list(rows), gaps, color="#4c72b0")
    axes.bar_label(bars, [f"{gap:.4f} %" for gap in gaps], padding=3)
    axes.invert_yaxis()
    axes.set_xscale("symlog", linthresh=_LINEAR_PERCENT)
    axes.set_xlim(0, 20 * max(*gaps, _LINEAR_PERCENT))  # to the left is nothing, to the right is room for a label
    axes.set(title=f"{name}, max_seq_len {max_seq_len:,}", xlabel="rows beyond the proven lower bound, in %")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
