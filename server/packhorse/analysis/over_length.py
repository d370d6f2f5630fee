"""What an over-length policy makes of counts, and what they were before it.

Owns both directions, over histograms: O(distinct lengths), however many sequences there are. Leaves rooms to
`packhorse.topology.RoomRule` and the sequences themselves to `prepare`.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from packhorse.dataset import OverLength, PlanOptions, PreparedDataset
from packhorse.topology import RoomRule


def fit(counts: Mapping[int, int], longest: int, policy: OverLength) -> Counter[int]:
    """Returns what is left to pack of some sequences.

    Args:
        counts: length in tokens → number of sequences.
        longest: the most tokens that fit a bin.
        policy: "drop" leaves longer sequences out, "split" cuts them into pieces, and any other cuts them off.

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
            "not one token of a sequence fits a bin: raise --max-seq-len, or lower --align, --extra-tokens"
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
    """Returns the options as they apply to what is planned: groups take the sum of rooms, and none is cut."""
    options = dataset.manifest.options
    return replace(options, align=1, extra_tokens=0, over_length="drop") if dataset.has_groups else options


def rule_of(dataset: PreparedDataset) -> RoomRule:
    """Returns how rooms follow from lengths in a prepared dataset."""
    return options_of(dataset).rooms


def lengths_before(dataset: PreparedDataset) -> Counter[int]:
    """Returns the lengths that a dataset was prepared from: length in tokens → number of sequences.

    The folder holds rooms, and beside them the lengths of the sequences that were too long. A room is turned into the
    longest length that has it, which is the length itself unless the dataset was prepared with `align`. With it a
    length may come out up to align - 1 tokens too long. Its room is exact; how it splits into shorter pieces nearly so.
    Of a grouped dataset it is the rooms of groups, without those that were left out.
    """
    if dataset.has_groups:
        return Counter(dataset.counts)
    rule = rule_of(dataset)
    lengths, counts = np.unique(dataset.over_length()[:, 1], return_counts=True)
    too_long = Counter(dict(zip(lengths.tolist(), counts.tolist(), strict=True)))
    rooms = Counter(dataset.counts)
    for length, count in fit(too_long, rule.longest, dataset.manifest.options.over_length).items():
        rooms[rule.room(length)] -= count
    before = Counter({rule.longest_in(room): count for room, count in rooms.items() if count})
    before.update(too_long)
    return before
