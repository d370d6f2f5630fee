"""Shortest-pack-first and longest-pack-first histogram packing (SPFHP, LPFHP).

Owns the two packers of M. M. Krell, M. Kosec, S. P. Perez, A. Fitzgibbon, "Efficient Sequence Packing without
Cross-contamination" (2021), which take the bin touched last among those with equal room; the loops are in `bin_groups`.
Their "depth" is the most sequences in a bin.
"""

from collections import Counter

from packhorse.packing.bin_groups import fill_decreasing, spread_decreasing
from packhorse.packing.plan import Template


def shortest_pack_first(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """Packs longest first, each sequence into the emptiest bin; those that fit nowhere open a bin each.

    Args:
        pairs: (length, count) by descending length, as `checked_counts` returns them.
        capacity: max_seq_len, in tokens.
        limit: the most sequences in a bin.

    Returns:
        Template → multiplicity.
    """
    return spread_decreasing(pairs, capacity, limit, lambda group: (-group.room, -group.stamp), one_per_new_bin=True)


def longest_pack_first(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """Packs longest first, each length into the fullest bins with room, as many copies as fit.

    Args:
        pairs: (length, count) by descending length, as `checked_counts` returns them.
        capacity: max_seq_len, in tokens.
        limit: the most sequences in a bin.

    Returns:
        Template → multiplicity.
    """
    return fill_decreasing(pairs, capacity, limit, lambda group: (group.room, -group.stamp))
