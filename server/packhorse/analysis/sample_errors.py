"""Standard errors: how far the efficiencies of a sample may be from those of the whole corpus.

Leaves drawing the sample to `packhorse.tokenize`, and the efficiencies to `unpacked` and `packhorse.packing`.
"""

from collections import Counter
from math import sqrt

import numpy as np

from packhorse.analysis.unpacked import ways_without_packing
from packhorse.dataset import PreparedDataset
from packhorse.packing import pack_histogram
from packhorse.topology import RoomRule

_TENTHS = 10


def standard_errors(dataset: PreparedDataset) -> dict[str, float]:
    """Returns the standard error of each efficiency of a dataset that was prepared from a sample.

    The sequences are cut into tenths in the order of the sample, so that rows which were neighbours in the corpus stay
    together. Each tenth is packed by itself. The standard error is the standard deviation of the ten efficiencies,
    divided by √10 (the method of random groups: Wolter, Introduction to Variance Estimation, chapter 2).

    Args:
        dataset: a dataset without groups and resources, whose ids are row numbers of the sample.

    Returns:
        "packed", and each way of `ways_without_packing` → one standard error of its efficiency, as a share; empty if
        there are fewer than 10 sequences.

    Example:
        >>> from packhorse.dataset import open_prepared
        >>> standard_errors(open_prepared("datasets/corpus"))
        {}
    """
    plan, options = dataset.plan, dataset.manifest.options
    if plan.num_sequences < _TENTHS:
        return {}
    # The room of each sequence: in the order of the pool, which ascends by room, and then in the order of rows.
    rooms = np.repeat(plan.rooms, plan.counts)[np.argsort(dataset.ids, kind="stable")]
    efficiencies: dict[str, list[float]] = {}
    for tenth in np.array_split(rooms, _TENTHS):
        counts = Counter(tenth.tolist())
        packed = pack_histogram(counts, options.max_seq_len, max_sequences_per_bin=options.max_sequences_per_bin)
        efficiencies.setdefault("packed", []).append(packed.efficiency)
        rule = RoomRule(options.max_seq_len)  # `counts` are of rooms already, which all fit
        for way in ways_without_packing(counts, rule, "error", options.max_sequences_per_bin):
            efficiencies.setdefault(way.way, []).append(way.efficiency)
    return {name: float(np.std(values, ddof=1)) / sqrt(_TENTHS) for name, values in efficiencies.items()}
