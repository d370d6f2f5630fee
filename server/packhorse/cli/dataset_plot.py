"""A prepared dataset's picture: how long its sequences are, how full its bins, what other context lengths waste."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import pyplot

from packhorse.cli.context_lengths import ContextLength
from packhorse.dataset import PreparedDataset


def save_plot(dataset: PreparedDataset, path: Path, choices: Sequence[ContextLength] = ()) -> None:
    """Saves a PNG with the length histogram and the share of rows by fullness, packed and padded.

    Args:
        dataset: what was prepared.
        path: the PNG to write.
        choices: context lengths to draw a curve of padding waste over; without any there is none.
    """
    capacity = dataset.manifest.max_seq_len
    lengths = dataset.plan.lengths
    counts = dataset.plan.counts
    sums = np.array([sum(template) for template in dataset.templates])
    multiplicities = np.array(list(dataset.templates.values()))

    panels = 3 if choices else 2
    figure, all_axes = pyplot.subplots(1, panels, figsize=(5.5 * panels, 4.2), layout="constrained")
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
        sizes = [choice.max_seq_len for choice in choices]
        for padding, label, color in (
            ([100 - 100 * choice.padded_efficiency for choice in choices], "one sequence a row, padded", "#c44e52"),
            ([100 - 100 * choice.efficiency for choice in choices], "packed", "#55a868"),
        ):
            all_axes[2].plot(sizes, padding, marker="o", label=label, color=color)
        all_axes[2].axvline(capacity, color="grey", linestyle=":", label="this dataset")
        all_axes[2].set_xscale("log", base=2)
        all_axes[2].set(title="padding by context length", xlabel="max_seq_len in tokens", ylabel="padding in %")
        all_axes[2].legend()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
