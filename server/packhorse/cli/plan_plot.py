"""The picture of `packhorse plan compare`: rows beyond the proven bound, by packer and without packing."""

from collections.abc import Mapping
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

_LINEAR_PERCENT = 0.001
"""Below this the axis is linear, so that a gap of 0 is shown."""


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
