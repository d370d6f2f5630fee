"""Published histogram packers: first-fit, worst-fit, greedy knapsack, length-sorted, and Krell et al.'s two.

Owns packers that ours are compared with, all by descending length. Leaves the loops over groups of equal bins, and what
packers take and return, to `best_fit`.

Shortest- and longest-pack-first are those of M. M. Krell, M. Kosec, S. P. Perez, A. Fitzgibbon, "Efficient Sequence
Packing without Cross-contamination" (2021): among bins with equal room they take the one touched last. Their
"depth" is the most sequences in a bin.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping

from packhorse.packing.best_fit import (
    fill_decreasing,
    least_room_latest,
    most_room,
    most_room_latest,
    opened_first,
    spread_decreasing,
)
from packhorse.packing.counts import checked_counts
from packhorse.packing.plan import Template


def shortest_pack_first(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """Packs longest first, each sequence into the emptiest bin; those that fit nowhere open a bin each."""
    return spread_decreasing(pairs, capacity, limit, most_room_latest, one_per_new_bin=True)


def longest_pack_first(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """Packs longest first, each length into the fullest bins with room, as many copies as fit."""
    return fill_decreasing(pairs, capacity, limit, least_room_latest)


def first_fit_decreasing(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """Packs each sequence into the bin opened earliest that has room, in O(distinct lengths · log)."""
    return fill_decreasing(pairs, capacity, limit, opened_first)


def greedy_knapsack(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """Fills each bin with the longest that fit.

    A bin repeats for as long as every length in it lasts, and each repetition uses one of them up or leaves fewer than
    a bin's worth: at most two templates per length.
    """
    lengths = [length for length, _ in reversed(pairs)]
    left = [count for _, count in reversed(pairs)]
    not_empty = list(range(len(lengths) + 1))  # [i + 1]: guess at the largest index <= i with sequences left, plus 1

    def longest_at_most(index: int) -> int:
        slot = index + 1
        while not_empty[slot] != slot:
            not_empty[slot] = not_empty[not_empty[slot]]
            slot = not_empty[slot]
        return slot - 1

    templates: Counter[Template] = Counter()
    while (index := longest_at_most(len(lengths) - 1)) >= 0:
        room, size = capacity, 0
        repeats: list[tuple[int, int]] = []
        while index >= 0 and size < limit:
            copies = min(room // lengths[index], left[index], limit - size)
            repeats.append((index, copies))
            room -= copies * lengths[index]
            size += copies
            index = longest_at_most(min(index, bisect_right(lengths, room, 0, index)) - 1)
        multiplicity = min(left[i] // copies for i, copies in repeats)
        templates[tuple(lengths[i] for i, copies in repeats for _ in range(copies))] += multiplicity
        for i, copies in repeats:
            left[i] -= multiplicity * copies
            if not left[i]:
                not_empty[i + 1] = i
    return templates


def length_sorted(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """Packs into one open bin, which the first sequence that does not fit closes for good."""
    templates: Counter[Template] = Counter()
    current: list[int] = []
    room = capacity
    for length, count in pairs:
        copies = min(count, room // length, limit - len(current))
        current.extend([length] * copies)
        room -= copies * length
        left = count - copies
        if left:  # the pairs begin with an empty bin, and that takes at least one
            templates[tuple(current)] += 1
            per_bin = min(capacity // length, limit)
            num_full = (left - 1) // per_bin  # the last bin stays open, full or not
            if num_full:
                templates[(length,) * per_bin] += num_full
            current = [length] * (left - num_full * per_bin)
            room = capacity - len(current) * length
    if current:
        templates[tuple(current)] += 1
    return templates


def worst_fit_decreasing(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """Packs each sequence into the bin with the most room, the earliest opened of several, as in seqpack."""
    return spread_decreasing(pairs, capacity, limit, most_room, one_per_new_bin=False)


def worst_fit_batched(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """As `worst_fit_decreasing`, but a bin that is taken is filled with the length: O(distinct lengths · log)."""
    return fill_decreasing(pairs, capacity, limit, most_room)


def pack_length_histogram(length_counts: Mapping[int, int], max_seq_len: int) -> Counter[Template]:
    """Packs a histogram by worst-fit-decreasing, with the templates of seqpack's function of this name.

    Example:
        >>> pack_length_histogram({5: 2, 3: 3}, max_seq_len=8)
        Counter({(5, 3): 2, (3,): 1})

    Args:
        length_counts: length in tokens → number of sequences; zeros are ignored.
        max_seq_len: a bin's capacity in tokens.

    Returns:
        Template → multiplicity.

    Raises:
        ValueError: a length outside [1, max_seq_len], a negative count, or anything that is not an integer.
    """
    pairs, limit = checked_counts(length_counts, max_seq_len, None)
    return worst_fit_decreasing(pairs, int(max_seq_len), limit)


def pack_length_histogram_batched(length_counts: Mapping[int, int], max_seq_len: int) -> Counter[Template]:
    """Packs a histogram by `worst_fit_batched`, with the templates of seqpack's function of this name.

    Costs O(distinct lengths · log), whatever the counts.

    Example:
        >>> pack_length_histogram_batched({5: 2, 3: 2}, max_seq_len=8)
        Counter({(5, 3): 2})

    Args:
        length_counts: length in tokens → number of sequences; zeros are ignored.
        max_seq_len: a bin's capacity in tokens.

    Returns:
        Template → multiplicity.

    Raises:
        ValueError: a length outside [1, max_seq_len], a negative count, or anything that is not an integer.
    """
    pairs, limit = checked_counts(length_counts, max_seq_len, None)
    return worst_fit_batched(pairs, int(max_seq_len), limit)
