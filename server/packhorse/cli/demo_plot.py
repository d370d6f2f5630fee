"""The demo's picture: how long the documents are, and how full their bins."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import pyplot

from packhorse.dataset import PreparedDataset


def save_plot(dataset: PreparedDataset, path: Path) -> None:
    """Saves a PNG with the length histogram and the share of bins by fullness, packed and padded.

    Args:
        dataset: what was prepared.
        path: the PNG to write.
    """
    capacity = dataset.manifest.max_seq_len
    lengths = dataset.plan.lengths
    counts = dataset.plan.counts
    sums = np.array([sum(template) for template in dataset.templates])
    multiplicities = np.array(list(dataset.templates.values()))

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
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
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
