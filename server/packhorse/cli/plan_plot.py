"""The picture of `packhorse plan compare`: bins beyond the proven bound, by packer."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot


def save_comparison(bins: dict[str, tuple[int, int]], name: str, max_seq_len: int, path: Path) -> None:
    """Saves a PNG of bars.

    Args:
        bins: packer → (bins, proven bound), in the order to draw.
        name: of the dataset.
        max_seq_len: in tokens.
        path: the PNG to write.
    """
    gaps = [100 * (count - bound) / bound for count, bound in bins.values()]
    figure, axes = pyplot.subplots(figsize=(8, 0.6 + 0.4 * len(bins)), layout="constrained")
    bars = axes.barh(list(bins), gaps, color="#4c72b0")
    axes.bar_label(bars, [f"{gap:.4f} %" for gap in gaps], padding=3)
    axes.invert_yaxis()
    axes.set_xscale("symlog", linthresh=0.001)
    axes.margins(x=0.15)
    axes.set(title=f"{name}, max_seq_len {max_seq_len:,}", xlabel="bins beyond the proven lower bound, in %")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
