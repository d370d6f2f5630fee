"""Rows of four groups, and what an epoch makes of them; for the tests of groups."""

import numpy as np
import pyarrow as pa

from packhorse.dataset import open_prepared
from packhorse.formats import MegatronWriter

LENGTHS = [5, 3, 9, 1, 1, 1, 7, 8, 2]
PROMPTS = [40, 40, 7, 7, 7, 7, 12, 50, 50]
IDS = [900, 3, 17, 18, 19, 2, 77, 1, 0]
MEMBERS = {40: [900, 3], 7: [17, 18, 19, 2], 12: [77], 50: [1, 0]}
TABLE = pa.table({"n": LENGTHS, "prompt": PROMPTS, "id": IDS})


def by_group(folder):
    """Group → its sequences' ids, in order, as an epoch's bins have them."""
    epoch = open_prepared(folder).epoch(0, seed=1)
    bins = epoch.bins(np.arange(epoch.num_bins))
    found = {}
    for group, sequence in zip(bins.group_ids.tolist(), bins.ids.tolist(), strict=True):
        found.setdefault(group, []).append(sequence)
    return found


def write_index(path, lengths):
    """A Megatron index of sequences of these lengths."""
    with MegatronWriter(path, vocab_size=9, overwrite=True) as writer:
        for length in lengths:
            writer.append(np.zeros(length, dtype=np.int64))
    return path.with_suffix(".idx")
