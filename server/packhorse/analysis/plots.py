"""Plots: a dataset's lengths, fullness, padding, waiting and windows, and packers compared with the proven bound.

Owns the panels. Leaves every number to `report` and `packers`. This module needs Matplotlib, so callers import it only
when they draw.
"""

from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes

from packhorse.analysis.context_lengths import ContextLength
from packhorse.analysis.packers import PackerComparison
from packhorse.analysis.report import DatasetReport
from packhorse.analysis.waiting import WaitingRow
from packhorse.epoch import ShuffleQuality
from packhorse.topology import Balance

_LINEAR_PERCENT = 0.001
"""The percentage below which the logarithmic axis is linear, so that a gap of 0 can be drawn."""

_BLUE, _GREEN, _RED = "#4c72b0", "#55a868", "#c44e52"


class _WaitingLine(NamedTuple):
    """A line of a panel of waiting."""

    balance: Balance
    at_steps: bool
    """Whether ranks wait at every step; otherwise at optimizer steps only."""
    label: str
    color: str
    style: str


_WAITING_LINES = (
    _WaitingLine(Balance.NONE, True, "at every step", _RED, "-"),
    _WaitingLine(Balance.MICRO_STEP, True, "the same, --balance micro-step", _GREEN, "-"),
    _WaitingLine(Balance.NONE, False, "at optimizer steps", _RED, "--"),
    _WaitingLine(Balance.OPTIMIZER_STEP, False, "the same, --balance optimizer-step", _GREEN, "--"),
)


