"""Counts of lengths: those that a prepared folder was planned from, and what an over-length policy makes of counts.

Leaves counts that users give as a file to `histogram_input`, rooms to `packhorse.topology.RoomRule`, and the sequences
themselves to `packhorse.prepare`.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import OverLength, PlanOptions, PreparedDataset
from packhorse.parameters import parameter
from packhorse.topology import RoomRule


def fit(counts: Mapping[int, int], longest: int, policy: OverLength) -> Counter[int]:
    """Applies an over-length policy to counts.

    Args:
        counts: length in tokens → number of sequences.
        longest: the most tokens that fit a bin.
        policy: "drop" leaves longer sequences out, "split" cuts them into pieces, any other truncates them.

    Returns:
        Length in tokens → number of sequences and pieces; no length is over `longest`.

    Raises:
        ValueError: longest is below 1.

    Example:
        >>> fit({4: 3, 25: 1}, 10, "split")
        Counter({4: 3, 10: 2, 5: 1})
    """
    if longest < 1:
        raise ValueError(
            "not one token of a sequence fits a bin: raise "
            + parameter("max_seq_len")
            + ", or lower align or "
            + parameter("extra_tokens")
        )
    fitting: Counter[int] = Counter()
    for length, count in counts.items():
        if length <= longest:
            fitting[length] += count
        elif policy == "split":
            whole, rest = divmod(length, longest)
            fitting[longest] += whole * count
            if rest:
                fitting[rest] += count
        elif policy != "drop":
            fitting[longest] += count
    return fitting


def options_of(dataset: PreparedDataset) -> PlanOptions:
    """Returns the options for planning a dataset's items again.

    For sequences these are the dataset's own. The counts of a grouped dataset hold the room of each group, so its
    options are without alignment and extra tokens, and drop a group that is too long, because a group is never cut.

    Example:
        >>> from packhorse.dataset import open_prepared
        >>> options_of(open_prepared("datasets/corpus")).max_seq_len
        8
    """
    options = dataset.manifest.options
    return replace(options, align=1, extra_tokens=0, over_length="drop") if dataset.groups else options


def rule_of(dataset: PreparedDataset) -> RoomRule:
    """Returns the rule by which an item's length becomes its room, for planning a dataset's items again.

    Example:
        >>> from packhorse.dataset import open_prepared
        >>> rule_of(open_prepared("datasets/corpus")).room(5)
        5
    """
    return options_of(dataset).rooms


def lengths_before(dataset: PreparedDataset) -> Counter[int]:
    """Returns the lengths that a dataset was prepared from: length in tokens → number of sequences.

    A folder stores rooms, and the lengths of the sequences that were too long. Each room becomes the longest length
    that has this room: the original length, or with `align` one that is up to align - 1 tokens longer. For a grouped
    dataset the result counts the rooms of its groups, without groups that were left out.

    Example:
        >>> from packhorse.dataset import open_prepared
        >>> lengths_before(open_prepared("datasets/corpus"))
        Counter({3: 2, 5: 2})
    """
    if dataset.groups:
        return Counter(dataset.counts)
    rule = rule_of(dataset)
    too_long = histogram_of(dataset.over_length()[:, 1])  # rows are (id, length)
    rooms = Counter(dataset.counts)
    # What became of the sequences that were too long is taken away, and these sequences themselves are added.
    for length, count in fit(too_long, rule.longest, dataset.manifest.options.over_length).items():
        rooms[rule.room(length)] -= count
    before = Counter({rule.longest_in(room): count for room, count in rooms.items() if count})
    before.update(too_long)
    return before


def histogram_of(lengths: NDArray[np.int64]) -> Counter[int]:
    """Returns length → number of sequences.

    Example:
        >>> histogram_of(np.array([5, 3, 5]))
        Counter({5: 2, 3: 1})
    """
    distinct, counts = np.unique(lengths, return_counts=True)
    return Counter(dict(zip(distinct.tolist(), counts.tolist(), strict=True)))
