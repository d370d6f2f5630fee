"""A data root with mixtures, and what they are in this process."""

import shutil

import numpy as np

from packhorse.server.datasets.lazy_catalog import LazyCatalog
from packhorse.server.datasets.mixtures import Mixtures

STAGED = """
epoch_bins = 500
bins_per_step = 6

[[stages]]
until_bins = 710
weights = {rows = 70, named = 30}

[[stages]]
by = "tokens"
weights = {rows = 4, named = 4, truncated = 2}

[components.named]
shuffle = "windowed(3)"
"""
"""Its second stage begins at position 210 of epoch 1."""


def make_root(corpus, root):
    """Copies three datasets and writes `staged`."""
    for name in ("rows", "named", "truncated"):
        shutil.copytree(corpus.root / name, root / name)
    (root / "staged.mixture.toml").write_text(STAGED)
    return root


def in_process(root, name):
    """A mixture as `packhorse.dataset` makes it."""
    return Mixtures(LazyCatalog(root, set())).get(name)


def bins_of(source, positions=None):
    """(dataset, ids, lengths) of bins by position."""
    bins = source.bins(np.arange(source.num_bins) if positions is None else positions)
    parts = (np.split(array, bins.bin_ends[:-1]) for array in (bins.ids, bins.lengths))
    columns = (bins.positions.tolist(), bins.component_ids.tolist(), *parts)
    return {
        position: (dataset, ids.tolist(), lengths.tolist())
        for position, dataset, ids, lengths in zip(*columns, strict=True)
    }


def bins_of_blocks(blocks):
    """The same of blocks, those that the remainder policy added left out."""
    found = {}
    for block in blocks:
        columns = (block.positions.tolist(), block.component_ids.tolist(), block.bins())
        for position, dataset, (ids, lengths) in zip(*columns, strict=True):
            if position >= 0:
                found[position] = (dataset, ids.tolist(), lengths.tolist())
    return found