def save_plot(report: DatasetReport, path: Path) -> None:
    """Saves a PNG: lengths, rows by fullness, padding by context length, and waiting and windows if they were measured.

    Args:
        report: the dataset's figures.
        path: the PNG to write.
    """
    own, run = report.dataset.manifest.max_seq_len, report.run
    panels: list[Callable[[Axes], None]] = [
        lambda axes: _draw_lengths(axes, report),
        lambda axes: _draw_fullness(axes, report),
        lambda axes: _draw_padding(axes, report.context_lengths, own),
    ]
    if run is not None and report.waiting:
        own_ranks = [row for row in report.waiting if row.world_size == run.world_size]
        own_context = [row for row in report.waiting if row.max_seq_len == own]
        panels += [
            lambda axes: _draw_waiting(axes, own_ranks, "max_seq_len", f"waiting, {run.world_size:,} ranks", own),
            lambda axes: _draw_waiting(axes, own_context, "world_size", f"waiting, {own:,} tokens", run.world_size),
        ]
    if report.windows:
        panels.append(lambda axes: _draw_windows(axes, report.windows))
    rows = -(-len(panels) // 2)
    figure, grid = pyplot.subplots(rows, 2, figsize=(11, 4.2 * rows), layout="constrained")
    for axes, draw in zip_longest(grid.ravel(), panels):
        if draw is None:
            axes.axis("off")
        else:
            draw(axes)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _draw_lengths(axes: Axes, report: DatasetReport) -> None:
    plan = report.dataset.plan
    axes.hist(plan.rooms, bins=60, weights=plan.counts, color=_BLUE)
    title = f"{report.stats.n_sequences:,} sequences"
    axes.set(title=title, xlabel="length in tokens", ylabel="sequences", yscale="log")


def _draw_fullness(axes: Axes, report: DatasetReport) -> None:
    """Draws how full rows are: with one padded sequence a row, and packed."""
    plan, templates, capacity = report.dataset.plan, report.dataset.templates, report.dataset.manifest.max_seq_len
    sums = np.array([sum(template) for template in templates])
    for values, weights, label, color in (
        (plan.rooms, plan.counts, "one sequence a row, padded", _RED),
        (sums, np.array(list(templates.values())), "packed", _GREEN),
    ):
        percent_of_rows, edges = 100 * weights / weights.sum(), np.linspace(0, 100, 41).tolist()
        axes.hist(100 * values / capacity, edges, weights=percent_of_rows, label=label, color=color, alpha=0.8)
    title = f"{report.stats.n_bins:,} bins of {capacity:,} tokens"
    axes.set(title=title, xlabel="fullness in %", ylabel="% of rows")
    axes.legend(loc="upper center")


def _draw_windows(axes: Axes, rows: Sequence[ShuffleQuality]) -> None:
    """Draws bytes read over the number of windows, and how often neighbours stay near each other."""
    numbers = [row.num_windows for row in rows]
    axes.plot(numbers, [row.read_globally for row in rows], "--", marker="o", label="read, global", color=_RED)
    axes.plot(numbers, [row.read for row in rows], marker="o", label="read, windowed", color=_GREEN)
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.set(title="locality windows; the cache holds one", xlabel="windows", ylabel="bytes read, all tokens = 1")
    neighbours = axes.twinx()
    neighbours.plot(numbers, [row.neighbours for row in rows], ":", marker="x", label="neighbours", color=_BLUE)
    neighbours.set_ylim(bottom=0)
    neighbours.set_ylabel("neighbours near each other, by chance = 1")
    axes.legend(loc="upper left")
    neighbours.legend(loc="lower right")


def _draw_padding(axes: Axes, choices: Sequence[ContextLength], own: int) -> None:
    """Draws the share of padding over context length: packed, and with one padded sequence a row."""
    sizes = [choice.max_seq_len for choice in choices]
    for padding, label, color in (
        ([100 - 100 * choice.padded_efficiency for choice in choices], "one sequence a row, padded", _RED),
        ([100 - 100 * choice.efficiency for choice in choices], "packed", _GREEN),
    ):
        axes.plot(sizes, padding, marker="o", label=label, color=color)
    axes.axvline(own, color="grey", linestyle=":", label="this dataset")
    axes.set_xscale("log", base=2)
    axes.set(title="padding by context length", xlabel="max_seq_len in tokens", ylabel="padding in %")
    axes.legend()


def _draw_waiting(axes: Axes, rows: Sequence[WaitingRow], field: str, title: str, own_value: int) -> None:
    """Draws GPU time lost to waiting over one field of the rows ("world_size" or "max_seq_len").

    Rows that could not be measured are left out. A vertical line marks `own_value`, the run's value of the field.
    """
    measured = [row for row in rows if row.waiting is not None]
    for line in _WAITING_LINES:
        percents = [100 * (row.idle(line.balance, at_steps=line.at_steps) or 0.0) for row in measured]
        values = [getattr(row, field) for row in measured]
        axes.plot(values, percents, line.style, marker="o", label=line.label, color=line.color)
    axes.axvline(own_value, color="grey", linestyle=":", label="this run")
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.set(
        title=title, xlabel="ranks" if field == "world_size" else "max_seq_len in tokens", ylabel="idle GPU time in %"
    )
    axes.legend()


def save_comparison(compared: PackerComparison, path: Path) -> None:
    """Saves a PNG of bars: how far packers, and one padded sequence a row, are from the proven bound.

    Args:
        compared: the packers' results.
        path: the PNG to write.
    """
    bound = compared.lower_bound
    rows = {each.algorithm: each.bins for each in compared.packers} | {
        "one a row, padded": compared.without_packing[0].rows
    }
    gaps = [100 * (count - bound) / bound for count in rows.values()]
    figure, axes = pyplot.subplots(figsize=(8, 0.6 + 0.4 * len(rows)), layout="constrained")
    bars = axes.barh(list(rows), gaps, color=_BLUE)
    axes.bar_label(bars, [f"{gap:.4f} %" for gap in gaps], padding=3)
    axes.invert_yaxis()
    axes.set_xscale("symlog", linthresh=_LINEAR_PERCENT)
    axes.set_xlim(0, 20 * max(*gaps, _LINEAR_PERCENT))  # leaves room for the labels on the right
    title = f"{compared.name}, max_seq_len {compared.options.max_seq_len:,}"
    axes.set(title=title, xlabel="rows beyond the proven lower bound, in %")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
