"""First-fit-decreasing on histograms: longest first, each sequence into the bin opened earliest that has room.

Owns the order in which it takes bins; the loop is in `bin_groups`.
"""

from collections import Counter

from packhorse.packing.bin_groups import fill_decreasing
from packhorse.packing.plan import Template


def first_fit_decreasing(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """Packs (length, count) pairs; the same bins as sequence by sequence, in O(distinct lengths · log).

    Args:
        pairs: (length, count) by descending length, as `checked_counts` returns them.
        capacity: max_seq_len, in tokens.
        limit: the most sequences in a bin.

    Returns:
        Template → multiplicity.
    """
    return fill_decreasing(pairs, capacity, limit, lambda group: (group.first, 0))
